"""A lock of the user's own: what failed is in its percentiles, and one that never lets go ends the measurement."""

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from math import inf

import pytest

from bench.errors import InconclusiveError
from bench.pytest_plugin import LockRun
from bench.run import own_lock
from bench.run.own_lock import OwnLoad, measure_own_lock

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


def test_callers_who_never_come_out_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_lock, "STRAGGLER_S", 0.4)
    never = threading.Event()

    @contextlib.contextmanager
    def never_granted(_name: str) -> Iterator[None]:
        never.wait()
        yield

    began_s = time.monotonic()
    try:
        with pytest.raises(InconclusiveError, match="16 of 16 callers are still inside the lock 0.5 s after the end"):
            measure_own_lock(never_granted, OwnLoad(callers=16, seconds=0.1, warmup_s=0.0, ttl_s=0.1))
        assert time.monotonic() - began_s < 16 * 0.5
    finally:
        never.set()
