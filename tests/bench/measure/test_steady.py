"""A trend is named, noise and single accidents are not."""

import random

import pytest

from bench.measure.statistics import steady_state


@pytest.mark.parametrize("count", [500, 0])
def test_a_constant_rate_is_steady(count):
    assert (steady_state([count] * 10).change_ratio, steady_state([count] * 10).warning) == (0.0, None)


@pytest.mark.parametrize("step, text", [(-20, "-22%"), (20, "+18%")])
def test_a_rate_that_falls_or_rises_is_named_with_its_size(step, text):
    warning = steady_state([900 + step * tenth for tenth in range(10)]).warning
    assert warning is not None
    assert f"the rate changed by {text} over the measured window" in warning


def test_a_change_within_the_tolerance_is_let_pass():
    assert steady_state([1_000 + tenth for tenth in range(10)]).warning is None
    assert steady_state([1_000 + tenth for tenth in range(10)], tolerance=0.005).warning is not None


def test_one_bad_tenth_is_no_trend():
    assert steady_state([1_000] * 9 + [100]).change_ratio == 0.0


def test_noise_without_trend_warns_in_at_most_one_of_twenty():
    dice = random.Random(3)
    warned = sum(steady_state([dice.gauss(1_000, 150) for _ in range(10)]).warning is not None for _ in range(1_000))
    assert warned <= 60


@pytest.mark.parametrize("counts", [[], [1] * 9, [1] * 11])
def test_other_than_ten_windows_are_refused(counts):
    with pytest.raises(ValueError, match="needs 10 windows"):
        steady_state(counts)
