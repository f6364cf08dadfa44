"""The hot path of tasks: *a resource → a round; a settled round → its task, stepped at once*.

Rules: asyncio's future has its task stepped in the loop's next turn, by a handle made for it. `Parked` speaks the same
protocol, and its task is stepped straight from the I/O callback; in the middle of a task's own step, where that is
not allowed, the loop does it (`later`). The first attempt and the release are begun here; whatever else comes of them
is the driver's (aio.py). Source of the protocol: asyncio's tasks.py, `_asyncio_future_blocking`.
"""

from asyncio import CancelledError
from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol, Self, cast

from lockcore.arguments import NO_WAIT, check_acquire
from lockcore.clock import monotonic_ns
from lockcore.engine import Engine
from lockcore.model import Lease
from lockcore.rounds import ReleaseRound, SetRound


class Parked:
    """What one task awaits, once: until it is settled or its task is cancelled."""

    _asyncio_future_blocking: bool

    def __init__(self, loop: Any) -> None:
        self._asyncio_future_blocking = False
        self._loop = loop
        self._callback: Any = None
        self._context: Any = None
        self._is_done = self._is_cancelled = False
        self._message: object = None

    def __await__(self) -> Any:
        return self

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Self:
        if self._is_done:
            raise StopIteration
        self._asyncio_future_blocking = True
        return self

    def get_loop(self) -> Any:
        """The loop it belongs to."""
        return self._loop

    def add_done_callback(self, callback: Any, *, context: Any) -> None:
        """How its task is stepped; said by the task itself."""
        self._callback, self._context = callback, context

    def settle(self) -> None:
        """Step its task now. Only where no task of the loop is being stepped."""
        if not self._is_done:
            self._is_done = True
            if self._callback is not None:  # else it is not awaited yet, and need not be
                self._context.run(self._callback, self)

    def later(self) -> None:
        """Have its task stepped by the loop."""
        if not self._is_done:
            self._is_done = True
            if self._callback is not None:
                self._loop.call_soon(self._callback, self, context=self._context)

    def cancel(self, msg: object = None) -> bool:
        """Its task is cancelled: it is stepped by the loop, with that error. False: too late, it is settled."""
        if self._is_done:
            return False
        self._is_cancelled, self._message = True, msg
        self.later()
        return True

    def result(self) -> None:
        """Raises CancelledError when it was cancelled."""
        if self._is_cancelled:
            raise CancelledError() if self._message is None else CancelledError(self._message)


class Driving(Protocol):
    """The driver as its hot path sees it."""

    closed: bool
    keepers: dict[bytes, Any]

    def check_home(self) -> None:
        """Raises outside its own loop."""

    def check_usable(self) -> None:
        """Raises once it is closed."""

    def stop_keeping(self, lease: Lease) -> None:
        """A lease that is being released is not extended any more."""


class TaskShortcut:
    """How acquire and release begin, for the tasks of one loop."""

    def __init__(self, driver: Driving, engine: Engine, loop: Any) -> None:
        self._driver, self._engine, self._loop = driver, engine, loop
        self._terms_of, self._keepers = engine.terms_of, driver.keepers
        self._is_running: Callable[[], bool] = loop.is_running  # asking for the running loop is a system call
        self._ident: Callable[[], int] = get_ident
        self._thread = get_ident()
        self.now: Callable[[], int] = monotonic_ns

    def set_round(self, resource: object, ttl_ms: object, wait_ms: object) -> SetRound | None:
        """A first attempt, not yet sent; None: there is a line for it."""
        if self._ident() != self._thread or not self._is_running():
            self._driver.check_home()
        if wait_ms is not NO_WAIT or type(ttl_ms) is not int or type(resource) is not str:
            check_acquire(resource, ttl_ms, wait_ms)
        engine = self._engine
        name, whole_ms = cast("str", resource), cast("int", ttl_ms)
        terms = self._terms_of.get(whole_ms) or engine.terms(whole_ms)
        if wait_ms and name in engine.turns:
            return None
        return engine.set_round(name, terms, self.now())

    def submit(self, round_: SetRound) -> Parked | None:
        """Send it. What its task awaits; None when it is settled without waiting."""
        self._engine.submit(round_)
        if round_.outcome is not None:
            return None
        round_.waiter = parked = Parked(self._loop)
        return parked

    def release(self, lease: Lease) -> ReleaseRound:
        """Begin a release. Its `waiter` is what its task awaits; none: it is settled."""
        if self._ident() != self._thread or not self._is_running():
            self._driver.check_home()
        engine = self._engine
        round_ = engine.release_round(lease, self.now())
        if self._keepers:
            self._driver.stop_keeping(lease)
        if self._driver.closed:
            self._driver.check_usable()
        engine.submit_release(round_)
        if round_.outcome is None:
            round_.waiter = Parked(self._loop)
        return round_
