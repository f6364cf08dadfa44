"""How much a fleet can take: *scenario, SLO → probes on one fleet → bracket, knee, next limit, scaling law*.

    pilot      closed loop: where to begin
    search     open-loop probes, one after the other, drained in between (search.py)
    callers    closed loop with 1, 2, 4, … callers, and the Universal Scalability Law through them (usl.py)

Rules: one fleet serves all probes of a point; each probe is a whole run, judged and stored below probes/. A safety
violation ends everything. Ctrl-C keeps the probes that were finished; so does the end of a point's time, and while
there is just enough of it left to confirm, that is done. Nothing is computed here but what is asked of judge.py.
Source: README, "How much can it take?".
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.errors import BenchError, EnvironmentNotReadyError, InconclusiveError
from bench.experiments.capacity.budget import Budget, OutOfTime
from bench.experiments.capacity.judge import NextLimit, Tally, Use, agreed, judge_capacity, next_limit, outrun, tallies
from bench.experiments.capacity.probe import Probe, Slo, best_of, callers_for, headroom_of, judge_probe, knee_of
from bench.experiments.capacity.search import CONFIRMATIONS, LEAST_RATE, WITHIN, Bracket, Search, Seen
from bench.experiments.capacity.usl import Law, Refusal, fit_law
from bench.measure.environment import describe_environment
from bench.measure.generator import BUSY_CORE
from bench.measure.result import SCHEMA_VERSION, Result, write_result
from bench.measure.run_result import RunResult
from bench.measure.section import builtins_of
from bench.measure.verdict import (
    CONFIRMED,
    INCONCLUSIVE,
    NOT_KEPT,
    VIOLATED,
    Word,
)
from bench.run.interrupt import Interrupts
from bench.run.run import Order, run_on
from bench.run.servers import Servers, open_servers
from bench.run.verdict import Done, store
from bench.scenario import Scenario
from bench.topology.probe import info_snapshot

PILOT_USERS = 16
PILOT_SHARE = 4  # the search begins at this part of what the pilot reached
CALLERS = (1, 2, 4, 8, 16, 32, 64, 128)
MORE_CALLERS = (256, 512)  # while the peak has not been passed
DRAIN_S = 10.0
STRETCH = 5  # a probe may last so many times longer to get samples enough

Show = Callable[[str], None]
Section = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Point:
    """One fleet and load whose capacity is wanted; `variables`: what a sweep has set, as text."""

    scenario: Scenario
    variables: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """What is asked. `fixed_users`: the scenario's callers are a cap; else as many as a rate needs. `callers`: whether
    to sweep them. `first_rate`: where the search begins (None: a pilot says). `budget_s`: of each point."""

    points: tuple[Point, ...]
    slo: Slo
    target_rate_per_s: float | None
    first_rate: float | None
    fixed_users: bool
    callers: bool
    seed: int
    budget_s: float


@dataclass(frozen=True, slots=True)
class CapacityOrder:
    """A plan and where its result belongs. `command`: as typed; `folder`: can be made."""

    plan: CapacityPlan
    run_id: str
    command: Sequence[str]
    folder: Path
    server: str | None = None
    allow_missing: bool = False


def run_capacity(order: CapacityOrder, show: Show) -> Done:
    """Measure `order`, showing progress, and return its result, which is written by then.

    Raises BenchError when nothing could be measured, KeyboardInterrupt when it was cut short before the first probe.
    """
    plan, started_s = order.plan, time.monotonic()
    started_at = datetime.datetime.now(datetime.UTC)
    with Interrupts() as interrupts:
        seeker = _Seeker(order, interrupts, show)
        points = seeker.points()
    result: Result = {
        "schema_version": SCHEMA_VERSION,
        "kind": "capacity",
        "id": order.run_id,
        "command": list(order.command),
        "seed": plan.seed,
        "started_at": f"{started_at:%Y-%m-%dT%H:%M:%SZ}",
        "duration_s": time.monotonic() - started_s,
        "interrupted": seeker.interrupted,
        "environment": builtins_of(describe_environment()),
        "slo": [threshold.expression for threshold in plan.slo.thresholds],
        "target_rate_per_s": plan.target_rate_per_s,
        "points": points,
        "warnings": list(dict.fromkeys(seeker.warnings)),
        "verdict": judge_capacity(points, stopped=seeker.stopped, interrupted=seeker.interrupted),
    }
    return store(result, order.folder)


class _CutShort(Exception):  # noqa: N818 - no error: the user wants the end
    """Ctrl-C: what is finished counts, nothing more is begun."""


@dataclass(slots=True)
class _Findings:
    """What is known of one point so far."""

    probes: list[Probe] = field(default_factory=list)
    callers: list[Section] = field(default_factory=list)
    bracket: Bracket = field(default_factory=lambda: Bracket(None, None, 0, at_least=False))
    fleet: Section | None = None
    violated: str = ""
    unmeasured: list[str] = field(default_factory=list)  # for want of time


class _Seeker:
    """One command's work."""

    def __init__(self, order: CapacityOrder, interrupts: Interrupts, show: Show) -> None:
        self._order, self._plan, self._interrupts, self._show = order, order.plan, interrupts, show
        self._runs = 0
        self._prefix = ""
        self.interrupted = False
        self.stopped = ""
        self.warnings: list[str] = []

    def points(self) -> list[Section]:
        """The section `points`: as far as it got."""
        sections = []
        for number, point in enumerate(self._plan.points, 1):
            several = f"point {number} of {len(self._plan.points)}, {_variables(point.variables)}"
            self._prefix = f"{several}: " if point.variables else ""
            findings = _Findings()
            try:
                self._seek(point, findings)
            except (KeyboardInterrupt, _CutShort):
                self.interrupted = True
            except BenchError as error:
                if not self._runs:
                    raise
                self.stopped = str(error)
            if self.interrupted and not self._runs:
                raise KeyboardInterrupt
            sections.append(section_of(point, findings, self._plan))
            untold = [told for told in findings.unmeasured if told not in sections[-1]["reasons"]]
            self.warnings += [f"{self._prefix}{told}" for told in untold]
            if self.interrupted or self.stopped or findings.violated:
                break
        return sections

    def _seek(self, point: Point, findings: _Findings) -> None:
        scenario = point.scenario
        budget = self._budget = Budget(self._plan.budget_s, callers=self._plan.callers)
        with open_servers(scenario, server=self._order.server, allow_missing=self._order.allow_missing) as servers:
            self._interrupts.raising = False
            findings.fleet = builtins_of(servers.section())
            try:
                first = self._plan.first_rate or self._pilot(scenario, servers, findings)
                if not findings.violated:
                    self._search(Search(first), scenario, servers, findings)
            except OutOfTime:
                findings.unmeasured.append(budget.spent(f"the search ended after {len(findings.probes)} probes"))
            budget.give_callers()
            if self._plan.callers and not findings.violated:
                self._sweep_callers(scenario, servers, findings)

    def _pilot(self, scenario: Scenario, servers: Servers, findings: _Findings) -> float:
        self._show(f"{self._prefix}pilot: {PILOT_USERS} callers, closed loop")
        reached = self._closed(PILOT_USERS, scenario, servers, findings)["achieved_per_s"]
        return _round_number(max(reached / PILOT_SHARE, 1.0))

    def _search(self, search: Search, scenario: Scenario, servers: Servers, findings: _Findings) -> None:
        while (rate := search.next_rate()) is not None:
            likely = self._open_loop(scenario, rate)
            if search.has_low and not search.hurried and not self._budget.fits(likely, CONFIRMATIONS + 1):
                search.hurried = True
                continue
            step = search.step.value
            self._show(f"{self._prefix}{step}: probe {search.probes + 1} at {rate:,.0f}/s")
            result = self._run(likely, servers, findings)
            probe = judge_probe(rate, step, result, self._plan.slo)
            findings.probes.append(probe)
            search.take(rate, probe.seen)
            findings.bracket = search.bracket()
            if findings.violated:
                return
        low, high = findings.bracket.low, findings.bracket.high
        if search.hurried and low and (not high or high / low > WITHIN * 1.001):
            findings.unmeasured.append(self._budget.spent(f"what lies above {low:,.0f}/s was not looked at closer"))

    def _open_loop(self, scenario: Scenario, rate: float) -> Scenario:
        samples_ms = self._plan.slo.least_operations / rate * 1000
        duration_ms = max(scenario.duration_ms, min(samples_ms, STRETCH * scenario.duration_ms))
        users = scenario.users if self._plan.fixed_users else callers_for(rate, scenario, self._plan.slo)
        return replace(scenario, rate_per_s=rate, users=users, duration_ms=duration_ms)

    def _sweep_callers(self, scenario: Scenario, servers: Servers, findings: _Findings) -> None:
        done = {point["users"] for point in findings.callers}
        for users in (*CALLERS, *MORE_CALLERS):
            if users in done or (scenario.skew.kind == "own" and users > scenario.resources):
                continue
            if users in MORE_CALLERS and (findings.callers[-1:] and _is_busy(findings.callers[-1])):
                break
            if users in MORE_CALLERS and isinstance(_law(findings, self._plan.seed), Law):
                break
            self._show(f"{self._prefix}callers: {users}, closed loop")
            try:
                self._closed(users, scenario, servers, findings)
            except OutOfTime:
                findings.unmeasured.append(self._budget.spent(f"{users} callers and more were not tried"))
                return
            if findings.violated:
                return

    def _closed(self, users: int, scenario: Scenario, servers: Servers, findings: _Findings) -> Section:
        users = max(users, scenario.processes)
        result = self._run(replace(scenario, rate_per_s=None, users=users), servers, findings)
        acquire = result["latency_s"]["acquire"]
        point = {
            "users": users,
            "achieved_per_s": result["rate"]["achieved_per_s"],
            "acquire_s": {name: acquire[name] for name in ("count", "mean", "p50", "p99")},
            "generator_cpu_ratio": result["generator"]["cpu_ratio"],
        }
        findings.callers.append(point)
        return point

    def _run(self, scenario: Scenario, servers: Servers, findings: _Findings) -> Any:
        """One run on the standing servers, stored; drained servers before it."""
        if self._interrupts.count:
            raise _CutShort
        self._budget.require(scenario)
        began_s = time.monotonic()
        _drain(servers.urls)
        run_id = f"{self._order.run_id}-{self._runs + 1}"
        order = Order(scenario, run_id, self._order.command, None, self._order.server, self._order.allow_missing)
        finished = run_on(servers, order, self._interrupts, lambda _progress: None)
        if finished.result["interrupted"]:
            raise _CutShort
        self._runs += 1
        self._budget.took(scenario, time.monotonic() - began_s)
        self._store(finished.result)
        verdict = finished.result["verdict"]
        if verdict["status"] == "violated":
            findings.violated = f"at {scenario.rate_per_s or 0:,.0f}/s: {'; '.join(verdict['reasons'])}"
        if verdict["status"] == "invalid" and finished.result["generator"]["verdict"] == "VALID":
            raise InconclusiveError(f"a probe did not run to its end: {verdict['reasons'][0]}")
        self.warnings += [text for text in servers.warnings() if text not in self.warnings]
        return finished.result

    def _store(self, result: RunResult) -> None:
        """Keep a probe's whole result; what cannot be stored costs nothing but itself."""
        folder = self._order.folder / "probes" / f"{self._runs:02d}"
        try:
            folder.mkdir(parents=True)
            write_result(result, folder)
        except (OSError, EnvironmentNotReadyError) as error:
            self.warnings.append(f"a probe's result could not be stored in {folder} ({error})")


