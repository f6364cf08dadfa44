"""The connections of one Redlock: *handshakes, broken sockets, forks → who votes and who does not*.

It covers everything from the first contact until nothing keeps the Redlock from being closed.

Rules: everything here runs in the loop's own thread. A child process refuses to be used: it would
share sockets with its parent and repeat owner tokens. To mark it costs nothing per operation.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakSet

from lockcore.clock import FAR_FUTURE_NS, NS_PER_MS, NS_PER_S, monotonic_ns
from lockcore.engine.engine import Engine
from lockcore.errors import InstanceClosedError, InstanceError, InstanceRefusedError
from lockcore.facts.membership import twin_of
from lockcore.rounds.rounds import SetRound
from lockcore.settings import Settings
from lockcore.shells.common.fast import Wire
from lockcore.shells.common.handshake import Connected, Shaken
from lockcore.shells.common.target import InstanceTarget

# The pause between two looks whether a close is over.
LOOK_S = 0.001

# If nobody gives a lease back for so long, the leases are held or forgotten.
GRACE_NS = 100 * NS_PER_MS

# More time between two looks does not count: this process stood still, and its holders with it.
STILL_NS = 10 * NS_PER_MS
CANNOT_HEAR = (
    "retry policy push polls: no quorum of these servers lets this user GETRANGE, PUBLISH and "
    "SUBSCRIBE over RESP3 with CLIENT TRACKING; the README lists what an ACL needs for it"
)


class Connections:
    """One engine and its sockets.

    `calls` are the operations whose callers have yet to take the result.

    A subclass gives the rest. `_want_flush`: a batch begins. `_wake_later`: call `wake` from the
    loop itself, soon. `_watch`, `_watch_writes` and `_unwatch` are for a socket. `_connect_later`:
    run `shake` where it may block, then `connected` in the loop's thread. `flush`: send what is
    batched. `arm`: set the timer to the next tick.
    """

    _want_flush: Callable[[], None]
    _wake_later: Callable[[], None]
    _watch: Callable[[int, Wire], None]
    _watch_writes: Callable[[int, bool], None]
    _unwatch: Callable[[int], None]
    _connect_later: Callable[[int], None]
    flush: Callable[[], None]
    arm: Callable[[int], None]

    def __init__(self, targets: Sequence[InstanceTarget], settings: Settings) -> None:
        self.engine = Engine([target.address for target in targets], settings, self._want_flush)
        inbox = self.engine.handoff.mail.inbox if self.engine.handoff is not None else b""
        self.targets = [replace(target, inbox=inbox) for target in targets]
        self.engine.turns.want_wake = self._wake_later
        self.wires: list[Wire | None] = [None] * len(targets)
        self.closed = False
        self.calls: set[Any] = set()
        self._inherited: list[Wire | None] = []
        _KNOWN.add(self)

    def make_foreign(self) -> None:
        """This process is a child of the one that connected.

        The sockets stay as they are: what watches them (an epoll set) may still be shared with the
        parent. Nothing is sent on them: the attempts that our copies of its callers clean up may be
        those that the parent is just being granted.
        """
        self.engine.foreign = self.engine.retired = self.closed = True
        self.engine.voters = ()
        for pipe in self.engine.pipes:
            # This drops whatever is sent.
            pipe.transmit = (lambda _data: 0) if pipe.is_open else None
        self._inherited = self.wires
        self.wires = [None] * len(self.wires)

    def admit(self, shaken: Sequence[Shaken]) -> None:
        """Take the results of the first contact with all instances.

        Raises InstanceError when an instance is refused or a quorum is out of reach.
        """
        failures = [result for result in shaken if isinstance(result, InstanceError)]
        reached = len(shaken) - len(failures)
        try:
            for failure in failures:
                if isinstance(failure, InstanceRefusedError):
                    raise failure
            if reached < self.engine.quorum:
                raise InstanceClosedError(
                    ", ".join(failure.instance for failure in failures),
                    f"only {reached} of {len(shaken)} instances can be reached and a quorum needs "
                    f"{self.engine.quorum} ({failures[0].detail})",
                )
            for index, result in enumerate(shaken):
                if (twin := self._attach(index, result)) is not None:
                    raise twin
            if self.engine.handoff is not None and not self.engine.handoff.mail.arrives:
                warnings.warn(CANNOT_HEAR, RuntimeWarning, stacklevel=4)
        except BaseException:
            # A warning, too, may be an exception (python -W error).
            for index, result in enumerate(shaken):
                if isinstance(result, Connected) and self.wires[index] is None:
                    result.sock.close()
            self.shut()
            raise
        # A closer look costs two connections, and nobody reads the cause of a later failure in a
        # hurry.
        self.targets = [replace(target, look_closer=False) for target in self.targets]
        self.arm(monotonic_ns())

    def connected(self, index: int, result: Shaken) -> None:
        """Take the result of a later contact.

        The instance re-joins, or it is tried again after its back-off.
        """
        if self.closed:
            if isinstance(result, Connected):
                result.sock.close()
            return
        self._attach(index, result)
        self.flush()
        self.arm(monotonic_ns())
        self._wake_later()

    def _attach(self, index: int, result: Shaken) -> InstanceRefusedError | None:
        engine = self.engine
        now_ns = monotonic_ns()
        if isinstance(result, Connected):
            twin = twin_of(engine.members.states, index, result.hello)
            if twin is None:
                wire = Wire(
                    result.sock,
                    lambda is_needed: self._watch_writes(index, is_needed),
                    lambda error: self.broken(index, error),
                )
                self.wires[index] = wire
                self._watch(index, wire)
                engine.members.attach(index, result.hello, result.dialect, wire.transmit, now_ns)
                return None
            result.sock.close()
            same = f"it is the same server as {self.targets[twin].address}; each may vote once"
            result = InstanceRefusedError(self.targets[index].address, same)
        refused = isinstance(result, InstanceRefusedError)
        engine.members.detach(index, result.detail or result.reason, now_ns, refused=refused)
        return result if isinstance(result, InstanceRefusedError) else None

    def connect_due(self, now_ns: int) -> None:
        """Connect to every instance that is due."""
        for index in self.engine.members.due_connects(now_ns):
            self._connect_later(index)

    def broken(self, index: int, error: Exception) -> None:
        """The connection of an instance ended."""
        wire = self.wires[index]
        if wire is None:
            return
        self._unwatch(index)
        self.wires[index] = None
        wire.close(hard=True)
        now_ns = monotonic_ns()
        self.engine.members.detach(index, str(error) or type(error).__name__, now_ns)
        # It is tried again, even if nobody asks for anything.
        self.arm(now_ns)
        self._wake_later()

    def shut(self) -> None:
        """Close every socket and settle what still waits. What was written is still executed."""
        self.closed = True
        self.engine.retire()
        for index, wire in enumerate(self.wires):
            if wire is not None:
                self._unwatch(index)
                self.wires[index] = None
                wire.close()
                self.engine.members.detach(index, "closed", monotonic_ns())


class Drain:
    """How a Redlock is closed.

    First no attempt is begun any more, and callers that wait for one are told. Then it waits for
    what is in flight, and for every lease as long as holders give theirs back. What nobody has
    taken by the deadline is released. What is owed goes out where a connection can be had at once.
    """

    def __init__(self, driver: Connections, drain_s: float) -> None:
        self._driver = driver
        self._engine = driver.engine
        self._looked_ns = now_ns = monotonic_ns()
        self._idle_ns = 0
        self.deadline_ns = now_ns + int(drain_s * NS_PER_S)
        self._held = 0
        self._tried: set[int] = set()
        self._engine.retire()

    def is_over(self, now_ns: int) -> bool:
        """True when nothing is left to wait for, or no time."""
        engine = self._engine
        if now_ns >= self.deadline_ns:
            return True
        held = engine.unreleased
        since_ns = now_ns - self._looked_ns
        self._looked_ns = now_ns
        if not engine.is_idle or self._driver.calls or self._owes(now_ns) or held != self._held:
            self._idle_ns = 0
            self._held = held
            return False
        self._idle_ns += min(since_ns, STILL_NS)
        return held <= 0 or self._idle_ns >= GRACE_NS

    def _owes(self, now_ns: int) -> bool:
        """True if what is owed may still go out. Each instance is tried once."""
        owed = [index for index, debts in enumerate(self._engine.members.debts) if debts]
        members = self._engine.members.states
        for index in owed:
            if index not in self._tried:
                self._tried.add(index)
                members[index].retry_ns = now_ns
                self._driver.connect_due(now_ns)
        return any(members[index].connecting for index in owed)

    def give_up(self) -> None:
        """Release what is still undecided, and what is settled and nobody has taken.

        The driver then sends it.
        """
        self._engine.deadlines.expire(FAR_FUTURE_NS)
        for settled in self._engine.ready:
            if isinstance(settled, SetRound):
                settled.clean_up()


_KNOWN: WeakSet[Connections] = WeakSet()


def _mark_foreign() -> None:
    for connections in _KNOWN:
        connections.make_foreign()


os.register_at_fork(after_in_child=_mark_foreign)
