"""What is said of the workers of several hosts; a clock without a bound is never passed over."""

import numpy as np

from bench.measure.clocks import Clock
from bench.measure.workers import WorkerNote
from bench.run.hosts import clock_warnings, load_workers, unbounded

MS = 1_000_000


def note(worker: int, *, host: str = "far", clock: str = "own", about: str = "lockbench 1, Python 3.11") -> WorkerNote:
    return WorkerNote(worker=worker, pid=70 + worker, phase="stopped", host=host, clock=clock, about=about)


def clock(step_ms: int = 0) -> Clock:
    """Round trips of 2 ms, ten a second; the clock is ahead by 5 s, and by `step_ms` more from the fifth on."""
    asked = 10**12 + np.arange(10) * 100 * MS
    there = asked + MS + 5_000 * MS + np.where(np.arange(10) >= 5, step_ms * MS, 0)
    return Clock(np.stack([asked, there, asked + 2 * MS], axis=1))


def test_a_clock_that_was_never_compared_is_named() -> None:
    notes = [note(0), note(1), note(2, clock=""), note(3, host="", clock="")]
    assert list(unbounded(notes, {(0, 70): clock()})) == [
        "the clock of worker 1 (pid 71 on far) was never compared with ours"
    ]
    assert list(unbounded(notes, {(0, 70): clock(), (1, 71): clock()})) == []


def test_a_row_for_each_worker_of_another_host() -> None:
    first, second = load_workers([note(0), note(1, clock=""), note(2, host="")], {(0, 70): clock()}, {0: 7})
    assert (first.leases, first.round_trips, first.same_clock, first.clock_steps) == (7, 10, False, 0)
    assert first.round_trip_s == 0.002
    assert first.clock_error_s == 0.001
    assert first.clock_error_max_s is not None
    assert 0.001 < first.clock_error_max_s <= 0.00106
    assert (second.leases, second.same_clock, second.clock_error_s) == (0, True, None)


def test_steps_and_other_versions_are_said() -> None:
    notes = [note(0), note(1), note(2, about="lockbench 1, Python 3.12")]
    stepped, other = clock_warnings(notes, {(0, 70): clock(), (1, 71): clock(step_ms=300)})
    assert stepped.startswith("the clock of worker 1 (pid 71 on far) stepped 1 ×")
    assert other.startswith("worker 2 (pid 72 on far) runs lockbench 1, Python 3.12, others lockbench 1, Python 3.11")
