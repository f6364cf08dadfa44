"""What the fold must know besides the history: *scenario → facts*, and the measured window.

Rules: an operation belongs to the window by its intended start.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bench.scenario import Delay, Scenario


@dataclass(frozen=True, slots=True)
class Window:
    """The measured time: `start_ns` ≤ t < `stop_ns` on the monotonic clock."""

    start_ns: int
    stop_ns: int

    @property
    def duration_s(self) -> float:
        """Its length in seconds."""
        return (self.stop_ns - self.start_ns) / 1e9

    def holds(self, times_ns: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of the times lie in it."""
        return (times_ns >= self.start_ns) & (times_ns < self.stop_ns)


@dataclass(frozen=True, slots=True)
class Due:
    """How many starts the schedule wants (open loop): in the measured window; from the origin to the window's end."""

    window: int
    run: int


@dataclass(frozen=True, slots=True)
class Facts:
    """The scenario as the fold sees it. `rate_per_s` None = closed loop; `think_mean_ns` = mean pause of a caller;
    `warmup_s` = load before the window; `due` None = only the workers know it; `cut` = the run ended before its time.
    """

    instances: int
    users: int
    rate_per_s: float | None = None
    think_mean_ns: float = 0.0
    warmup_s: float = 0.0
    due: Due | None = None
    cut: bool = False

    @property
    def quorum(self) -> int:
        """Votes that win: more than half of the configured instances."""
        return self.instances // 2 + 1

    @classmethod
    def of(cls, scenario: Scenario, due: Due | None = None, *, cut: bool = False) -> Self:
        """The facts of a resolved scenario, and of the run of it."""
        return cls(
            instances=len(scenario.targets) or scenario.instances,
            users=scenario.users,
            rate_per_s=scenario.rate_per_s,
            think_mean_ns=mean_of(scenario.think) * 1e6,
            warmup_s=scenario.warmup_ms / 1000,
            due=due,
            cut=cut,
        )


def mean_of(delay: Delay) -> float:
    """The mean in ms of a hold or think time; of lognormal `ms` is the median: mean = ms · exp(σ² / 2)."""
    return delay.ms * math.exp(delay.sigma**2 / 2) if delay.kind == "lognormal" else delay.ms
