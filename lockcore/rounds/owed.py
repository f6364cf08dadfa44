"""Releases that an instance has still to get: *what it did not take, time → sent again*.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md: a constant is
`Final`, and what a connection counts (`OwedRelease`) has slots and no instance dictionary.

Rules: a release is owed until its key is gone, that is until max_ttl + drift has passed. The time
runs from when it is known that the release was not taken, not from when it was asked for: its SET
may have left long after it was made, where this process was held up. An owed release is counted for
nobody. A new connection gets all that is owed at once. On a connection that stands, one release
asks after a pause of 50 ms that doubles to 2 s; when that one is taken, the others follow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from hiredis import ReplyError

from lockcore.clock import FAR_FUTURE_NS, NS_PER_MS, NS_PER_S, drift_ns
from lockcore.rounds.awaited import Core, InstancePipe, SentAgain
from lockcore.rounds.commands import COMPARE_AND_DELETE, eval_of
from lockcore.rounds.resp import error_kind
from lockcore.settings import Settings

FIRST_PAUSE_NS = 50 * NS_PER_MS
LONGEST_PAUSE_NS = 2 * NS_PER_S

# So many releases are owed to one instance. Beyond that the oldest keys are left to their TTL.
MOST = 1 << 16

# The errors by which a release is not taken now and will never be.
NEVER_TAKEN: Final = frozenset(["WRONGTYPE", "NOSCRIPT"])


def is_owed(reply: object) -> bool:
    """True when a release that was answered so is sent again later.

    A compare-and-delete may be sent many times. These answers end it:

        `:1`, `:0`      The key was ours, or it was not. The release is done.
        WRONGTYPE       The key holds something else, so it is not ours. The release is done.
        NOSCRIPT        It answers the script's source: the server loses what it is sent, and the
                        same bytes help nobody. The release is given up.
        no error        (`#t`, `+QUEUED`) The server speaks another protocol. It is given up.

    After these the release is owed:

        BUSY, LOADING, MISCONF, OOM, READONLY, MASTERDOWN, NOREPLICAS
                        The server is unwell, or a replica.
        NOAUTH, NOPERM, WRONGPASS, DENIED
                        Somebody changed a password or an ACL, and may mend it.
        MOVED, ASK, CROSSSLOT, TRYAGAIN, CLUSTERDOWN
                        Somebody made a cluster of the server, and may undo that.
        ERR             A proxy lost its server, or a script met OOM or MISCONF before Redis 7.
        EXECABORT, and every word that nobody knows
                        The release was not taken, and nobody knows for how long.

    An error that stays costs little: one command after 50 ms, then ever fewer, and none once the
    key has expired.
    """
    return isinstance(reply, ReplyError) and error_kind(reply) not in NEVER_TAKEN


class OwedRelease:
    """A release that is owed, on its way or waiting.

    `claim` is its key and owner token. `started_ns` is when it was sent last. It is not owed any
    more from `until_ns` on.
    """

    __slots__ = ("claim", "debts", "started_ns", "until_ns")

    def __init__(self, debts: Debts, claim: bytes, until_ns: int) -> None:
        self.debts = debts
        self.claim = claim
        self.until_ns = until_ns
        self.started_ns = 0

    @property
    def source(self) -> bytes:
        """Its script in full, for an instance that does not know it."""
        return eval_of(COMPARE_AND_DELETE, self.claim)

    def reply(self, reply: object, pipe: InstancePipe) -> None:
        """The instance took it, or not yet. An unknown script is sent again with its source."""
        if error_kind(reply) == "NOSCRIPT":
            engine = self.debts.engine
            engine.unicast(pipe, self.source, SentAgain(self, engine.now_ns))
        else:
            self.last_reply(reply, pipe)

    def last_reply(self, reply: object, pipe: InstancePipe) -> None:
        """The instance took it, can never take it, or not yet."""
        pipe.count_late()
        put_off = is_owed(reply)
        if put_off:
            pipe.count_error(error_kind(reply))
        self.debts.answered(self, put_off=put_off)

    def silence(self, pipe: InstancePipe) -> None:
        """The connection broke before the reply."""
        self.debts.lost(self)


# How a debt is paid. A release that nobody took leaves a key until its TTL ends, and every caller
# that wants the key waits for that. But an instance that cannot take one release mostly cannot take
# the others: it is loading, or out of memory, or somebody changed its ACL. To send all of them
# again and again would be a flood on a server that is unwell. So one release asks, after a pause
# that doubles, and only when it is taken the others follow. `_under_way` counts what has been sent
# and not answered: the last answer decides what comes next, so that an error among many is seen.
# The age of a debt runs from when it became known. An earlier version took the time at which the
# release was asked for. Its SET could leave later, and the key outlived the debt: the explorer
# found that in schedule 3,343 of seed 1.
class Debts:
    """What is owed to one instance.

    `due_ns` is when the next release asks; `wake` is called with that time. `_put_off` is True when
    one of those under way was answered with an error.
    """

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
        # A lease may have been extended, so its own TTL says nothing about its key.
        ttl_ms = settings.max_ttl_ms
        self._lasts_ns = ttl_ms * NS_PER_MS + drift_ns(ttl_ms, settings.drift_factor)
        self._waiting: deque[OwedRelease] = deque(maxlen=MOST)
        self._under_way = 0
        self._put_off = False
        self._pause_ns = FIRST_PAUSE_NS
        self.due_ns = FAR_FUTURE_NS

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, claim: bytes, noticed_ns: int) -> None:
        """A release was not taken, as is known since `noticed_ns`."""
        self._waiting.append(OwedRelease(self, claim, noticed_ns + self._lasts_ns))
        if self.pipe.is_open and not self._under_way and self.due_ns == FAR_FUTURE_NS:
            self._pause()

    def forget(self, now_ns: int) -> None:
        """Drop the releases whose keys have expired."""
        waiting = [owed for owed in self._waiting if now_ns < owed.until_ns]
        self._waiting = deque(waiting, MOST)

    def connected(self, now_ns: int) -> None:
        """There is a new connection: send all that is owed."""
        self._under_way = 0
        self._put_off = False
        self.due_ns = FAR_FUTURE_NS
        self._pause_ns = FIRST_PAUSE_NS
        self._pay(now_ns)

    def _pay(self, now_ns: int) -> None:
        for _ in range(len(self._waiting)):
            self._send(now_ns)

    def tick(self, now_ns: int) -> None:
        """Let one release ask, when it is time."""
        if self.due_ns <= now_ns:
            self.due_ns = FAR_FUTURE_NS
            self.forget(now_ns)
            if self.pipe.is_open and self._waiting:
                self._send(now_ns)

    def _send(self, now_ns: int) -> None:
        owed = self._waiting.popleft()
        if now_ns < owed.until_ns:
            # The age of a connection's oldest command is its lag, so this is not the SET's start.
            owed.started_ns = now_ns
            self._under_way += 1
            encode = self.pipe.dialect.encode_release
            self.engine.unicast(self.pipe, encode(owed.claim), owed)

    def _pause(self) -> None:
        self.due_ns = self.engine.now_ns + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, LONGEST_PAUSE_NS)
        self._wake(self.due_ns)

    def lost(self, owed: OwedRelease) -> None:
        """The connection of a release broke: the release waits for the next connection."""
        self._under_way -= 1
        self._waiting.append(owed)

    def answered(self, owed: OwedRelease, *, put_off: bool) -> None:
        """The last answer of those under way decides: a pause, the others, or nothing."""
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
