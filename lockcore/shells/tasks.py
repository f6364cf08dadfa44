"""The hot path of tasks: *a resource → a round; a settled round → its task, stepped at once*.

Rules: a future has its task stepped in the loop's next turn, by a handle made for it; `step` does
it straight from the I/O callback, where no task of the loop is being stepped (else: `later`). So
what a task awaits is a `Seat`: one future that stays pending, by which the next task waits as well,
as making and settling a new one for each wait costs more than waiting. A task that waits again as
soon as it is stepped gets the same seat, which knows by what to step it. Source: asyncio's
futures.py, `_callbacks`, and tasks.py, `__step` and `__wakeup`, and their C twins. These parts are
private: where they are gone, a seat is an ordinary future that the loop settles (`knows`).
"""

import sys
from asyncio import Future
from collections.abc import Callable, Generator
from threading import get_ident
from typing import Any, Final, cast

from lockcore.arguments import NO_WAIT, check_acquire
from lockcore.attempt import first_lease
from lockcore.awaited import Core, next_waiter
from lockcore.claims import Terms
from lockcore.clock import monotonic_ns
from lockcore.engine import Engine
from lockcore.model import Lease, Outcome
from lockcore.observed import Listener
from lockcore.rounds import ReleaseRound, SetRound
from lockcore.shells.driver import LoopDriver

REMEMBERS_WHO_AWAITS: Final = sys.version_info >= (
    3,
    14,
)  # there a future keeps hold of every task that awaited it
PRIVATE: Final = (
    "_callbacks",
    "_state",
    "_asyncio_future_blocking",
)  # of a future, which seats rely on
COMPILED: Final = not __file__.endswith(".py")  # in the middle of machine code no signal is handled


def knows(future: Any) -> bool:
    """True when futures like this one still have the private parts by which a seat steps its task."""
    return all(hasattr(future, name) for name in PRIVATE)


class Seat:
    """Where one task waits at a time. Cancelling the task cancels the future, as ever: then the
    seat is given up."""

    __slots__ = ("_callback", "_context", "_future", "_is_alone", "_once", "_seats")

    def __init__(self, seats: "Seats", future: Any) -> None:
        self._seats = seats
        self._future = future
        self._once: Any = (future,)
        self._is_alone = (
            COMPILED and not REMEMBERS_WHO_AWAITS and type(future).__module__ == "_asyncio"
        )
        self._callback: Any = None  # by what the task is stepped that took it again, and where
        self._context: Any = None

    def __await__(self) -> Generator[Any, None, None]:
        if not self._seats.steps:
            return cast("Generator[Any, None, None]", self._future.__await__())
        once: Any = ()
        if not self._future.done():
            self._future._asyncio_future_blocking = True
            once = self._once  # the task is given the future; stepped again, it goes on
        return cast("Generator[Any, None, None]", iter(once))

    def step(self) -> None:
        """Step its task now."""
        future = self._future
        seats = self._seats
        if not seats.steps:
            self.later()
            return
        if self._callback is None or not future.remove_done_callback(self._callback):
            awaiting: list[tuple[object, Any]] | None = future._callbacks
            if not awaiting:  # not awaited yet, or its task is cancelled and does not know yet
                self.later()
                return
            self._callback, self._context = awaiting[0]
            future.remove_done_callback(self._callback)
        if REMEMBERS_WHO_AWAITS:
            self.later()
        if (
            not self._is_alone and future._state != "PENDING"
        ):  # else no handler ran that may have cancelled its task
            self._context.run(self._callback, future)
            return
        try:
            seats.again = self
            self._context.run(
                self._callback, seats.settled
            )  # the first thing it does is to let go of the seat
        finally:
            left = seats.again
            seats.again = None
        if left is not None:
            self._callback = self._context = None  # keeps hold of no task that may have ended
            seats.free.append(self)

    def later(self) -> None:
        """Let the loop step its task, in its next turn."""
        if not self._future.done():
            self._future.set_result(None)


