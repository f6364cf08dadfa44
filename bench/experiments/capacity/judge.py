"""What the probes of a point come to: *rates that held and missed, closed loops → interval, limit,
headroom, word*.

- The answer is an interval by all probes together (model.py). A probe that the generator spoilt
  bounds the search, as a miss does. It says nothing of the servers, so the answer leaves it out.
  An end is not known unless two probes near it bear it out. No end lies beyond all probes.
- A closed loop that kept the SLO must agree with it, or a sentence says why not: callers who wait
  for each other never queue, arrivals at random do. One that kept it at twice the rate contradicts
  it: with a limit of ten service times or more an M/M/1 server keeps half of its rate.

Source: p99 of M/M/1 is ln 100 ÷ (μ − λ); Student's t for the latency at the target. Pure.
"""

import dataclasses
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from bench.experiments.capacity import model
from bench.experiments.capacity.model import LEAST_RATE, USABLE, Look, RateInterval, Reached
from bench.experiments.capacity.probe import Slo, is_busy, next_limit, read_slo
from bench.experiments.capacity.result import (
    Capacity,
    CapacityPoint,
    CapacityResult,
    ClosedLoop,
    Estimate,
    Headroom,
    Knee,
    Probe,
    Seen,
    at_capacity,
)
from bench.measure import verdict as words
from bench.measure.run_result import FleetFacts
from bench.measure.statistics import wilson
from bench.measure.verdict import Evidence, Verdict, Word, conclude
from bench.report.figures import count, counted, latency, percent
from bench.scenario import Scenario

