"""What a capacity rests on: *bracket, every probe at every rate, closed loops → the bracket they leave, why not sure*.

Rules
- Every probe counts, not only those that were to confirm: "3 of 3" after a miss is 3 of 4.
- A rate that both held and missed is neither end of a bracket: the ends move out to where probes agree. A miss below a
  rate that held, or a hold above one that missed, is such a contradiction too; the generator's misses say nothing.
- A closed loop that kept the SLO at twice the rate that is said not to hold contradicts it. Arrivals at random queue
  where callers who wait for each other do not; but with a limit of ten service times or more an M/M/1 server keeps half
  of its rate.

Source: p99 of M/M/1 is ln 100 ÷ (μ − λ). Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.experiments.capacity.search import CONFIRMATIONS, Bracket, Seen
from bench.measure.verdict import (
    CONFIRMED,
    INCONCLUSIVE,
    INTERRUPTED,
    NOT_KEPT,
    VIOLATED,
    Evidence,
    Word,
    conclude,
)

LEAST_HELD = CONFIRMATIONS + 1  # the first one found it
MORE_BY = 2.0  # a closed loop may be so many times faster than what random arrivals leave room for

Look = tuple[float, Seen]  # the rate of a probe, and what it showed


@dataclass(frozen=True, slots=True)
class Tally:
    """Of all probes at one rate: those that held, those that missed, and those the generator spoilt."""

    held: int = 0
    missed: int = 0
    spoilt: int = 0

    @property
    def probes(self) -> int:
        """All of them."""
        return self.held + self.missed + self.spoilt


def tallies(looks: Iterable[Look]) -> dict[float, Tally]:
    """Return what all probes showed, by rate, ascending."""
    counts: dict[float, Tally] = defaultdict(Tally)
    for rate, seen in looks:
        tally = counts[rate]
        if seen is Seen.HELD:
            counts[rate] = replace(tally, held=tally.held + 1)
        elif seen is Seen.SATURATED:
            counts[rate] = replace(tally, spoilt=tally.spoilt + 1)
        else:
            counts[rate] = replace(tally, missed=tally.missed + 1)
    return dict(sorted(counts.items()))


def agreed(bracket: Bracket, looks: Sequence[Look]) -> tuple[Bracket, list[str]]:
    """Return the bracket that no probe contradicts, and what contradicted the one that was found, in sentences."""
    counts, low, high = tallies(looks), bracket.low, bracket.high
    if low is None:
        return bracket, []
    torn = [rate for rate, tally in counts.items() if rate <= low and tally.missed]
    above = [rate for rate, tally in counts.items() if tally.held and high is not None and rate >= high]
    reasons = [
        _sentence(rate, counts[rate], "" if rate == low else f", below {low:,.0f}/s which held") for rate in torn
    ]
    reasons += [
        _sentence(rate, counts[rate], "" if rate == high else f", above {high:,.0f}/s which did not") for rate in above
    ]
    if torn:
        sure = [rate for rate, tally in counts.items() if tally.held and rate < min(torn)]
        low = max(sure, default=min(low, *torn))
    if above:
        high = min((rate for rate, tally in counts.items() if tally.missed and rate > max(above)), default=None)
    return replace(bracket, low=low, high=high, at_least=bracket.at_least or high is None), reasons


def outrun(bracket: Bracket, closed: Iterable[tuple[int, float, bool]]) -> list[str]:
    """Return which closed loops contradict `bracket`: each its callers, leases/s, and whether it kept the SLO."""
    limit = bracket.high or bracket.low
    if limit is None:
        fast = [(users, rate) for users, rate, kept in closed if kept]
        return [f"no rate held, yet {users} callers made {rate:,.0f}/s within the SLO" for users, rate in fast[:1]]
    found = [(rate, users) for users, rate, kept in closed if kept and rate > MORE_BY * limit]
    if not found:
        return []
    rate, users = max(found)
    return [f"{users} callers in closed loop made {rate:,.0f}/s within the SLO: far more than {limit:,.0f}/s"]


def judge_capacity(
    points: Sequence[Mapping[str, Any]], *, stopped: str = "", interrupted: bool = False
) -> dict[str, Any]:
    """The section `verdict` over all points: each with its `word`, `reasons` and `capacity`."""
    found: dict[Word, list[str]] = {word: [] for word in (VIOLATED, NOT_KEPT, INCONCLUSIVE)}
    for point in points:
        for word in found:
            found[word] += point["reasons"] if point["status"] == word.status else []
    found[INCONCLUSIVE] += [stopped] if stopped else []
    cut = {INTERRUPTED: ["interrupted: what was not probed is missing"]} if interrupted else {}
    evidence = [
        Evidence(f"probes at {point['capacity']['low'] or 0:,.0f}/s that held", point["capacity"]["held"], LEAST_HELD)
        for point in points
    ]
    return conclude(CONFIRMED, evidence, {**found, **cut}, thin=INCONCLUSIVE).to_json()


def _sentence(rate: float, tally: Tally, where: str) -> str:
    return f"{rate:,.0f}/s held in {tally.held} of {tally.probes} probes{where}"
