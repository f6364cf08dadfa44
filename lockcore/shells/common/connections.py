"""Opens and closes the connections of one Redlock.

Input: finished handshakes, broken sockets and forks. Output: the instances that may vote.

This file covers a Redlock from its first contact until it is closed.

Rules: all code here runs in the loop's own thread. A Redlock refuses to work in a forked child,
because the child would share sockets with its parent and repeat owner tokens. A fork hook marks the
copy in a forked child, so operations need no check of the process id.
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

# The pause between two checks whether a close is over.
LOOK_S = 0.001

# If no lease is released for this time, a close stops waiting for the other leases.
GRACE_NS = 100 * NS_PER_MS

# If more time than this passes between two checks, the excess does not count. During the excess,
# this process and its holders stood still.
STILL_NS = 10 * NS_PER_MS
CANNOT_HEAR = (
    "the retry policy push works like poll, because push needs a quorum of servers that allow "
    "this user GETRANGE, PUBLISH, SUBSCRIBE, and CLIENT TRACKING over RESP3; the README lists the "
    "ACL rules that push needs"
)


class Connections:
    """One engine and its sockets.

    `calls` contains the operations whose callers have not taken the result yet.

    A subclass defines the other methods. `_want_flush` is called when a batch begins. `_wake_later`
    makes the loop call `wake` soon. `_watch`, `_watch_writes` and `_unwatch` watch a socket.
    `_connect_later` runs `shake` in a thread or greenlet that may block. After `shake`, it runs
    `connected` in the loop's thread. `flush` sends the batch. `arm` sets the timer to the next
    tick.
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
        """Stop this copy of the Redlock, because it is in a forked child.

        The child does not close the sockets. The parent watches them with an epoll set, and the
        child may share this set. The child sends nothing on the shared sockets. The child has
        copies of the parent's callers. If these copies sent releases, the parent would lose
        attempts that it is about to win.
        """
        self.engine.foreign = self.engine.retired = self.closed = True
        self.engine.voters = ()
        for pipe in self.engine.pipes:
            # The new `transmit` drops all bytes.
            pipe.transmit = (lambda _data: 0) if pipe.is_open else None
        self._inherited = self.wires
        self.wires = [None] * len(self.wires)

    def admit(self, shaken: Sequence[Shaken]) -> None:
        """Take the results of the first contact with all instances.

        Raises InstanceError if an instance must not take part, or if too few instances answer.
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
            # A warning may also be an exception (python -W error).
            for index, result in enumerate(shaken):
                if isinstance(result, Connected) and self.wires[index] is None:
                    result.sock.close()
            self.shut()
            raise
        # A closer look at the peer costs two connections. The cause of a later failure is not worth
        # this price.
        self.targets = [replace(target, look_closer=False) for target in self.targets]
        self.arm(monotonic_ns())

    def connected(self, index: int, result: Shaken) -> None:
        """Take the result of a handshake after the first contact.

        If the handshake succeeded, lockcore uses the instance again. If the handshake failed, the
        client connects again later.
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
            same = (
                f"this is the same server as {self.targets[twin].address}; each server may vote "
                "only once"
            )
            result = InstanceRefusedError(self.targets[index].address, same)
        refused = isinstance(result, InstanceRefusedError)
        engine.members.detach(index, result.detail or result.reason, now_ns, refused=refused)
        return result if isinstance(result, InstanceRefusedError) else None

    def connect_due(self, now_ns: int) -> None:
        """Connect to every instance that is due."""
        for index in self.engine.members.due_connects(now_ns):
            self._connect_later(index)

    def broken(self, index: int, error: Exception) -> None:
        """Note that the connection of an instance has ended."""
        wire = self.wires[index]
        if wire is None:
            return
        self._unwatch(index)
        self.wires[index] = None
        wire.close(hard=True)
        now_ns = monotonic_ns()
        self.engine.members.detach(index, str(error) or type(error).__name__, now_ns)
        # This sets the timer, so the instance is tried again even without new operations.
        self.arm(now_ns)
        self._wake_later()

    def shut(self) -> None:
        """Close every socket and settle all waits.

        The servers still execute all commands that lockcore has sent before.
        """
        self.closed = True
        self.engine.retire()
        for index, wire in enumerate(self.wires):
            if wire is not None:
                self._unwatch(index)
                self.wires[index] = None
                wire.close()
                self.engine.members.detach(index, "closed", monotonic_ns())


class Drain:
    """The close of a Redlock.

    First, the Redlock begins no more attempts, and waiting callers get an error. Then the close
    waits for operations in flight. The close also waits for leases, until no lease is left or until
    nobody releases a lease for GRACE_NS. At the deadline, lockcore releases results that no caller
    has taken. If an instance has owed releases (owed.py), the client tries once to connect to this
    instance. If the connection succeeds, the client sends the owed releases.
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
        """True if the close need not wait any longer, or if its time is over."""
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
        """True if owed releases may still be sent.

        This method tries once to connect to each instance with owed releases.
        """
        owed = [index for index, debts in enumerate(self._engine.members.debts) if debts]
        members = self._engine.members.states
        for index in owed:
            if index not in self._tried:
                self._tried.add(index)
                members[index].retry_ns = now_ns
                self._driver.connect_due(now_ns)
        return any(members[index].connecting for index in owed)

    def give_up(self) -> None:
        """Release undecided attempts, and settled attempts that no caller has taken.

        The driver then sends the releases.
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
