"""Pure functions for statistics. One function computes the interval of a share. Other functions
estimate the shift between two samples, or look for a trend in a rate.

- The interval of a share is Wilson's score interval (1927).
- A shift is the Hodges-Lehmann estimate, with an exact interval. For pairs, the interval of the
  shift is computed from Wilcoxon's signed ranks. For two independent samples, the interval of the
  shift is computed from the rank sums of Mann and Whitney.
- The slope of a trend is the Theil-Sen estimate. With this estimate, a change in only one tenth of
  the window cannot reverse the sign of the slope. A trend causes a warning under two conditions.
  The rate must change by more than 10 % over the window. In addition, a Mann-Kendall test at the 5
  % level must reject the hypothesis that there is no trend. For n = 10, this test requires |S| ≥
  23, which has the probability 0.047.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, count
from math import ceil, comb, exp, inf, isfinite, log2, sqrt
from statistics import median
from typing import Annotated, Self

import numpy as np

from bench.measure.section import Section, Share, says

NORMAL_95 = 1.959964
TENTHS = 10
# The rate may change by this share over the window without a warning.
DRIFT = 0.10
_SIGNIFICANT = 23
Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Interval:
    """A rate with its 95 % interval. All three values are None if there were no trials."""

    rate: Annotated[Share | None, says("share of the trials that succeeded")]
    low: Annotated[Share | None, says("of the 95 % interval")]
    high: Annotated[Share | None, says("of the 95 % interval")]


def wilson(successes: int, trials: int) -> Interval:
    """Return the Wilson score interval (95 %) of `successes` in `trials`, where 0 ≤ successes ≤
    trials."""
    if not trials:
        return Interval(None, None, None)
    rate = successes / trials
    square = NORMAL_95**2
    centre = (rate + square / (2 * trials)) / (1 + square / trials)
    half = (
        NORMAL_95
        / (1 + square / trials)
        * sqrt(rate * (1 - rate) / trials + square / (4 * trials**2))
    )
    return Interval(rate, max(0.0, min(rate, centre - half)), min(1.0, max(rate, centre + half)))


class Spread(Section, frozen=True, kw_only=True):
    """The median, lowest and highest value of a figure over the repeats of a run."""

    median: Annotated[float, says("median of the figure over the repeats")]
    low: Annotated[float, says("lowest value of the figure over the repeats")]
    high: Annotated[float, says("highest value of the figure over the repeats")]

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence if the median is not between the lowest and the highest value."""
        if not self.low <= self.median <= self.high:
            yield (
                f"the median ({self.median:.6g}) is not between the ends ({self.low:.6g}, "
                f"{self.high:.6g})"
            )

    @classmethod
    def of(cls, values: Iterable[float]) -> Self:
        """Return the median, the lowest value and the highest value of `values`, which must not be
        empty."""
        numbers = [float(value) for value in values]
        return cls(median=median(numbers), low=min(numbers), high=max(numbers))


@dataclass(frozen=True, slots=True)
class Shift:
    """An estimate of how much the logarithms of one sample differ from the logarithms of another
    sample. If there are too few values for the `confidence`, `low` and `high` are infinite."""

    shift: float
    low: float
    high: float
    confidence: float
    count: int

    @property
    def ratios(self) -> tuple[float, float] | None:
        """The interval of the ratio between the two samples. The ratio is exp(shift). The interval
        is None if `low` and `high` are infinite."""
        return (exp(self.low), exp(self.high)) if isfinite(self.high) else None


def paired_shift(differences: Sequence[float], confidence: float) -> Shift:
    """Return the estimated shift with an interval of `confidence` (0…1). `differences` has one
    value per pair, and there is at least one pair."""
    values = np.asarray(differences, float)
    first, second = np.triu_indices(len(values))
    averages = np.sort((values[first] + values[second]) / 2)
    depth = _depth(_signed_rank_shares(len(values)), confidence)
    return _estimate(averages, depth, confidence, len(values))


