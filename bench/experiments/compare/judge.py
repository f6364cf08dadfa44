"""Two sides compared by pairs of runs: *values per pair → ratio with its interval, one word*.

d is the Hodges-Lehmann estimate of the log ratios turned so that above 0 is worse, [lo, hi] its exact Wilcoxon
interval, t = log(1 + tolerance).

Rules
- Gate: PASS if hi ≤ t; FAIL if lo > 0 and d > t; else INCONCLUSIVE. An effect must be both real and large to fail.
- The gate's interval has the confidence 1 − 0.02/m for m judged metrics. Identical code has lo > 0 with a chance of at
  most 0.01/m per metric, whatever the noise is like: so it fails at most 1 time in 100.
- Compare: `different` if the interval (95 %) excludes 1, `same` if it lies within the tolerance, else `inconclusive`.
- A pair without a value on either side is no pair; without any pair the verdict is inconclusive. Where only one side
  has a value, as the other got no lease, nothing passes.

Source: README, "Gate your CI".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, exp, inf, isinf, log, pi, sqrt
from statistics import NormalDist, median
from typing import Any

import numpy as np

from bench.gates.metric import Metric, finite

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


FALSE_ALARM = 0.01  # of a whole gate over identical code, at most
COMPARE_CONFIDENCE = 0.95
Values = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Sides:
    """The values of two sides, None or 0 where a run has none, inf where so many acquires failed.

    `paired`: the i-th of both are of one round.
    """

    first: Values
    second: Values
    paired: bool = True

    def known(self) -> tuple[list[float], list[float]]:
        """What can be compared: whole pairs, or all values of each side."""
        first, second = (list(map(finite, side)) for side in (self.first, self.second))
        if not self.paired:
            return [a for a in first if a], [b for b in second if b]
        both = [(a, b) for a, b in zip(first, second, strict=True) if a and b]
        return [a for a, _ in both], [b for _, b in both]

    @property
    def torn(self) -> int:
        """In how many pairs only one side has a value."""
        return sum(bool(a) != bool(b) for a, b in zip(self.first, self.second, strict=True)) if self.paired else 0


@dataclass(frozen=True, slots=True)
class Judged:
    """One metric of one side against the first. `worse`: the shift turned so that above 0 is worse; None: no values.

    `noisy`: there are pairs enough and values in all of them, and only their spread leaves it undecided.
    """

    metric: Metric
    first: float | None
    second: float | None
    pairs: int
    worse: Estimate | None
    deviation: float | None
    paired: bool
    verdict: str
    reason: str
    noisy: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the entry of a result's `metrics`; ratios are second ÷ first, as measured, not turned."""
        return {
            "metric": self.metric.name,
            "unit": self.metric.unit,
            "higher_is_better": self.metric.higher_is_better,
            "first": self.first,
            "second": self.second,
            "pairs": self.pairs,
            "paired": self.paired,
            **self._ratios(),
            "verdict": self.verdict,
            "reason": self.reason or None,
            "noisy": self.noisy,
        }

    def _ratios(self) -> dict[str, float | None]:
        names = ("ratio", "low", "high", "confidence", "pair_noise_ratio", "detectable_ratio")
        if self.worse is None:
            return dict.fromkeys(names)
        shift, ends = self.worse.shift, (self.worse.low, self.worse.high)
        if self.metric.higher_is_better:
            shift, ends = -shift, (-ends[1], -ends[0])
        low, high = (None if isinf(end) else exp(end) for end in ends)
        noise = effect = None
        if self.deviation is not None:
            noise = exp(self.deviation) - 1
            effect = exp(detectable(self.deviation, self.pairs, self.worse.confidence)) - 1
        return dict(zip(names, (exp(shift), low, high, self.worse.confidence, noise, effect), strict=True))


def gate_confidence(metrics: int) -> float:
    """Return the confidence of each interval of a gate that judges so many metrics."""
    return 1 - 2 * FALSE_ALARM / metrics


def gate_pairs(metrics: int) -> int:
    """Return the least number of pairs with which such a gate can answer at all."""
    return least_pairs(gate_confidence(metrics))


def gate_verdict(worse: Estimate, tolerance: float) -> str:
    """Return pass, fail or inconclusive for a shift (above 0 is worse) and a tolerance (0.1 = 10 %)."""
    limit = log(1 + tolerance)
    if worse.high <= limit:
        return "pass"
    if worse.low > 0 and worse.shift > limit:
        return "fail"
    return "inconclusive"


def compare_verdict(worse: Estimate, tolerance: float) -> str:
    """Return different, same or inconclusive."""
    limit = log(1 + tolerance)
    if worse.low > 0 or worse.high < 0:
        return "different"
    return "same" if -limit <= worse.low and worse.high <= limit else "inconclusive"


def judge_gate(metric: Metric, values: Sides, tolerance: float, *, metrics: int) -> Judged:
    """Judge one of `metrics` judged figures: values of the baseline and of the candidate."""
    return _judge(metric, values, gate_confidence(metrics), gate_verdict, tolerance)


def judge_compare(metric: Metric, values: Sides, tolerance: float) -> Judged:
    """Say of one figure whether the two sides differ, and by how much."""
    return _judge(metric, values, COMPARE_CONFIDENCE, compare_verdict, tolerance)


def _judge(
    metric: Metric, values: Sides, confidence: float, verdict: Callable[[Estimate, float], str], tolerance: float
) -> Judged:
    first, second = values.known()
    medians = (median(first) if first else None, median(second) if second else None)
    count = min(len(first), len(second))
    if not count:
        return Judged(metric, *medians, 0, None, None, values.paired, "inconclusive", "there are no samples")
    sign = -1.0 if metric.higher_is_better else 1.0
    deviation = None
    if values.paired:
        differences = [sign * ratio for ratio in log_ratios(first, second)]
        worse, deviation = paired_shift(differences, confidence), spread(differences)
    else:
        logs = [[sign * log(value) for value in side] for side in (first, second)]
        worse = unpaired_shift(logs[0], logs[1], confidence)
    found, reason, noisy = verdict(worse, tolerance), "", False
    if values.torn and found in ("pass", "same"):
        found, reason = "inconclusive", f"in {values.torn} of {len(values.first)} pairs only one side has samples"
    elif found == "inconclusive":
        few = _too_few(worse, count, values)
        reason, noisy = few or _too_noisy(worse, deviation, tolerance), not (few or values.torn)
    return Judged(metric, *medians, count, worse, deviation, values.paired, found, reason, noisy)


def _too_few(worse: Estimate, count: int, values: Sides) -> str:
    if worse.low != -inf:
        return ""
    noun = "pair" if values.paired else "run"
    many = f"1 {noun} is" if count == 1 else f"{count} {noun}s are"
    return f"{many} too few for an interval of {worse.confidence:.3g}"


def _too_noisy(worse: Estimate, deviation: float | None, tolerance: float) -> str:
    """How much so many pairs can show, and how many it would take to show the tolerance."""
    effect = detectable(deviation, worse.count, worse.confidence) if deviation is not None else 0.0
    limit = log(1 + tolerance)
    if effect <= limit:
        return "the change is too close to the tolerance to tell"
    wanted = ceil(worse.count * (effect / limit) ** 2)
    return f"{worse.count} pairs with this noise show {exp(effect) - 1:.0%}, {tolerance:.0%} takes about {wanted}"
