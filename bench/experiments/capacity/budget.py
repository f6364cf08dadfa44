"""The time that one point may take: *runs, as they took → whether another one will be over in time*.

Rules: how long a run takes is what was asked of it, and what the slowest so far took beyond that (starting, draining,
judging: seconds on a busy machine). A run that would not be over in time is not begun, so the budget is kept but for
what one run was slower than all before it. Time is kept for the callers, which come after the search.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from bench.scenario import Scenario
from bench.scenario.quantity import duration_text

FIRST_OVERHEAD_S = 1.5
CALLERS_SHARE = 0.3  # of the budget: eight runs, where a search takes 12 to 25


class OutOfTime(Exception):  # noqa: N818 - no error: a busy machine gets less far
    """Another run would not be over within the budget."""


class Budget:
    """`wanted_s`: from now on; `callers`: whether a part is for them."""

    def __init__(self, wanted_s: float, *, callers: bool, now_s: Callable[[], float] = time.monotonic) -> None:
        self._wanted_s, self._now_s = wanted_s, now_s
        self._overhead_s = FIRST_OVERHEAD_S
        self._over_s = now_s() + wanted_s
        self._until_s = self._over_s - (CALLERS_SHARE * wanted_s if callers else 0.0)

    def give_callers(self) -> None:
        """From now on all of the budget may be spent."""
        self._until_s = self._over_s

    def fits(self, scenario: Scenario, runs: int = 1) -> bool:
        """Whether so many runs like this one will be over in time."""
        return self._now_s() + runs * (_asked_s(scenario) + self._overhead_s) <= self._until_s

    def require(self, scenario: Scenario) -> None:
        """Raise OutOfTime unless this run will be over in time."""
        if not self.fits(scenario):
            raise OutOfTime

    def took(self, scenario: Scenario, seconds: float) -> None:
        """This run took so long."""
        self._overhead_s = max(self._overhead_s, seconds - _asked_s(scenario))

    def spent(self, what: str) -> str:
        """The sentence that says what the budget left undone."""
        return f"the time budget of {duration_text(self._wanted_s * 1000)} (--budget) was spent: {what}"


def _asked_s(scenario: Scenario) -> float:
    return (scenario.warmup_ms + scenario.duration_ms) / 1000
