"""Intervals for shares: *successes of trials → the rate and what it may be, 95 % sure*. Pure.

Source: Wilson 1927, "Probable inference, the law of succession, and statistical inference", the score interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Annotated

from bench.measure.section import Share, says

NORMAL_95 = 1.959964


@dataclass(frozen=True, slots=True)
class Interval:
    """A rate with its 95 % interval; all None without trials."""

    rate: Annotated[Share | None, says("successes of the trials")]
    low: Annotated[Share | None, says("of the 95 % interval")]
    high: Annotated[Share | None, says("of the 95 % interval")]


def wilson(successes: int, trials: int) -> Interval:
    """The Wilson score interval (95 %) of `successes` in `trials`, 0 ≤ successes ≤ trials."""
    if not trials:
        return Interval(None, None, None)
    rate, square = successes / trials, NORMAL_95**2
    centre = (rate + square / (2 * trials)) / (1 + square / trials)
    half = NORMAL_95 / (1 + square / trials) * sqrt(rate * (1 - rate) / trials + square / (4 * trials**2))
    return Interval(rate, max(0.0, min(rate, centre - half)), min(1.0, max(rate, centre + half)))
