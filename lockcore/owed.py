"""Releases that an instance has still to get: *what it did not take, time → sent again, until the
key is gone*. Pure.

Rules: a release is owed until max_ttl + drift has passed since it is known that it was not taken,
not since it was asked for: its SET may have left long after it was made, where this process was
held up. It is counted for nobody. A new connection gets all that is owed at once. On a connection
that stands one of them asks, after a pause of 50 ms that doubles to 2 s; when that one is taken,
the others follow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from hiredis import ReplyError

from lockcore.awaited import Core, InstancePipe, SentAgain
from lockcore.clock import FAR_FUTURE_NS, NS_PER_MS, NS_PER_S, drift_ns
from lockcore.commands import COMPARE_AND_DELETE, eval_of
from lockcore.resp import error_kind
from lockcore.settings import Settings

FIRST_PAUSE_NS = 50 * NS_PER_MS
LONGEST_PAUSE_NS = 2 * NS_PER_S
MOST = 1 << 16  # releases per instance; beyond, the oldest keys are left to their TTL
NEVER_TAKEN: Final = frozenset(["WRONGTYPE", "NOSCRIPT"])


def is_owed(reply: object) -> bool:
    """True when a release that was answered so is sent again later. A compare-and-delete may be
    sent many times.

    | answer | what it means | the release |
    |---|---|---|
    | `:1`, `:0` | the key was ours, or it was not | done |
    | WRONGTYPE | the key holds something else, so it is not ours | done |
    | NOSCRIPT, to the script's source | the server loses what it is sent; the same bytes help nobody | given up |
    | what is no error (`#t`, `+QUEUED`) | the server speaks another protocol | given up |
    | BUSY, LOADING, MISCONF, OOM, READONLY, MASTERDOWN, NOREPLICAS | the server is unwell, or a replica | owed |
    | NOAUTH, NOPERM, WRONGPASS, DENIED | somebody changed a password or an ACL, and may mend it | owed |
    | MOVED, ASK, CROSSSLOT, TRYAGAIN, CLUSTERDOWN | somebody made a cluster of it, and may undo that | owed |
    | ERR | a proxy that lost its server, or a script that met OOM or MISCONF before Redis 7 | owed |
    | EXECABORT, and every word that nobody knows | it was not taken, and nobody knows for how long | owed |

    An error that stays costs little: one command after 50 ms, then ever fewer, and none once the
    key has expired.
    """
    return isinstance(reply, ReplyError) and error_kind(reply) not in NEVER_TAKEN


class OwedRelease:
    """One of them, on its way or waiting. `claim`: key and owner token."""

    __slots__ = ("claim", "debts", "started_ns", "until_ns")
    undecided = 0
    success = b":1\r\n"
    success_reply = 1

    def __init__(self, debts: Debts, claim: bytes, until_ns: int) -> None:
        self.debts = debts
        self.claim = claim
        self.until_ns = until_ns
        self.started_ns = 0  # when it was sent last

    @property
    def source(self) -> bytes:
        """Its script in full, for an instance that does not know it."""
        return eval_of(COMPARE_AND_DELETE, self.claim)

    def reply(self, reply: object, pipe: InstancePipe) -> None:
        """The instance took it, or not yet; an unknown script is sent again with its source."""
        if error_kind(reply) == "NOSCRIPT":
            engine = self.debts.engine
            engine.unicast(pipe, self.source, SentAgain(self, engine.now_ns))
        else:
            self.last_reply(reply, pipe)

    def last_reply(self, reply: object, pipe: InstancePipe) -> None:
        """The instance took it, can never take it, or not yet."""
        pipe.late_replies += 1
        put_off = is_owed(reply)
        if put_off:
            pipe.count_error(error_kind(reply))
        self.debts.answered(self, put_off=put_off)

    def silence(self, pipe: InstancePipe) -> None:
        """The connection broke."""
        self.debts.lost(self)


class Debts:
    """What is owed to one instance. `due_ns`: when the next one asks; `wake` is told of it."""

    __slots__ = (
        "_lasts_ns",
        "_pause_ns",
        "_put_off",
        "_under_way",
        "_waiting",
        "_wake",
        "due_ns",
        "engine",
        "pipe",
    )

    def __init__(
        self, engine: Core, pipe: InstancePipe, settings: Settings, wake: Callable[[int], object]
    ) -> None:
        self.engine = engine
        self.pipe = pipe
        self._wake = wake
        ttl_ms = settings.max_ttl_ms  # the lease may have been extended
        self._lasts_ns = ttl_ms * NS_PER_MS + drift_ns(ttl_ms, settings.drift_factor)
        self._waiting: deque[OwedRelease] = deque(maxlen=MOST)
        self._under_way = 0
        self._put_off = False  # something of what is under way was
        self._pause_ns = FIRST_PAUSE_NS
        self.due_ns = FAR_FUTURE_NS

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, claim: bytes, heard_ns: int) -> None:
        """A release was not taken, as is known since then."""
        self._waiting.append(OwedRelease(self, claim, heard_ns + self._lasts_ns))
        if self.pipe.is_open and not self._under_way and self.due_ns == FAR_FUTURE_NS:
            self._pause()

    def forget(self, now_ns: int) -> None:
        """Drop those whose keys have expired."""
        waiting = [owed for owed in self._waiting if now_ns < owed.until_ns]
        self._waiting = deque(waiting, MOST)

    def connected(self, now_ns: int) -> None:
        """A new connection: send all that is owed."""
        self._under_way = 0
        self._put_off = False
        self.due_ns = FAR_FUTURE_NS
        self._pause_ns = FIRST_PAUSE_NS
        self._pay(now_ns)

    def _pay(self, now_ns: int) -> None:
        for _ in range(len(self._waiting)):
            self._send(now_ns)

    def tick(self, now_ns: int) -> None:
        """One of them asks, when it is time."""
        if self.due_ns <= now_ns:
            self.due_ns = FAR_FUTURE_NS
            self.forget(now_ns)
            if self.pipe.is_open and self._waiting:
                self._send(now_ns)

    def _send(self, now_ns: int) -> None:
        owed = self._waiting.popleft()
        if now_ns < owed.until_ns:
            owed.started_ns = now_ns  # its own age, not that of its SET
            self._under_way += 1
            self.engine.unicast(self.pipe, self.pipe.dialect.encode_release(owed.claim), owed)

    def _pause(self) -> None:
        self.due_ns = self.engine.now_ns + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, LONGEST_PAUSE_NS)
        self._wake(self.due_ns)

    def lost(self, owed: OwedRelease) -> None:
        """Its connection broke: it waits for the next one."""
        self._under_way -= 1
        self._waiting.append(owed)

    def answered(self, owed: OwedRelease, *, put_off: bool) -> None:
        """The last of those under way decides what comes next: a pause, the others, or nothing."""
        self._under_way -= 1
        if put_off:
            self._waiting.append(owed)
            self._put_off = True
        if self._under_way:
            return
        if self._put_off:
            self._put_off = False
            self._pause()
        elif self._waiting:
            self._pay(self.engine.now_ns)
        else:
            self._pause_ns = FIRST_PAUSE_NS
