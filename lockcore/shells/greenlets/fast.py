"""How a greenlet acquires and releases: *a resource → a lease, a lease → an outcome*.

This file is compiled, so it follows the rules of docs/lockcore/compiled.md: functions of other
modules are attributes here, and no `finally` touches a variable that its `try` assigns.
"""

from collections.abc import Callable, Generator
from typing import Any, cast

import gevent
from greenlet import getcurrent, greenlet

from lockcore.clock import NS_PER_S
from lockcore.engine.attempt import give_back
from lockcore.engine.turns import Offer, Request
from lockcore.facts.arguments import NO_WAIT
from lockcore.facts.model import Denied, Lease, Outcome
from lockcore.rounds.awaited import Settled, next_waiter
from lockcore.shells.common.driver import LoopDriver
from lockcore.shells.fast import Shortcut


# How a greenlet waits. A caller parks by switching straight to the next caller whose round is
# settled, and to the hub only when there is none. The plain way is `hub.switch()`, which costs two
# more switches per cycle. With this file compiled, and with callers that switch to each other, a
# cycle on gevent fell from 37,700 to 22,400 instructions (N = 5, 200 callers, callgrind;
# docs/lockcore/compiled.md). A round that is settled without waiting must still yield to the loop
# once (`gevent.sleep(0)`): a caller that tries again at once would starve the loop.
#
# Machine code looks up the names of a module each time, so functions are attributes (`_current`,
# `now`, `_switch`). `greenlet.switch` is taken without gevent's own wrapper, which costs 0.2 µs.
class GreenletShortcut(Shortcut):
    """The operations of the greenlets of one hub.

    `check_caller` raises for a caller that may be where nobody can wait.
    """

    def __init__(self, driver: LoopDriver, hub: Any, check_caller: Callable[[], None]) -> None:
        super().__init__(driver)
        self._check_caller = check_caller
        self._hub = hub
        self._current: Callable[[], Any] = getcurrent
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
        # This `try` stands here and in no function of its own. An interrupt at the beginning of a
        # function would lose the lease.
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
        round_ = self.first_round(resource, ttl_ms, wait_ms, now_ns)
        if round_ is None:
            steps = self.steps_in_line(resource, ttl_ms, wait_ms)
            return cast("Lease | Denied", self._driven(steps))
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
            return cast("Lease | Denied", self._driven(self.steps_after(round_, wait_ms)))
        except BaseException:
            round_.abandon()
            raise

    def drive(self, steps: Generator[Request, int, Any]) -> Any:
        """Run an operation's steps in this greenlet."""
        self._check_caller()
        return self._driven(steps)

    def _driven(self, steps: Generator[Request, int, Any]) -> Any:
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
