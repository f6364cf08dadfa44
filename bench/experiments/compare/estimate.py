"""What pairs of runs say about a ratio: *log ratios of pairs (or two samples) → estimate, interval, detectable effect*.

Rules
- The estimate is Hodges and Lehmann's, the median of all Walsh averages (xᵢ + xⱼ)/2, i ≤ j, which outliers barely move.
- The interval is the exact one of the Wilcoxon signed-rank test: [W₍k₎, W₍M+1−k₎] of the M sorted Walsh averages, k the
  largest with P(T < k) ≤ α/2. It needs no normal noise, only a symmetric one, which running A and B in random order
  gives. With too few pairs for the confidence there is no interval: it is unbounded, not narrow.
- Unpaired samples (stored results): the same of all differences yⱼ − xᵢ, by the exact Mann-Whitney distribution.
- Detectable: the effect whose interval excludes none with 95 % chance, (z₁₋α/2 + z₀.₉₅) · sd / √(0.955 · pairs).

Source: Hollander and Wolfe, Nonparametric Statistical Methods, 3.2, 3.3, 4.2 and 4.3; 0.955 = 3/π, the test's
efficiency. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log, pi, sqrt
from statistics import NormalDist

import numpy as np

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
POWER = 0.95
EFFICIENCY = 3 / pi


@dataclass(frozen=True, slots=True)
class Estimate:
    """A shift of logarithms; `low` and `high` are ±inf where there are too few values for the `confidence`."""

    shift: float
    low: float
    high: float
    confidence: float
    count: int


def log_ratios(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Return log(second ÷ first) of each pair; all values above 0, both of one length."""
    return [log(b / a) for a, b in zip(first, second, strict=True)]


def paired_shift(differences: Sequence[float], confidence: float) -> Estimate:
    """Return the estimate from one difference per pair (at least one), with an interval of `confidence` (0…1)."""
    values = np.asarray(differences, float)
    first, second = np.triu_indices(len(values))
    averages = np.sort((values[first] + values[second]) / 2)
    depth = _depth(_signed_rank_shares(len(values)), confidence)
    return _estimate(averages, depth, confidence, len(values))


def unpaired_shift(first: Sequence[float], second: Sequence[float], confidence: float) -> Estimate:
    """Return how far `second` lies above `first`, two independent samples of logarithms, at least one value each."""
    a, b = np.asarray(first, float), np.asarray(second, float)
    differences = np.sort((b[None, :] - a[:, None]).ravel())
    depth = _depth(_rank_sum_shares(len(a), len(b)), confidence)
    return _estimate(differences, depth, confidence, min(len(a), len(b)))


def spread(differences: Sequence[float]) -> float | None:
    """Return the standard deviation of one pair's log ratio; None below three pairs."""
    return float(np.std(np.asarray(differences, float), ddof=1)) if len(differences) > 2 else None


def detectable(deviation: float, pairs: int, confidence: float) -> float:
    """Return the shift of logarithms that `pairs` pairs with this standard deviation show with 95 % chance."""
    normal = NormalDist()
    return (normal.inv_cdf((1 + confidence) / 2) + normal.inv_cdf(POWER)) * deviation / sqrt(EFFICIENCY * pairs)


def least_pairs(confidence: float) -> int:
    """Return how many pairs an interval of this confidence takes: the least n with 2⁻ⁿ ≤ α/2."""
    pairs = 1
    while 0.5**pairs > (1 - confidence) / 2:
        pairs += 1
    return pairs


def _estimate(ordered: Array, depth: int, confidence: float, count: int) -> Estimate:
    low, high = (float(ordered[depth - 1]), float(ordered[-depth])) if depth else (-inf, inf)
    return Estimate(float(np.median(ordered)), low, high, confidence, count)


def _depth(shares: Array, confidence: float) -> int:
    """The largest k with P(T < k) ≤ α/2, where T takes the value i with the chance shares[i]."""
    below = np.cumsum(shares)
    return int(np.searchsorted(below, (1 - confidence) / 2 + 1e-12, side="right"))


def _signed_rank_shares(pairs: int) -> Array:
    """What share of the 2ⁿ sign patterns gives each sum of positive ranks."""
    counts = np.ones(1)
    for rank in range(1, pairs + 1):
        longer = np.zeros(len(counts) + rank)
        longer[: len(counts)] += counts
        longer[rank:] += counts
        counts = longer / 2
    return counts


def _rank_sum_shares(first: int, second: int) -> Array:
    """What share of the orders of two samples gives each Mann-Whitney sum."""
    # the Gaussian binomial coefficient ∏ (1 − x^(second+i)) / (1 − x^i), i = 1…first, in whole numbers: it cancels
    counts = [1] + [0] * (first * second)
    for i in range(1, first + 1):
        for place in range(len(counts) - 1, second + i - 1, -1):
            counts[place] -= counts[place - second - i]
        for place in range(i, len(counts)):
            counts[place] += counts[place - i]
    whole = sum(counts)
    return np.array([count / whole for count in counts])
