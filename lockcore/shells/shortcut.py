"""The hot path of greenlets: *a resource → a lease, a lease → an outcome, past the step generator*.

Rules: a caller parks by switching to the next one whose round is settled, to the hub when there is
none: two switches fewer a cycle. `inside`: somebody is in the middle of the engine, which nobody
may enter then. The TTL and the wait that were checked last are told apart by identity: nearly
always the next ones, too.
"""

from collections.abc import Callable, Generator
from typing import Any, cast

import gevent
from greenlet import getcurrent, greenlet

from lockcore.arguments import NO_WAIT, check_acquire
from lockcore.attempt import Acquisition, first_lease, give_back
from lockcore.awaited import Settled, StandIn, next_waiter
from lockcore.claims import Terms
from lockcore.clock import NS_PER_S, monotonic_ns
from lockcore.engine import Engine
from lockcore.errors import CannotWaitError
from lockcore.model import Denied, Lease, Outcome
from lockcore.rounds import ReleaseRound, Round, SetRound
from lockcore.shells.driver import LoopDriver
from lockcore.turns import Offer, Turn, Wanted

Steps = Generator[Wanted, int, Any]


class Shortcut:
    """Operations of the callers of one driver, which has `check_caller` for one that may be where
    nobody can wait."""

    def __init__(self, driver: LoopDriver, hub: Any, check_caller: Callable[[], None]) -> None:
        self.inside = False
        engine: Engine = driver.engine
        self._check_caller = check_caller
        self._ttl_ms: object = self  # none yet
        self._wait_ms: object = NO_WAIT
        self._terms: Terms = engine.terms(engine.settings.max_ttl_ms)
        self._driver = driver
        self._engine = engine
        self._hub = hub
        self._keepers = driver.keepers
        self._current: Callable[[], Any] = (
            getcurrent  # as attributes: machine code looks a module's names up each time
        )
        self.now: Callable[[], int] = monotonic_ns
        self._switch: Callable[[Any], object] = (
            greenlet.switch
        )  # gevent's own wrapper costs 0.2 µs more
        self.gather: Callable[[], None] = (
            driver.gather
        )  # around stand-ins that a timer steps, see LoopDriver
        self.leave: Callable[[], None] = driver.leave

    def try_acquire(
        self, resource: object, ttl_ms: object, wait_ms: object = NO_WAIT
    ) -> Lease | Denied:
        """See Redlock.try_acquire."""
        told = self._engine.listener
        begun_ns = self.now()
        if told is None:
            return self._acquire(resource, ttl_ms, wait_ms, begun_ns)
        told.begun()
        try:
            result = self._acquire(resource, ttl_ms, wait_ms, begun_ns)
        except BaseException:  # no `finally`: in it, machine code believes what it was assigned
            told.ended(resource, None, begun_ns)
            raise
        try:
            told.ended(resource, result, begun_ns)
        except BaseException:  # an interrupt, which came while the observer ran
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
            return cast(
                "Lease | Denied", self._driven(self.steps_in_line(cast("str", resource), wait_ms))
            )
        try:
            self._send(round_)
            if round_.outcome is None:
                round_.waiter = me
                self._switch(next_waiter(self._engine) or self._hub)
            else:
                gevent.sleep(
                    0
                )  # settled without waiting: who tries again at once must not starve the loop
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
        """A first attempt, not yet sent; None: others wait for the resource here."""
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

    def drive(self, steps: Steps) -> Any:
        """Run an operation's steps in this greenlet."""
        self._check_caller()
        return self._driven(steps)

    def _driven(self, steps: Steps) -> Any:
        engine = self._engine
        try:
            self.inside = True
            wanted = next(steps)
            while True:
                try:
                    self._wait(wanted)
                    if engine.foreign:  # forked meanwhile: the votes that are missing say nothing
                        self._driver.check_usable()
                    now_ns = self.now()
                except BaseException as cancelled:
                    steps.throw(cancelled)
                    raise
                wanted = steps.send(now_ns)
        except StopIteration as done:
            return done.value
        except BaseException:
            steps.close()  # an interrupt may have come between its steps
            raise
        finally:
            self.inside = False

    def _wait(self, wanted: Wanted) -> None:
        if isinstance(wanted, Offer):
            return  # the caller's, as soon as it looks at the clock
        if isinstance(wanted, int):
            self.inside = False
            gevent.sleep(max(0, wanted - self.now()) / NS_PER_S)
        else:
            settled: Settled = wanted
            self._driver.submit(wanted)
            self.inside = False
            if settled.outcome is None:
                settled.waiter = self._current()
                self._switch(next_waiter(self._engine) or self._hub)
            else:
                gevent.sleep(0)  # as in `_acquire`
        self.inside = True

    def try_release(self, lease: object) -> Outcome:
        """See Redlock.try_release."""
        told = self._engine.listener
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
        if told is not None:
            told.released(cast("Lease", lease), outcome, round_.started_ns)
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
        elif not isinstance(error, CannotWaitError):  # that found somebody else inside
            self.inside = False

    # -- for a caller that parks once for many operations: a stand-in goes on in its place ---------

    @property
    def is_observed(self) -> bool:
        """Whether somebody is told of operations, in their caller's greenlet: there `try_…` is to
        be used."""
        return self._engine.listener is not None

    def begin_acquire(
        self, resource: str, ttl_ms: object, wait_ms: object, now_ns: int, waiter: StandIn
    ) -> SetRound | None:
        """Send a first attempt, begun at `now_ns`; unless that is settled already, `waiter` is
        stepped once it is.

        None: nothing was sent, because others wait for the resource here, or somebody is told of
        operations: there `try_acquire` is to be used. Who gives up before the round is settled
        calls its `abandon`.
        """
        if self._engine.listener is not None:
            return None
        round_ = self._first_round(resource, ttl_ms, wait_ms, now_ns)
        if round_ is not None:
            try:
                self._send(round_)
            except BaseException:
                round_.abandon()
                raise
            if round_.outcome is None:
                round_.waiter = waiter
        return round_

    def lease_of(self, round_: SetRound) -> Lease | None:
        """The lease of a settled first attempt, now; None leaves it to `steps_after`."""
        return first_lease(round_, self.now())

    def steps_after(self, round_: SetRound, wait_ms: object) -> Steps:
        """What is left of an acquire whose first attempt gave no lease at once, for `carry`."""
        return self._rest_of(round_, wait_ms, self.now())

    def steps_in_line(self, resource: str, wait_ms: object) -> Steps:
        """An acquire of what others wait for here (`begin_acquire` has just said so), for `carry`."""
        self._driver.check_open()
        now_ns = self.now()
        random = self._driver.random
        line = Acquisition(
            self._engine, resource, self._terms, cast("float", wait_ms), now_ns, random
        )
        return line.steps(now_ns)

    def carry(self, steps: Steps, waiter: StandIn, *, first: bool) -> Lease | Denied | None:
        """Go on with an acquire's steps, from the `first` or from where they waited; None: `waiter`
        is stepped next."""
        engine = self._engine
        if engine.foreign:  # forked meanwhile: the votes that are missing say nothing
            self._driver.check_usable()
        try:
            self.inside = True
            wanted = next(steps) if first else steps.send(self.now())
            while True:
                if not isinstance(
                    wanted, Offer
                ):  # which is the caller's as soon as it looks at the clock
                    settled = cast("Round | Turn", wanted)
                    self._submit(settled)
                    if settled.outcome is None:
                        settled.waiter = waiter
                        return None
                wanted = steps.send(self.now())
        except StopIteration as done:
            return cast("Lease | Denied", done.value)
        finally:
            self.inside = False

    def _submit(self, wanted: Round | Turn) -> None:
        if not isinstance(wanted, SetRound) or self._engine.retired:
            self._driver.submit(wanted)
            return
        try:
            self._engine.submit(wanted)
        except BaseException:
            self._driver.interrupted()
            raise

    def begin_release(self, lease: Lease, now_ns: int, waiter: StandIn) -> ReleaseRound:
        """As `begin_acquire`, a release; nobody is told of it (`is_observed`)."""
        try:
            round_ = self._send_release(lease, now_ns)
        except BaseException as error:
            self._release_failed(lease, error)
            raise
        if round_.outcome is None:
            round_.waiter = waiter
        return round_

    def park(self) -> object:
        """Have the calling greenlet wait until somebody wakes it, in the end its stand-in; returns
        what it is told."""
        return self._switch(next_waiter(self._engine) or self._hub)
