"""The largest rate that holds: *verdicts on probes, one after the other → the next rate to try, at last a bracket*.

Rules
- Doubling from a first rate until one does not hold (halving first if the very first does not), then bisecting
  geometrically until the ends of the bracket are within 2.5 %, then the lower end must hold three times more.
- A miss is looked at again, while doubling twice: one bad moment of the machine must not end the search. A clear miss
  (the operations offered were not completed) is believed at once.
- A confirmation that fails becomes the upper end, and the bisecting goes on below it.
- SATURATED: the generator could not make the load, so nothing is known of the servers at that rate. It is looked at
  again and bounds the search like a miss, and the answer is then "at least".

Source: doubling and bisecting as in wrk2-style searches for the maximum rate, with an end to believing single probes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from bench.measure.section import Count, Section, says

WITHIN = 1.025  # so that either end is within 5 % of the truth, with room for a probe's own error
CONFIRMATIONS = 3
LEAST_RATE = 0.5  # below one operation in two seconds there is no rate to speak of
MOST_PROBES = 40  # then what holds once does not hold again: it stays unconfirmed


class Seen(Enum):
    """What a probe at one rate showed."""

    HELD = "held"
    MISSED = "missed"
    CLEARLY_MISSED = "missed by far"
    SATURATED = "saturated"  # the generator


class Step(Enum):
    """Why a rate is tried."""

    DOUBLING = "doubling"
    BISECTING = "bisecting"
    CONFIRMING = "confirming"


LOOKS = {Step.DOUBLING: 3, Step.BISECTING: 2, Step.CONFIRMING: 2}  # misses that are believed


class Bracket(Section, frozen=True):
    """Between the largest rate that held and the smallest that did not."""

    low: Annotated[float | None, says("held; null: no rate did")]
    high: Annotated[float | None, says("did not hold; null: not known")]
    confirmed: Annotated[Count, says("how often low held again")]
    at_least: Annotated[bool, says("what bounds it above is the generator, or nothing: the capacity is at least low")]


@dataclass(slots=True)
class Search:
    """One search. `first` (> 0): the rate to begin with.

    Ask `next_rate`, probe it, tell `take`; until `next_rate` is None. Once `hurried`, it only confirms what held.
    """

    first: float
    step: Step = Step.DOUBLING
    probes: int = 0
    hurried: bool = False
    _low: float | None = None
    _held: dict[float, int] = field(default_factory=dict)
    _high: float | None = None
    _high_seen: Seen | None = None
    _doubts: int = 0
    _doubted: float | None = None

    def next_rate(self) -> float | None:
        """The rate to probe now; None when the search is over."""
        if self.probes >= MOST_PROBES:
            return None
        if self._doubted is not None:
            return self._doubted
        low, high = self._low, self._high
        if self.hurried and low is not None:
            return self._confirming(low)
        if low is None:
            self.step = Step.DOUBLING
            rate = self.first if high is None else high / 2
            return rate if rate >= LEAST_RATE else None
        if high is None:
            self.step = Step.DOUBLING
            return low * 2
        if high / low > WITHIN * (1 + 1e-9):
            self.step = Step.BISECTING
            return math.sqrt(low * high)
        return self._confirming(low)

    @property
    def has_low(self) -> bool:
        """Whether some rate held, and was not given up since."""
        return self._low is not None

    def take(self, rate: float, seen: Seen) -> None:
        """What a probe at `rate`, the last `next_rate`, showed."""
        self.probes += 1
        if seen is Seen.HELD:
            self._doubted = None
            self._held[rate] = self._held.get(rate, 0) + 1
            self._low = max(rate, self._low or 0.0)
            self._doubts = 0
        elif seen is not Seen.CLEARLY_MISSED and self._doubts < LOOKS[self.step] - 1:
            self._doubts += 1
            self._doubted = rate
        else:
            self._doubted, self._doubts = None, 0
            self._bound(rate, seen)

    def bracket(self) -> Bracket:
        """What is known so far."""
        low = self._low
        at_least = low is not None and (self._high is None or self._high_seen is Seen.SATURATED)
        return Bracket(low, self._high, max(self._held.get(low or 0.0, 0) - 1, 0), at_least)

    def _confirming(self, low: float) -> float | None:
        self.step = Step.CONFIRMING
        return low if self._held[low] <= CONFIRMATIONS else None

    def _bound(self, rate: float, seen: Seen) -> None:
        self._high, self._high_seen = rate, seen
        self._low = max((held for held in self._held if held < rate), default=None)  # it may have failed to confirm
