"""What every way of waiting shares: *sockets, time and one engine → rounds to wake*.

Rules: a driver adds how to watch a socket, how to wait and how to run something that blocks; it decides nothing.
Everything here runs in the loop's own thread. An instance that breaks is detached and tried again later; nobody waits
for it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import Any, TypeVar

from lockcore.arguments import check_lease
from lockcore.clock import FAR_FUTURE_NS, monotonic_ns
from lockcore.engine import Engine
from lockcore.errors import ForeignProcessError, InstanceClosedError, InstanceError, InstanceRefusedError, ProtocolError
from lockcore.keeper import KeepAlive, keeper_steps
from lockcore.membership import twin_of
from lockcore.model import Denied, Lease
from lockcore.rounds import ExtendRound, Round, SetRound
from lockcore.settings import Settings
from lockcore.shells.closing import Closing
from lockcore.shells.forked import forget_after_fork
from lockcore.shells.handshake import Connected, Shaken
from lockcore.shells.target import Target
from lockcore.shells.wire import Wire
from lockcore.turns import Turn, Wanted

T = TypeVar("T")
FEW = 4
NO_WAIT: object = 0  # the default of `wait_ms`, told apart by identity: whatever else is passed is looked at
WHOLE: object = int
TEXT: object = str


def _nowhere(_data: bytes) -> int:
    """What is sent here is dropped."""
    return 0


class Driver:
    """The common half of a shell. Subclasses give the underscored hooks that raise here."""

    def __init__(self, targets: Sequence[Target], settings: Settings) -> None:
        self.targets = targets
        self.engine = Engine([target.address for target in targets], settings, self._want_flush)
        self.wires: list[Wire | None] = [None] * len(targets)
        self.random = Random()
        self.closed = False
        self.calls: set[Any] = set()
        self.keepers: dict[bytes, KeepAlive] = {}
        self._inherited: list[Wire | None] = []
        self._tick_at = FAR_FUTURE_NS
        self._flush_due = False
        self.engine.turns.want_wake = self._wake_later
        forget_after_fork(self)

    def make_foreign(self) -> None:
        """This process is a child of the one that connected: its sockets and owner tokens are not ours to use.

        The sockets stay as they are: what watches them (an epoll set) may still be shared with the parent. Nothing is
        sent to them: what our copies of its callers clean up may be what the parent is just being granted.
        """
        self.engine.foreign = self.engine.retired = self.closed = True
        self.engine.voters = ()
        for pipe in self.engine.pipes:
            pipe.transmit = _nowhere if pipe.is_open else None
        self._inherited, self.wires = self.wires, [None] * len(self.wires)

    # -- hooks --------------------------------------------------------------------------------------------------------

    def _want_flush(self) -> None:
        raise NotImplementedError

    def _tick_later(self, delay_ns: int) -> None:
        raise NotImplementedError

    def _wake_later(self) -> None:
        """Call `wake` from the loop itself, soon."""
        raise NotImplementedError

    def _watch(self, index: int, wire: Wire) -> None:
        raise NotImplementedError

    def _watch_writes(self, index: int, wanted: bool) -> None:
        raise NotImplementedError

    def _unwatch(self, index: int) -> None:
        raise NotImplementedError

    def _connect_later(self, index: int) -> None:
        """Run `shake` where it may block, then call `connected` in the loop's thread."""
        raise NotImplementedError

    def wake(self) -> None:
        """Wake whoever waits for a settled round. Called by the loop itself, never by one of its callers."""
        raise NotImplementedError

    def background(self, steps: Generator[Wanted, int, T], done: Callable[[T], None]) -> Callable[[], object]:
        """Run steps beside all callers, then `done` with their value. Returns what stops them, without `done`."""
        raise NotImplementedError

    def check_home(self) -> None:
        """Raises CannotWaitError unless it may be used from where the caller is, ForeignProcessError, and
        InstanceClosedError."""
        self.check_usable()

    # -- connections --------------------------------------------------------------------------------------------------

    def admit(self, shaken: Sequence[Shaken]) -> None:
        """The first contact with all. Raises InstanceError when one is refused or a quorum is out of reach."""
        failures = [result for result in shaken if isinstance(result, InstanceError)]
        try:
            for failure in failures:
                if isinstance(failure, InstanceRefusedError):
                    raise failure
            if len(shaken) - len(failures) < self.engine.quorum:
                names = ", ".join(failure.instance for failure in failures)
                reached = len(shaken) - len(failures)
                raise InstanceClosedError(
                    names,
                    f"only {reached} of {len(shaken)} instances can be reached and a quorum needs {self.engine.quorum} "
                    f"({failures[0].detail})",
                )
            for index, result in enumerate(shaken):
                twin = self._attach(index, result)
                if twin is not None:
                    raise twin
        except InstanceError:
            for index, result in enumerate(shaken):
                if isinstance(result, Connected) and self.wires[index] is None:
                    result.sock.close()
            self.shut()
            raise
        self.arm(monotonic_ns())

    def connected(self, index: int, result: Shaken) -> None:
        """A later contact: the instance re-joins, or is tried again after its back-off."""
        if self.closed:
            if isinstance(result, Connected):
                result.sock.close()
            return
        self._attach(index, result)
        self.flush()
        self.arm(monotonic_ns())
        self._wake_later()

    def _attach(self, index: int, result: Shaken) -> InstanceRefusedError | None:
        engine, now_ns = self.engine, monotonic_ns()
        if isinstance(result, Connected):
            twin = twin_of(engine.members, index, result.hello)
            if twin is None:
                wire = Wire(
                    result.sock,
                    lambda wanted: self._watch_writes(index, wanted),
                    lambda error: self.broken(index, error),
                )
                self.wires[index] = wire
                self._watch(index, wire)
                engine.attach(index, result.hello, result.dialect, wire.transmit, now_ns)
                return None
            result.sock.close()
            same = f"it is the same server as {self.targets[twin].address}; each may vote once"
            result = InstanceRefusedError(self.targets[index].address, same)
        refused = isinstance(result, InstanceRefusedError)
        engine.detach(index, result.detail or result.reason, now_ns, refused=refused)
        return result if isinstance(result, InstanceRefusedError) else None

    def broken(self, index: int, error: Exception) -> None:
        """The connection of an instance ended."""
        wire = self.wires[index]
        if wire is None:
            return
        self._unwatch(index)
        self.wires[index] = None
        wire.close(hard=True)
        now_ns = monotonic_ns()
        self.engine.detach(index, str(error) or type(error).__name__, now_ns)
        self.arm(now_ns)  # to try again, even if nobody asks for anything
        self._wake_later()

    # -- bytes and time -----------------------------------------------------------------------------------------------

    def readable(self, index: int) -> None:
        """A socket has bytes: count the votes in them, wake who is settled."""
        wire = self.wires[index]
        if wire is None:
            return
        engine = self.engine
        voters = engine.voters
        try:
            for data in wire.receive():
                engine.received(index, data, monotonic_ns())
        except (OSError, ProtocolError) as error:
            self.broken(index, error)
        except BaseException:
            self.interrupted()
            raise
        if engine.voters is not voters:
            self.arm(monotonic_ns())  # for the end of an abstention, even if nobody asks for anything
        if engine.ready:
            self.wake()

    def writable(self, index: int) -> None:
        """A socket takes bytes again."""
        wire = self.wires[index]
        if wire is not None:
            wire.writable()

    def flush(self) -> None:
        """Send what is batched and see to the next tick."""
        now_ns = monotonic_ns()
        try:
            self.engine.flush(now_ns)
        except BaseException:
            self.interrupted()
            raise
        if not now_ns <= self._tick_at <= self.engine.deadlines.due_ns:
            self.arm(now_ns)

    def arm(self, now_ns: int) -> None:
        """Set the timer to the next tick."""
        next_ns = self.engine.next_tick_ns(now_ns)
        if next_ns != FAR_FUTURE_NS and not self.closed:
            self._tick_at = FAR_FUTURE_NS  # until the timer is really set
            self._tick_later(max(0, next_ns - now_ns))
        self._tick_at = next_ns

    def tick(self) -> None:
        """The timer fired. Replies that wait in the sockets count first: it may be this process that was held up."""
        if self.closed:
            return
        self._tick_at, self._flush_due = FAR_FUTURE_NS, False
        now_ns = monotonic_ns()  # before it looks: it may be held up between looking and judging, too
        for index, pipe in enumerate(self.engine.pipes):
            if pipe.pending:
                self.readable(index)
        for index in self.engine.silent(now_ns):
            self.broken(index, TimeoutError("it was asked and answered nothing for too long"))
        try:
            self.engine.tick(now_ns)
            self.connect_due(now_ns)
        except BaseException:
            self.interrupted()
            raise
        self.flush()
        self.arm(now_ns)
        if self.engine.ready:
            self.wake()

    def connect_due(self, now_ns: int) -> None:
        """Connect to every instance that is due."""
        for index in self.engine.due_connects(now_ns):
            self._connect_later(index)

    def interrupted(self) -> None:
        """Ctrl-C in the middle of the engine: nobody knows what was sent or counted, so every connection is broken off.

        Votes still out are SILENT, releases still out are owed, and all is sound again after reconnecting.
        """
        self.engine.interrupted()
        for index in range(len(self.wires)):
            self.broken(index, InterruptedError("interrupted in the middle of an operation"))

    def release_interrupted(self, lease: Lease) -> None:
        """Ctrl-C before a release was sent for certain: it is owed to every instance."""
        self.interrupted()
        won = lease.round
        if isinstance(won, SetRound):
            self.engine.clean_up(won)

    @property
    def is_quiet(self) -> bool:
        """True when little is in flight: a batch then leaves at once instead of at the end of the turn."""
        engine = self.engine
        if engine.queued > FEW:
            return False
        return max((pipe.awaited for pipe in engine.voters), default=0) <= FEW

    # -- rounds -------------------------------------------------------------------------------------------------------

    def submit(self, round_: Round | Turn) -> None:
        """Queue a round of any kind; of a turn nothing is sent, only its time is seen to."""
        self.check_usable()
        if isinstance(round_, Turn):
            if round_.due_ns < self._tick_at:
                self.arm(monotonic_ns())
            return
        try:
            if isinstance(round_, SetRound):
                self.check_open()
                self.engine.submit(round_)
            elif isinstance(round_, ExtendRound):
                self.engine.submit_extend(round_)
            else:
                self.engine.submit_release(round_)
        except BaseException:
            self.interrupted()
            raise

    def check_usable(self) -> None:
        """Raises ForeignProcessError after a fork, InstanceClosedError after `close`."""
        if self.engine.foreign:
            raise ForeignProcessError
        if self.closed:
            raise InstanceClosedError("all instances", "this Redlock is closed")

    def check_open(self) -> None:
        """As `check_usable`; raises also once closing has begun: no lock is taken any more."""
        self.check_usable()
        if self.engine.retired:
            raise InstanceClosedError("all instances", "this Redlock is closed")

    def keep(self, keeper: KeepAlive) -> None:
        """Extend the keeper's lease in the background until it is stopped, released or gone."""
        self.check_home()
        self.check_open()
        token = keeper.lease.owner_token
        steps = keeper_steps(keeper, self.engine)
        self.stop_keeping(keeper.lease)
        self.keepers[token] = keeper

        def done(denied: Denied) -> None:
            self.keepers.pop(token, None)
            keeper.ended(denied)

        stop = self.background(steps, done)

        def cancel() -> None:
            self.keepers.pop(token, None)
            stop()

        keeper.cancel = cancel

    def stop_keeping(self, lease: Lease) -> None:
        """A lease that is being released is not extended any more."""
        check_lease(lease)
        keeper = self.keepers.pop(lease.owner_token, None)
        if keeper is not None:
            keeper.stop()

    def begin_close(self, drain_s: float) -> Closing:
        """No lock is taken or kept any more. A shell goes on until that is over, then calls `end_close`."""
        for keeper in list(self.keepers.values()):
            keeper.stop()
        return Closing(self, drain_s)

    def end_close(self, closing: Closing) -> None:
        """What nobody took is released, then every socket closed."""
        try:
            if not self.closed:
                closing.give_up()
                self.flush()
        finally:
            self.shut()

    def shut(self) -> None:
        """Close every socket and settle what still waits. What was written is still executed."""
        self.closed = True
        self.engine.retire()
        for index, wire in enumerate(self.wires):
            if wire is not None:
                self._unwatch(index)
                self.wires[index] = None
                wire.close()
                self.engine.detach(index, "closed", monotonic_ns())
