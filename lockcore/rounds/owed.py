"""Sends the releases again that an instance did not take.

Input: failed releases, and the time. Output: commands to send.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. Because of the
compilation, constants are `Final`, and `OwedRelease` has slots.

Rules: an owed release is a release that an instance did not take. The release is owed until its key
has expired. The key expires at most max_ttl + drift after lockcore noticed the failure of the
release. This time does not begin when the caller requests the release, because a delayed process
may send the SET after this request. The reply to an owed release does not count as a vote. A new
connection gets all owed releases at once. On an open connection, lockcore first pauses and then
sends one release as a test. The pause begins at 50 ms and doubles up to 2 s. Once the instance
takes the test release, the other releases follow.
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

# At most this number of releases is owed to one instance. Beyond it, the oldest releases are
# dropped, and their keys expire.
MOST = 1 << 16

# After these errors the instance will never take the release.
NEVER_TAKEN: Final = frozenset(["WRONGTYPE", "NOSCRIPT"])


def is_owed(reply: object) -> bool:
    """True if a release with this answer is sent again later.

    A compare-and-delete may be sent many times. After the following answers lockcore does not send
    the release again:

        `:1`, `:0`      The key was ours, or it was not. The release is done.
        WRONGTYPE       The key holds something else, so it is not ours. The release is done.
        NOSCRIPT        This answers the script's full source, so the server loses commands. The
                        same bytes would not help. The release is given up.
        no error        (`#t`, `+QUEUED`) The server speaks another protocol. It is given up.

    After the following answers lockcore sends the release again later:

        BUSY, LOADING, MISCONF, OOM, READONLY, MASTERDOWN, NOREPLICAS
                        The server is unwell, or a replica.
        NOAUTH, NOPERM, WRONGPASS, DENIED
                        Somebody changed a password or an ACL, and may mend it.
        MOVED, ASK, CROSSSLOT, TRYAGAIN, CLUSTERDOWN
                        Somebody made a cluster of the server, and may undo that.
        ERR             A proxy lost its server, or a script met OOM or MISCONF before Redis 7.
        EXECABORT, and every unknown word
                        The release was not taken, for an unknown time.

    A permanent error costs few commands. lockcore sends the first command after 50 ms. After this,
    the pauses between the commands become longer. After the key has expired, lockcore sends no more
    commands.
    """
    return isinstance(reply, ReplyError) and error_kind(reply) not in NEVER_TAKEN


class OwedRelease:
    """A release that an instance did not take.

    The release was sent again, or it will be sent later.

    `claim` contains the key and the owner token. `started_ns` is the time when the release was last
    sent. The release is owed until `until_ns`.
    """

    __slots__ = ("claim", "debts", "started_ns", "until_ns")

    def __init__(self, debts: Debts, claim: bytes, until_ns: int) -> None:
        self.debts = debts
        self.claim = claim
        self.until_ns = until_ns
        self.started_ns = 0

    @property
    def source(self) -> bytes:
        """The full script of the release, for an instance that does not know the script."""
        return eval_of(COMPARE_AND_DELETE, self.claim)

    def reply(self, reply: object, pipe: InstancePipe) -> None:
        """Take the instance's answer. After NOSCRIPT, send the script again with its source."""
        if error_kind(reply) == "NOSCRIPT":
            engine = self.debts.engine
            engine.unicast(pipe, self.source, SentAgain(self, engine.now_ns))
        else:
            self.last_reply(reply, pipe)

    def last_reply(self, reply: object, pipe: InstancePipe) -> None:
        """Take an answer. A first NOSCRIPT never gets here, because `reply` handles it.

        The answer decides if the release is done, given up, or still owed.
        """
        pipe.count_late()
        put_off = is_owed(reply)
        if put_off:
            pipe.count_error(error_kind(reply))
        self.debts.answered(self, put_off=put_off)

    def silence(self, pipe: InstancePipe) -> None:
        """Keep the release for the next connection, because this connection brought no reply."""
        self.debts.lost(self)


# This is how owed releases are sent. Without its release, a key stays until its TTL ends, and every
# caller for the key waits. But if an instance cannot take one release, it usually cannot take the
# others either. For example, it is loading, it is out of memory, or somebody has changed its ACL.
# If all releases were sent again and again, they would flood a sick server. So one release is sent
# as a test, after a pause that doubles. Once the instance takes it, the other releases follow.
# `_under_way` counts releases that were sent and not answered. Only the last answer decides the
# next step, so no error among many answers is missed. The age of a debt counts from the failure of
# the release. An earlier version counted from the request of the release. But the SET could leave
# after this request, so the key could outlive the debt. The explorer found this in schedule 3,343
# of seed 1.
class Debts:
    """The owed releases of one instance.

    `due_ns` is the time of the next test release. When this time is set, `wake` is called with it.
    `_put_off` is True if one of the sent releases must be sent again, because the instance answered
    with an error.
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
        """Add a release.

        lockcore noticed at `noticed_ns` that the instance did not take the release.
        """
        self._waiting.append(OwedRelease(self, claim, noticed_ns + self._lasts_ns))
        if self.pipe.is_open and not self._under_way and self.due_ns == FAR_FUTURE_NS:
            self._pause()

    def forget(self, now_ns: int) -> None:
        """Drop the releases whose keys have expired."""
        waiting = [owed for owed in self._waiting if now_ns < owed.until_ns]
        self._waiting = deque(waiting, MOST)

    def connected(self, now_ns: int) -> None:
        """Send all owed releases on a new connection."""
        self._under_way = 0
        self._put_off = False
        self.due_ns = FAR_FUTURE_NS
        self._pause_ns = FIRST_PAUSE_NS
        self._pay(now_ns)

    def _pay(self, now_ns: int) -> None:
        for _ in range(len(self._waiting)):
            self._send(now_ns)

    def tick(self, now_ns: int) -> None:
        """If a test is due, send one release as a test."""
        if self.due_ns <= now_ns:
            self.due_ns = FAR_FUTURE_NS
            self.forget(now_ns)
            if self.pipe.is_open and self._waiting:
                self._send(now_ns)

    def _send(self, now_ns: int) -> None:
        owed = self._waiting.popleft()
        if now_ns < owed.until_ns:
            # The lag of a connection is the age of its oldest command, so this is not the SET's
            # start.
            owed.started_ns = now_ns
            self._under_way += 1
            encode = self.pipe.dialect.encode_release
            self.engine.unicast(self.pipe, encode(owed.claim), owed)

    def _pause(self) -> None:
        self.due_ns = self.engine.now_ns + self._pause_ns
        self._pause_ns = min(2 * self._pause_ns, LONGEST_PAUSE_NS)
        self._wake(self.due_ns)

    def lost(self, owed: OwedRelease) -> None:
        """Keep a release for the next connection, because this connection brought no reply."""
        self._under_way -= 1
        self._waiting.append(owed)

    def answered(self, owed: OwedRelease, *, put_off: bool) -> None:
        """Take an answer. After the last missing answer, decide the next step.

        If one of the answers was an error, the next step is a pause and a new test. If no answer
        was an error, the next step is to send the other releases.
        """
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