def unpaired_shift(first: Sequence[float], second: Sequence[float], confidence: float) -> Shift:
    """Return the estimated shift from `first` to `second`, with an interval of `confidence` (0…1).
    The two samples are independent. Each sample is a list of logarithms, and neither list is
    empty."""
    a = np.asarray(first, float)
    b = np.asarray(second, float)
    differences = np.sort((b[None, :] - a[:, None]).ravel())
    depth = _depth(_rank_sum_shares(len(a), len(b)), confidence)
    return _estimate(differences, depth, confidence, min(len(a), len(b)))


def spread(differences: Sequence[float]) -> float | None:
    """Return the standard deviation of `differences`, which has one log ratio for each pair. Return
    None if there are fewer than three pairs."""
    return float(np.std(np.asarray(differences, float), ddof=1)) if len(differences) > 2 else None


def least_pairs(confidence: float) -> int:
    """Return the smallest number of pairs with which an interval of this confidence is possible.
    The result is the smallest n with 2⁻ⁿ ≤ α/2, where α is 1 − `confidence`."""
    return ceil(log2(2 / (1 - confidence)))


def least_runs(confidence: float) -> int:
    """Return the smallest number of runs per side with which an interval of this confidence is
    possible. The result is the smallest n with 1 ÷ C(2n, n) ≤ α/2, where α is 1 − `confidence`."""
    return next(
        runs for runs in count(1) if 1 / comb(2 * runs, runs) <= (1 - confidence) / 2 + 1e-12
    )


def _estimate(ordered: Array, depth: int, confidence: float, count: int) -> Shift:
    low, high = (float(ordered[depth - 1]), float(ordered[-depth])) if depth else (-inf, inf)
    return Shift(float(np.median(ordered)), low, high, confidence, count)


def _depth(shares: Array, confidence: float) -> int:
    """Return the largest k with P(T < k) ≤ α/2. T is a random number that has the value i with the
    probability `shares[i]`, and α is 1 − `confidence`."""
    below = np.cumsum(shares)
    return int(np.searchsorted(below, (1 - confidence) / 2 + 1e-12, side="right"))


# For each number of pairs, the cache keeps one array. No code changes these arrays.
@cache
def _signed_rank_shares(pairs: int) -> Array:
    """Return the distribution of the sum of positive ranks. There are 2ⁿ patterns of signs. The
    entry at index i is the share of patterns whose positive ranks have the sum i."""
    shares = np.ones(1)
    # Each rank is positive or negative with equal probability, and only positive ranks count.
    for rank in range(1, pairs + 1):
        shares = np.convolve(shares, [0.5, *[0.0] * (rank - 1), 0.5])
    return shares


def _rank_sum_shares(first: int, second: int) -> Array:
    """Return the distribution of the Mann-Whitney sum. The values of two samples can have many
    different orders. The entry at index i is the share of orders in which the Mann-Whitney sum is
    i."""
    most = first * second
    # How many orders there are, as Python integers. The first index is how many values of the first
    # sample are placed. The second index is the sum so far.
    orders = np.zeros((first + 1, most + 1), object)
    orders[0, 0] = 1
    # `before`: how many values of the second sample are already placed.
    for before in range(second + 1):
        for came in range(1, first + 1):
            orders[came, before:] += orders[came - 1, : most + 1 - before]
    return np.array(orders[first] / comb(first + second, first), float)


def trend_warning(counts: Sequence[int]) -> Iterator[str]:
    """Yield a warning if the rate has a trend. `counts` has TENTHS counts, one for each tenth of
    the window."""
    pairs = list(combinations(range(TENTHS), 2))
    slope = median(
        (counts[later] - counts[earlier]) / (later - earlier) for earlier, later in pairs
    )
    score = sum(
        (counts[later] > counts[earlier]) - (counts[later] < counts[earlier])
        for earlier, later in pairs
    )
    middle = median(counts)
    # The fitted line may fall below 0, but a rate cannot. So the change is never less than −100 %.
    change = max(slope * (TENTHS - 1) / middle, -1.0) if middle else 0.0
    if abs(change) > DRIFT and abs(score) >= _SIGNIFICANT:
        yield (
            f"the rate was not in a steady state: it changed by {change:+.0%} during the measured "
            "window; use a longer --warmup"
        )
