"""The hot path of tasks.

An acquire makes a round for a resource. When the round is settled, its task runs at once.

This file is compiled, so it follows the rules of docs/lockcore/compiled.md. Because of the
compilation, the code calls seats without a look-up by name, and stores functions of other modules
as attributes.

Rules: a task waits at a `Seat`, and the seat steps the task directly from the I/O callback. In
three cases the seat only settles its future, and the loop steps the task later (`later`). The first
case is that the loop is already stepping another task. The second case is that futures lack the
private parts that a seat needs (`knows`). The third case is that the future has no callback of a
waiting task, for example after a cancellation. Source: asyncio's futures.py (`_callbacks`) and
tasks.py (`__step` and `__wakeup`), and their C versions.
"""

import sys
from asyncio import AbstractEventLoop, Future
from collections.abc import Callable, Generator, Iterable
from threading import get_ident
from typing import Any, Final, cast

from lockcore.rounds.awaited import Core, next_waiter
from lockcore.rounds.rounds import ReleaseRound, SetRound
from lockcore.shells.common.driver import LoopDriver
from lockcore.shells.fast import Shortcut

# From Python 3.14 on, a future keeps a reference to every task that awaited it.
REMEMBERS_WHO_AWAITS: Final = sys.version_info >= (3, 14)

# The private parts of a future that seats rely on.
PRIVATE: Final = ("_callbacks", "_state", "_asyncio_future_blocking")

# True if this file is compiled. Then no signal handler runs between its statements.
COMPILED: Final = not __file__.endswith(".py")


def knows(future: object) -> bool:
    """True if `future` has the private parts that a seat needs."""
    return all(hasattr(future, name) for name in PRIVATE)


# The trick of seats. In the plain way a task awaits its own future, and the loop steps the task in
# its next pass, with a new handle. Three changes make this cheaper. First, a seat takes the
# callback with which the loop would step the task. The seat calls it straight from the I/O
# callback. On asyncio's own loop this saves a fifth of the client's CPU (5.5 → 4.4 µs a cycle).
# Second, one future stays pending for ever, and one task after the other waits with it. A new
# future for each wait was the most expensive part (3.43 → 3.23 µs a cycle; uvloop, N = 5, 200
# callers). So `__await__` gives the task the future once, by the iterator of a tuple. This is
# Python's only built-in iterator that ends without an exception. Third, a task that waits again as
# soon as it is stepped gets the same seat (`Seats.again`). This seat still has the task's callback.
# Reading the callback from the future costs 80 ns, and reading the future's state costs 60 ns (4.90
# → 4.59 µs a cycle). All figures are in docs/lab/lockcore.md. A separate class with a future's
# protocol, but without a future, cost more. If private parts were missing or wrong, a task would be
# stepped twice or never. So `knows` checks the private parts, and a cancelled task gives its seat
# up.
class Seat:
    """A place where one task at a time waits.

    If the task is cancelled, asyncio cancels the seat's future as usual. After this cancellation,
    no task uses the seat again.
    """

    __slots__ = ("_callback", "_context", "_future", "_is_alone", "_once", "_seats")

    def __init__(self, seats: "Seats", future: Any) -> None:
        self._seats = seats
        # The type is Any, because typeshed says that `_callbacks` is always a list. But
        # `_callbacks` may be None. Machine code checks types, so it would raise a TypeError.
        self._future = future
        self._once: Iterable[Future[None]] = (future,)
        self._is_alone = (
            COMPILED and not REMEMBERS_WHO_AWAITS and type(future).__module__ == "_asyncio"
        )
        # The callback that steps the task at this seat, and the callback's context. Both are kept
        # for a task that takes the seat again.
        self._callback: Any = None
        self._context: Any = None

    def __await__(self) -> Generator[object, None, None]:
        if not self._seats.steps:
            return cast("Generator[object, None, None]", self._future.__await__())
        once: Iterable[Future[None]] = ()
        if not self._future.done():
            self._future._asyncio_future_blocking = True
            # The iterator gives the future to the task. The iterator ends when the task is stepped
            # again.
            once = self._once
        return cast("Generator[object, None, None]", iter(once))

    def step(self) -> None:
        """Step the task at this seat now."""
        future = self._future
        seats = self._seats
        if not seats.steps:
            self.later()
            return
        if self._callback is None or not future.remove_done_callback(self._callback):
            awaiting: list[tuple[object, Any]] | None = future._callbacks
            if not awaiting:
                # No task awaits the future yet, or its task is cancelled but has not run since.
                self.later()
                return
            self._callback, self._context = awaiting[0]
            future.remove_done_callback(self._callback)
        if REMEMBERS_WHO_AWAITS:
            self.later()
        # If `_is_alone` is True, no signal handler can have run and cancelled the task.
        if not self._is_alone and future._state != "PENDING":
            self._context.run(self._callback, future)
            return
        try:
            seats.again = self
            # At this point the task drops its reference to the seat.
            self._context.run(self._callback, seats.settled)
        finally:
            left = seats.again
            seats.again = None
        if left is not None:
            # A free seat must not keep a reference to a task that may have ended.
            self._callback = self._context = None
            seats.free.append(self)

    def later(self) -> None:
        """The task at this seat does not run now. The loop steps it in the next pass."""
        if not self._future.done():
            self._future.set_result(None)


