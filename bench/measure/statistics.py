"""What numbers say for certain: *successes of trials → a share with its interval; leases per tenth → a trend*. Pure.

Rules: the slope is Theil–Sen's (median over all pairs), which no single bad tenth can turn; it is a warning when the
rate changed by more than the tolerance over the window *and* a Mann–Kendall test rejects "no trend" at 5 %.
Source: Wilson 1927, the score interval; Sen 1968; Kendall's exact table for n = 10: |S| ≥ 23 has probability 0.047.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from statistics import median
from typing import Annotated

from bench.measure.section import Share, says

NORMAL_95 = 1.959964
TENTHS = 10
_SIGNIFICANT = 23


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


@dataclass(frozen=True, slots=True)
class Trend:
    """`change_ratio`: the rate's change from the first tenth to the last ÷ its median; `warning`: None when steady."""

    change_ratio: float
    warning: str | None


def steady_state(counts: Sequence[float], tolerance: float = 0.10) -> Trend:
    """The trend of ten counts of equally long, neighbouring windows. `tolerance`: the change that is let pass (> 0).

    Raises ValueError when there are not ten.
    """
    if len(counts) != TENTHS:
        raise ValueError(f"a steady-state check needs {TENTHS} windows, not {len(counts)}")
    pairs = list(combinations(range(TENTHS), 2))
    slope = median((counts[later] - counts[earlier]) / (later - earlier) for earlier, later in pairs)
    score = sum((counts[later] > counts[earlier]) - (counts[later] < counts[earlier]) for earlier, later in pairs)
    middle = median(counts)
    change = slope * (TENTHS - 1) / middle if middle else 0.0
    if abs(change) <= tolerance or abs(score) < _SIGNIFICANT:
        return Trend(change, None)
    return Trend(
        change, f"not a steady state: the rate changed by {change:+.0%} over the measured window; lengthen --warmup"
    )