def section_of(point: Point, findings: _Findings, plan: CapacityPlan) -> Section:
    """One entry of the section `points`."""
    probes, looks = findings.probes, [(probe.rate, probe.seen) for probe in findings.probes]
    agreement, doubts = agreed(findings.bracket, looks)
    best = best_of(probes, agreement)
    uses = tuple(Use(**use) for use in best.figures["uses"]) if best else ()
    limit = next_limit(uses) if best else NextLimit(None, "not known: no probe held")
    bracket = replace(agreement, at_least=agreement.at_least or _is_bound(best))
    doubts += outrun(bracket, _closed_loops(findings, plan.slo))
    word, reasons = _word(findings, bracket, doubts, plan)
    tally = tallies(looks).get(bracket.low or 0.0, Tally())
    law = _law(findings, plan.seed) if plan.callers else None
    return {
        "variables": dict(point.variables),
        "scenario": point.scenario.to_json(),
        "fleet": findings.fleet,
        "status": word.status,
        "reasons": reasons,
        "capacity": {
            **asdict(bracket),
            "wanted_confirmations": CONFIRMATIONS,
            "held": tally.held,
            "probed": tally.probes,
        },
        "attainment": best.figures["attainment"] if best else None,
        "knee": knee_of(probes, bracket),
        "headroom": headroom_of(bracket, plan.target_rate_per_s),
        "next_limit": {**asdict(limit), "uses": [asdict(use) for use in uses]},
        "instances": best.figures["instances"] if best else [],
        "probes": [probe.figures for probe in probes],
        "callers": sorted(findings.callers, key=lambda entry: int(entry["users"])),
        "law": asdict(law) if isinstance(law, Law) else None,
        "no_law": None if law is None or isinstance(law, Law) else law.reason,
    }