class Seats:
    """The seats of one loop.

    `free` contains the seats at which no task waits. While a seat steps its task, `again` is this
    seat until a task takes it. Otherwise `again` is None. To step a task, a seat calls the task's
    callback with the future `settled`, which has a result from the start. `steps` is True if
    futures have the private parts that seats need.
    """

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._new_future: Callable[[], Future[None]] = loop.create_future
        self.free: list[Seat] = []
        self.again: Any = None
        self.settled: Future[None] = loop.create_future()
        self.settled.set_result(None)
        self.steps = knows(self.settled)

    def take(self) -> Seat:
        """Return a seat at which a task may wait."""
        again: Seat | None = self.again
        if again is not None:
            self.again = None
            return again
        return self.free.pop() if self.free else Seat(self, self._new_future())


def step_all(engine: Core, *, at_once: bool) -> None:
    """Wake the callers of all settled rounds. The callers wait at seats.

    This function is a copy of `hand_out` (awaited.py), because `hand_out` would call a function by
    its name for each caller. The call by name would cost 2 % of the CPU time of a lease.
    """
    try:
        while (waiter := next_waiter(engine)) is not None:
            seat: Seat = waiter
            if at_once:
                seat.step()
            else:
                seat.later()
    finally:
        del engine.ready[: engine.woken]
        engine.woken = 0


class TaskShortcut(Shortcut):
    """Starts the acquires and releases of the tasks of one loop."""

    def __init__(self, driver: LoopDriver, loop: AbstractEventLoop) -> None:
        super().__init__(driver)
        self.seats = Seats(loop)
        # Finding the running loop takes a system call. So this code asks its own loop whether the
        # loop runs.
        self._is_running: Callable[[], bool] = loop.is_running
        self._ident: Callable[[], int] = get_ident
        self._home = get_ident()

    def begin(
        self, resource: object, ttl_ms: object, wait_ms: object, now_ns: int
    ) -> SetRound | None:
        """Make a first attempt, or return None if other callers here wait for the resource."""
        if self._ident() != self._home or not self._is_running():
            self._driver.check_home()
        return self.first_round(resource, ttl_ms, wait_ms, now_ns)

    def ask(self, round_: SetRound) -> Seat | None:
        """Send a round. Returns the seat for its task, or None if the round is settled already."""
        self.send(round_)
        if round_.outcome is not None:
            return None
        round_.waiter = seat = self.seats.take()
        return seat

    def release(self, lease: object) -> ReleaseRound:
        """Send a release.

        The task must await the `waiter` of the release. If `waiter` is None, the release is already
        settled.
        """
        if self._ident() != self._home or not self._is_running():
            self._driver.check_home()
        round_ = self.send_release(lease)
        if round_.outcome is None:
            round_.waiter = self.seats.take()
        return round_
