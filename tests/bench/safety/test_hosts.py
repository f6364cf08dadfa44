"""Leases told by two clocks: an overlap longer than the bounds is found, a shorter one or none is
never claimed."""

import numpy as np
import pytest

from bench.measure.clocks import Clock, clock_file, read_clocks
from bench.measure.history import History, placed, read_history
from bench.measure.recorder import Recorder
from bench.safety.judge import judge
from tests.bench.measure.test_clocks import HOURS, MS, S, exchanges

TTL_MS = 10_000


def leases(random, count, overlap_ns, resource=0):
    """Leases of two hosts in turns, in true time; each begins `overlap_ns` before the one before it
    ends."""
    length = 30 * MS + random.integers(0, 10 * MS, count)
    begun = 10**12 + S + np.concatenate([[0], np.cumsum(length[:-1] - overlap_ns)])
    return [
        (
            resource,
            start,
            start + 100,
            start + 200,
            start + 200 + TTL_MS * MS,
            end,
            end,
            end + 50_000,
        )
        for start, end in zip(begun.tolist(), (begun + length).tolist(), strict=True)
    ]


def told(tmp_path, rows, clock_of_two):
    """The history of `rows`, every second of which stands in the file of a worker whose clock is
    another."""
    recorders = [Recorder(tmp_path, worker) for worker in (0, 1)]
    for number, (resource, start, attempt, granted, valid, work_end, sent, replied) in enumerate(
        rows
    ):
        recorder = recorders[number % 2]
        shift = clock_of_two if number % 2 else lambda ours: ours
        times = [
            int(shift(time))
            for time in (start, start, attempt, granted, valid, work_end, sent, replied, granted)
        ]
        recorder.write(*times, resource, number % 2, 1 | 7 << 8, 5, 1, number)
    for recorder in recorders:
        recorder.close()
    return tmp_path


def report(tmp_path, rows, clock_of_two, delay_ms=1.0, known=True):
    told(tmp_path, rows, clock_of_two)
    if known:
        pid = next(tmp_path.glob("history-1-*")).name.split("-")[2].split(".")[0]
        trips = exchanges(np.random.default_rng(1), clock_of_two, count=200, delay_ms=delay_ms)
        clock_file(tmp_path, 1, int(pid)).write_bytes(trips.tobytes())
    return judge(read_history(tmp_path), TTL_MS)


def drifting(ours):
    return ours + HOURS + (np.asarray(ours - 10**12) * 5e-5).astype(np.int64)


@pytest.mark.parametrize("delay_ms", [0.1, 1, 5])
def test_legal_leases_of_two_hosts_are_never_called_a_violation(tmp_path, delay_ms):
    rows = leases(np.random.default_rng(2), 300, overlap_ns=-1)
    found = report(tmp_path, rows, drifting, delay_ms)
    assert (found.service_faults, found.foreign_deletes, found.granted_invalid) == (0, 0, 0)


@pytest.mark.parametrize(
    "overlap_ms, seen", [(50, True), (5, True), (4.5, True), (0.9, False), (0.01, False)]
)
def test_an_overlap_is_seen_when_it_is_longer_than_the_bounds_and_never_claimed_when_it_may_be_none(
    tmp_path, overlap_ms, seen
):
    """A round trip of at least 2 ms: ours − theirs is known within 2 to 2.2 ms."""
    rows = leases(np.random.default_rng(2), 2, int(min(overlap_ms, 29) * MS))
    assert report(tmp_path, rows, drifting).service_faults == seen


def test_clocks_hours_apart_without_a_bound_would_show_violations_that_are_none(tmp_path):
    """Negative control: the bounds are what keeps leases of two clocks apart, or together."""
    rows = leases(np.random.default_rng(2), 300, overlap_ns=-1)
    assert report(tmp_path, rows, lambda ours: ours + 20 * MS, known=False).service_faults > 100


def test_leases_around_a_step_are_unknown_and_the_others_judged(tmp_path):
    random = np.random.default_rng(2)
    at = 10**12 + 5 * S

    def stepping(ours):
        return ours + HOURS + np.where(np.asarray(ours) >= at, 700 * MS, 0)

    rows = leases(random, 400, overlap_ns=-MS)
    bad = [leases(random, 2, 20 * MS, resource=1)]
    found = report(tmp_path, [*rows, *bad[0]], stepping)
    assert found.verdict == "VIOLATED"
    assert found.service_faults == 1, "the one that was planted"
    assert "leases are uncertain" in found.reason
    assert 1 <= int(found.reason.split(" leases")[0].split()[-1]) <= 20, "those of half a second"


def test_what_lies_between_the_times_of_one_operation_is_left_as_it_was_measured(tmp_path):
    rows = leases(np.random.default_rng(2), 100, overlap_ns=-1)
    told(tmp_path, rows, drifting)
    raw = read_history(tmp_path).records
    clock = Clock(exchanges(np.random.default_rng(1), drifting, count=200))
    likely, early, late = placed(raw, clock)
    for name in ("granted_ns", "valid_until_ns", "release_replied_ns"):
        np.testing.assert_array_equal(
            likely[name] - likely["start_ns"], raw[name] - raw["start_ns"]
        )
        assert (early[name] <= late[name]).all()
    assert (likely["work_end_ns"] != 0).all()
    assert read_clocks(tmp_path) == {}
    assert isinstance(read_history(tmp_path), History)
    assert read_history(tmp_path).early is None, "one clock needs no bounds"
