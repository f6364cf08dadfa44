"""The hot path of tasks: *a resource → a round; a settled round → its task, stepped at once*.

Rules: a future has its task stepped in the loop's next turn, by a handle made for it; `step` does it straight from the
I/O callback, where no task of the loop is being stepped (else: `later`). Only for a future that one task awaits and
nobody else knows. The first attempt and the release are here, and told of; whatever else comes of them is the driver's
(aio.py). Source: asyncio's futures.py, `_callbacks`, which its C twin has as well.
"""

from asyncio import Future
from collections.abc import Callable
from threading import get_ident
from typing import Any, cast

from lockcore.arguments import NO_WAIT, check_acquire
from lockcore.attempt import first_lease
from lockcore.clock import monotonic_ns
from lockcore.engine import Engine
from lockcore.model import Lease, Outcome
from lockcore.observed import Listener
from lockcore.rounds import ReleaseRound, SetRound
from lockcore.shells.driver import LoopDriver


def step(future: Any) -> None:
    """Settle what a task awaits, and step it now."""
    awaiting: list[tuple[object, Any]] | None = future._callbacks
    if awaiting is None:  # not awaited yet, or its task is cancelled and does not know yet
        later(future)
        return
    callback, context = awaiting[0]
    future.remove_done_callback(callback)
    future.set_result(None)
    context.run(callback, future)


def later(future: Any) -> None:
    """Settle what a task awaits; the loop steps it."""
    if not future.done():
        future.set_result(None)


class TaskShortcut:
    """How acquire and release begin, for the tasks of one loop."""

    def __init__(self, driver: LoopDriver, engine: Engine, loop: Any) -> None:
        self._driver, self._engine = driver, engine
        self._terms_of, self._keepers = engine.terms_of, driver.keepers
        self._new_future: Callable[[], Future[None]] = loop.create_future
        self._is_running: Callable[[], bool] = loop.is_running  # asking for the running loop is a system call
        self._ident: Callable[[], int] = get_ident
        self._home = get_ident()
        self.now: Callable[[], int] = monotonic_ns

    def set_round(self, resource: object, ttl_ms: object, wait_ms: object, told: Listener | None) -> SetRound | None:
        """A first attempt, not yet sent; None: others wait for it. Who is `told` hears of it, also where it raises."""
        if told is not None:
            told.begun()
        if self._ident() != self._home or not self._is_running():
            self._driver.check_home()
        if wait_ms is not NO_WAIT or type(ttl_ms) is not int or type(resource) is not str:
            check_acquire(resource, ttl_ms, wait_ms)
        engine = self._engine
        name, whole_ms = cast("str", resource), cast("int", ttl_ms)
        terms = self._terms_of.get(whole_ms) or engine.terms(whole_ms)
        if wait_ms and engine.turns.is_taken(name):
            return None
        return engine.set_round(name, terms, self.now())

    def submit(self, round_: SetRound) -> Future[None] | None:
        """Send it. What its task awaits; None when it is settled without waiting."""
        self._engine.submit(round_)
        if round_.outcome is not None:
            return None
        round_.waiter = future = self._new_future()
        return future

    def lease(self, round_: SetRound, told: Listener | None) -> Lease | None:
        """What the attempt gave, as its task runs again: with a lease the acquire has ended, and who was `told`, is."""
        lease = first_lease(round_, self.now())
        if told is not None and lease is not None:
            told.ended(round_.resource, lease, round_.started_ns)
        return lease

    def release(self, lease: Lease) -> ReleaseRound:
        """Begin a release. Its `waiter` is what its task awaits; none: it is settled."""
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
            round_.waiter = self._new_future()
        return round_

    def outcome(self, lease: Lease, round_: ReleaseRound) -> Outcome:
        """What came of a release, as its task runs again."""
        outcome, told = round_.outcome or Outcome.UNREACHABLE, self._engine.listener
        if told is not None:
            told.released(lease, outcome, round_.started_ns)
        return outcome
