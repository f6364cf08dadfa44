"""What is said of the workers of several hosts; a clock without a bound is never passed over."""

from pathlib import Path

import numpy as np
import pytest

from bench.hosts.share import BUCKETS, Led, write_led
from bench.hosts.workers import FarCounts, host_warnings, load_workers, share_warning, unbounded
from bench.measure.clocks import Clock
from bench.measure.facts import Window
from bench.measure.fold import Fold
from bench.measure.workers import WorkerNote
from bench.safety.judge import holes
from tests.doubles.records import legal_records, scenario_of

MS = 1_000_000


def note(
    worker: int, *, host: str = "far", clock: str = "own", about: str = "lockbench 1, Python 3.11"
) -> WorkerNote:
    return WorkerNote(
        worker=worker, pid=70 + worker, phase="stopped", host=host, clock=clock, about=about
    )


def clock(step_ms: int = 0) -> Clock:
    """Round trips of 2 ms, ten a second; the clock is ahead by 5 s, and by `step_ms` more from the
    fifth on."""
    asked = 10**12 + np.arange(10) * 100 * MS
    there = asked + MS + 5_000 * MS + np.where(np.arange(10) >= 5, step_ms * MS, 0)
    return Clock(np.stack([asked, there, asked + 2 * MS, 0 * asked], axis=1))


def test_a_clock_that_was_never_compared_is_named() -> None:
    notes = [note(0), note(1), note(2, clock=""), note(3, host="", clock="")]
    assert list(unbounded(notes, {(0, 70): clock()})) == [
        "the clock of worker 1 (pid 71 on far) was never compared with the leader's clock"
    ]
    assert list(unbounded(notes, {(0, 70): clock(), (1, 71): clock()})) == []


def test_a_row_for_each_worker_of_another_host() -> None:
    first, second = load_workers(
        [note(0), note(1, clock=""), note(2, host="")], {(0, 70): clock()}, {0: 7}
    )
    assert (first.leases, first.round_trips, first.same_clock, first.clock_steps) == (
        7,
        10,
        False,
        0,
    )
    assert first.round_trip_s == 0.002
    assert first.clock_error_s == pytest.approx(0.001, abs=2e-5)
    assert first.clock_error_max_s is not None
    assert 0.001 < first.clock_error_max_s <= 0.00112
    assert (second.leases, second.same_clock, second.clock_error_s) == (0, True, None)


def test_steps_and_other_versions_are_said() -> None:
    notes = [note(0), note(1), note(2, about="lockbench 1, Python 3.12")]
    clocks = {(0, 70): clock(), (1, 71): clock(step_ms=300)}
    stepped, other = host_warnings(notes, clocks, 3)
    assert stepped.startswith("the clock of worker 1 (pid 71 on far) stepped 1 ×")
    assert other.startswith(
        "worker 2 (pid 72 on far) runs lockbench 1, Python 3.12, but other workers run "
        "lockbench 1, Python 3.11"
    )
    more, *_ = host_warnings(notes, clocks, 2)
    assert more == "3 workers made load, but 2 were expected"


def told(buckets: int) -> FarCounts:
    """Two workers with 100 leases each, ten of them in each of the first ten buckets."""
    fold = Fold(scenario_of(), Window(0, 10**9))
    fold.count(legal_records(100, 10))
    fold.sums.add("buckets", dict.fromkeys(range(10), 10))
    return FarCounts({(worker, 70 + worker): fold.sums.state for worker in range(2)}, buckets)


@pytest.mark.parametrize(("there", "said"), [(40, 0), (39, 1)])
def test_what_was_not_wanted_is_no_hole_and_what_was_lost_is_one(there: int, said: int) -> None:
    share = told(4)
    notes = [
        WorkerNote(worker=worker, pid=70 + worker, phase="stopped", recorded=100)
        for worker in range(2)
    ]
    recorded = share.left
    recorded.update({(0, 70): 40, (1, 71): there})
    found = list(holes(notes, recorded, {}, 2))
    assert found == ["worker 1 (pid 71) recorded 100 operations, but the history has 99"][:said]
    assert len(list(holes(notes, {(0, 70): 40, (1, 71): 40}, {}, 2))) == 2, (
        "negative control: without what was left"
    )


def test_the_share_that_was_judged_is_said() -> None:
    assert (told(4).ratio(80), told(BUCKETS).ratio(80), FarCounts().ratio(0)) == (0.4, 1.0, 1.0)
    assert told(4).leases == {0: 100, 1: 100}
    (warning,) = share_warning(told(4).ratio(80))
    assert warning.startswith("the oracle judged 40.00% of the leases")
    assert (
        "exceed 1 MB/s per host. A hash chose the judged resources. The oracle did not" in warning
    )
    assert list(share_warning(1.0)) == []


def test_a_run_of_one_host_was_told_nothing(tmp_path: Path) -> None:
    assert FarCounts.of(tmp_path) == FarCounts()
    write_led(tmp_path, Led((1, 2), 7))
    assert (FarCounts.of(tmp_path).buckets, FarCounts.of(tmp_path).whole) == (7, False)