def _word(findings: _Findings, bracket: Bracket, doubts: Sequence[str], plan: CapacityPlan) -> tuple[Word, list[str]]:
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
            return INCONCLUSIVE, [f"the generator was saturated at {last.rate:,.2f}/s, the lowest rate tried"]
        reason = f"no rate that was tried holds {plan.slo.text}: {last.rate:,.2f}/s did not"
        lowest = bracket.high is not None and bracket.high / 2 < LEAST_RATE
        return (NOT_KEPT, [reason]) if lowest else (INCONCLUSIVE, [f"{reason}; lower ones were not tried", *unmeasured])
    if bracket.high is None:
        return INCONCLUSIVE, [
            f"nothing above {bracket.low:,.0f}/s was tried, so the capacity is at least that",
            *unmeasured,
        ]
    if bracket.at_least:
        busy = any((probe.figures["generator"]["cpu_ratio"] or 0.0) >= BUSY_CORE for probe in findings.probes)
        cure = "give it --processes or cores" if busy else "its timer was late: give it a machine with less other work"
        return INCONCLUSIVE, [f"the load generator was the limit, so the capacity is at least what is shown; {cure}"]
    if bracket.confirmed < CONFIRMATIONS:
        return INCONCLUSIVE, [f"confirmed {bracket.confirmed} times only", *unmeasured]
    return CONFIRMED, []


