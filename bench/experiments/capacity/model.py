"""How sure a capacity is: *what every probe showed → a 95 % interval, and the rate that tells most
next*. Pure.

    P(a probe at rate r holds) = δ + (1 − δ − ε) / (1 + (r / c)^(1/s))

c: the capacity, the rate that half of the probes hold that meet no bad moment; s: how wide the
change from held to missed is, in log rate (a probe's own noise); ε: the share of probes that a bad
moment of the machine spoils at any rate; δ: of those that hold by luck. s and ε are not known
either: all three are weighed on a grid.

Rules
- c is first believed to lie around what the closed loop reached, within a factor of 2.6 (95 %), but
  may lie anywhere from half an operation per second to four times the most it made. s ≥ 2 % and ε >
  0: one probe never makes sure.
- A rate that held *and* missed is explained by a larger s or ε. Should that move the interval away
  from where it was, it reaches over both: a contradiction widens it, never narrows it.
- The next rate is the one whose outcome tells most of c: the mutual information of the two.

Source: logistic psychometric functions with lapses (Wichmann and Hill 2001); the adaptive choice
(Kontsevich and Tyler 1999, the Ψ method).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, log2

import numpy as np
from numpy.typing import NDArray

# below one operation in two seconds there is no rate to speak of
LEAST_RATE = 0.5
SURE = 0.95
# Half the width of an interval: a search stops at ENOUGH; up to USABLE it is an answer.
ENOUGH = 0.10
USABLE = 0.25
MOST_OVER = 4.0
# the step of the grid, in log rate
_STEP = 0.03
# The search starts at this share of what the closed loop made: an open loop bears less.
_AROUND = 0.7
# The prior belief: its standard deviation in log rate, and the weight of far rates.
_WITHIN = 0.5
_ANYWHERE = 0.02
_WIDTHS = np.geomspace(0.02, 0.3, 5)
_SPOILT = np.array([0.03, 0.1, 0.3])
_RARER = np.array([4.0, 2.0, 1.0])
_LUCKY = 0.01
_CANDIDATES = 15

Floats = NDArray[np.float64]
# the rate of a probe (operations/s), and whether it held
Look = tuple[float, bool]
# what closed loops made within the SLO, and at most, operations/s (> 0)
Reached = tuple[float, float]


@dataclass(frozen=True, slots=True)
class RateInterval:
    """Where the capacity is believed to lie, operations/s: 95 % between `low` and `high`, half
    below `likely`."""

    low: float
    likely: float
    high: float

    @property
    def width(self) -> float:
        """Half its width: 0.1 = ±10 %."""
        return float((self.high / self.low) ** 0.5) - 1

    def probes_left(self, done: int) -> int:
        """About how many more make it narrow enough: each halving takes three, at last of noise 1 ÷
        √n is left."""
        halving = 3 * log2(log(self.high / self.low) / log((1 + ENOUGH) ** 2))
        settling = done * ((self.width / ENOUGH) ** 2 - 1) / 2 if self.width < 4 * ENOUGH else 0.0
        return max(round(max(halving, settling)), 1)


class Model:
    """What is believed after these `looks`."""

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
        """The 95 % interval of the capacity, and its middle."""
        return RateInterval(
            *(exp(each) for each in self._quantiles((1 - SURE) / 2, 0.5, (1 + SURE) / 2))
        )

    def next_rate(self) -> float:
        """The rate (operations/s) whose probe tells most of the capacity."""
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
        """P(held) of a probe at each log rate, for every c, s and ε."""
        beyond = (at[:, None, None, None] - self._rates[:, None, None]) / _WIDTHS[:, None]
        return np.asarray(_LUCKY + (1 - _LUCKY - _SPOILT) / (1 + np.exp(np.clip(beyond, -50, 50))))

    def _believed(self) -> Floats:
        weights = self._weights.sum((1, 2))
        return np.asarray(weights / weights.sum())

    def _quantiles(self, *shares: float) -> list[float]:
        reached = np.cumsum(self._believed())
        return [float(np.interp(share, reached, self._rates + _STEP / 2)) for share in shares]


def interval_of(reached: Reached, looks: Sequence[Look]) -> RateInterval:
    """Return the interval after these looks; over rates that held and missed it reaches as far as
    it did before."""
    # A rate that both held and missed shows that the machine changes, yet the model takes every
    # look as further evidence and becomes surer. So a second interval is made without the looks
    # that contradict the first one at their rate. The answer covers both intervals.
    first: dict[float, bool] = {}
    agreeing = [(rate, held) for rate, held in looks if held is first.setdefault(rate, held)]
    interval = Model(reached, looks).interval()
    before = Model(reached, agreeing).interval()
    return RateInterval(
        min(interval.low, before.low), interval.likely, max(interval.high, before.high)
    )


def _entropy(chance: Floats) -> Floats:
    return np.asarray(-(chance * np.log(chance) + (1 - chance) * np.log1p(-chance)))