LEAST_PROBES = 8
MOST_PROBES = 40
# shares of the rate that the fastest closed loop made
MIDDLE = (0.4, 0.6, 0.8)
# For each probe in a row that told nothing, the proposed rate grows by this factor.
HIGHER = 1.1
# So many probes at the target must all hold. With fewer it may as well hold half of the time.
LEAST_TARGET = 4
# LEAST_NEAR probes bear an end out. They lie no further than the factor NEAR beyond it.
NEAR = 1.25
LEAST_NEAR = 2
# a closed loop may be so many times faster than what random arrivals leave room for
MORE_BY = 2.0
# Only these results of a probe say something of the servers.
_SAY = (Seen.HELD, Seen.MISSED)
# the leases/s of a closed loop, and its callers
Loop = tuple[float, int]
# Student's t (97.5 %) by the number of values
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571}
# the same quantile of the normal distribution
NORMAL = 1.96
# the rate (operations/s) of the probes that show that no rate holds
LOWEST = 2 * LEAST_RATE


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One fleet and load whose capacity is wanted; `variables`: what a sweep has set, as text."""

    scenario: Scenario
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """What is asked.

    `fixed_users`: callers are a cap; `budget_s`: of each point; `bind`: where hosts join.
    """

    points: tuple[SweepPoint, ...]
    slo: Slo
    target_rate_per_s: float | None
    fixed_users: bool
    budget_s: float
    bind: tuple[str, int] | None = None


@dataclass(slots=True)
class Findings:
    """What is known of one point so far. `violated`: how, in words."""

    probes: list[Probe] = field(default_factory=list)
    callers: list[ClosedLoop] = field(default_factory=list)
    fleet: FleetFacts | None = None
    violated: str = ""
    # sentences about what was not measured for want of time
    unmeasured: list[str] = field(default_factory=list)


def reached_by(findings: Findings, slo: Slo) -> Reached:
    """Return what the closed loops made; where none kept the SLO, the slowest is what is believed
    in."""
    rates = [max(loop.achieved_per_s or 0.0, LEAST_RATE) for loop in findings.callers]
    rates_within = [max(rate, LEAST_RATE) for rate, _ in loops_within(findings, slo)]
    return max(rates_within, default=min(rates, default=1.0)), max(rates, default=1.0)


def next_probe(findings: Findings, slo: Slo) -> tuple[RateInterval, float | None]:
    """Return what is believed so far, whoever is to blame for a miss, and the rate to probe; None:
    sure enough."""
    reached = reached_by(findings, slo)
    looks = _looks(findings.probes, _of_search(findings))
    interval = model.interval_of(reached, looks)
    if (rate := _rate_against_hope(findings, slo)) is not None:
        return interval, rate
    if _holds_nowhere(findings):
        return interval, None
    done = len(looks) >= LEAST_PROBES and interval.width <= model.ENOUGH
    if done or len(looks) >= MOST_PROBES:
        return interval, None
    rate = model.Model(reached, looks).next_rate() * HIGHER ** _paused_last(findings)
    return interval, float(f"{rate:.3g}")


def _rate_against_hope(findings: Findings, slo: Slo) -> float | None:
    """The rate of the next probe where no closed loop kept the SLO, and nothing has held yet; None:
    as the model says.

    A server that never answers in time misses at every rate. Two probes at the lowest rate and one
    at each of `MIDDLE` show that in seconds. The model alone would go down step by step, and a
    short budget would end first. The lowest rate alone shows nothing: a server that is slow after
    each rest may keep every higher one.
    """
    if loops_within(findings, slo) or any(probe.seen is Seen.HELD for probe in findings.probes):
        return None
    for rate, least in _against_hope(findings):
        outcomes = _around(findings, rate)
        telling = [outcome for outcome in outcomes if outcome in says(findings)]
        if len(telling) < least and len(outcomes) < 2 * least:
            return rate
    return None


def _against_hope(findings: Findings) -> list[tuple[float, int]]:
    """The rates (operations/s) whose misses show that none holds, and how many misses each
    takes."""
    fastest = max((loop.achieved_per_s or 0.0 for loop in findings.callers), default=0.0)
    middle = [(float(f"{share * fastest:.3g}"), 1) for share in MIDDLE if share * fastest > LOWEST]
    return [(LOWEST, LEAST_NEAR), *middle]


def _holds_nowhere(findings: Findings) -> bool:
    """Whether rates next to none missed, and those in the middle, and none held."""
    is_any_held = any(probe.seen is Seen.HELD for probe in findings.probes)
    requirements = _against_hope(findings)
    # without a closed loop the middle is not known
    return bool(findings.callers and not is_any_held) and all(
        _around(findings, rate).count(Seen.MISSED) >= least for rate, least in requirements
    )


def _around(findings: Findings, rate: float) -> list[Seen]:
    """What the probes at a rate showed; below the lowest rate there is none."""
    least = 0.0 if rate <= LOWEST else rate * 0.99
    return [probe.seen for probe in findings.probes if least <= probe.rate_per_s <= rate * 1.01]


def capacity_of(findings: Findings, slo: Slo) -> Capacity:
    """Return where the capacity of the servers lies."""
    looks = _looks(findings.probes, says(findings))
    interval = model.interval_of(reached_by(findings, slo), looks)
    held = [rate for rate, is_held in looks if is_held]
    missed = [rate for rate, is_held in looks if not is_held]
    has_low = sum(rate * NEAR >= interval.low for rate in held) >= LEAST_NEAR
    has_high = sum(rate <= interval.high * NEAR for rate in missed) >= LEAST_NEAR
    # Probes that the generator spoilt bound the search, not the answer. Where only they make the
    # interval narrow enough for an answer, the answer has no upper end.
    has_high = has_high and not interval.width > USABLE >= next_probe(findings, slo)[0].width
    low = min(interval.low, max(held)) if has_low else None
    high = max(interval.high, min(missed)) if has_high else None
    likely = interval.likely if has_low and has_high else None
    return Capacity(
        low=low,
        high=high,
        at_least=has_low and not has_high,
        likely=likely,
        sure=model.SURE,
        as_it_is=Seen.PAUSED in says(findings),
    )


def says(findings: Findings) -> tuple[Seen, ...]:
    """What tells of the capacity. Where the servers run on this machine and most probes met pauses
    of it, these are misses: the capacity is then that of the machine as it is now. Servers
    elsewhere have no part in such a miss."""
    is_here = findings.fleet is not None and findings.fleet.started
    return (*_SAY, Seen.PAUSED) if is_here and _is_mostly_paused(findings) else _SAY


def _of_search(findings: Findings) -> tuple[Seen, ...]:
    """What the search goes by."""
    return (*says(findings), Seen.SATURATED)


def _paused_last(findings: Findings) -> int:
    """How many probes in a row told nothing just now. The next one is made at a higher rate: what
    holds there holds, and only a clear miss shows through the pauses of a busy machine."""
    speaking = says(findings)
    number = 0
    for probe in reversed(findings.probes):
        if probe.seen is not Seen.PAUSED or probe.seen in speaking:
            break
        number += probe.step != "target"
    return number


def _is_mostly_paused(findings: Findings) -> bool:
    paused = sum(probe.seen is Seen.PAUSED for probe in findings.probes)
    return 2 * paused > len(findings.probes)


def _looks(probes: Sequence[Probe], of: Container[Seen]) -> list[Look]:
    return [(probe.rate_per_s, probe.seen is Seen.HELD) for probe in probes if probe.seen in of]


def point_of(point: SweepPoint, findings: Findings, plan: CapacityPlan) -> CapacityPoint:
    """Return what the findings at one point come to."""
    capacity = capacity_of(findings, plan.slo)
    judged_findings = _as_told(findings)
    near = at_capacity(findings.probes, capacity)
    loops = loops_within(findings, plan.slo)
    held = any(probe.seen is Seen.HELD for probe in findings.probes)
    # Some probes held, but too few tell for either end: there is nothing to agree with.
    is_silent = held and capacity.low is None and capacity.high is None
    agrees, contradicted = (None, False) if is_silent else agreement(capacity, loops)
    contradictions = [agrees] if agrees and contradicted and not capacity.at_least else []
    contradictions += _probes_against(judged_findings.probes, capacity, plan.target_rate_per_s)
    # A copy: `_word` adds reasons that contradict nothing.
    word, reasons = _word(judged_findings, capacity, plan, [*contradictions])
    uses = near.uses if near else ()
    gave_out = _gave_out(findings) if capacity.high is None else ""
    return CapacityPoint(
        variables=dict(point.variables),
        scenario=point.scenario.shown(),
        fleet=findings.fleet,
        status=word.status,
        reasons=tuple(reasons),
        capacity=capacity,
        knee=_knee(findings.probes, capacity),
        headroom=_headroom(judged_findings, capacity, plan, is_contradicted=bool(contradictions)),
        next_limit=next_limit(uses, gave_out),
        probes=tuple(findings.probes),
        callers=tuple(sorted(findings.callers, key=lambda loop: loop.users)),
        agreement=agrees,
    )


def _as_told(findings: Findings) -> Findings:
    """The findings whose paused probes are misses, where they tell of the machine as it is now."""
    if Seen.PAUSED not in says(findings):
        return findings
    probes = [
        replace(probe, seen=Seen.MISSED) if probe.seen is Seen.PAUSED else probe
        for probe in findings.probes
    ]
    return dataclasses.replace(findings, probes=probes)


def _gave_out(findings: Findings) -> str:
    """How the generator did, by the slowest probe that it spoilt; "" = it did not."""
    spoilt = [probe for probe in findings.probes if probe.seen is Seen.SATURATED]
    if not spoilt:
        return ""
    first = min(spoilt, key=lambda probe: probe.rate_per_s)
    health = first.generator
    late = f"its timer woke {latency(first.generator.late_s)} late"
    how = f"{percent(health.cpu_ratio, 0)} of a core" if is_busy(health.cpu_ratio) else late
    return f"{how} at {count(first.rate_per_s)}/s"


def _word(
    findings: Findings, capacity: Capacity, plan: CapacityPlan, reasons: list[str]
) -> tuple[Word, list[str]]:
    """`reasons`: what contradicts the capacity."""
    if findings.violated:
        return words.VIOLATED, [findings.violated]
    if not findings.probes:
        return words.INCONCLUSIVE, ["no probe was finished", *findings.unmeasured]
    if not reasons and target_holds(findings, plan.target_rate_per_s):
        return words.FOUND, []
    if capacity.low is None and not reasons:
        return _none_held(findings)
    if not reasons and (missed := _target_missed(findings, capacity, plan.target_rate_per_s)):
        word, reason = missed
        return word, [reason]
    if capacity.low and capacity.high is None:
        gave_out = _gave_out(findings)
        why = (
            f"the generator gave out first ({gave_out})"
            if gave_out
            else "too few probes above it missed"
        )
        why += _paused_text(findings.probes)
        reasons.append(f"the capacity is at least {count(capacity.low)}/s: {why}")
    elif capacity.low and capacity.width > USABLE:
        reasons.append(
            f"the interval is ±{percent(capacity.width, 0)}, and an answer takes "
            f"±{percent(USABLE, 0)}: "
            "repeat it on a quieter machine, or with a longer --budget"
        )
    return (words.INCONCLUSIVE, [*reasons, *findings.unmeasured]) if reasons else (words.FOUND, [])


def _none_held(findings: Findings) -> tuple[Word, list[str]]:
    """What to say where too few probes held. NOT KEPT takes misses at rates close to zero, and no
    probe that held."""
    lowest = min(findings.probes, key=lambda probe: probe.rate_per_s)
    if lowest.seen is Seen.SATURATED:
        spoilt = f"the generator was saturated at {lowest.rate_per_s:,.2f}/s, the lowest rate tried"
        return words.INCONCLUSIVE, [spoilt, *findings.unmeasured]
    if _holds_nowhere(findings):
        fastest = max(probe.rate_per_s for probe in findings.probes if probe.seen is Seen.MISSED)
        slow = f"{lowest.rate_per_s:,.2f}/s"
        is_one = fastest == lowest.rate_per_s
        which = f"{slow} did not" if is_one else f"neither {slow} nor {count(fastest)}/s did"
        return words.NOT_KEPT, [f"no rate holds the SLO: {which}"]
    held = [probe.rate_per_s for probe in findings.probes if probe.seen is Seen.HELD]
    missed = [probe.rate_per_s for probe in findings.probes if probe.seen is Seen.MISSED]
    facts = (
        [f"{counted(len(held), 'probe')} held, the fastest at {max(held):,.2f}/s"] if held else []
    )
    facts += [f"{min(missed):,.2f}/s did not"] if missed else []
    paused = _paused_text(findings.probes)
    reason = (
        "no rate that was tried surely holds the SLO: "
        f"{', and '.join(facts) or 'no probe tells'}{paused}"
    )
    return words.INCONCLUSIVE, [f"{reason}; too few lower ones were tried", *findings.unmeasured]


def _paused_text(probes: Sequence[Probe]) -> str:
    paused = sum(probe.seen is Seen.PAUSED for probe in probes)
    return (
        ""
        if not paused
        else f"; {paused} of {counted(len(probes), 'probe')} tell nothing, as this machine "
        "did not run the load in time"
    )


def _probes_against(probes: Sequence[Probe], capacity: Capacity, target: float | None) -> list[str]:
    """What contradicts the interval: rates clearly below it that mostly missed, or clearly above it
    that mostly held.

    The model assumes that a fleet which keeps a rate keeps every lower one. Where that is not so,
    or where the machine changed during the search, the interval answers nothing.
    """
    speaking = [probe for probe in probes if probe.seen in _SAY]
    below = [one for one in speaking if capacity.low and one.rate_per_s * NEAR < capacity.low]
    above = [one for one in speaking if capacity.high and one.rate_per_s > capacity.high * NEAR]
    targets = [one for one in speaking if one.rate_per_s == target]
    against = []
    for group, wrong in ((below, Seen.MISSED), (above, Seen.HELD)):
        for some in ([one for one in group if one in targets], group):
            number = sum(one.seen is wrong for one in some)
            if number >= LEAST_NEAR and 2 * number > len(some):
                against.append(_against_text(some, wrong, number))
                break
    return against


def _against_text(probes: Sequence[Probe], wrong: Seen, number: int) -> str:
    rates = sorted({probe.rate_per_s for probe in probes})
    ends = count(rates[0]) if len(rates) == 1 else f"{count(rates[0])} to {count(rates[-1])}"
    side = "below" if wrong is Seen.MISSED else "above"
    return (
        f"{number} of {len(probes)} probes {wrong.value} at {ends}/s, {side} the "
        "interval: the fleet does not keep "
        "every rate below one that it keeps, or the machine changed during the search; "
        "repeat it with a longer --budget"
    )


def target_holds(findings: Findings, target: float | None) -> bool | None:
    """Whether the rate that is planned for holds: the 95 % interval (Wilson) of the share of probes
    there that held lies above one half, or below it. None: neither, or no target."""
    speaking = says(findings)
    outcomes = [
        probe.seen
        for probe in findings.probes
        if probe.rate_per_s == target and probe.seen in speaking
    ]
    held = wilson(outcomes.count(Seen.HELD), len(outcomes))
    if held.low is None or held.high is None:
        return None
    if held.low > 0.5:
        return True
    return False if held.high < 0.5 else None


def _target_missed(
    findings: Findings, capacity: Capacity, target: float | None
) -> tuple[Word, str] | None:
    """The word and the sentence for a target whose probes mostly missed; None where they did not,
    or none tells."""
    probes = [probe for probe in findings.probes if probe.rate_per_s == target]
    outcomes = [probe.seen for probe in probes if probe.seen in _SAY]
    missed = outcomes.count(Seen.MISSED)
    if target is None or not missed or 2 * missed < len(outcomes):
        return None
    text = f"{missed} of {len(outcomes)} probes missed at the target of {count(target)}/s"
    if capacity.high is not None and target > capacity.high:
        return words.NOT_KEPT, f"{text}: the fleet bears at most {count(capacity.high)}/s"
    if target_holds(findings, target) is False:
        return words.NOT_KEPT, f"{text}: 95 % sure that fewer than half of them hold"
    return words.INCONCLUSIVE, (
        f"{text}, which does not lie beyond the interval: whether it holds is not known"
    )


def loops_within(findings: Findings, slo: Slo) -> list[Loop]:
    """The closed loops that kept the SLO's limits on acquires, as far as they have them."""
    limits = [
        (one.metric.path[-1], one.limit)
        for one in slo.thresholds
        if one.metric.path[0] == "latency_s"
    ]
    loops = []
    for loop in findings.callers:
        values = [(getattr(loop.acquire_s, figure, None), limit) for figure, limit in limits]
        if limits and all(value is not None and value <= limit for value, limit in values):
            loops.append((loop.achieved_per_s or 0.0, loop.users))
    return loops