def _closed_loops(findings: _Findings, slo: Slo) -> Iterator[tuple[int, float, bool]]:
    """Callers, leases/s, and whether the SLO's limits on acquires, as far as closed loops have them, were kept."""
    limits = [one for one in slo.thresholds if one.metric.path[0] == "latency_s"]
    for point in findings.callers:
        values = [point["acquire_s"].get(one.metric.path[-1]) for one in limits]
        kept = bool(limits) and all(
            value is not None and value <= one.limit for value, one in zip(values, limits, strict=True)
        )
        yield point["users"], point["achieved_per_s"] or 0.0, kept


def _is_bound(best: Probe | None) -> bool:
    """Whether the generator had no more to give at the largest rate that held."""
    return best is not None and (best.figures["generator"]["cpu_ratio"] or 0.0) >= BUSY_CORE


def _law(findings: _Findings, seed: int) -> Law | Refusal:
    """The law through the points that the generator could make: beyond them it would be the generator's own."""
    points = sorted(findings.callers, key=lambda entry: int(entry["users"]))
    made = [entry for entry in points if not _is_busy(entry) and entry["achieved_per_s"]]
    law = fit_law([entry["users"] for entry in made], [entry["achieved_per_s"] for entry in made], seed)
    busy = [entry["users"] for entry in points if _is_busy(entry)]
    if isinstance(law, Refusal) and busy:
        return Refusal(f"{law.reason}; from {min(busy)} callers on the generator was saturated")
    return law


def _is_busy(entry: Section) -> bool:
    return (entry["generator_cpu_ratio"] or 0.0) >= BUSY_CORE


def _drain(urls: Sequence[str]) -> None:
    """Wait until every instance that answers has nothing left to sync, at most 10 s."""
    deadline_s = time.monotonic() + DRAIN_S
    while time.monotonic() < deadline_s:
        values = [snapshot.values or {} for snapshot in info_snapshot(urls)]
        if not any(value.get("aof_pending_bio_fsync") for value in values):
            return
        time.sleep(0.05)  # nobody tells when a background fsync ends


def _round_number(rate: float) -> float:
    """The largest of 1, 2, 5 times a power of ten that is not above `rate` (≥ 1)."""
    power = 10.0 ** (len(str(int(rate))) - 1)
    return max(step * power for step in (1, 2, 5) if step * power <= rate)


def _variables(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in variables.items())
