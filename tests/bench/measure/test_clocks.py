"""A clock of another host: its bounds hold for every drift and delay, and a step makes only what it touches unknown."""

import numpy as np
import pytest

from bench.measure.clocks import DRIFT, LOST_NS, Clock, clock_file, read_clocks

MS, S = 1_000_000, 1_000_000_000
HOURS = 7_200 * S


def exchanges(random, theirs, count=100, every_ns=100 * MS, delay_ms=1.0):
    """Round trips over a network of this delay (each way, and up to twice as much again), beginning at our 10^12."""
    asked = 10**12 + np.arange(count) * every_ns
    there, back = (delay_ms * MS * (1 + 2 * random.random(count)) for _ in range(2))
    arrived = asked + there.astype(np.int64)
    return np.stack([asked, theirs(arrived), arrived + back.astype(np.int64)], axis=1)


@pytest.mark.parametrize("drift", [-0.99 * DRIFT, -2e-5, 0, 1e-4, 0.99 * DRIFT])
@pytest.mark.parametrize("delay_ms", [0, 1, 20])
def test_every_time_lies_within_its_bounds(drift, delay_ms):
    random = np.random.default_rng(3)
    theirs = lambda ours: ours + HOURS + (np.asarray(ours - 10**12) * drift).astype(np.int64)  # noqa: E731
    clock = Clock(exchanges(random, theirs, delay_ms=delay_ms))
    ours = 10**12 + np.arange(-S, 12 * S, 7 * MS + 1)
    low, high = clock.bounds(theirs(ours))
    assert (theirs(ours) + low - 2 <= ours).all()
    assert (theirs(ours) + high + 2 >= ours).all()
    assert clock.lost_ns == []
    assert clock.errors_ns.min() >= delay_ms * MS - 2, "half a round trip is the least that can be known"
    if abs(drift) < DRIFT:
        assert clock.grown_ns <= 2 * delay_ms * MS + 51_000, "half of 0.1 s at the allowed drift"


@pytest.mark.parametrize("step_ms", [-500, -8, 8, 3_600_000])
def test_a_step_makes_unknown_what_lies_around_it_and_nothing_else(step_ms):
    random = np.random.default_rng(4)
    at = 10**12 + 5 * S + 30 * MS
    theirs = lambda ours: ours + HOURS + np.where(np.asarray(ours) >= at, step_ms * MS, 0)  # noqa: E731
    clock = Clock(exchanges(random, theirs))
    ours = 10**12 + np.arange(0, 10 * S, 3 * MS)
    low, high = clock.bounds(theirs(ours))
    lost = high - low >= LOST_NS
    assert (theirs(ours) + low <= ours).all()
    assert (ours <= theirs(ours) + high).all()
    assert lost[(ours >= at - 5 * MS) & (ours < at)].all() or step_ms < 0, "back in time some times come twice"
    assert ours[lost].min() > at - 3 * S
    assert ours[lost].max() < at + 3 * S
    assert len(clock.lost_ns) == 1


def test_a_drift_beyond_the_bound_contradicts_itself():
    random = np.random.default_rng(5)
    clock = Clock(exchanges(random, lambda ours: ours + (np.asarray(ours - 10**12) * 0.05).astype(np.int64)))
    assert clock.lost_ns


def test_clocks_are_read_back_by_worker_and_what_is_torn_is_left_out(tmp_path):
    rows = exchanges(np.random.default_rng(6), lambda ours: ours + HOURS, count=5)
    clock_file(tmp_path, 2, 77).write_bytes(rows.tobytes() + b"torn")
    clock_file(tmp_path, 3, 78).write_bytes(b"")
    ((worker, clock),) = read_clocks(tmp_path).items()
    assert worker == (2, 77)
    assert clock.exchanges == 5
    assert abs(clock.ours(10**12 + HOURS) - 10**12) < 4 * MS
