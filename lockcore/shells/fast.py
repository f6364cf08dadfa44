"""The first steps and the last steps of acquire and release.

An acquire makes a round for a resource. The settled round becomes a lease.

This file is compiled, so it follows the rules of docs/lockcore/compiled.md. Because of the
compilation, functions of other modules are stored as attributes.

Rules: attempt.py contains a generator of steps. Most operations do not use this generator, but only
this file. This file adds no rules for locks. If the first attempt brings no lease, the operation
continues with the steps of attempt.py. One conformance suite tests that both paths behave alike.
This file does not wait. The callers wait in greenlets/fast.py and tasks/fast.py. The code checks a
TTL and a `wait_ms` only if these two objects are not the same as in the last check (`NO_WAIT` in
arguments.py).
"""

from collections.abc import Callable
from typing import cast

from lockcore.clock import monotonic_ns
from lockcore.engine.attempt import Acquisition, Steps, first_lease
from lockcore.engine.engine import Engine
from lockcore.errors import CannotWaitError
from lockcore.facts.arguments import NO_WAIT, check_acquire
from lockcore.facts.model import Lease, Outcome
from lockcore.rounds.claims import Terms
from lockcore.rounds.rounds import ReleaseRound, SetRound
from lockcore.shells.common.driver import LoopDriver


class Shortcut:
    """The operations of the callers of one driver. Subclasses add the code that waits.

    `inside` is True while a caller is within the engine. Then no other caller may enter the engine.
    """

    def __init__(self, driver: LoopDriver) -> None:
        engine: Engine = driver.engine
        self.inside = False
        # No caller passes this object, so it means that no TTL was checked yet.
        self._ttl_ms: object = self
        self._wait_ms: object = NO_WAIT
        self._terms: Terms = engine.terms(engine.settings.max_ttl_ms)
        self._driver = driver
        self._engine = engine
        self._keepers = driver.keepers
        self.now: Callable[[], int] = monotonic_ns

    def first_round(
        self, resource: object, ttl_ms: object, wait_ms: object, now_ns: int
    ) -> SetRound | None:
        """Make a first attempt, or return None if other callers here wait for the resource."""
        engine = self._engine
        is_new = ttl_ms is not self._ttl_ms or wait_ms is not self._wait_ms
        # From this line on, the caller uses its own variable for the terms. A signal handler or a
        # `__del__` may store the terms of another TTL before the round is made.
        terms = self._terms
        if is_new or not isinstance(resource, str):
            check_acquire(resource, ttl_ms, wait_ms)
            terms = engine.terms(cast("int", ttl_ms))
            self._terms = terms
            self._ttl_ms = ttl_ms
            self._wait_ms = wait_ms
        name = cast("str", resource)
        if wait_ms and engine.turns.is_taken(name):
            return None
        return engine.set_round(name, terms, now_ns)

    def send(self, round_: SetRound) -> None:
        """Send a first attempt."""
        try:
            self.inside = True
            self._engine.submit(round_)
            self.inside = False
        except BaseException:
            self._driver.interrupted()
            raise

    def lease_of(self, round_: SetRound) -> Lease | None:
        """Return the lease of a settled first attempt if the lease is valid now.

        If the result is None, the caller continues with `steps_after`.
        """
        return first_lease(round_, self.now())

    def steps_after(self, round_: SetRound, wait_ms: object) -> Steps:
        """Return the steps of an acquire that follow a first attempt without a lease."""
        now_ns = self.now()
        first = self._acquisition(round_.resource, round_.terms, wait_ms, round_.started_ns)
        return first.after(round_, now_ns)

    def steps_in_line(self, resource: object, ttl_ms: object, wait_ms: object) -> Steps:
        """Return the steps of an acquire that must wait behind other callers here.

        The caller uses these steps after `first_round` returned None.
        """
        now_ns = self.now()
        terms = self._engine.terms(cast("int", ttl_ms))
        return self._acquisition(cast("str", resource), terms, wait_ms, now_ns).steps(now_ns)

    def _acquisition(
        self, resource: str, terms: Terms, wait_ms: object, begun_ns: int
    ) -> Acquisition:
        self._driver.check_open()
        wait = cast("float", wait_ms)
        return Acquisition(self._engine, resource, terms, wait, begun_ns, self._driver.random)

    def send_release(self, lease: object) -> ReleaseRound:
        """Send a release. After an exception, the caller must call `release_failed`."""
        engine = self._engine
        round_ = engine.release_round(lease, self.now())
        if self._keepers:
            self._driver.stop_keeping(lease)
        if engine.retired:
            self._driver.check_usable()
        self.inside = True
        engine.submit_release(round_)
        self.inside = False
        return round_

    def release_failed(self, lease: object, error: BaseException) -> None:
        """If an interrupt may have stopped the first send of a release, send the release again
        later (owed.py)."""
        if not isinstance(error, Exception):
            self._driver.release_interrupted(lease)
        elif not isinstance(error, CannotWaitError):
            # A CannotWaitError means that another caller is inside, so `inside` stays True.
            self.inside = False

    def released(self, lease: object, round_: ReleaseRound) -> Outcome:
        """Return the outcome of a settled release. The listener gets the outcome, too."""
        outcome = round_.outcome or Outcome.UNREACHABLE
        listener = self._engine.listener
        if listener is not None:
            listener.released(cast("Lease", lease), outcome, round_.started_ns)
        return outcome