def _knee(probes: Sequence[Probe], capacity: Capacity) -> Knee | None:
    """The rate with most throughput per latency (Kleinrock's power: rate ÷ mean acquire) among
    those that held, up to the interval: what held within it or above may not hold again."""
    held = [probe for probe in probes if probe.seen is Seen.HELD and probe.acquire_s.mean]
    sure = [probe for probe in held if probe.rate_per_s <= (capacity.low or 0.0)]
    knee = max(
        sure, key=lambda probe: probe.rate_per_s / (probe.acquire_s.mean or math.inf), default=None
    )
    return Knee(rate_per_s=knee.rate_per_s, acquire_s=knee.acquire_s) if knee else None


def _headroom(
    findings: Findings, capacity: Capacity, plan: CapacityPlan, *, is_contradicted: bool
) -> Headroom | None:
    if (target := plan.target_rate_per_s) is None:
        return None
    bears = None if is_contradicted else capacity.likely or capacity.low
    percentiles_s = [
        getattr(probe.acquire_s, plan.slo.figure)
        for probe in findings.probes
        if probe.rate_per_s == target
    ]
    latency_s = mean_latency([value for value in percentiles_s if value])
    holds = target_holds(findings, target)
    return Headroom(ratio=bears / target - 1 if bears else None, acquire_s=latency_s, holds=holds)


