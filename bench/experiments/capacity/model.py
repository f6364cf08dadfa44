"""Contains the statistical model of a capacity: *the outcome of every probe → a 95 % interval and
the most informative next rate*. All functions are pure.

    P(a probe at rate r holds) = δ + (1 − δ − ε) / (1 + (r / c)^(1/s))

- c is the capacity. If nothing disturbs the probes, half of the probes at the rate c hold.
- There is a range of rates near the capacity in which some probes hold and other probes miss. s is
  the width of this range on a logarithmic scale. So s describes the noise of one probe.
- ε is the share of probes that miss the SLO only because the machine was busy for a moment. This
  share does not depend on the rate.
- δ is the share of probes that hold by luck. This share does not depend on the rate.

The model does not know the values of c, s and ε. So the model computes how probable each
combination of the three values is. The combinations form a grid.

Rules
- Before the first probe, the model expects that c is close to the rate of the closed loop. With a
  probability of 95 %, c differs from this rate by a factor of 2.6 at most. The model also allows
  every c from half an operation per second to four times the rate of the fastest closed loop. One
  probe alone never makes the model certain, because s is at least 2 % and ε is above 0.
- If one probe held and another probe missed at the same rate, higher values of s or ε become more
  likely. The model then computes one interval with the contradicting probes and one interval
  without them. The final interval contains both of these intervals. So a contradiction can make the
  interval wider, but never narrower.
- The model chooses the rate at which the next probe is most informative about c. The most
  informative rate has the highest mutual information between the outcome of the probe and c.

Source: logistic psychometric functions with lapses (Wichmann and Hill 2001); the adaptive choice
(Kontsevich and Tyler 1999, the Ψ method).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, log2

import numpy as np
from numpy.typing import NDArray

# The search never goes below one operation in two seconds.
LEAST_RATE = 0.5
SURE = 0.95
# Limits for half the relative width of an interval. The search stops at ENOUGH. An interval that is
# at most USABLE wide counts as an answer.
ENOUGH = 0.10
USABLE = 0.25
MOST_OVER = 4.0
# The step of the grid, in log rate.
_STEP = 0.03
# The search starts at this share of the closed loop's rate, because an open loop reaches less.
_AROUND = 0.7
# The prior distribution before the first probe: its standard deviation in log rate, and the weight
# of distant rates.
_WITHIN = 0.5
_ANYWHERE = 0.02
_WIDTHS = np.geomspace(0.02, 0.3, 5)
_SPOILT = np.array([0.03, 0.1, 0.3])
_RARER = np.array([4.0, 2.0, 1.0])
_LUCKY = 0.01
_CANDIDATES = 15

Floats = NDArray[np.float64]
# The rate of a probe (operations/s), and whether it held.
Look = tuple[float, bool]
# Two rates in operations/s (> 0): the rate of the closed loops within the SLO, and the highest rate
# of all closed loops.
Reached = tuple[float, float]


@dataclass(frozen=True, slots=True)
class RateInterval:
    """The range of operations/s in which the capacity probably lies. The capacity lies between
    `low` and `high` with a probability of 95 %. The capacity lies below `likely` with a probability
    of 50 %."""

    low: float
    likely: float
    high: float

    @property
    def width(self) -> float:
        """Half of the interval's relative width. A value of 0.1 means ±10 %."""
        return float((self.high / self.low) ** 0.5) - 1

    def probes_left(self, done: int) -> int:
        """Estimate how many more probes the search needs until the interval is narrow enough. While
        the interval is wide, every three probes halve its width. Later, the noise of the probes
        decides how fast the interval becomes narrower. In this phase, the width after n probes is
        proportional to 1 ÷ √n."""
        halving = 3 * log2(log(self.high / self.low) / log((1 + ENOUGH) ** 2))
        settling = done * ((self.width / ENOUGH) ** 2 - 1) / 2 if self.width < 4 * ENOUGH else 0.0
        return max(round(max(halving, settling)), 1)


class Model:
    """A probability distribution of the capacity. `looks` has one entry for each probe so far. An
    entry has the rate and the outcome of the probe."""

    def __init__(self, reached: Reached, looks: Sequence[Look] = ()) -> None:
        within, most = reached
        self._rates = np.arange(log(LEAST_RATE), log(max(most, 1.0) * MOST_OVER) + _STEP, _STEP)
        around = np.exp(-0.5 * ((self._rates - log(within * _AROUND)) / _WITHIN) ** 2) + _ANYWHERE
        belief = np.log(around)[:, None, None] + np.log(_WIDTHS[:, None] ** -0.5 * _RARER)
        if looks:
            holds = self._holds(np.log([rate for rate, _ in looks]))
            held = np.array([held for _, held in looks])[:, None, None, None]
            belief = belief + np.log(np.where(held, holds, 1 - holds)).sum(0)
        self._weights: Floats = np.exp(belief - belief.max())

    def interval(self) -> RateInterval:
        """Return the 95 % interval and the median of the capacity."""
        return RateInterval(
            *(exp(each) for each in self._quantiles((1 - SURE) / 2, 0.5, (1 + SURE) / 2))
        )

    def next_rate(self) -> float:
        """Return the rate (operations/s) at which the next probe will be most informative about the
        capacity."""
        low, high = self._quantiles(0.01, 0.99)
        candidates = np.linspace(low, high, _CANDIDATES)
        believed = self._believed()
        shape = self._weights.shape
        within = (self._weights / self._weights.sum((1, 2), keepdims=True)).reshape(shape[0], -1)
        holds = self._holds(candidates).reshape(_CANDIDATES, *within.shape)
        each = np.einsum("rck,ck->rc", holds, within)
        information = _entropy(each @ believed) - _entropy(each) @ believed
        return exp(candidates[int(np.argmax(information))])

    def _holds(self, at: Floats) -> Floats:
        """Return the probability that a probe holds, for each log rate in `at` and for every
        combination of c, s and ε."""
        beyond = (at[:, None, None, None] - self._rates[:, None, None]) / _WIDTHS[:, None]
        return np.asarray(_LUCKY + (1 - _LUCKY - _SPOILT) / (1 + np.exp(np.clip(beyond, -50, 50))))

    def _believed(self) -> Floats:
        weights = self._weights.sum((1, 2))
        return np.asarray(weights / weights.sum())

    def _quantiles(self, *shares: float) -> list[float]:
        reached = np.cumsum(self._believed())
        return [float(np.interp(share, reached, self._rates + _STEP / 2)) for share in shares]


def interval_of(reached: Reached, looks: Sequence[Look]) -> RateInterval:
    """Return the interval of the capacity that follows from the probes in `looks`. If a rate both
    held and missed, the function also computes a second interval without the contradicting probes.
    The returned interval contains both of these intervals."""
    # A rate that both held and missed shows that the machine changes. But the model counts every
    # look as more evidence, so its interval gets narrower. This function therefore computes a
    # second interval, without the looks that contradict the first look at the same rate. The answer
    # covers both intervals.
    first: dict[float, bool] = {}
    agreeing = [(rate, held) for rate, held in looks if held is first.setdefault(rate, held)]
    interval = Model(reached, looks).interval()
    before = Model(reached, agreeing).interval()
    return RateInterval(
        min(interval.low, before.low), interval.likely, max(interval.high, before.high)
    )


def _entropy(chance: Floats) -> Floats:
    return np.asarray(-(chance * np.log(chance) + (1 - chance) * np.log1p(-chance)))
