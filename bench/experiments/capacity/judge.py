"""The largest rate that holds: *probes, one after the other → the next rate to try; at last what all of them come to*.

The search
- Doubling from a first rate until one does not hold (halving first if the very first does not), then bisecting
  geometrically until the ends of the bracket are within 2.5 %, then the lower end must hold three times more.
- A miss is looked at again, while doubling twice: one bad moment of the machine must not end the search. A clear miss
  (the operations offered were not completed) is believed at once.
- A confirmation that fails becomes the upper end, and the bisecting goes on below it. SATURATED, the generator could
  not make the load, bounds the search like a miss.

The answer
- Every probe counts, not only those that were to confirm: "3 of 3" after a miss is 3 of 4.
- A rate that missed below or at one that held is a contradiction: neither is an end of the bracket, which moves out to
  where probes agree. The generator's misses say nothing; what they alone bound is "at least".
- A closed loop that kept the SLO at twice the rate that is said not to hold contradicts it. Arrivals at random queue
  where callers who wait for each other do not; but with a limit of ten service times or more an M/M/1 server keeps half
  of its rate.

Source: wrk2-style searches for the maximum rate; p99 of M/M/1 is ln 100 ÷ (μ − λ). Pure.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from bench.experiments.capacity.probe import Slo, next_limit
from bench.experiments.capacity.result import (
    Capacity,
    CapacityPoint,
    ClosedLoop,
    Headroom,
    Knee,
    NextLimit,
    Probe,
    Seen,
    Step,
)
from bench.experiments.capacity.usl import Law, fit_law
from bench.measure.run_result import FleetFacts
from bench.measure.verdict import (
    CONFIRMED,
    INCONCLUSIVE,
    INTERRUPTED,
    NOT_KEPT,
    VIOLATED,
    Evidence,
    Verdict,
    Word,
    conclude,
)
from bench.scenario import Scenario

WITHIN = 1.025  # so that either end is within 5 % of the truth, with room for a probe's own error
CONFIRMATIONS = 3
LEAST_HELD = CONFIRMATIONS + 1  # the first one found it
LEAST_RATE = 0.5  # below one operation in two seconds there is no rate to speak of
MOST_PROBES = 40  # then what holds once does not hold again: it stays unconfirmed
LOOKS = {Step.DOUBLING: 3, Step.BISECTING: 2, Step.CONFIRMING: 2}  # misses that are believed
MORE_BY = 2.0  # a closed loop may be so many times faster than what random arrivals leave room for

Look = tuple[float, Seen]  # the rate of a probe, and what it showed


@dataclass(slots=True)
class Search:
    """One search. `first` (> 0): the rate to begin with; `low` held, `high` did not, as far as is believed.

    Ask `next_rate`, probe it, tell `take`; until `next_rate` is None. Once `hurried`, it only confirms what held.
    """

    first: float
    step: Step = Step.DOUBLING
    probes: int = 0
    hurried: bool = False
    low: float | None = None
    high: float | None = None
    _held: Counter[float] = field(default_factory=Counter)
    _doubted: list[float] = field(default_factory=list)  # missed in a row, and to be looked at again

    def next_rate(self) -> float | None:
        """The rate to probe now; None when the search is over."""
        low, high = self.low, self.high
        if self.probes >= MOST_PROBES:
            return None
        if self._doubted:
            return self._doubted[0]
        if low is None:
            self.step = Step.DOUBLING
            rate = self.first if high is None else high / 2
            return rate if rate >= LEAST_RATE else None
        if high is None and not self.hurried:
            self.step = Step.DOUBLING
            return low * 2
        if high is not None and high / low > WITHIN * (1 + 1e-9) and not self.hurried:
            self.step = Step.BISECTING
            return math.sqrt(low * high)
        self.step = Step.CONFIRMING
        return low if self._held[low] <= CONFIRMATIONS else None

    def take(self, rate: float, seen: Seen) -> None:
        """What a probe at `rate`, the last `next_rate`, showed."""
        self.probes += 1
        if seen is Seen.HELD:
            self._doubted.clear()
            self._held[rate] += 1
            self.low = max(rate, self.low or 0.0)
            return
        self._doubted.append(rate)
        if seen is Seen.CLEARLY_MISSED or len(self._doubted) >= LOOKS[self.step]:
            self._doubted.clear()
            self.high = rate
            self.low = max((held for held in self._held if held < rate), default=None)  # it may have failed to confirm


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One fleet and load whose capacity is wanted; `variables`: what a sweep has set, as text."""

    scenario: Scenario
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """What is asked. `fixed_users`: the scenario's callers are a cap; else as many as a rate needs. `callers`: whether
    to sweep them. `budget_s`: of each point."""

    points: tuple[SweepPoint, ...]
    slo: Slo
    target_rate_per_s: float | None
    fixed_users: bool
    callers: bool
    seed: int
    budget_s: float