def mean_latency(values: Sequence[float]) -> Estimate | None:
    """Return the geometric mean of a probe's percentile (s) over two probes or more, with its 95 %
    interval."""
    if len(values) < 2:
        return None
    logs = np.log(values)
    middle = float(logs.mean())
    error = _student(len(values)) * float(logs.std(ddof=1)) / math.sqrt(len(values))
    return Estimate(*map(math.exp, (middle, middle - error, middle + error)))


def _student(values: int) -> float:
    """Student's t, 97.5 %, for a mean of so many values: beyond the table by the first terms of its
    expansion, which is 0.5 % too low at most (Abramowitz and Stegun 26.7.5)."""
    if values in STUDENT:
        return STUDENT[values]
    freedom = values - 1
    z = NORMAL
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def agreement(capacity: Capacity, loops: Sequence[Loop]) -> tuple[str | None, bool]:
    """Return what the fastest closed loop within the SLO says of the capacity, and whether it
    contradicts that."""
    if not loops:
        return None, False
    (rate, users) = max(loops)
    low = capacity.low
    limit = capacity.high or capacity.low
    loop_text = f"{users} callers in closed loop made {count(rate)}/s within the SLO"
    if limit is None:
        return f"{loop_text}, yet no rate held", True
    if rate > MORE_BY * limit:
        more = f"{loop_text}, far more than {count(limit)}/s: the load process may be the limit"
        return f"{more}; give it cores or hosts of its own", True
    if low is None:
        return None, False
    if rate < low:
        return (
            f"{loop_text}, fewer than open loop: each waits for its reply, "
            "and more callers missed it",
            False,
        )
    if capacity.high is None or rate <= capacity.high:
        return f"{loop_text}: they agree", False
    return (
        f"{loop_text}, more: they wait for each other and never queue; arrivals at random, "
        "and late ones, do",
        False,
    )


