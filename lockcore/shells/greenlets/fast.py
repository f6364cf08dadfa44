"""Acquires and releases locks in a greenlet.

An acquire returns a lease for a resource. A release of the lease returns an outcome.

This file is compiled, so it follows the rules of docs/lockcore/compiled.md. Compiled code
needs two more rules. An object stores functions of other modules as its attributes. No `finally`
uses a variable that its `try` sets.
"""

from collections.abc import Callable, Generator
from typing import TypeVar

import gevent
from gevent.hub import Hub
from greenlet import getcurrent, greenlet

from lockcore.clock import NS_PER_S
from lockcore.engine.attempt import give_back
from lockcore.engine.turns import Offer, Request
from lockcore.facts.arguments import NO_WAIT
from lockcore.facts.model import Denied, Lease, Outcome
from lockcore.rounds.awaited import Settled, next_waiter
from lockcore.shells.common.driver import LoopDriver
from lockcore.shells.fast import Shortcut

T = TypeVar("T")


# This is how a greenlet waits. To park, a caller switches straight to the next caller with a
# settled round. If there is no such caller, the parking caller switches to the hub. The plain way
# is to switch to the hub every time. It costs two more switches per cycle. Together with the
# compilation of this file, a cycle on gevent fell from 37,700 to 22,400 instructions (N = 5, 200
# callers, callgrind; docs/lockcore/compiled.md). If a round is settled without a wait, its caller
# must still yield to the loop once (`gevent.sleep(0)`). Otherwise a caller that tries again at once
# would starve the loop.  Machine code looks up the names of a module each time, so functions are
# attributes (`_current`, `now`, `_switch`). `greenlet.switch` is used without gevent's wrapper,
# because the wrapper costs 0.2 µs.
class GreenletShortcut(Shortcut):
    """The operations of the greenlets of one hub.

    `check_caller` raises if its caller is in a place where no greenlet can wait.
    """

    def __init__(self, driver: LoopDriver, hub: Hub, check_caller: Callable[[], None]) -> None:
        super().__init__(driver)
        self._check_caller = check_caller
        self._hub = hub
        self._current: Callable[[], greenlet] = getcurrent
        self._switch: Callable[[greenlet], object] = greenlet.switch

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
            # This is not a `finally`, because in a `finally` machine code confuses an unassigned
            # variable with an assigned variable.
            listener.ended(resource, None, begun_ns)
            raise
        # This `try` must not move to another function, because an interrupt at the beginning of
        # that function would lose the lease.
        try:
            listener.ended(resource, result, begun_ns)
        except BaseException:
            # An interrupt came while the observer ran.
            give_back(result)
            raise
        return result

    def _acquire(
        self, resource: object, ttl_ms: object, wait_ms: object, now_ns: int
    ) -> Lease | Denied:
        me = self._current()
        if me.parent is not self._hub or self.inside:
            self._check_caller()
        round_ = self.first_round(resource, ttl_ms, wait_ms, now_ns)
        if round_ is None:
            steps = self.steps_in_line(resource, ttl_ms, wait_ms)
            return self._driven(steps)
        try:
            self.send(round_)
            if round_.outcome is None:
                round_.waiter = me
                self._switch(next_waiter(self._engine) or self._hub)
            else:
                gevent.sleep(0)
            lease = self.lease_of(round_)
            if lease is not None:
                return lease
            return self._driven(self.steps_after(round_, wait_ms))
        except BaseException:
            round_.abandon()
            raise

    def drive(self, steps: Generator[Request, int, T]) -> T:
        """Run an operation's steps in this greenlet."""
        self._check_caller()
        return self._driven(steps)

    def _driven(self, steps: Generator[Request, int, T]) -> T:
        engine = self._engine
        try:
            self.inside = True
            request = next(steps)
            while True:
                try:
                    self._wait(request)
                    # The process was forked meanwhile, so the missing votes have no meaning.
                    if engine.foreign:
                        self._driver.check_usable()
                    now_ns = self.now()
                except BaseException as cancelled:
                    steps.throw(cancelled)
                    raise
                request = steps.send(now_ns)
        except StopIteration as done:
            value: T = done.value
            return value
        except BaseException:
            # An interrupt may have come between two steps.
            steps.close()
            raise
        finally:
            self.inside = False

    def _wait(self, request: Request) -> None:
        # The caller runs here, so it accepts an offer by reading the clock now.
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
                gevent.sleep(0)
        self.inside = True

    def try_release(self, lease: object) -> Outcome:
        """See Redlock.try_release."""
        try:
            me = self._current()
            if me.parent is not self._hub or self.inside:
                self._check_caller()
            round_ = self.send_release(lease)
        except BaseException as error:
            self.release_failed(lease, error)
            raise
        if round_.outcome is None:
            try:
                round_.waiter = me
                self._switch(next_waiter(self._engine) or self._hub)
            except BaseException:
                round_.waiter = None
                raise
        return self.released(lease, round_)
