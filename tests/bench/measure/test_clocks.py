"""A clock of another host: its bounds hold for every drift and delay, and a step makes only what it
touches unknown."""

import numpy as np
import pytest

from bench.measure.clocks import DRIFT, LOST_NS, READ_NS, Clock, clock_file, read_clocks
from bench.measure.environment import slewed_ns

MS = 1_000_000
S = 1_000_000_000
HOURS = 7_200 * S


def exchanges(random, theirs, count=100, every_ns=100 * MS, delay_ms=1.0):
    """Round trips over a network of this delay (each way, and up to twice as much again), beginning
    at our 10^12."""
    asked = 10**12 + np.arange(count) * every_ns
    there, back = (delay_ms * MS * (1 + 2 * random.random(count)) for _ in range(2))
    arrived = asked + there.astype(np.int64)
    return np.stack([asked, theirs(arrived), arrived + back.astype(np.int64), 0 * asked], axis=1)


@pytest.mark.parametrize("drift", [-0.99 * DRIFT, -2e-5, 0, 1e-4, 0.99 * DRIFT])
@pytest.mark.parametrize("delay_ms", [0, 1, 20])
def test_every_time_lies_within_its_bounds(drift, delay_ms):
    random = np.random.default_rng(3)

    def theirs(ours):
        return ours + HOURS + (np.asarray(ours - 10**12) * drift).astype(np.int64)

    clock = Clock(exchanges(random, theirs, delay_ms=delay_ms))
    ours = 10**12 + np.arange(-S, 12 * S, 7 * MS + 1)
    low, high = clock.bounds(theirs(ours))
    assert (theirs(ours) + low - 2 <= ours).all()
    assert (theirs(ours) + high + 2 >= ours).all()
    assert clock.lost_ns == []
    assert clock.errors_ns.min() >= delay_ms * MS - 2, (
        "half a round trip is the least that can be known"
    )
    if abs(drift) < DRIFT:
        assert clock.grown_ns <= 2 * delay_ms * MS + 51_000 + 2 * READ_NS, (
            "half of 0.1 s at the allowed drift"
        )


@pytest.mark.parametrize("step_ms", [-500, -8, 8, 3_600_000])
def test_a_step_makes_unknown_what_lies_around_it_and_nothing_else(step_ms):
    random = np.random.default_rng(4)
    at = 10**12 + 5 * S + 30 * MS

    def theirs(ours):
        return ours + HOURS + np.where(np.asarray(ours) >= at, step_ms * MS, 0)

    clock = Clock(exchanges(random, theirs))
    ours = 10**12 + np.arange(0, 10 * S, 3 * MS)
    low, high = clock.bounds(theirs(ours))
    lost = high - low >= LOST_NS
    assert (theirs(ours) + low <= ours).all()
    assert (ours <= theirs(ours) + high).all()
    assert lost[(ours >= at - 5 * MS) & (ours < at)].all() or step_ms < 0, (
        "back in time some times come twice"
    )
    assert ours[lost].min() > at - 3 * S
    assert ours[lost].max() < at + 3 * S
    assert len(clock.lost_ns) == 1


def test_a_drift_beyond_the_bound_contradicts_itself():
    random = np.random.default_rng(5)
    clock = Clock(
        exchanges(random, lambda ours: ours + (np.asarray(ours - 10**12) * 0.05).astype(np.int64))
    )
    assert clock.lost_ns


def slewing(ours):
    """What NTP adds to the other clock: 400 ppm for 15 seconds of every thirty."""
    since = np.asarray(ours - 10**12)
    return (np.minimum(since % (30 * S), 15 * S) * 4e-4 + since // (30 * S) * 15 * S * 4e-4).astype(
        np.int64
    )


def slewed_exchanges(random, oscillator, count):
    rows = exchanges(
        random, lambda ours: ours + HOURS + oscillator(ours) + slewing(ours), count=count
    )
    arrived = rows[:, 1] - HOURS
    for _ in range(3):
        arrived = rows[:, 1] - HOURS - oscillator(arrived) - slewing(arrived)
    rows[:, 3] = -slewing(arrived)
    return rows


@pytest.mark.parametrize("drift", [-9e-4, 0, 1e-4])
def test_what_ntp_does_is_known_and_the_rate_of_what_is_left_is_bounded_by_the_round_trips(drift):
    """After a minute ε is near the half of what the fastest way there and the fastest back take."""
    random = np.random.default_rng(7)
    oscillator = lambda ours: (np.asarray(ours - 10**12) * drift).astype(np.int64)  # noqa: E731
    rows = slewed_exchanges(random, oscillator, 600)
    clock = Clock(rows)
    ours = 10**12 + np.arange(-S, 61 * S, 7 * MS + 1)
    theirs = ours + HOURS + oscillator(ours) + slewing(ours)
    low, high = clock.bounds(theirs)
    assert (theirs + low <= ours).all()
    assert (ours <= theirs + high).all()
    assert clock.lost_ns == []
    assert 1.0 < np.median(clock.errors_ns) / MS < 1.15
    rows[:, 3] = 0
    low, high = Clock(rows).bounds(theirs)
    assert (theirs + low <= ours).all(), "who is not told what NTP did sees no steady rate"
    assert (ours <= theirs + high).all()
    assert np.median(high - low) / 2 / MS > 1.2


@pytest.mark.parametrize("rate", [1e-4, 8e-4])
@pytest.mark.parametrize("seconds", [10, 60])
@pytest.mark.parametrize("seed", range(3))
def test_an_oscillator_that_turns_misplaces_no_time(rate, seconds, seed):
    """It goes too fast for half of the time, then as much too slow: steady it is not, and never
    taken for it."""
    half = seconds * S // 2

    def turning(ours):
        shift = rate * (half - np.abs(np.asarray(ours - 10**12) - half))
        return shift.astype(np.int64)

    rows = exchanges(
        np.random.default_rng(seed), lambda ours: ours + turning(ours), count=10 * seconds
    )
    ours = 10**12 + np.arange(0, seconds * S, 7 * MS + 1)
    theirs = ours + turning(ours)
    low, high = Clock(rows).bounds(theirs)
    assert (theirs + low <= ours).all()
    assert (ours <= theirs + high).all()


def test_what_ntp_did_is_read_between_two_looks_or_not_at_all():
    first = slewed_ns()
    second = slewed_ns()
    assert abs(second - first) < READ_NS + MS, "it moves by 500 ppm at most"
    assert slewed_ns(within_ns=-1) is None, "a clock that takes too long to read ends no loop"


def test_clocks_are_read_back_by_worker_and_what_is_torn_is_left_out(tmp_path):
    rows = exchanges(np.random.default_rng(6), lambda ours: ours + HOURS, count=5)
    clock_file(tmp_path, 2, 77).write_bytes(rows.tobytes() + b"torn")
    clock_file(tmp_path, 3, 78).write_bytes(b"")
    ((worker, clock),) = read_clocks(tmp_path).items()
    assert worker == (2, 77)
    assert clock.exchanges == 5
    assert abs(clock.ours(10**12 + HOURS) - 10**12) < 4 * MS
