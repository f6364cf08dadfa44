"""A lock of the user's own: what failed is in its percentiles, and one that never lets go ends the
measurement."""

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from math import inf

import pytest

from bench.errors import InconclusiveError, UsageError, secrets
from bench.pytest_plugin import LockRun
from bench.run import own_lock
from bench.run.own_checks import require_mutex
from bench.run.own_lock import Errors, OwnLoad, measure_own_lock

COUNT = itertools.count()


@contextlib.contextmanager
def every_third_is_refused(_name: str) -> Iterator[None]:
    if next(COUNT) % 3 == 0:
        raise BlockingIOError
    yield


def test_percentiles_are_over_all_acquires_and_one_that_failed_takes_for_ever() -> None:
    load = OwnLoad(callers=1, seconds=0.5, warmup_s=0.0, refused=(BlockingIOError,))
    run = LockRun(measure_own_lock(every_third_is_refused, load).measured, {})
    assert run.measured.outcomes.contended > 10
    assert run.p99_s == inf
    assert run.p50_s is not None
    assert run.p50_s < inf


class Mute(Exception):  # noqa: N818 - no error of ours
    """An exception whose text raises one."""

    def __str__(self) -> str:
        raise RuntimeError


@contextlib.contextmanager
def mute(_name: str) -> Iterator[None]:
    raise Mute
    yield


def test_an_exception_whose_text_raises_ends_no_caller() -> None:
    run = measure_own_lock(mute, OwnLoad(callers=1, seconds=0.3, warmup_s=0.0))
    assert run.operations > 1
    assert run.errors.first is not None
    assert run.errors.first[1].startswith("Mute, whose text raises one, too (entering, test_own")


def test_what_a_lock_raised_is_told_without_passwords() -> None:
    secrets().learn("redis://:hunter2hunter2@h:1")
    errors = Errors()
    errors.note(OSError("redis://:hunter2hunter2@h:1 is away"), "entering", 1)
    assert errors.first is not None
    assert "hunter2" not in errors.first[1]


def test_callers_who_never_come_out_are_waited_for_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_lock, "STRAGGLER_S", 0.4)
    never = threading.Event()

    @contextlib.contextmanager
    def never_granted(_name: str) -> Iterator[None]:
        never.wait()
        yield

    began_s = time.monotonic()
    try:
        with pytest.raises(
            InconclusiveError,
            match="16 of 16 callers are still inside the lock 0.5 s after the end",
        ):
            measure_own_lock(
                never_granted, OwnLoad(callers=16, seconds=1.5, warmup_s=0.0, ttl_s=0.1)
            )
        assert time.monotonic() - began_s < 16 * 0.5 + 1.5
    finally:
        never.set()


def whose_first_lease_ends_by_itself(seconds: float) -> own_lock.OwnLock:
    """A mutex of this process.

    Its first lease ends after so long, given back or not; the next one never does.
    """
    guard = threading.Lock()
    leases: list[float] = []

    @contextlib.contextmanager
    def lock(_name: str) -> Iterator[None]:
        while True:
            with guard:
                if not leases or (len(leases) == 1 and time.monotonic() >= leases[0] + seconds):
                    leases.append(time.monotonic())
                    break
                if len(leases) > 2:
                    raise TimeoutError
            time.sleep(0.001)
        yield
        leases.extend([0.0, 0.0])

    return lock


def test_a_lock_of_a_short_ttl_is_no_semaphore_and_one_of_a_wrong_ttl_is_told_so() -> None:
    require_mutex(whose_first_lease_ends_by_itself(0.1), OwnLoad(ttl_s=0.1), ())
    two = threading.BoundedSemaphore(2)
    for lock in (whose_first_lease_ends_by_itself(0.1), lambda _name: two):
        with pytest.raises(UsageError, match=r"or its leases end before ttl_s \(30 s\)"):
            require_mutex(lock, OwnLoad(ttl_s=30.0), ())


def test_who_waited_longer_than_a_ttl_is_not_accused_and_tests_nothing() -> None:
    """Nobody knows which attempt was granted, so nobody knows when such a lease ends."""
    one = threading.Lock()

    @contextlib.contextmanager
    def slow(_name: str) -> Iterator[None]:
        time.sleep(0.02)
        with one:
            yield

    load = OwnLoad(
        callers=4, seconds=0.4, warmup_s=0.0, resources=1, hold_s=0.002, ttl_s=0.01, processes=1
    )
    safety = measure_own_lock(slow, load).measured.safety
    assert (safety.verdict, safety.granted_invalid, safety.tested_leases) == ("NOT TESTED", 0, 0)
