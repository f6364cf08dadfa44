"""Judges one point of a capacity search: *probes and closed loops → interval, limit, headroom and
verdict*. All functions are pure.

`point_of` applies the rules in the order of `RULES`. The first rule that gives an answer decides
the verdict. If no rule gives an answer, the verdict is FOUND.

The judge compares the interval with the fastest closed loop that kept the SLO. The result contains
a sentence that explains the difference between the two. In a closed loop the number of callers
limits the length of the queue. In an open loop, random arrivals can form a long queue. So the rate
of a closed loop may be above the interval. If this rate is more than twice the upper end of the
interval, the closed loop contradicts the interval. The factor of two comes from the model of an
M/M/1 server. At half of its maximum rate, an M/M/1 server has a p99 latency of about 9.2 service
times. So at half of its maximum rate, this server keeps an SLO of ten service times.

The value of 9.2 follows from the formula for p99 of an M/M/1 server, ln 100 ÷ (μ − λ). The interval
of the latency at the target uses Student's t.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from bench.experiments.capacity.model import USABLE
from bench.experiments.capacity.probe import Slo, is_busy, next_limit, read_slo
from bench.experiments.capacity.result import (
    Capacity,
    CapacityPoint,
    CapacityResult,
    Estimate,
    Headroom,
    Knee,
    Probe,
    Seen,
    at_capacity,
)
from bench.experiments.capacity.search import (
    LEAST_NEAR,
    LEAST_PROBES,
    NEAR,
    Findings,
    Loop,
    capacity_of,
    holds_nowhere,
    loops_within,
)
from bench.measure import verdict as words
from bench.measure.statistics import wilson
from bench.measure.verdict import Evidence, Verdict, Word, conclude
from bench.report.figures import count, counted, latency, percent
from bench.scenario import Scenario

# The fewest probes that can show that the target holds. If four of four probes held, their interval
# (Wilson) lies above one half. If three of three probes held, the interval contains one half.
LEAST_TARGET = 4
# A closed loop may be this many times as fast as random arrivals.
MORE_BY = 2.0
# Student's t (97.5 %), by the number of values.
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571}
# The same quantile of the normal distribution.
NORMAL = 1.96
# A word and the sentences that explain it.
Answer = tuple[Word, list[str]]


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One fleet and one load whose capacity the search will measure. `variables` holds the values
    that a sweep has set. Each value is a text."""

    scenario: Scenario
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """The plan of a capacity search.

    If `fixed_users` is true, the number of callers in the scenario is also the upper limit for each
    run. `budget_s` is the time budget of each point. Workers on other hosts connect to the address
    `bind`.
    """

    points: tuple[SweepPoint, ...]
    slo: Slo
    target_rate_per_s: float | None
    fixed_users: bool
    budget_s: float
    bind: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about one point. The rules use these facts as their input. If pauses count as misses on
    this machine, `findings` contains each paused probe as a missed probe. `contradictions` holds
    sentences about evidence against the interval."""

    findings: Findings
    capacity: Capacity
    target: float | None
    contradictions: Sequence[str]

    @property
    def pauses(self) -> str:
        """The end of a sentence about the probes. The text has the number of probes that gave no
        result because of pauses. The text is "" if all probes gave a result."""
        probes = self.findings.probes
        paused = len(self.findings.rates(Seen.PAUSED))
        if not paused:
            return ""
        return (
            f"; {paused} of {counted(len(probes), 'probe')} give no result, because this machine "
            "did not run the load in time"
        )

    def unsure(self, *reasons: str) -> Answer:
        """Return INCONCLUSIVE with these reasons. The answer also contains the sentences about
        missing measurements."""
        return words.INCONCLUSIVE, [*reasons, *self.findings.unmeasured]


# -- the rules -------------------------------------------------------------------------------------


def _two_holders(facts: Facts) -> Answer | None:
    """Answer VIOLATED if two clients held the lock at the same time. An unsafe lock has no
    capacity."""
    violated = facts.findings.violated
    return (words.VIOLATED, [violated]) if violated else None


def _no_probe(facts: Facts) -> Answer | None:
    """Answer INCONCLUSIVE if no probe was finished."""
    return None if facts.findings.probes else facts.unsure("no probe was finished")


def _contradicted(facts: Facts) -> Answer | None:
    """Answer INCONCLUSIVE if probes or a closed loop contradict the interval."""
    return facts.unsure(*facts.contradictions, *_gaps(facts)) if facts.contradictions else None


def _target_held(facts: Facts) -> Answer | None:
    """Answer FOUND if the fleet keeps the target, even if there is no interval."""
    return (words.FOUND, []) if target_holds(facts.findings, facts.target) else None


def _nothing_held(facts: Facts) -> Answer | None:
    """Return None if the interval has a lower end. The answer is NOT KEPT if no probe held, and if
    enough probes missed at rates close to zero and at rates in the middle. In all other cases the
    answer is INCONCLUSIVE."""
    findings = facts.findings
    if facts.capacity.low is not None:
        return None
    lowest = min(findings.probes, key=lambda probe: probe.rate_per_s)
    slow = f"{lowest.rate_per_s:,.2f}/s"
    if lowest.seen is Seen.SATURATED:
        return facts.unsure(
            f"even at {slow}, the lowest tested rate, the load generator reached its limit"
        )
    held = findings.rates(Seen.HELD)
    missed = findings.rates(Seen.MISSED)
    if holds_nowhere(findings):
        fastest = max(missed)
        is_one = fastest == lowest.rate_per_s
        which = f"{slow} did not" if is_one else f"neither {slow} nor {count(fastest)}/s did"
        return words.NOT_KEPT, [f"no rate keeps the SLO: {which}"]
    outcomes = []
    if held:
        outcomes.append(
            f"{counted(len(held), 'probe')} kept the SLO, up to a rate of {max(held):,.2f}/s"
        )
    if missed:
        outcomes.append(f"{min(missed):,.2f}/s missed the SLO")
    text = ", and ".join(outcomes) or "no probe had a result"
    return facts.unsure(
        f"it is not certain that a tested rate keeps the SLO: {text}{facts.pauses}; the "
        "search tried too few lower rates"
    )


def _target_missed(facts: Facts) -> Answer | None:
    """Return None if no probe at the target missed, or if fewer than half of these probes missed.
    The answer is NOT KEPT if the target is above the interval. The answer is also NOT KEPT if the
    probes at the target alone show, with 95 % certainty, that the fleet does not keep the target.
    Otherwise the answer is INCONCLUSIVE."""
    target = facts.target
    high = facts.capacity.high
    outcomes = _at(facts.findings, target)
    missed = outcomes.count(Seen.MISSED)
    if target is None or not missed or 2 * missed < len(outcomes):
        return None
    text = (
        f"{missed} of {len(outcomes)} probes missed the SLO at the target rate of {count(target)}/s"
    )
    if high is not None and target > high:
        return words.NOT_KEPT, [f"{text}, because the fleet carries at most {count(high)}/s"]
    if target_holds(facts.findings, target) is False:
        return words.NOT_KEPT, [
            f"{text}, so fewer than half of all probes at this rate keep the SLO (95 % certainty)"
        ]
    why = (
        "but the target rate lies inside or below the interval. So it is unknown whether the "
        "fleet keeps the SLO at the target rate"
    )
    return words.INCONCLUSIVE, [f"{text}, {why}"]


def _unbounded(facts: Facts) -> Answer | None:
    """Answer INCONCLUSIVE if the interval has no upper end or is too wide."""
    gaps = _gaps(facts)
    return facts.unsure(*gaps) if gaps else None


# The first rule that has an answer decides.
RULES: Sequence[Callable[[Facts], Answer | None]] = (
    _two_holders,
    _no_probe,
    _contradicted,
    _target_held,
    _nothing_held,
    _target_missed,
    _unbounded,
)


def _gaps(facts: Facts) -> list[str]:
    """Return sentences that explain why the interval has no upper end or is too wide."""
    capacity = facts.capacity
    if not capacity.low:
        return []
    if capacity.high is None:
        gave_out = _gave_out(facts.findings)
        why = "at higher rates, too few probes missed the SLO to show an upper end"
        if gave_out:
            why = f"the load generator reached its limit first ({gave_out})"
        return [f"the capacity is at least {count(capacity.low)}/s: {why}{facts.pauses}"]
    if capacity.width <= USABLE:
        return []
    return [
        f"the interval is ±{percent(capacity.width, 0)}, but an answer needs "
        f"±{percent(USABLE, 0)} or less: repeat the search on a quieter machine, or with a longer "
        "--budget"
    ]


def _gave_out(findings: Findings) -> str:
    """Describe how the load generator spoilt a probe. If the load generator spoilt several probes,
    describe the spoilt probe with the lowest rate. Return "" if the load generator spoilt no
    probe."""
    spoilt = [probe for probe in findings.probes if probe.seen is Seen.SATURATED]
    if not spoilt:
        return ""
    first = min(spoilt, key=lambda probe: probe.rate_per_s)
    health = first.generator
    how = f"its timer woke {latency(health.late_s)} late"
    if is_busy(health.cpu_ratio):
        how = f"{percent(health.cpu_ratio, 0)} of a core"
    return f"{how} at {count(first.rate_per_s)}/s"


# -- the target ------------------------------------------------------------------------------------


def _at(findings: Findings, target: float | None) -> list[Seen]:
    """Return the outcomes of the probes at the target. The function leaves out probes that show
    nothing about the servers."""
    if target is None:
        return []
    return [outcome for outcome in findings.outcomes(target, target) if outcome in findings.counted]


def target_holds(findings: Findings, target: float | None) -> bool | None:
    """Return whether the fleet keeps the SLO at the target rate. The function computes a 95 %
    interval (Wilson) for the share of probes that held at this rate. If both ends of the interval
    are above 0.5, the fleet keeps the rate. If both ends are below 0.5, the fleet does not keep the
    rate. Return None if the interval contains 0.5, or if there is no target."""
    outcomes = _at(findings, target)
    held = wilson(outcomes.count(Seen.HELD), len(outcomes))
    if held.low is None or held.high is None:
        return None
    if held.low > 0.5:
        return True
    return False if held.high < 0.5 else None


def _headroom(facts: Facts, slo: Slo) -> Headroom | None:
    target = facts.target
    if target is None:
        return None
    capacity = facts.capacity
    bears = None if facts.contradictions else capacity.likely or capacity.low
    percentiles_s = [
        getattr(probe.acquire_s, slo.figure)
        for probe in facts.findings.probes
        if probe.rate_per_s == target
    ]
    return Headroom(
        ratio=bears / target - 1 if bears else None,
        acquire_s=mean_latency([value for value in percentiles_s if value]),
        holds=target_holds(facts.findings, target),
    )


def mean_latency(values: Sequence[float]) -> Estimate | None:
    """Return the geometric mean of `values` and the 95 % interval of this mean. `values` holds one
    latency percentile (s) per probe. Return None if there are fewer than two values."""
    if len(values) < 2:
        return None
    logs = np.log(values)
    middle = float(logs.mean())
    error = _student(len(values)) * float(logs.std(ddof=1)) / math.sqrt(len(values))
    return Estimate(*map(math.exp, (middle, middle - error, middle + error)))


def _student(values: int) -> float:
    """Return the 97.5 % quantile of Student's t distribution for the mean of a sample. `values` is
    the size of the sample. For samples of up to six values, the function takes the quantile from
    the table STUDENT. For larger samples, the function computes the first terms of an expansion
    (Abramowitz and Stegun 26.7.5). The computed quantile is at most 0.5 % too low."""
    if values in STUDENT:
        return STUDENT[values]
    freedom = values - 1
    z = NORMAL
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


# -- what contradicts the interval -----------------------------------------------------------------


def _probes_against(findings: Findings, capacity: Capacity, target: float | None) -> list[str]:
    """Return sentences about probes that contradict the interval. There are two kinds of
    contradiction. In the first case, most probes at rates clearly below the interval are MISSED. In
    the second case, most probes at rates clearly above the interval are HELD.

    The model assumes that a fleet which keeps a rate also keeps every lower rate. If this
    assumption is false, or if the machine changed during the search, the interval does not answer
    the question.
    """
    speaking = [probe for probe in findings.probes if probe.seen in (Seen.HELD, Seen.MISSED)]
    below = [one for one in speaking if capacity.low and one.rate_per_s * NEAR < capacity.low]
    above = [one for one in speaking if capacity.high and one.rate_per_s > capacity.high * NEAR]
    against = []
    for group, wrong in ((below, Seen.MISSED), (above, Seen.HELD)):
        for some in ([one for one in group if one.rate_per_s == target], group):
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
        f"{number} of {len(probes)} probes at rates {side} the interval ({ends}/s) "
        f"{wrong.value}. There are two possible causes. The machine changed during the search, or "
        "the fleet keeps the SLO at one rate and misses the SLO at a lower rate. Repeat the search "
        "with a longer --budget"
    )


def agreement(capacity: Capacity, loops: Sequence[Loop]) -> tuple[str | None, bool]:
    """Compare the capacity with the fastest closed loop in `loops`. All loops in `loops` kept the
    SLO. Return two values. The first value is a sentence about the comparison, or None if there is
    nothing to compare. The second value is True if the fastest loop contradicts the capacity."""
    if not loops:
        return None, False
    rate, users = max(loops)
    low = capacity.low
    limit = capacity.high or low
    loop_text = f"{users} callers in closed loop reached {count(rate)}/s within the SLO"
    if limit is None:
        return f"{loop_text}, yet no rate held", True
    if rate > MORE_BY * limit:
        more = f"{loop_text}, far more than {count(limit)}/s, so the load process may be the limit"
        return f"{more}; run the load on cores or hosts of its own", True
    if low is None:
        return None, False
    how = (
        ", which is more than in open loop. The cause is that operations can queue in an "
        "open loop, but not in a closed loop"
    )
    if rate < low:
        how = (
            ", which is less than in open loop. There are two causes. Each caller waits for its "
            "reply, and runs with more callers missed the SLO"
        )
    elif capacity.high is None or rate <= capacity.high:
        how = ": they agree"
    return f"{loop_text}{how}", False


# -- a point, and all points -----------------------------------------------------------------------


def point_of(point: SweepPoint, findings: Findings, plan: CapacityPlan) -> CapacityPoint:
    """Judge the findings of one point, and return the point with its verdict."""
    target = plan.target_rate_per_s
    capacity = capacity_of(findings, plan.slo)
    near = at_capacity(findings.probes, capacity)
    # Too few probes held to confirm an end of the interval. So a closed loop cannot agree with the
    # interval.
    is_silent = findings.rates(Seen.HELD) and capacity.low is None and capacity.high is None
    loops = [] if is_silent else loops_within(findings, plan.slo)
    agrees, is_contradicted = agreement(capacity, loops)
    judged = _with_pauses_missed(findings)
    contradictions = [agrees] if agrees and is_contradicted and not capacity.at_least else []
    contradictions += _probes_against(judged, capacity, target)
    facts = Facts(judged, capacity, target, contradictions)
    answers = (rule(facts) for rule in RULES)
    word, reasons = next(filter(None, answers), (words.FOUND, []))
    gave_out = _gave_out(findings) if capacity.high is None else ""
    return CapacityPoint(
        variables=dict(point.variables),
        scenario=point.scenario.shown(),
        fleet=findings.fleet,
        status=word.status,
        reasons=tuple(reasons),
        capacity=capacity,
        knee=_knee(findings.probes, capacity),
        headroom=_headroom(facts, plan.slo),
        next_limit=next_limit(near.uses if near else (), gave_out),
        probes=tuple(findings.probes),
        callers=tuple(sorted(findings.callers, key=lambda loop: loop.users)),
        agreement=agrees,
    )


def _with_pauses_missed(findings: Findings) -> Findings:
    """Return the findings. If pauses count as misses on this machine, each paused probe becomes a
    missed probe."""
    if Seen.PAUSED not in findings.counted:
        return findings
    probes = [
        replace(probe, seen=Seen.MISSED) if probe.seen is Seen.PAUSED else probe
        for probe in findings.probes
    ]
    return dataclasses.replace(findings, probes=probes)


def _knee(probes: Sequence[Probe], capacity: Capacity) -> Knee | None:
    """Return the rate with the best ratio of throughput to latency. The function uses Kleinrock's
    power, which is the rate divided by the mean acquire latency. The function considers only probes
    that held, and only rates up to the lower end of the interval. At a higher rate, a second probe
    may miss."""
    knee = max(
        (
            probe
            for probe in probes
            if probe.seen is Seen.HELD
            and probe.acquire_s.mean
            and probe.rate_per_s <= (capacity.low or 0.0)
        ),
        key=lambda probe: probe.rate_per_s / (probe.acquire_s.mean or math.inf),
        default=None,
    )
    return Knee(rate_per_s=knee.rate_per_s, acquire_s=knee.acquire_s) if knee else None


def judge_capacity(
    points: Sequence[CapacityPoint], *, stopped: str = "", interrupted: bool = False
) -> Verdict:
    """Return the verdict on all points together."""
    reasons: dict[Word, list[str]] = {
        word: [reason for one in points if one.status == word.status for reason in one.reasons]
        for word in (words.VIOLATED, words.NOT_KEPT, words.INCONCLUSIVE)
    }
    reasons[words.INCONCLUSIVE] += [stopped] if stopped else []
    if interrupted:
        reasons[words.INTERRUPTED] = ["interrupted: the probes that had not run yet are missing"]
    evidence = [
        Evidence(
            "probes that held or missed",
            sum(probe.seen in (Seen.HELD, Seen.MISSED) for probe in point.probes),
            # Without an interval, the probes at the target are enough evidence.
            LEAST_TARGET if point.headroom and point.headroom.holds else LEAST_PROBES,
        )
        for point in points
    ]
    return conclude(words.FOUND, evidence, reasons, thin=words.INCONCLUSIVE)


def earned(result: CapacityResult) -> CapacityResult:
    """Return a stored `result` with a new judgement. The function computes the points and the
    verdict again from the stored probes and closed loops. Raises UsageError for an SLO that this
    version cannot read."""
    slo = read_slo(result.slo)
    plan = CapacityPlan((), slo, result.target_rate_per_s, fixed_users=False, budget_s=0.0)
    points = tuple(_earned_point(point, plan) for point in result.points)
    verdict = judge_capacity(points, stopped=result.stopped, interrupted=result.interrupted)
    return replace(result, points=points, verdict=verdict)


def _earned_point(point: CapacityPoint, plan: CapacityPlan) -> CapacityPoint:
    """Judge a stored point again by its probes and closed loops, and return the point. The function
    keeps a stored verdict VIOLATED, because the point has no other record of the violation."""
    violated = "; ".join(point.reasons) if point.status == words.VIOLATED.status else ""
    findings = Findings([*point.probes], [*point.callers], point.fleet, violated)
    judged = point_of(SweepPoint(point.scenario, point.variables), findings, plan)
    also = [reason for reason in point.reasons if judged.reasons and reason not in judged.reasons]
    return replace(judged, reasons=(*judged.reasons, *also))
