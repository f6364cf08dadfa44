"""The hot path of greenlets: *a resource → a lease, a lease → an outcome, past the step generator*.

Rules: the first attempt and the release of a caller that can wait are done here; whatever else comes of them is the
driver's (greenlet.py). A caller parks by switching to the next one whose round is settled, to the hub when there is
none: two switches fewer a cycle. `inside`: somebody is in the middle of the engine, which nobody may enter then.
"""

from collections.abc import Callable, Generator
from typing import Any, cast

import gevent
from greenlet import getcurrent, greenlet

from lockcore.arguments import NO_WAIT, check_acquire
from lockcore.attempt import Acquisition, first_lease
from lockcore.awaited import next_waiter
from lockcore.claims import Terms
from lockcore.clock import monotonic_ns
from lockcore.engine import Engine
from lockcore.errors import CannotWaitError
from lockcore.model import Denied, Lease, Outcome
from lockcore.rounds import SetRound
from lockcore.shells.driver import LoopDriver
from lockcore.turns import Wanted

Steps = Generator[Wanted, int, Any]


class Shortcut:
    """Acquire and release for the callers of one driver, which has `drive` for an operation's steps, and `check_caller`
    for one that may be where nobody can wait."""

    def __init__(
        self, driver: LoopDriver, hub: Any, drive: Callable[[Steps], Any], check_caller: Callable[[], None]
    ) -> None:
        self.inside = False
        engine: Engine = driver.engine
        self._drive, self._check_caller = drive, check_caller
        self._driver, self._engine, self._hub = driver, engine, hub
        self._terms_of, self._keepers = engine.terms_of, driver.keepers
        self._current: Callable[[], Any] = getcurrent  # as attributes: machine code looks a module's names up each time
        self.now: Callable[[], int] = monotonic_ns
        self._switch: Callable[[Any], object] = greenlet.switch  # gevent's own wrapper costs 0.2 µs more

    def park(self) -> None:
        """Let others run until somebody switches back here."""
        self._switch(next_waiter(self._engine) or self._hub)

    def try_acquire(self, resource: object, ttl_ms: object, wait_ms: object = NO_WAIT) -> Lease | Denied:
        """See Redlock.try_acquire."""
        told = self._engine.listener
        if told is None:
            return self._acquire(resource, ttl_ms, wait_ms)
        begun_ns = told.begun()
        try:
            result = self._acquire(resource, ttl_ms, wait_ms)
        except BaseException:  # no `finally`: in it, machine code believes what it was assigned
            told.ended(resource, None, begun_ns)
            raise
        told.ended(resource, result, begun_ns)
        return result

    def _acquire(self, resource: object, ttl_ms: object, wait_ms: object) -> Lease | Denied:
        engine, me = self._engine, self._current()
        if me.parent is not self._hub or self.inside:
            self._check_caller()
        if wait_ms is not NO_WAIT or type(ttl_ms) is not int or type(resource) is not str:
            check_acquire(resource, ttl_ms, wait_ms)
        name, whole_ms = cast("str", resource), cast("int", ttl_ms)
        terms = self._terms_of.get(whole_ms) or engine.terms(whole_ms)
        if wait_ms and name in engine.turns:
            return self._in_line(name, terms, wait_ms)
        round_ = engine.set_round(name, terms, self.now())
        try:
            try:
                self.inside = True
                engine.submit(round_)
                self.inside = False
            except BaseException:
                self._driver.interrupted()
                raise
            if round_.outcome is None:
                round_.waiter = me
                self._switch(next_waiter(engine) or self._hub)
            else:
                gevent.sleep(0)  # settled without waiting: who tries again at once must not starve the loop
            now_ns = self.now()
            lease = first_lease(round_, now_ns)
            if lease is not None:
                return lease
            return self._after(round_, wait_ms, now_ns)
        except BaseException:
            round_.abandon()
            raise

    def _in_line(self, resource: str, terms: Terms, wait_ms: object) -> Lease | Denied:
        """Others wait for it here: from its place in their line."""
        now_ns, random = self.now(), self._driver.random
        acquisition = Acquisition(self._engine, resource, terms, cast("float", wait_ms), now_ns, random)
        return cast("Lease | Denied", self._drive(acquisition.steps(now_ns)))

    def _after(self, round_: SetRound, wait_ms: object, now_ns: int) -> Lease | Denied:
        """The first attempt gave no lease."""
        driver, wait = self._driver, cast("float", wait_ms)
        driver.check_open()
        first = Acquisition(self._engine, round_.resource, round_.terms, wait, round_.started_ns, driver.random)
        return cast("Lease | Denied", self._drive(first.after(round_, now_ns)))

    def try_release(self, lease: Lease) -> Outcome:
        """See Redlock.try_release."""
        engine, told, begun_ns = self._engine, self._engine.listener, 0
        try:
            if told is not None:
                begun_ns = self.now()
            me = self._current()
            if me.parent is not self._hub or self.inside:
                self._check_caller()
            round_ = engine.release_round(lease, self.now())
            if self._keepers:
                self._driver.stop_keeping(lease)
            if engine.retired:
                self._driver.check_usable()
            self.inside = True
            engine.submit_release(round_)
            self.inside = False
        except CannotWaitError:
            raise
        except Exception:
            self.inside = False
            raise
        except BaseException:
            self._driver.release_interrupted(lease)
            raise
        if round_.outcome is None:
            try:
                round_.waiter = me
                self._switch(next_waiter(engine) or self._hub)
            except BaseException:
                round_.waiter = None
                raise
        outcome = round_.outcome or Outcome.UNREACHABLE
        if told is not None:
            told.released(lease, outcome, begun_ns)
        return outcome
