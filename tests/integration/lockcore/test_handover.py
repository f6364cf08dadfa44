"""A lease is its caller's by a clock reading of its own thread, taken when it runs again: on every
path to it."""

import threading
import time
from typing import Any

import pytest

from lockcore import Outcome, RetryPolicy
from lockcore.shells.threads.call import locked
from tests.doubles.instance import REFUSE, Instances
from tests.integration.lockcore.shell import Connect, Scripted, Shell, ThreadShell, only
from tests.integration.lockcore.test_observer import Notes

pytestmark = pytest.mark.integration
# scripted instances of a busy machine answer in time
TTL_MS = 600
HELD_UP_S = 0.65
TIMEOUT_MS = 150


class HeldUp:
    """What a caller sleeps on; woken for the `at`-th time, it does not run for longer than its
    lease lasts."""

    def __init__(self, at: int) -> None:
        self._lock = locked()
        self._left = at
        self.ran_ns = 0
        self.locked = self._lock.locked
        self.release = self._lock.release

    def acquire(self, timeout: float) -> bool:
        is_woken = self._lock.acquire(timeout=timeout)
        self._left -= is_woken
        if is_woken and self._left == 0:
            time.sleep(HELD_UP_S)
        self.ran_ns = time.monotonic_ns()
        return is_woken


def held_up(lock: Any, at: int) -> HeldUp:
    """From now on this thread sleeps on that."""
    sleeps_on = HeldUp(at)
    ring = lock._driver._ring
    here = threading.get_ident()

    def slow_ring() -> None:
        """Whoever rings lets go of the GIL, and may wait long for it."""
        ring()
        if threading.get_ident() == here:
            sleeps_on.ran_ns = time.monotonic_ns()

    lock._driver._own.spare = [sleeps_on]
    lock._driver._ring = slow_ring
    return sleeps_on


def check(result: Any, sleeps_on: HeldUp, notes: Notes | None = None) -> None:
    """A lease, read when its caller ran, or none."""
    if result:
        assert sleeps_on.ran_ns <= result.granted_ns < result.valid_until_ns
    else:
        assert result.outcome is Outcome.TOO_LATE
    if notes:
        (record,) = notes.records
        assert (record.outcome, record.validity_ns > 0) == (result.outcome, bool(result))


@only(ThreadShell)
@pytest.mark.parametrize("wake", [1, 2])
@pytest.mark.parametrize("observed", [False, True])
def test_a_first_attempt_is_judged_when_its_thread_runs_again(
    shell: Shell, connect: Connect, scripted: Scripted, wake: int, observed: bool
) -> None:
    instances = scripted(3)
    notes = Notes()
    lock = connect(
        instances.urls, instance_timeout_ms=TIMEOUT_MS, observer=notes if observed else None
    )
    sleeps_on = held_up(lock, wake)
    result = lock.try_acquire("stock", TTL_MS)
    shell.until(lambda: notes.records or not observed, "the record")
    check(result, sleeps_on, notes if observed else None)
    if wake == 1:
        assert not result
        shell.until(lambda: instances.were_told(["set", "release"]), "the giving back")


@only(ThreadShell)
@pytest.mark.parametrize("wake", [1, 2, 3])
@pytest.mark.parametrize("observed", [False, True])
def test_a_retry_is_judged_when_its_thread_runs_again(
    shell: Shell, connect: Connect, scripted: Scripted, wake: int, observed: bool
) -> None:
    """The first wake is that of the refused first attempt."""
    instances = scripted(3)
    notes = Notes()
    instances.say("set", REFUSE)
    retry = RetryPolicy("fixed", 100, attempts=2)
    lock = connect(
        instances.urls,
        instance_timeout_ms=TIMEOUT_MS,
        retry=retry,
        observer=notes if observed else None,
    )
    sleeps_on = held_up(lock, wake)

    def free() -> None:
        shell.until(
            lambda: all("release" in instance.kinds() for instance in instances), "the refusals"
        )
        instances.be_honest()

    freeing = threading.Thread(target=free, daemon=True)
    freeing.start()
    result = lock.try_acquire("stock", TTL_MS, 60_000)
    freeing.join()
    # else this machine took too long to free it
    if result or result.outcome is not Outcome.CONTENDED:
        check(result, sleeps_on)
    if wake == 2:
        assert not result
        shell.until(lambda: instances.keys == [], "the giving back")


@only(ThreadShell)
@pytest.mark.parametrize("wake", [1, 2])
def test_an_extension_is_judged_when_its_thread_runs_again(
    shell: Shell, connect: Connect, instances: Instances, wake: int
) -> None:
    """Too late it is GONE; and its keys, which have been made to last, are given back."""
    lock = connect(instances.urls, instance_timeout_ms=TIMEOUT_MS, max_ttl_ms=600_000)
    lease = lock.acquire("stock", TTL_MS)
    sleeps_on = held_up(lock, wake)
    result = lock.try_extend(lease, 600_000)
    if result:
        assert wake == 2
        assert sleeps_on.ran_ns <= result.granted_ns < lease.valid_until_ns
    else:
        assert result.outcome is Outcome.GONE
        shell.until(lambda: instances.keys == [], "the giving back")
