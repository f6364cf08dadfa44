"""How throughput grows with callers: *(callers, operations/s) → a Universal Scalability Law, or why there is none*.

    X(n) = λ·n / (1 + σ·(n − 1) + κ·n·(n − 1))

λ: operations/s of one caller alone; σ: the share that waits in line (contention); κ: the cost of keeping in step
(coherency), which makes throughput fall again. The peak is at n* = √((1 − σ) / κ).

Rules
- Fitted by least squares of the relative residuals, as the rates span decades; λ > 0, σ ≥ 0, κ ≥ 0.
- No fit from fewer than 8 points, fewer than 2 points past the peak, a peak that no bend shows, or when the curve
  misses the points by more than 15 % (root mean square): a curve drawn through such points predicts nothing.
- Intervals: 95 %, from a bootstrap of the residuals.

Source: Gunther, Guerrilla Capacity Planning (2007), who fits n / X, too; Efron and Tibshirani 1993, chapter 9.
"""

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
    fitted = _fit(n, x)
    curve = throughput(n, *fitted)
    residuals = np.log(x / curve)
    misfit = float(np.sqrt(np.mean(residuals**2)))
    if misfit > MOST_MISFIT:
        return f"the curve misses the points by {misfit:.0%} (root mean square; {MOST_MISFIT:.0%} is let pass)"
    if fitted[2] <= 0 or not n[0] < _peak(fitted)[0] < n[-1]:
        return "the fitted curve has no peak among the points"
    rng, centred = np.random.default_rng(seed), residuals - residuals.mean()
    again = (_fit(n, curve * np.exp(rng.choice(centred, len(n)))) for _ in range(RESAMPLES))
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


def _fit(n: Floats, x: Floats) -> tuple[float, float, float]:
    """Return λ, σ and κ with the least squared relative residuals: n / X is linear in 1/λ, σ/λ and κ/λ.

    None of these is negative: of the fits by fewer terms the best that has none that is.
    """
    terms = np.stack([np.ones(len(n)), n - 1, n * (n - 1)], axis=1) * (x / n)[:, None]
    fits = []
    for chosen in ([0], [0, 1], [0, 2], [0, 1, 2]):
        found = np.zeros(3)
        found[chosen] = np.linalg.lstsq(terms[:, chosen], np.ones(len(n)), rcond=None)[0]
        if found.min() >= 0:
            fits.append((float(((terms @ found - 1) ** 2).sum()), found.tolist()))
    one, contention, coherency = min(fits)[1]
    return 1 / one, contention / one, coherency / one


def _peak(fitted: tuple[float, float, float]) -> tuple[float, float]:
    _, contention, coherency = fitted
    callers = float(np.sqrt(max(1 - contention, 0.0) / max(coherency, 1e-12)))
    return callers, float(throughput(np.array([max(callers, 1.0)]), *fitted)[0])
