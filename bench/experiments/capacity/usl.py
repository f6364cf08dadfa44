"""How throughput grows with callers: *(callers, operations/s) → a Universal Scalability Law, or why there is none*.

    X(n) = λ·n / (1 + σ·(n − 1) + κ·n·(n − 1))

λ: operations/s of one caller alone; σ: the share that waits in line (contention); κ: the cost of keeping in step
(coherency), which makes throughput fall again. The peak is at n* = √((1 − σ) / κ).

Rules
- Fitted on the logarithm of the rates, as they span decades; λ > 0, 0 ≤ σ ≤ 1, κ ≥ 0.
- No fit from fewer than 8 points, fewer than 2 points past the peak, a peak that no bend shows, or when the curve
  misses the points by more than 15 % (root mean square): a curve drawn through such points predicts nothing.
- Intervals: 95 %, from a bootstrap of the residuals.

Source: Gunther, Guerrilla Capacity Planning (2007); Marquardt 1963; Efron and Tibshirani 1993, chapter 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from bench.measure.section import Amount, Section, says

LEAST_POINTS = 8
PAST_PEAK = 2
DROP = 0.03  # what is within this of the largest rate is the plateau, not past the peak
MOST_MISFIT = 0.15
RESAMPLES = 400
START = (0.05, 1e-4)  # σ and κ where the fit begins
STEPS, PRECISION = 200, 1e-10

Floats = NDArray[np.float64]


class Estimate(Section, frozen=True):
    """A value and its 95 % bootstrap interval."""

    value: Annotated[float, says("fitted")]
    low: Annotated[float, says("lower end")]
    high: Annotated[float, says("upper end")]


class Law(Section, frozen=True, kw_only=True):
    """X(n) = rate_of_one·n / (1 + contention·(n − 1) + coherency·n·(n − 1)), operations/s of n callers."""

    rate_of_one: Annotated[Estimate, says("λ, operations/s of one caller alone")]
    contention: Annotated[Estimate, says("σ, the share that waits in line")]
    coherency: Annotated[Estimate, says("κ, the cost of keeping in step")]
    peak_callers: Annotated[Estimate, says("callers with which throughput is largest")]
    peak_rate: Annotated[Estimate, says("operations/s they make")]
    misfit: Annotated[Amount, says("root mean square of the relative residuals")]


def throughput(callers: Floats, rate_of_one: float, contention: float, coherency: float) -> Floats:
    """X(n) for an array of callers (≥ 1)."""
    return np.asarray(rate_of_one * callers / (1 + contention * (callers - 1) + coherency * callers * (callers - 1)))


def fit_law(callers: Sequence[int], rates: Sequence[float], seed: int = 1) -> Law | str:
    """Fit the law to one rate (> 0, operations/s) per number of callers (≥ 1), or say why not. `seed`: bootstrap."""
    order = np.argsort(callers)
    n, x = np.asarray(callers, float)[order], np.asarray(rates, float)[order]
    if refusal := _too_little(n, x):
        return refusal
    fitted = _fit(n, np.log(x), START)
    residuals = np.log(x) - np.log(throughput(n, *fitted))
    misfit = float(np.sqrt(np.mean(residuals**2)))
    if misfit > MOST_MISFIT:
        return f"the curve misses the points by {misfit:.0%} (root mean square; {MOST_MISFIT:.0%} is let pass)"
    if fitted[2] <= 0 or not n[0] < _peak(fitted)[0] < n[-1]:
        return "the fitted curve has no peak among the points"
    dice, centred = np.random.default_rng(seed), residuals - residuals.mean()
    curve = np.log(throughput(n, *fitted))
    again = (_fit(n, curve + dice.choice(centred, len(n)), fitted[1:]) for _ in range(RESAMPLES))
    low, high = np.percentile([(*sample, *_peak(sample)) for sample in again], [2.5, 97.5], axis=0)
    ends = zip((*fitted, *_peak(fitted)), low.tolist(), high.tolist(), strict=True)
    one, contention, coherency, peak_callers, peak_rate = (Estimate(*found) for found in ends)
    return Law(
        rate_of_one=one,
        contention=contention,
        coherency=coherency,
        peak_callers=peak_callers,
        peak_rate=peak_rate,
        misfit=misfit,
    )


def _too_little(n: Floats, x: Floats) -> str:
    if len(n) < LEAST_POINTS:
        return f"{len(n)} points, and a fit needs {LEAST_POINTS}"
    peak = int(np.argmax(x))
    past = int((x[peak + 1 :] < (1 - DROP) * x[peak]).sum())
    if past < PAST_PEAK:
        return (
            f"{past} points past the peak (at {n[peak]:.0f} callers), and a fit needs {PAST_PEAK}: "
            f"throughput had not turned down by {n[-1]:.0f} callers"
        )
    return ""


def _fit(n: Floats, log_x: Floats, start: tuple[float, ...]) -> tuple[float, float, float]:
    """Return λ, σ and κ with the least squared residuals of log X, from `start` (σ, κ) on: Levenberg-Marquardt.

    λ follows from σ and κ, as the residuals' mean must be 0. A parameter at a bound stays there while it would leave.
    """
    terms, ratio = np.stack([n - 1, n * (n - 1)]), log_x - np.log(n)

    def residuals(where: Floats) -> Floats:
        found = ratio + np.log(1 + where @ terms)
        return np.asarray(found - found.mean())

    where, damping = np.array(start), 1e-3
    missed = residuals(where)
    for _ in range(STEPS):
        slopes = terms / (1 + where @ terms)
        slopes -= slopes.mean(axis=1, keepdims=True)
        downhill = -slopes @ missed
        free = ((where > 0) | (downhill > 0)) & ((where < 1) | (downhill < 0))
        normal = (slopes @ slopes.T) * np.outer(free, free)
        normal[np.diag_indices(2)] = np.where(free, np.diag(normal) * (1 + damping), 1.0)
        tried = np.clip(where + np.linalg.solve(normal, downhill * free), 0, 1)
        left = residuals(tried)
        gain = missed @ missed - left @ left
        if gain > 0:
            where, missed, damping = tried, left, max(damping / 10, 1e-12)
        else:
            damping *= 10
        if abs(gain) <= PRECISION * (missed @ missed):
            break
    log_one = float((ratio + np.log(1 + where @ terms)).mean())
    return float(np.exp(log_one)), float(where[0]), float(where[1])


def _peak(fitted: tuple[float, float, float]) -> tuple[float, float]:
    _, contention, coherency = fitted
    callers = float(np.sqrt(max(1 - contention, 0.0) / max(coherency, 1e-12)))
    return callers, float(throughput(np.array([max(callers, 1.0)]), *fitted)[0])
