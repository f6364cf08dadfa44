"""Scales end on round numbers, whatever the figures are, and put every value inside."""

import math

import pytest

from bench.report.html.scale import (
    exact,
    linear,
    logarithmic,
)


@pytest.mark.parametrize(
    "values", [[0], [], [3], [0.2, 0.9], [1e-9], [12_345, 99], [7, 7, 7], [1e12]]
)
def test_a_linear_scale_begins_at_nought_and_holds_every_value(values):
    scale = linear(values, "", str)
    assert scale.ticks[0] == scale.low == 0
    assert scale(0) == 0
    assert all(0 <= scale(value) <= 1 for value in values)
    assert 2 <= len(scale.ticks) <= 8


@pytest.mark.parametrize("values", [[1e-4], [1e-4, 2e-4], [3.3e-5, 1.9], [], [0.0, 1e-9], [5, 5]])
def test_a_logarithmic_scale_holds_every_positive_value(values):
    scale = logarithmic(values, "", str)
    assert scale.low < scale.high
    assert all(
        scale.low <= value * 1.000001 and value <= scale.high * 1.000001
        for value in values
        if value > 0
    )
    assert scale.ticks
    assert all(
        math.isclose(round(t / 10 ** math.floor(math.log10(t) + 1e-9), 6) % 1, 0)
        for t in scale.ticks
    )


def test_time_ends_where_the_run_ends():
    scale = exact(-1.0, 6.0, "", str)
    assert (scale(-1), scale(6)) == (0, 1)
    assert set(scale.ticks) <= {-1, 0, 1, 2, 3, 4, 5, 6}
