"""How far the rounds of a contest lie apart."""

from math import inf

from bench.measure.statistics import Spread
from tests.contest.judge import spread_of_rounds


def test_one_odd_round_of_seven_does_not_make_the_others_uncertain_and_two_camps_do() -> None:
    odd = spread_of_rounds([0.6, 0.85, 0.86, 0.84, 0.85, 0.87, 0.86])
    camps = spread_of_rounds([0.7, 0.9] * 4)
    assert (odd.median, odd.low > 0.7, odd.high) == (0.85, True, 0.865)
    assert camps.low < 0.8 < camps.high


def test_of_fewer_than_six_rounds_the_spread_is_all_of_them() -> None:
    values = [0.6, 0.85, 0.86, 0.84, 0.85]
    assert spread_of_rounds(values) == Spread.of(values)


def test_rounds_without_end_are_never_certain_to_be_short() -> None:
    assert spread_of_rounds([inf] * 7).low == inf
    assert spread_of_rounds([1.0, 1.0, 1.0, inf, inf, inf, inf]).high == inf
