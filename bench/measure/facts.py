"""The measured window, and what was due in it.

An operation belongs to the window by its intended start.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.scenario import Delay


@dataclass(frozen=True, slots=True)
class Window:
    """The measured time: `start_ns` ≤ t < `stop_ns` on the monotonic clock."""

    start_ns: int
    stop_ns: int

    @property
    def span_ns(self) -> int:
        """Its length."""
        return self.stop_ns - self.start_ns

    @property
    def duration_s(self) -> float:
        """Its length in seconds."""
        return self.span_ns / 1e9

    def holds(self, times_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the times lie in it."""
        return (times_ns >= self.start_ns) & (times_ns < self.stop_ns)


@dataclass(frozen=True, slots=True)
class Due:
    """How many starts the schedule wants (open loop): in the measured window; from the origin to
    the window's end."""

    window: int
    run: int


# A closed loop has no schedule, so nothing is due.
NO_DUE = Due(0, 0)


def mean_of(delay: Delay) -> float:
    """The mean in ms of a hold or think time; of lognormal `ms` is the median: mean = ms · exp(σ² /
    2)."""
    return delay.ms * math.exp(delay.sigma**2 / 2) if delay.kind == "lognormal" else delay.ms
