"""The hot path of greenlets: *a resource → a lease, a lease → an outcome*.

This file is compiled, so it follows the rules of docs/lockcore/compiled.md: functions of other
modules are attributes here, and no `finally` touches a variable that its `try` assigns.

Rules: an operation goes past the step generator (attempt.py) as long as nothing unusual happens.
`inside` is True while somebody is in the middle of the engine, which nobody may enter then. The TTL
and the wait that were checked last are recognised by identity (`NO_WAIT` in arguments.py).
"""

from collections.abc import Callable, Generator
from typing import Any, cast

import gevent
from greenlet import getcurrent, greenlet

from lockcore.clock import NS_PER_S, monotonic_ns
from lockcore.engine.attempt import Acquisition, first_lease, give_back
from lockcore.engine.engine import Engine
from lockcore.engine.turns import Offer, Request
from lockcore.errors import CannotWaitError
from lockcore.facts.arguments import NO_WAIT, check_acquire
from lockcore.facts.model import Denied, Lease, Outcome
from lockcore.rounds.awaited import Settled, next_waiter
from lockcore.rounds.claims import Terms
from lockcore.rounds.rounds import ReleaseRound, SetRound
from lockcore.shells.common.driver import LoopDriver

Steps = Generator[Request, int, Any]


# How a greenlet waits. A caller parks by switching straight to the next caller whose round is
# settled, and to the hub only when there is none. The plain way is `hub.switch()`, which costs
# two more switches per cycle. With this file compiled, and with callers that switch to each
# other, a cycle on gevent fell from 37,700 to 22,400 instructions (N = 5, 200 callers, callgrind;
# docs/lockcore/compiled.md). Nothing here is an addition to the rules: a first attempt that is
# settled at once, refused, or too late goes on by the steps of attempt.py, and one conformance
# suite shows the same behaviour on both ways. A round that is settled without waiting must still
# yield to the loop once (`gevent.sleep(0)`): a caller that tries again at once would starve the
# loop.
#
# Machine code looks up the names of a module each time, so functions are attributes (`_current`,
# `now`, `_switch`). `greenlet.switch` is taken without gevent's own wrapper, which costs 0.2 µs.
class Shortcut:
    """The operations of the callers of one driver.

    `check_caller` raises for a caller that may be where nobody can wait.
    """

    def __init__(self, driver: LoopDriver, hub: Any, check_caller: Callable[[], None]) -> None:
        self.inside = False
        engine: Engine = driver.engine
        self._check_caller = check_caller
        # This stands for no TTL yet: no caller passes it.
        self._ttl_ms: object = self
        self._wait_ms: object = NO_WAIT
        self._terms: Terms = engine.terms(engine.settings.max_ttl_ms)
        self._driver = driver
        self._engine = engine
        self._hub = hub
        self._keepers = driver.keepers
        self._current: Callable[[], Any] = getcurrent
        self.now: Callable[[], int] = monotonic_ns
        self._switch: Callable[[Any], object] = greenlet.switch

    def try_acquire(
        self, resource: object, ttl_ms: object, wait_ms: object = NO_WAIT
    ) -> Lease | Denied:
        """See Redlock.try_acquire."""
        listener = self._engine.listener
        begun_ns = self.now()
        if listener is None:
            return self._acquire(resource, ttl_ms, wait_ms, begun_ns)
        listener.begun()
        try:
            result = self._acquire(resource, ttl_ms, wait_ms, begun_ns)
        except BaseException:
            # This is no `finally`: in a `finally`, machine code takes a variable that was not
            # assigned for one that was.
            listener.ended(resource, None, begun_ns)
            raise
        try:
            listener.ended(resource, result, begun_ns)
        except BaseException:
            # An interrupt has come while the observer ran.
            give_back(result)
            raise
        return result

    def _acquire(
        self, resource: object, ttl_ms: object, wait_ms: object, now_ns: int
    ) -> Lease | Denied:
        me = self._current()
        if me.parent is not self._hub or self.inside:
            self._check_caller()
        round_ = self._first_round(resource, ttl_ms, wait_ms, now_ns)
        if round_ is None:
            return cast("Lease | Denied", self._driven(self._steps_in_line(resource, wait_ms)))
        try:
            self._send(round_)
            if round_.outcome is None:
                round_.waiter = me
                self._switch(next_waiter(self._engine) or self._hub)
            else:
                # The round was settled without waiting. A caller that tries again at once must not
                # starve the loop.
                gevent.sleep(0)
            now_ns = self.now()
            lease = first_lease(round_, now_ns)
            if lease is not None:
                return lease
            return cast("Lease | Denied", self._driven(self._rest_of(round_, wait_ms, now_ns)))
        except BaseException:
            round_.abandon()
            raise

    def _first_round(
        self, resource: object, ttl_ms: object, wait_ms: object, now_ns: int
    ) -> SetRound | None:
        """A first attempt, not yet sent; None if others wait for the resource here."""
        engine = self._engine
        is_new = ttl_ms is not self._ttl_ms or wait_ms is not self._wait_ms
        if is_new or not isinstance(resource, str):
            check_acquire(resource, ttl_ms, wait_ms)
            self._terms = engine.terms(cast("int", ttl_ms))
            self._ttl_ms = ttl_ms
            self._wait_ms = wait_ms
        name = cast("str", resource)
        if wait_ms and engine.turns.is_taken(name):
            return None
        return engine.set_round(name, self._terms, now_ns)

    def _send(self, round_: SetRound) -> None:
        try:
            self.inside = True
            self._engine.submit(round_)
            self.inside = False
        except BaseException:
            self._driver.interrupted()
            raise

    def _rest_of(self, round_: SetRound, wait_ms: object, now_ns: int) -> Steps:
        driver = self._driver
        wait = cast("float", wait_ms)
        driver.check_open()
        first = Acquisition(
            self._engine, round_.resource, round_.terms, wait, round_.started_ns, driver.random
        )
        return first.after(round_, now_ns)

    def _steps_in_line(self, resource: object, wait_ms: object) -> Steps:
        self._driver.check_open()
        now_ns = self.now()
        name = cast("str", resource)
        wait = cast("float", wait_ms)
        line = Acquisition(self._engine, name, self._terms, wait, now_ns, self._driver.random)
        return line.steps(now_ns)

    def drive(self, steps: Steps) -> Any:
        """Run an operation's steps in this greenlet."""
        self._check_caller()
        return self._driven(steps)

    def _driven(self, steps: Steps) -> Any:
        engine = self._engine
        try:
            self.inside = True
            request = next(steps)
            while True:
                try:
                    self._wait(request)
                    # The process was forked meanwhile: the votes that are missing say nothing.
                    if engine.foreign:
                        self._driver.check_usable()
                    now_ns = self.now()
                except BaseException as cancelled:
                    steps.throw(cancelled)
                    raise
                request = steps.send(now_ns)
        except StopIteration as done:
            return done.value
        except BaseException:
            # An interrupt may have come between two steps.
            steps.close()
            raise
        finally:
            self.inside = False

    def _wait(self, request: Request) -> None:
        # An offer is the caller's as soon as it looks at the clock, and the caller runs here.
        if isinstance(request, Offer):
            return
        if isinstance(request, int):
            self.inside = False
            gevent.sleep(max(0, request - self.now()) / NS_PER_S)
        else:
            settled: Settled = request
            self._driver.submit(request)
            self.inside = False
            if settled.outcome is None:
                settled.waiter = self._current()
                self._switch(next_waiter(self._engine) or self._hub)
            else:
                # As in `_acquire`.
                gevent.sleep(0)
        self.inside = True

    def try_release(self, lease: object) -> Outcome:
        """See Redlock.try_release."""
        listener = self._engine.listener
        try:
            me = self._current()
            if me.parent is not self._hub or self.inside:
                self._check_caller()
            round_ = self._send_release(lease, self.now())
        except BaseException as error:
            self._release_failed(lease, error)
            raise
        if round_.outcome is None:
            try:
                round_.waiter = me
                self._switch(next_waiter(self._engine) or self._hub)
            except BaseException:
                round_.waiter = None
                raise
        outcome = round_.outcome or Outcome.UNREACHABLE
        if listener is not None:
            listener.released(cast("Lease", lease), outcome, round_.started_ns)
        return outcome

    def _send_release(self, lease: object, now_ns: int) -> ReleaseRound:
        engine = self._engine
        round_ = engine.release_round(lease, now_ns)
        if self._keepers:
            self._driver.stop_keeping(lease)
        if engine.retired:
            self._driver.check_usable()
        self.inside = True
        engine.submit_release(round_)
        self.inside = False
        return round_

    def _release_failed(self, lease: object, error: BaseException) -> None:
        if not isinstance(error, Exception):
            self._driver.release_interrupted(lease)
        elif not isinstance(error, CannotWaitError):
            # A CannotWaitError has found somebody else inside.
            self.inside = False
