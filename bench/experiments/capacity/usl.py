"""How throughput grows with callers: *(callers, operations/s) → a Universal Scalability Law, or why there is none*.

    X(n) = λ·n / (1 + σ·(n − 1) + κ·n·(n − 1))

λ: operations/s of one caller alone; σ: the share that waits in line (contention); κ: the cost of keeping in step
(coherency), which makes throughput fall again. The peak is at n* = √((1 − σ) / κ).

Rules
- Fitted on the logarithm of the rates, as they span decades; λ > 0, 0 ≤ σ ≤ 1, κ ≥ 0.
- No fit from fewer than 8 points, fewer than 2 points past the peak, a peak that no bend shows, or when the curve
  misses the points by more than 15 % (root mean square): a curve drawn through such points predicts nothing.
- Intervals: 95 %, from a bootstrap of the residuals.

Source: Gunther, Guerrilla Capacity Planning (2007); scipy.optimize.curve_fit; Efron and Tibshirani 1993, chapter 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEAST_POINTS = 8
PAST_PEAK = 2
DROP = 0.03  # what is within this of the largest rate is the plateau, not past the peak
MOST_MISFIT = 0.15
RESAMPLES = 400

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Law:
    """A fit. `rate_of_one` λ (1/s), `contention` σ, `coherency` κ, `peak_callers` n*, `peak_rate` X(n*) (1/s);
    `misfit`: root mean square of the relative residuals."""

    rate_of_one: Estimate
    contention: Estimate
    coherency: Estimate
    peak_callers: Estimate
    peak_rate: Estimate
    misfit: float


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no law is fitted."""

    reason: str


def throughput(callers: Floats, rate_of_one: float, contention: float, coherency: float) -> Floats:
    """X(n) for an array of callers (≥ 1)."""
    return np.asarray(rate_of_one * callers / (1 + contention * (callers - 1) + coherency * callers * (callers - 1)))


def fit_law(callers: Sequence[int], rates: Sequence[float], seed: int = 1) -> Law | Refusal:
    """Fit the law to one rate (> 0, operations/s) per number of callers (≥ 1), or say why not. `seed`: bootstrap."""
    order = np.argsort(callers)
    n, x = np.asarray(callers, float)[order], np.asarray(rates, float)[order]
    if refusal := _too_little(n, x):
        return refusal
    fitted = _fit(n, np.log(x))
    if fitted is None:
        return Refusal("the fit does not converge on these points")
    residuals = np.log(x) - np.log(throughput(n, *fitted))
    misfit = float(np.sqrt(np.mean(residuals**2)))
    if misfit > MOST_MISFIT:
        return Refusal(f"the curve misses the points by {misfit:.0%} (root mean square; {MOST_MISFIT:.0%} is let pass)")
    if fitted[2] <= 0 or not n[0] < _peak(fitted)[0] < n[-1]:
        return Refusal("the fitted curve has no peak among the points")
    return _law(n, fitted, residuals, misfit, seed)


def _too_little(n: Floats, x: Floats) -> Refusal | None:
    if len(n) < LEAST_POINTS:
        return Refusal(f"{len(n)} points, and a fit needs {LEAST_POINTS}")
    peak = int(np.argmax(x))
    peak = int(np.argmax(x))
    past = int((x[peak + 1 :] < (1 - DROP) * x[peak]).sum())
    if past < PAST_PEAK:
        return Refusal(
            f"{past} points past the peak (at {n[peak]:.0f} callers), and a fit needs {PAST_PEAK}: "
            f"throughput had not turned down by {n[-1]:.0f} callers"
        )
    return None


def _fit(n: Floats, log_x: Floats) -> tuple[float, float, float] | None:
    from scipy.optimize import curve_fit  # takes a second, and most who come here only ask for `throughput`

    def log_law(callers: Floats, log_one: float, contention: float, coherency: float) -> Floats:
        return np.log(throughput(callers, float(np.exp(log_one)), contention, coherency))

    start = (float(log_x[0] - np.log(n[0])), 0.05, 1e-4)
    bounds = ([-np.inf, 0.0, 0.0], [np.inf, 1.0, 1.0])
    try:
        (log_one, contention, coherency), _ = curve_fit(log_law, n, log_x, p0=start, bounds=bounds, maxfev=5000)
    except (RuntimeError, ValueError):
        return None
    return float(np.exp(log_one)), float(contention), float(coherency)


def _peak(fitted: tuple[float, float, float]) -> tuple[float, float]:
    _, contention, coherency = fitted
    callers = float(np.sqrt(max(1 - contention, 0.0) / max(coherency, 1e-12)))
    return callers, float(throughput(np.array([max(callers, 1.0)]), *fitted)[0])


def _law(n: Floats, fitted: tuple[float, float, float], residuals: Floats, misfit: float, seed: int) -> Law:
    dice, centred = np.random.default_rng(seed), residuals - residuals.mean()
    log_curve = np.log(throughput(n, *fitted))
    again = (_fit(n, log_curve + dice.choice(centred, len(n))) for _ in range(RESAMPLES))
    samples = np.array([(*sample, *_peak(sample)) for sample in again if sample is not None])
    low, high = np.percentile(samples, [2.5, 97.5], axis=0)
    values = (*fitted, *_peak(fitted))
    one, contention, coherency, callers, rate = (
        Estimate(value, float(a), float(b)) for value, a, b in zip(values, low, high, strict=True)
    )
    return Law(one, contention, coherency, callers, rate, misfit)
