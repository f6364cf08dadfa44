"""Scales end on round numbers, whatever the figures are, and put every value inside."""

import math

import pytest

from bench.report.html.scale import (
    duration_tick,
    exact,
    linear,
    logarithmic,
    number_tick,
    percentile_text,
    percentiles,
)


@pytest.mark.parametrize("values", [[0], [], [3], [0.2, 0.9], [1e-9], [12_345, 99], [7, 7, 7], [1e12]])
def test_a_linear_scale_begins_at_nought_and_holds_every_value(values):
    scale = linear(values, 200, 20)
    assert scale.ticks[0] == scale.low == 0
    assert scale(0) == 200
    assert all(20 <= scale(value) <= 200 for value in values)
    assert 2 <= len(scale.ticks) <= 8


@pytest.mark.parametrize("values", [[1e-4], [1e-4, 2e-4], [3.3e-5, 1.9], [], [0.0, 1e-9], [5, 5]])
def test_a_logarithmic_scale_holds_every_positive_value(values):
    scale = logarithmic(values, 200, 20)
    assert scale.low < scale.high
    assert all(scale.low <= value * 1.000001 and value <= scale.high * 1.000001 for value in values if value > 0)
    assert scale.ticks
    assert all(math.isclose(round(t / 10 ** math.floor(math.log10(t) + 1e-9), 6) % 1, 0) for t in scale.ticks)


def test_time_ends_where_the_run_ends():
    scale = exact(-1.0, 6.0, 60, 460)
    assert (scale(-1), scale(6)) == (60, 460)
    assert set(scale.ticks) <= {-1, 0, 1, 2, 3, 4, 5, 6}


def test_percentiles_reach_as_far_as_the_samples():
    assert percentiles(50_000, 0, 100).ticks == (1, 2, 10, 100, 1_000, 10_000, 100_000)
    assert [percentile_text(tick) for tick in (1, 2, 10, 100, 1_000, 100_000)] == [
        "0 %", "50 %", "90 %", "99 %", "99.9 %", "99.999 %",
    ]  # fmt: skip


def test_ticks_are_short():
    assert [duration_tick(seconds) for seconds in (0, 1e-5, 2e-4, 0.005, 0.1, 1, 20)] == [
        "0", "10 µs", "200 µs", "5 ms", "100 ms", "1 s", "20 s",
    ]  # fmt: skip
    assert [number_tick(value) for value in (0, 5, 2_000, 20_000, 1_500_000, 15_000_000)] == [
        "0", "5", "2,000", "20k", "1500k", "15M",
    ]  # fmt: skip