@dataclass(slots=True)
class Findings:
    """What is known of one point so far. `violated`: how, in words."""

    probes: list[Probe] = field(default_factory=list)
    callers: list[ClosedLoop] = field(default_factory=list)
    fleet: FleetFacts | None = None
    violated: str = ""
    unmeasured: list[str] = field(default_factory=list)  # for want of time


def point_of(point: SweepPoint, findings: Findings, plan: CapacityPlan) -> CapacityPoint:
    """Return what the findings at one point come to."""
    bracket, doubts = bracket_of((probe.rate_per_s, probe.seen) for probe in findings.probes)
    held = [probe for probe in findings.probes if probe.seen is Seen.HELD]
    best = next((probe for probe in reversed(held) if probe.rate_per_s == bracket.low), None)
    limit = next_limit(best.uses) if best else NextLimit(None, "not known: no probe held")
    if best and best.is_bound:
        bracket = replace(bracket, at_least=True)
    doubts += outrun(bracket, _closed_loops(findings, plan.slo))
    word, reasons = _word(findings, bracket, doubts, plan)
    law = law_of(findings, plan.seed) if plan.callers else None
    return CapacityPoint(
        variables=dict(point.variables),
        scenario=point.scenario.shown(),
        fleet=findings.fleet,
        status=word.status,
        reasons=tuple(reasons),
        capacity=bracket,
        attainment=best.attainment if best else None,
        knee=_knee(held, bracket),
        headroom=_headroom(bracket, plan.target_rate_per_s),
        next_limit=replace(limit, uses=best.uses if best else ()),
        instances=best.instances if best else (),
        probes=tuple(findings.probes),
        callers=tuple(sorted(findings.callers, key=lambda loop: loop.users)),
        law=law if isinstance(law, Law) else None,
        no_law=law if isinstance(law, str) else None,
    )


def law_of(findings: Findings, seed: int) -> Law | str:
    """Return the law through the points that the generator could make: beyond them it would be the generator's own."""
    loops = sorted(findings.callers, key=lambda loop: loop.users)
    made = [(loop.users, loop.achieved_per_s) for loop in loops if not loop.is_bound and loop.achieved_per_s]
    law = fit_law([users for users, _ in made], [rate for _, rate in made], seed)
    busy = [loop.users for loop in loops if loop.is_bound]
    return f"{law}; from {min(busy)} callers on the generator was saturated" if busy and isinstance(law, str) else law


def _word(findings: Findings, bracket: Capacity, doubts: Sequence[str], plan: CapacityPlan) -> tuple[Word, list[str]]:
    if findings.violated:
        return VIOLATED, [findings.violated]
    unmeasured = findings.unmeasured
    if not findings.probes:
        return INCONCLUSIVE, ["no probe was finished", *unmeasured]
    if doubts:
        return INCONCLUSIVE, [*doubts, *unmeasured]
    if bracket.low is None:
        last = findings.probes[-1]
        if last.seen is Seen.SATURATED:
            return INCONCLUSIVE, [f"the generator was saturated at {last.rate_per_s:,.2f}/s, the lowest rate tried"]
        reason = f"no rate that was tried holds {plan.slo.text}: {last.rate_per_s:,.2f}/s did not"
        lowest = bracket.high is not None and bracket.high / 2 < LEAST_RATE
        return (NOT_KEPT, [reason]) if lowest else (INCONCLUSIVE, [f"{reason}; lower ones were not tried", *unmeasured])
    if bracket.high is None:
        return INCONCLUSIVE, [
            f"nothing above {bracket.low:,.0f}/s was tried, so the capacity is at least that",
            *unmeasured,
        ]
    if bracket.at_least:
        busy = any(probe.is_bound for probe in findings.probes)
        cure = "give it --processes or cores" if busy else "its timer was late: give it a machine with less other work"
        return INCONCLUSIVE, [f"the load generator was the limit, so the capacity is at least what is shown; {cure}"]
    if bracket.confirmed < CONFIRMATIONS:
        return INCONCLUSIVE, [f"confirmed {bracket.confirmed} times only", *unmeasured]
    return CONFIRMED, []


