"""Where callers wait: for how long they are kept counts while measuring, and only then."""

import pytest

from bench.scenario import load
from bench.workloads import waits as module
from bench.workloads.waits import Waits
from tests.bench.workloads.test_callers import until


def test_what_keeps_callers_counts_between_the_edges_of_the_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In an outage they are kept for most of the time, and before it hardly ever."""
    clock_ns = [0]
    monkeypatch.setattr(module, "monotonic_ns", lambda: clock_ns[0])
    waits = Waits(load(), None)
    waits.begin(0, (1_000, 2_000), 0, 1)
    waits.keep(100)
    assert waits.kept_ns == 100, "nobody knows yet when measuring begins"
    clock_ns[0] = 1_000
    until(lambda: waits.kept_ns == 0, "the window's begin")
    waits.keep(20)
    clock_ns[0] = 2_000
    measuring = waits._measuring
    assert measuring is not None
    until(lambda: measuring.dead, "the window's end")
    waits.keep(1_000)
    assert waits.kept_ns == 20
    waits.close()
