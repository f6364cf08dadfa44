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

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import asdict, replace

from bench.experiments.capacity.probe import Slo, next_limit
from bench.experiments.capacity.result import Capacity, CapacityPoint, ClosedLoop, Headroom, Knee, NextLimit, Probe
from bench.experiments.capacity.search import CONFIRMATIONS, LEAST_RATE, Bracket, Seen
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

LEAST_HELD = CONFIRMATIONS + 1  # the first one found it
MORE_BY = 2.0  # a closed loop may be so many times faster than what random arrivals leave room for

Look = tuple[float, Seen]  # the rate of a probe, and what it showed


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One fleet and load whose capacity is wanted; `variables`: what a sweep has set, as text."""

    scenario: Scenario
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """What is asked. `fixed_users`: the scenario's callers are a cap; else as many as a rate needs. `callers`: whether
    to sweep them. `first_rate`: where the search begins (None: a pilot says). `budget_s`: of each point."""

    points: tuple[SweepPoint, ...]
    slo: Slo
    target_rate_per_s: float | None
    first_rate: float | None
    fixed_users: bool
    callers: bool
    seed: int
    budget_s: float
    allow_missing: bool = False


@dataclass(slots=True)
class Findings:
    """What is known of one point so far. `violated`: how, in words."""

    probes: list[Probe] = field(default_factory=list)
    callers: list[ClosedLoop] = field(default_factory=list)
    bracket: Bracket = field(default_factory=lambda: Bracket(None, None, 0, at_least=False))
    fleet: FleetFacts | None = None
    violated: str = ""
    unmeasured: list[str] = field(default_factory=list)  # for want of time


def point_of(point: SweepPoint, findings: Findings, plan: CapacityPlan) -> CapacityPoint:
    """Return what the findings at one point come to."""
    looks = [(probe.rate_per_s, probe.seen) for probe in findings.probes]
    agreement, doubts = agreed(findings.bracket, looks)
    held = [probe for probe in findings.probes if probe.seen is Seen.HELD]
    best = next((probe for probe in reversed(held) if probe.rate_per_s == agreement.low), None)
    limit = next_limit(best.uses) if best else NextLimit(None, "not known: no probe held")
    bracket = replace(agreement, at_least=agreement.at_least or (best is not None and best.is_bound))
    doubts += outrun(bracket, _closed_loops(findings, plan.slo))
    word, reasons = _word(findings, bracket, doubts, plan)
    at_low = tallies(looks).get(bracket.low or 0.0, Counter())
    law = law_of(findings, plan.seed) if plan.callers else None
    return CapacityPoint(
        variables=dict(point.variables),
        scenario=point.scenario.shown(),
        fleet=findings.fleet,
        status=word.status,
        reasons=tuple(reasons),
        capacity=Capacity(
            **asdict(bracket),
            wanted_confirmations=CONFIRMATIONS,
            held=at_low.get(Seen.HELD, 0),
            probed=sum(at_low.values()),
        ),
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


def _word(findings: Findings, bracket: Bracket, doubts: Sequence[str], plan: CapacityPlan) -> tuple[Word, list[str]]:
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


def _knee(held: Sequence[Probe], bracket: Bracket) -> Knee | None:
    """The rate with most throughput per latency (Kleinrock's power: rate ÷ mean acquire) among those that held, up to
    the bracket: what held above it did not hold again."""
    powers = [
        (probe.rate_per_s / probe.acquire_s.mean, probe)
        for probe in held
        if probe.acquire_s.mean and probe.rate_per_s <= (bracket.low or 0.0)
    ]
    if not powers:
        return None
    _, knee = max(powers, key=lambda pair: pair[0])
    return Knee(rate_per_s=knee.rate_per_s, acquire_s=knee.acquire_s)


def _headroom(bracket: Bracket, target: float | None) -> Headroom | None:
    if target is None:
        return None
    ratio = None if bracket.low is None else bracket.low / target - 1
    return Headroom(target_rate_per_s=target, ratio=ratio, kept=bracket.low is not None and bracket.low >= target)


def tallies(looks: Iterable[Look]) -> dict[float, Counter[Seen]]:
    """Return how many probes showed what, by rate, ascending; misses by far count as misses."""
    counts: dict[float, Counter[Seen]] = defaultdict(Counter)
    for rate, seen in looks:
        counts[rate][Seen.MISSED if seen is Seen.CLEARLY_MISSED else seen] += 1
    return dict(sorted(counts.items()))


def agreed(bracket: Bracket, looks: Sequence[Look]) -> tuple[Bracket, list[str]]:
    """Return the bracket that no probe contradicts, and what contradicted the one that was found, in sentences."""
    counts, low, high = tallies(looks), bracket.low, bracket.high
    if low is None:
        return bracket, []
    torn = [rate for rate, tally in counts.items() if rate <= low and tally[Seen.MISSED]]
    above = [rate for rate, tally in counts.items() if tally[Seen.HELD] and high is not None and rate >= high]
    reasons = [
        _sentence(rate, counts[rate], "" if rate == low else f", below {low:,.0f}/s which held") for rate in torn
    ]
    reasons += [
        _sentence(rate, counts[rate], "" if rate == high else f", above {high:,.0f}/s which did not") for rate in above
    ]
    if torn:
        sure = [rate for rate, tally in counts.items() if tally[Seen.HELD] and rate < min(torn)]
        low = max(sure, default=min(low, *torn))
    if above:
        high = min((rate for rate, tally in counts.items() if tally[Seen.MISSED] and rate > max(above)), default=None)
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


def _sentence(rate: float, tally: Counter[Seen], where: str) -> str:
    return f"{rate:,.0f}/s held in {tally[Seen.HELD]} of {sum(tally.values())} probes{where}"