class Seats:
    """Those of one loop. `free`: nobody waits there; `again`: of the task being stepped, until
    somebody takes it; `settled`: a future that is, for whoever is stepped. `steps`: futures have
    the private parts for all that."""

    def __init__(self, loop: Any) -> None:
        self._new_future: Callable[[], Future[None]] = loop.create_future
        self.free: list[Seat] = []
        self.again: Any = None
        self.settled: Any = loop.create_future()
        self.settled.set_result(None)
        self.steps = knows(self.settled)

    def take(self) -> Seat:
        """Where a task may wait, until it is stepped."""
        again: Seat | None = self.again
        if again is not None:
            self.again = None
            return again
        return self.free.pop() if self.free else Seat(self, self._new_future())


def step_all(engine: Core, *, at_once: bool) -> None:
    """As `hand_out` (awaited.py), where all wait at seats; a call by name for each would cost 2 %
    of a lease."""
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


class TaskShortcut:
    """How acquire and release begin, for the tasks of one loop."""

    def __init__(self, driver: LoopDriver, engine: Engine, loop: Any) -> None:
        self._driver = driver
        self._engine = engine
        self._keepers = driver.keepers
        self._ttl_ms: object = self  # none yet
        self._wait_ms: object = NO_WAIT
        self._terms: Terms = engine.terms(engine.settings.max_ttl_ms)
        self.seats = Seats(loop)
        self.is_telling = False  # True after `lease` only where its observer was interrupted
        self._is_running: Callable[[], bool] = (
            loop.is_running
        )  # asking for the running loop is a system call
        self._ident: Callable[[], int] = get_ident
        self._home = get_ident()
        self.now: Callable[[], int] = monotonic_ns

    def set_round(
        self, resource: object, ttl_ms: object, wait_ms: object, told: Listener | None
    ) -> SetRound | None:
        """A first attempt, not yet sent; None: others wait for it. Who is `told` hears of it, also
        where it raises."""
        if told is not None:
            told.begun()
        if self._ident() != self._home or not self._is_running():
            self._driver.check_home()
        engine = self._engine
        if (
            ttl_ms is not self._ttl_ms
            or wait_ms is not self._wait_ms
            or not isinstance(resource, str)
        ):
            check_acquire(resource, ttl_ms, wait_ms)
            self._terms = engine.terms(cast("int", ttl_ms))
            self._ttl_ms = ttl_ms
            self._wait_ms = wait_ms
        name = cast("str", resource)
        if wait_ms and engine.turns.is_taken(name):
            return None
        return engine.set_round(name, self._terms, self.now())

    def submit(self, round_: SetRound) -> Seat | None:
        """Send it. What its task awaits; None when it is settled without waiting."""
        try:
            self._engine.submit(round_)
        except BaseException:
            self._driver.interrupted()
            raise
        if round_.outcome is not None:
            return None
        round_.waiter = seat = self.seats.take()
        return seat

    def lease(self, round_: SetRound, told: Listener | None) -> Lease | None:
        """What the attempt gave, as its task runs again: with a lease the acquire has ended, and
        who was `told`, is."""
        lease = first_lease(round_, self.now())
        if told is not None and lease is not None:
            self.is_telling = True
            told.ended(round_.resource, lease, round_.started_ns)
            self.is_telling = False
        return lease

    def release(self, lease: object) -> ReleaseRound:
        """Send a release. Its `waiter` is what its task awaits; none: it is settled."""
        if self._ident() != self._home or not self._is_running():
            self._driver.check_home()
        engine = self._engine
        round_ = engine.release_round(lease, self.now())
        if self._keepers:
            self._driver.stop_keeping(lease)
        if self._driver.closed:
            self._driver.check_usable()
        engine.submit_release(round_)
        if round_.outcome is None:
            round_.waiter = self.seats.take()
        return round_

    def outcome(self, lease: Lease, round_: ReleaseRound) -> Outcome:
        """What came of a release, as its task runs again."""
        outcome = round_.outcome or Outcome.UNREACHABLE
        told = self._engine.listener
        if told is not None:
            told.released(lease, outcome, round_.started_ns)
        return outcome
