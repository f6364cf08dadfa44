"""How those waited who had to: *records in the window, what the recipe counted → the section `waiting`*.

Source: R. Jain, "A quantitative measure of fairness", 1984.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from bench.measure.outcomes import acquired, attempts_of
from bench.measure.record import Records
from bench.measure.section import Count, Section, says

COUNTED = ("wakeups", "polls")  # by a recipe, of itself


class Waiting(Section, frozen=True, kw_only=True):
    """Who waited how long, and what for."""

    jain: Annotated[float | None, says("of the callers' leases in the window; 1: even; null without leases")] = None
    longest_s: Annotated[float | None, says("the longest acquire in the window, from its actual start")] = None
    wakeups: Annotated[Count, says("turns passed from one process to another, over the whole run")] = 0
    polls: Annotated[Count, says("attempts beyond an acquire's first, and looks at who holds, over the whole run")] = 0


@dataclass(frozen=True, slots=True)
class WaitState:
    """What a `WaitFold` has added up. `leases`: by caller."""

    leases: dict[int, int]
    longest_ns: int
    retries: int


class WaitFold:
    """Adds up a run of at least so many callers."""

    def __init__(self, users: int = 0) -> None:
        self._users = users
        self._leases: Counter[int] = Counter()  # by caller
        self._longest_ns = self._retries = 0

    def add(self, records: Records, inside: Records) -> None:
        """Add a part of the history, and of it what lies in the window."""
        callers, leases = np.unique(inside["caller"][acquired(inside)], return_counts=True)
        self._leases.update(dict(zip(callers.tolist(), leases.tolist(), strict=True)))
        if len(inside):
            self._longest_ns = max(self._longest_ns, int((inside["ended_ns"] - inside["start_ns"]).max()))
        self._retries += int(np.maximum(attempts_of(records) - 1, 0).sum())

    @property
    def state(self) -> WaitState:
        """What `merge` adds to another one."""
        return WaitState(dict(self._leases), self._longest_ns, self._retries)

    def merge(self, state: WaitState) -> None:
        """Add what another one has added up."""
        self._leases.update(state.leases)
        self._longest_ns = max(self._longest_ns, state.longest_ns)
        self._retries += state.retries

    def section(self, told: Mapping[str, int]) -> Waiting:
        """What it comes to. `told`: what the recipe counted of itself."""
        squares = sum(leases**2 for leases in self._leases.values())
        callers = max(self._users, len(self._leases))
        return Waiting(
            jain=self._leases.total() ** 2 / (callers * squares) if squares else None,
            longest_s=self._longest_ns / 1e9 if self._longest_ns else None,
            wakeups=told.get("wakeups", 0),
            polls=self._retries + told.get("polls", 0),
        )