def judge_capacity(
    points: Sequence[CapacityPoint], *, stopped: str = "", interrupted: bool = False
) -> Verdict:
    """Return the verdict over all points."""
    reasons: dict[Word, list[str]] = {
        word: [] for word in (words.VIOLATED, words.NOT_KEPT, words.INCONCLUSIVE)
    }
    for point in points:
        for word in reasons:
            reasons[word] += point.reasons if point.status == word.status else ()
    reasons[words.INCONCLUSIVE] += [stopped] if stopped else []
    cut = (
        {words.INTERRUPTED: ["interrupted: what was not probed is missing"]} if interrupted else {}
    )
    evidence = [
        Evidence(
            "probes that held or missed",
            sum(one.seen in _SAY for one in point.probes),
            _least(point),
        )
        for point in points
    ]
    return conclude(words.FOUND, evidence, {**reasons, **cut}, thin=words.INCONCLUSIVE)


def _least(point: CapacityPoint) -> int:
    """Without an interval to be found, the probes that show that the target holds are enough."""
    return LEAST_TARGET if point.headroom and point.headroom.holds else LEAST_PROBES


def earned(result: CapacityResult) -> CapacityResult:
    """Return `result` with the points and the verdict that its probes and closed loops earn. Raises
    UsageError for an SLO that this version does not know."""
    slo = read_slo(result.slo)
    plan = CapacityPlan((), slo, result.target_rate_per_s, fixed_users=False, budget_s=0.0)
    points = tuple(_earned_point(point, plan) for point in result.points)
    verdict = judge_capacity(points, stopped=result.stopped, interrupted=result.interrupted)
    return replace(result, points=points, verdict=verdict)


def _earned_point(point: CapacityPoint, plan: CapacityPlan) -> CapacityPoint:
    """Return a stored point as its probes and loops earn it. That a run was violated is certain,
    and only the point's own word tells."""
    is_violated = point.status == words.VIOLATED.status
    findings = Findings(
        probes=[*point.probes],
        callers=[*point.callers],
        fleet=point.fleet,
        violated="; ".join(point.reasons) if is_violated else "",
    )
    judged = point_of(SweepPoint(point.scenario, point.variables), findings, plan)
    also = (
        [reason for reason in point.reasons if reason not in judged.reasons]
        if judged.reasons
        else []
    )
    return replace(judged, reasons=(*judged.reasons, *also))