def _closed_loops(findings: Findings, slo: Slo) -> Iterator[tuple[int, float, bool]]:
    """Callers, leases/s, and whether the SLO's limits on acquires, as far as closed loops have them, were kept."""
    limits = [one for one in slo.thresholds if one.metric.path[0] == "latency_s"]
    for loop in findings.callers:
        values = [getattr(loop.acquire_s, one.metric.path[-1], None) for one in limits]
        kept = bool(limits) and all(
            value is not None and value <= one.limit for value, one in zip(values, limits, strict=True)
        )
        yield loop.users, loop.achieved_per_s or 0.0, kept


def _knee(held: Sequence[Probe], bracket: Capacity) -> Knee | None:
    """The rate with most throughput per latency (Kleinrock's power: rate ÷ mean acquire) among those that held, up to
    the bracket: what held above it did not hold again."""
    sure = [probe for probe in held if probe.acquire_s.mean and probe.rate_per_s <= (bracket.low or 0.0)]
    knee = max(sure, key=lambda probe: probe.rate_per_s / (probe.acquire_s.mean or math.inf), default=None)
    return Knee(rate_per_s=knee.rate_per_s, acquire_s=knee.acquire_s) if knee else None


def _headroom(bracket: Capacity, target: float | None) -> Headroom | None:
    if target is None:
        return None
    ratio = None if bracket.low is None else bracket.low / target - 1
    return Headroom(target_rate_per_s=target, ratio=ratio, kept=bracket.low is not None and bracket.low >= target)


def bracket_of(looks: Iterable[Look]) -> tuple[Capacity, list[str]]:
    """Return the bracket that no probe contradicts, and which probes contradict each other, in sentences."""
    tallies: dict[float, Counter[Seen]] = defaultdict(Counter)
    for rate, seen in sorted(looks, key=lambda look: look[0]):
        tallies[rate][Seen.MISSED if seen is Seen.CLEARLY_MISSED else seen] += 1
    held = [rate for rate, tally in tallies.items() if tally[Seen.HELD]]
    top = max(held, default=0.0)
    torn = [rate for rate, tally in tallies.items() if rate <= top and tally[Seen.MISSED]]
    sure = [rate for rate in held if not torn or rate < torn[0]]
    low = max(sure) if sure else min(held, default=None)
    high = next((rate for rate in tallies if rate > top), None)
    at_low = tallies.get(low or 0.0, Counter())
    bracket = Capacity(
        low=low,
        high=high,
        confirmed=max(at_low[Seen.HELD] - 1, 0),
        at_least=low is not None and (high is None or not tallies[high][Seen.MISSED]),
        held=at_low[Seen.HELD],
        probed=at_low.total(),
    )
    counts = {
        rate: f"{rate:,.0f}/s held in {tally[Seen.HELD]} of {tally.total()} probes" for rate, tally in tallies.items()
    }
    return bracket, [counts[rate] + (f", {counts[top]}" if rate < top else "") for rate in torn]


def outrun(bracket: Capacity, closed: Iterable[tuple[int, float, bool]]) -> list[str]:
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


def judge_capacity(points: Sequence[CapacityPoint], *, stopped: str = "", interrupted: bool = False) -> Verdict:
    """Return the verdict over all points."""
    found: dict[Word, list[str]] = {word: [] for word in (VIOLATED, NOT_KEPT, INCONCLUSIVE)}
    for point in points:
        for word in found:
            found[word] += point.reasons if point.status == word.status else ()
    found[INCONCLUSIVE] += [stopped] if stopped else []
    cut = {INTERRUPTED: ["interrupted: what was not probed is missing"]} if interrupted else {}
    evidence = [
        Evidence(f"probes at {point.capacity.low or 0:,.0f}/s that held", point.capacity.held or 0, LEAST_HELD)
        for point in points
    ]
    return conclude(CONFIRMED, evidence, {**found, **cut}, thin=INCONCLUSIVE)
