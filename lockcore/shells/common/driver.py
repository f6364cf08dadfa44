"""The base of the drivers of all shells.

Input: events of sockets and timers. Output: bytes to send, and callers to wake.

Rules: a shell's driver adds how to watch a socket, how to wait, and how to run blocking code. The
driver makes no decisions about locks. All code here runs in the loop's own thread.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from functools import partial
from random import Random
from threading import RLock
from typing import TypeVar

from lockcore.clock import FAR_FUTURE_NS, NS_PER_MS, monotonic_ns
from lockcore.engine.observed import Listener
from lockcore.engine.turns import Request, Turn
from lockcore.errors import ForeignProcessError, InstanceClosedError, ProtocolError
from lockcore.facts.arguments import check_lease
from lockcore.facts.model import Denied, Lease, Outcome
from lockcore.observer import Observer
from lockcore.rounds.pipeline import await_few
from lockcore.rounds.rounds import ExtendRound, Round, SetRound
from lockcore.settings import Settings
from lockcore.shells.common.connections import Connections, Drain
from lockcore.shells.common.keeper import KeepAlive, keeper_steps, over
from lockcore.shells.common.target import InstanceTarget
from lockcore.shells.common.vigil import PASS_NS, Vigil

T = TypeVar("T")
FEW = 4
SLACK_NS = NS_PER_MS // 2


class LoopDriver(Connections):
    """The base class of the drivers of all shells.

    A subclass defines the other methods. `_tick_later` calls `tick` after a time in ns. `_soon`
    makes the loop call a function in its next pass. `_stay_awake` keeps the loop from sleeping. The
    loop then calls `look_again` in every pass, until `look_again` returns False. `_hand_out` wakes
    the callers whose rounds are settled (awaited.py).
    """

    # True: callers live in other threads and may call at any time.
    for_threads = False
    _tick_later: Callable[[int], None]
    _soon: Callable[[Callable[[], None]], None]
    _stay_awake: Callable[[], None]
    _hand_out: Callable[[], None]

    def __init__(self, targets: Sequence[InstanceTarget], settings: Settings) -> None:
        super().__init__(targets, settings)
        self.random = Random()
        self.keepers: dict[bytes, KeepAlive] = {}
        self._tick_at = FAR_FUTURE_NS
        self._flush_due = self._waking = False
        if settings.observer is not None:
            self.listen(settings.observer)
        self._vigil = Vigil() if len(targets) == 1 and not self.for_threads else None

    def make_foreign(self) -> None:
        """See Connections.make_foreign. All keepers of the child end, because the keepers of the
        parent extend the leases."""
        super().make_foreign()
        for keeper in list(self.keepers.values()):
            cancel = keeper.cancel
            keeper.forked(over(keeper.lease, Outcome.UNREACHABLE, self.engine, monotonic_ns()))
            # A forked child has no copy of the I/O thread of a Redlock for threads.
            if cancel is not None and not self.for_threads:
                cancel()
        self.keepers.clear()

    def background(
        self, steps: Generator[Request, int, T], done: Callable[[T], None]
    ) -> Callable[[], object]:
        """Run `steps` in the background, then call `done` with the value of `steps`.

        Returns a function that stops the steps. After a stop, `done` is not called.
        """
        raise NotImplementedError

    def beside(self, job: Callable[[], object]) -> None:
        """Run `job` in a thread or greenlet in which it may wait. Other callers do not wait for
        `job`.

        `job` calls code of the user. An event loop has no such thread or greenlet, so it runs `job`
        at once, and `job` must not wait.
        """
        job()

    def listen(self, observer: Observer) -> Listener:
        """Report attempts to `observer` from now on. The returned listener reports operations."""
        # The lock is an RLock, because a signal's handler may take it again in the same thread.
        # There is no lock for greenlets, because a greenlet that waits in its observer must not
        # block other greenlets.
        alone = RLock() if self.for_threads else nullcontext()
        listener = Listener(observer, self.can_be_interrupted, alone)
        self.engine.attempt_listener = listener.observe
        return listener

    def can_be_interrupted(self) -> bool:
        """True if an interrupt may reach the code that runs now (observed.py)."""
        return True

    def check_home(self) -> None:
        """Make the checks of `check_usable`, and also check the thread or loop of the caller.

        Raises CannotWaitError if the Redlock cannot be used in this thread or loop.
        """
        self.check_usable()

    # -- bytes and time ----------------------------------------------------------------------------

    def readable(self, index: int) -> None:
        """Read a socket that has bytes. Count the votes, and wake the settled callers."""
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
            # An abstention ends at a tick, so a tick is needed even without new operations.
            self.arm(monotonic_ns())
        if engine.ready:
            self.wake()

    def writable(self, index: int) -> None:
        """Send more of the kept bytes, because the socket is writable again."""
        wire = self.wires[index]
        if wire is not None:
            wire.writable()

    # The trick of `_waking`. One reply settles the rounds of many callers. Each caller goes on at
    # once and starts a new operation. A batch costs about 110 µs of the client's CPU, however few
    # commands it has. The costs are five sends, five reads, and the watching (N = 5;
    # docs/lab/lockcore.md). So nothing is flushed while callers are woken, and no nested wake
    # happens. All new commands leave afterwards, in one write per connection. `_waking` must always
    # be reset. If `_waking` stayed True, no command would leave any more, and no caller would be
    # woken.
    def wake(self) -> None:
        """Wake the callers of settled rounds. Only the loop itself calls this method."""
        self._waking = True
        try:
            self._hand_out()
        finally:
            # The `finally` also runs after an interrupt. So the queued commands leave, and the
            # other callers are woken later.
            self._waking = False
            if self.engine.ready:
                self._wake_later()
            if self.engine.outbox.dirty and not self._flush_due:
                self._want_flush()

    def _wake_later(self) -> None:
        if not self._waking:
            self._soon(self.wake)

    def _want_flush(self) -> None:
        engine = self.engine
        queued = engine.outbox.queued
        if queued == engine.outbox.early:
            self.flush()
        elif self._flush_due or self._waking:
            return
        elif queued <= FEW and await_few(engine.voters, FEW) and not engine.followed:
            # Few commands are in flight, so the batch leaves at once. It does not wait for the end
            # of the pass.
            self.flush()
        else:
            self._flush_due = True
            self._soon(self._end_pass)

    def _end_pass(self) -> None:
        self._flush_due = False
        self.flush()

    def flush(self) -> None:
        """Send the batch, and set the timer for the next tick if that is needed."""
        now_ns = monotonic_ns()
        try:
            self.engine.flush(now_ns)
        except BaseException:
            self.interrupted()
            raise
        if not now_ns <= self._tick_at <= self.engine.deadlines.due_ns:
            self.arm(now_ns)
        if self._vigil is not None and self._vigil.begins(self.engine.pipes[0].awaited, now_ns):
            self._stay_awake()

    def look_again(self) -> bool:
        """For a moment, look for replies of the only instance (vigil.py).

        Returns False if the loop may sleep.
        """
        vigil = self._vigil
        pipe = self.engine.pipes[0]
        now_ns = monotonic_ns()
        end_ns = now_ns + PASS_NS
        while vigil is not None and vigil.goes_on(0 if self.closed else pipe.awaited, now_ns):
            if now_ns >= end_ns:
                return True
            self.readable(0)
            now_ns = monotonic_ns()
        return False

    def arm(self, now_ns: int) -> None:
        """Set the timer to the next tick."""
        self._tick_by(self.engine.next_tick_ns(now_ns, self._slack_ns()), now_ns)

    def _slack_ns(self) -> int:
        """The longest allowed delay (ns) of a turn that is due (`Engine.next_tick_ns`).

        If many replies are missing, a turn that is due waits for the next reply. The turn's command
        then leaves together with other commands. If few replies are missing, the turn does not
        wait, so the result is 0.
        """
        return 0 if await_few(self.engine.voters, FEW) else SLACK_NS

    def _tick_by(self, next_ns: int, now_ns: int) -> None:
        if next_ns != FAR_FUTURE_NS and not self.closed:
            # FAR_FUTURE_NS is kept if an interrupt comes before the timer is set.
            self._tick_at = FAR_FUTURE_NS
            self._tick_later(max(0, next_ns - now_ns))
        self._tick_at = next_ns

    def tick(self) -> None:
        """Do the work that is due, because the timer has fired.

        If this process runs late, the sockets may already contain replies. So this method counts
        these replies before it looks for timeouts.
        """
        if self.closed:
            return
        self._tick_at = FAR_FUTURE_NS
        self._flush_due = False
        try:
            self._look()
        finally:
            # The `finally` also runs after an interrupt, because a caller may wait for a time or a
            # connection.
            self.arm(monotonic_ns())
        if self.engine.ready:
            self.wake()

    def _look(self) -> None:
        # The time is read before the sockets. A delay may also come after the sockets are read and
        # before the replies are judged.
        now_ns = monotonic_ns()
        for index, pipe in enumerate(self.engine.pipes):
            if pipe.pending:
                self.readable(index)
        for index in self.engine.members.silent(now_ns):
            self.broken(index, TimeoutError("the instance did not answer a request in time"))
        try:
            self.engine.tick(now_ns)
            self.connect_due(now_ns)
        except BaseException:
            self.interrupted()
            raise
        self.flush()

    def interrupted(self) -> None:
        """Break off every connection, because an interrupt came while the engine was running.

        The interrupt may have stopped the engine in the middle of a send or of a count. Open votes
        become SILENT, and open releases are sent again later (owed.py).
        """
        if self._vigil is not None:
            self._vigil.is_kept = False
        self.engine.interrupted()
        for index in range(len(self.wires)):
            self.broken(index, InterruptedError("interrupted in the middle of an operation"))
        # Callers may be ready now, even if there was no connection to break.
        self._wake_later()

    def release_interrupted(self, lease: object) -> None:
        """Send the release of `lease` again later, because an interrupt may have stopped the first
        send."""
        self.interrupted()
        if isinstance(lease, Lease) and isinstance(lease.round, SetRound):
            self.engine.clean_up(lease.round)

    # -- rounds ------------------------------------------------------------------------------------

    def submit(self, round_: Round | Turn) -> None:
        """Queue a round of any kind.

        If `round_` is a turn, nothing is sent, and the timer fires when the turn is due.
        """
        self.check_usable()
        if isinstance(round_, Turn):
            due_ns = round_.due_ns + self._slack_ns()
            if due_ns < self._tick_at:
                self._tick_by(due_ns, monotonic_ns())
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
        """Make the checks of `check_usable`. Raises InstanceClosedError if the close has begun."""
        self.check_usable()
        if self.engine.retired:
            raise InstanceClosedError("all instances", "this Redlock is closed")

    def keep(self, keeper: KeepAlive) -> None:
        """Extend the keeper's lease in the background."""
        self.check_home()
        self.check_open()
        token = keeper.lease.owner_token
        steps = keeper_steps(keeper, self.engine)
        self.stop_keeping(keeper.lease)
        self.keepers[token] = keeper
        keeper.tell_extended = self._tell_extended
        keeper.tell_gone = self._tell_gone

        def done(denied: Denied) -> None:
            self.keepers.pop(token, None)
            keeper.ended(denied)

        stop = self.background(steps, done)

        def cancel() -> None:
            self.keepers.pop(token, None)
            stop()

        keeper.cancel = cancel

    def _tell_extended(self, lease: Lease, result: Lease | Denied) -> None:
        listener = self.engine.listener
        if listener is not None:
            self.beside(partial(listener.extended, lease, result))

    def _tell_gone(self, lease: Lease) -> None:
        if self.engine.listener is not None:
            self.engine.listener.gone(lease)

    def stop_keeping(self, lease: object) -> None:
        """Stop the extensions of a lease that is being released."""
        keeper = self.keepers.pop(check_lease(lease).owner_token, None)
        if keeper is not None:
            keeper.stop()

    def close_soon(self) -> None:
        """Ask the loop to close the Redlock at once, without a drain.

        Any thread may call this method. The method does not wait for the loop.
        """
        raise NotImplementedError

    def close_now(self) -> None:
        """Close the Redlock within the loop, without waiting."""
        if not self.closed:
            self.end_close(self.begin_close(0))
        self.wake()

    def begin_close(self, drain_s: float) -> Drain:
        """Begin the close. From now on no lock is acquired or kept alive.

        The shell continues its loop until `Drain.is_over` returns True. Then the shell calls
        `end_close`.
        """
        for keeper in list(self.keepers.values()):
            keeper.stop()
        return Drain(self, drain_s)

    def end_close(self, closing: Drain) -> None:
        """Release the results that no caller took, then close every socket."""
        try:
            if not self.closed:
                closing.give_up()
                self.flush()
        finally:
            self.shut()
