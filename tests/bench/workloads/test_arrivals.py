"""The open-loop schedule: what every worker must agree on without talking to the others."""

from __future__ import annotations

from itertools import islice, takewhile

import numpy as np
import pytest

from bench.workloads.arrivals import CHUNK, due_between, offsets_ns

COUNT = 3 * CHUNK + 17  # across chunk borders


def first(count: int, *args: object) -> list[int]:
    return list(islice(offsets_ns(*args), count))  # type: ignore[arg-type]


@pytest.mark.parametrize("spacing", ["fixed", "poisson"])
@pytest.mark.parametrize("parts", [1, 2, 3, 5, 7, 64, CHUNK + 1])
def test_the_shares_of_any_number_of_workers_are_the_whole_schedule(spacing: str, parts: int) -> None:
    whole = first(COUNT, 1500.0, spacing, 7)
    shares = [first(-(-COUNT // parts), 1500.0, spacing, 7, part, parts) for part in range(parts)]
    dealt = [shares[index % parts][index // parts] for index in range(COUNT)]
    assert dealt == whole


@pytest.mark.parametrize("spacing", ["fixed", "poisson"])
def test_arrivals_ascend_and_are_whole_nanoseconds(spacing: str) -> None:
    times = first(COUNT, 250_000.0, spacing, 3)
    assert all(isinstance(time, int) for time in times[:10])
    assert times == sorted(times)
    assert times[0] >= 0


def test_fixed_arrivals_lie_exactly_one_gap_apart() -> None:
    assert first(5, 500.0, "fixed", 1) == [0, 2_000_000, 4_000_000, 6_000_000, 8_000_000]


def test_fixed_arrivals_do_not_drift_at_an_odd_rate() -> None:
    times = first(30_000, 3.0, "fixed", 1)
    assert times[29_999] == round(29_999 * 1e9 / 3)


def test_poisson_gaps_have_the_rate_and_spread_of_independent_callers() -> None:
    gaps = np.diff(first(40_000, 2000.0, "poisson", 11))
    assert gaps.mean() == pytest.approx(500_000, rel=0.02)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)  # exponential: deviation = mean
    assert (gaps > 500_000).mean() == pytest.approx(np.exp(-1), abs=0.01)


def test_the_same_seed_gives_the_same_schedule_and_another_seed_another() -> None:
    assert first(CHUNK, 10.0, "poisson", 1) == first(CHUNK, 10.0, "poisson", 1)
    assert first(CHUNK, 10.0, "poisson", 1) != first(CHUNK, 10.0, "poisson", 2)


@pytest.mark.parametrize("part, parts", [(2, 2), (-1, 2), (0, 0)])
def test_a_part_that_does_not_exist_is_refused(part: int, parts: int) -> None:
    with pytest.raises(ValueError, match="is not one of"):
        offsets_ns(1.0, "fixed", 1, part, parts)


def test_an_unknown_spacing_is_refused() -> None:
    with pytest.raises(ValueError, match="fixed or poisson"):
        offsets_ns(1.0, "burst", 1)


@pytest.mark.parametrize("spacing", ["fixed", "poisson"])
@pytest.mark.parametrize(("since_s", "until_s"), [(0.0, 3.0), (0.7, 3.0), (1.0, 1.0), (2.9, 3.1)])
def test_what_is_due_is_what_the_schedule_hands_out(spacing: str, since_s: float, until_s: float) -> None:
    since_ns, until_ns = round(since_s * 1e9), round(until_s * 1e9)
    times = takewhile(lambda at: at < until_ns, offsets_ns(1234.5, spacing, 7))
    assert due_between(1234.5, spacing, 7, since_ns, until_ns) == sum(at >= since_ns for at in times)
