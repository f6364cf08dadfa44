"""Defines the measured window, and the number of operations that the schedule starts in this
window.

An operation belongs to the window if its intended start lies in the window.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.scenario import Delay


@dataclass(frozen=True, slots=True)
class Window:
    """The measured window. It contains all times t on the monotonic clock with `start_ns` ≤ t <
    `stop_ns`."""

    start_ns: int
    stop_ns: int

    @property
    def span_ns(self) -> int:
        """The length of the window in ns."""
        return self.stop_ns - self.start_ns

    @property
    def duration_s(self) -> float:
        """The length of the window in seconds."""
        return self.span_ns / 1e9

    def holds(self, times_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return True for each time that lies in the window."""
        return (times_ns >= self.start_ns) & (times_ns < self.stop_ns)


@dataclass(frozen=True, slots=True)
class Due:
    """The numbers of operations that the schedule of an open loop starts.

    `window` is the number of operations that start in the measured window. `run` is the number of
    operations that start between the origin and the end of the window.
    """

    window: int
    run: int


# A closed loop has no schedule, so nothing is due.
NO_DUE = Due(0, 0)


def mean_of(delay: Delay) -> float:
    """Return the mean (ms) of a hold time or think time.

    For a lognormal delay, `ms` is the median and the mean is ms · exp(σ² / 2).
    """
    return delay.ms * math.exp(delay.sigma**2 / 2) if delay.kind == "lognormal" else delay.ms
