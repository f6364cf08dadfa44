"""How much a fleet can take: *scenario, SLO → probes on one fleet → bracket, knee, next limit, scaling law*.

    pilot      closed loop: where to begin
    search     open-loop probes, one after the other, drained in between (judge.py)
    callers    closed loop with 1, 2, 4, … callers, and the Universal Scalability Law through them (usl.py)

Rules: one fleet serves all probes of a point; each probe is a whole run, judged and stored below probes/. A safety
violation ends everything. Ctrl-C keeps the probes that were finished; so does the end of a point's time, and while
there is just enough of it left to confirm, that is done. A run that would not be over within the budget is not begun:
it takes what is asked of it, and what the slowest so far took beyond that (starting, draining, judging: seconds on a
busy machine). Nothing is computed here but what is asked of judge.py.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from bench.errors import BenchError, EnvironmentNotReadyError, InconclusiveError
from bench.experiments.capacity.judge import (
    CONFIRMATIONS,
    WITHIN,
    CapacityPlan,
    Findings,
    Search,
    judge_capacity,
    law_of,
    point_of,
)  # fmt: skip
from bench.experiments.capacity.probe import callers_for, judge_probe
from bench.experiments.capacity.result import CapacityPoint, CapacityResult, ClosedLoop, point_name
from bench.experiments.capacity.usl import Law
from bench.measure.result import write_result
from bench.measure.run_result import RunResult
from bench.run.experiment import Done, Experiment, ExperimentOrder, Show
from bench.run.run import Order, run_on
from bench.run.servers import Servers, open_servers
from bench.scenario import Scenario
from bench.scenario.quantity import duration_text
from bench.topology.probe import info_snapshot

PILOT_USERS = 16
PILOT_SHARE = 4  # the search begins at this part of what the pilot reached
CALLERS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
ENOUGH_CALLERS = 128  # more only while no law can be fitted and the generator is not the limit
DRAIN_S = 10.0
FIRST_OVERHEAD_S = 1.5
CALLERS_SHARE = 0.3  # of the budget: eight runs, where a search takes 12 to 25
STRETCH = 5  # a probe may last so many times longer to get samples enough


def run_capacity(order: ExperimentOrder[CapacityPlan], show: Show) -> Done[CapacityResult]:
    """Measure `order`, showing progress, and return its result, which is written by then.

    Raises BenchError when nothing could be measured, KeyboardInterrupt when it was cut short before the first probe.
    """
    plan = order.plan
    with Experiment(order) as experiment:
        seeker = _Seeker(order, experiment, show)
        points = seeker.points()
        experiment.raising = False  # what was measured is stored first
        result = CapacityResult(
            **experiment.header(seed=plan.seed, interrupted=experiment.cut),
            slo=tuple(threshold.expression for threshold in plan.slo.thresholds),
            target_rate_per_s=plan.target_rate_per_s,
            points=tuple(points),
            warnings=tuple(dict.fromkeys(seeker.warnings)),
            verdict=judge_capacity(points, stopped=seeker.stopped, interrupted=experiment.cut),
        )
        return experiment.store(result)


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


class _Seeker:
    """One command's work."""

    def __init__(self, order: ExperimentOrder[CapacityPlan], experiment: Experiment, show: Show) -> None:
        self._order, self._plan, self._experiment, self._show = order, order.plan, experiment, show
        self._runs = 0
        self._prefix = ""
        self.stopped = ""
        self.warnings: list[str] = []

    def points(self) -> list[CapacityPoint]:
        """Measure every point, as far as it gets. Raises BenchError and KeyboardInterrupt before the first probe."""
        found: list[CapacityPoint] = []
        for number, point in enumerate(self._plan.points, 1):
            several = f"point {number} of {len(self._plan.points)}, {point_name(point.variables)}"
            self._prefix = f"{several}: " if point.variables else ""
            findings = Findings()
            try:
                self._seek(point.scenario, findings)
            except (BenchError, KeyboardInterrupt) as error:
                if not self._runs:
                    raise  # else what is finished counts
                self._experiment.cut = isinstance(error, KeyboardInterrupt)
                self.stopped = "" if self._experiment.cut else str(error)
            found.append(point_of(point, findings, self._plan))
            reasons = found[-1].reasons
            self.warnings += [f"{self._prefix}{told}" for told in findings.unmeasured if told not in reasons]
            if self._experiment.cut or self.stopped or findings.violated:
                break
        return found

    def _seek(self, scenario: Scenario, findings: Findings) -> None:
        plan = self._plan
        budget = self._budget = Budget(plan.budget_s, callers=plan.callers)
        with open_servers(scenario, server=self._order.server, allow_missing=False) as servers:
            self._experiment.raising = False
            findings.fleet = servers.section()
            try:
                first = self._pilot(scenario, servers, findings)
                if not findings.violated:
                    self._search(Search(first), scenario, servers, findings)
            except OutOfTime:
                findings.unmeasured.append(budget.spent(f"the search ended after {len(findings.probes)} probes"))
            budget.give_callers()
            if plan.callers and not findings.violated:
                self._sweep_callers(scenario, servers, findings)

    def _pilot(self, scenario: Scenario, servers: Servers, findings: Findings) -> float:
        self._show(f"{self._prefix}pilot: {PILOT_USERS} callers, closed loop")
        reached = self._closed(PILOT_USERS, scenario, servers, findings).achieved_per_s or 0.0
        return _round_number(max(reached / PILOT_SHARE, 1.0))

    def _search(self, search: Search, scenario: Scenario, servers: Servers, findings: Findings) -> None:
        while (rate := search.next_rate()) is not None:
            likely = self._open_loop(scenario, rate)
            if search.low is not None and not search.hurried and not self._budget.fits(likely, CONFIRMATIONS + 1):
                search.hurried = True
                continue
            self._show(f"{self._prefix}{search.step.value}: probe {search.probes + 1} at {rate:,.0f}/s")
            result = self._run(likely, servers, findings)
            probe = judge_probe(rate, search.step, result, self._plan.slo)
            findings.probes.append(probe)
            search.take(rate, probe.seen)
            if findings.violated:
                return
        low, high = search.low, search.high
        if search.hurried and low and (not high or high / low > WITHIN * 1.001):
            findings.unmeasured.append(self._budget.spent(f"what lies above {low:,.0f}/s was not looked at closer"))

    def _open_loop(self, scenario: Scenario, rate: float) -> Scenario:
        samples_ms = self._plan.slo.least_operations / rate * 1000
        duration_ms = max(scenario.duration_ms, min(samples_ms, STRETCH * scenario.duration_ms))
        users = scenario.users if self._plan.fixed_users else callers_for(rate, scenario, self._plan.slo)
        return replace(scenario, rate_per_s=rate, users=users, duration_ms=duration_ms)

    def _sweep_callers(self, scenario: Scenario, servers: Servers, findings: Findings) -> None:
        done = {loop.users for loop in findings.callers}
        for users in CALLERS:
            if users in done or (scenario.skew.kind == "own" and users > scenario.resources):
                continue
            if users > ENOUGH_CALLERS and (
                findings.callers[-1].is_bound or isinstance(law_of(findings, self._plan.seed), Law)
            ):
                break
            self._show(f"{self._prefix}callers: {users}, closed loop")
            try:
                self._closed(users, scenario, servers, findings)
            except OutOfTime:
                findings.unmeasured.append(self._budget.spent(f"{users} callers and more were not tried"))
                return
            if findings.violated:
                return

    def _closed(self, users: int, scenario: Scenario, servers: Servers, findings: Findings) -> ClosedLoop:
        users = max(users, scenario.processes)
        result = self._run(replace(scenario, rate_per_s=None, users=users), servers, findings)
        loop = ClosedLoop(
            users=users,
            achieved_per_s=result.rate.achieved_per_s,
            acquire_s=result.latency_s.acquire,
            generator_cpu_ratio=result.generator.cpu_ratio,
        )
        findings.callers.append(loop)
        return loop

    def _run(self, scenario: Scenario, servers: Servers, findings: Findings) -> RunResult:
        """One run on the standing servers, stored; drained servers before it."""
        if self._experiment.is_over:
            raise KeyboardInterrupt
        self._budget.require(scenario)
        began_s = time.monotonic()
        _drain(servers.urls)
        run_id = f"{self._order.run_id}-{self._runs + 1}"
        order = Order(scenario, run_id, self._order.command, None, self._order.server)
        finished = run_on(servers, order, self._experiment, lambda _progress: None)
        if finished.result.interrupted:
            raise KeyboardInterrupt
        self._runs += 1
        self._budget.took(scenario, time.monotonic() - began_s)
        self._store(finished.result)
        verdict = finished.result.verdict
        if verdict.status == "violated":
            rate = scenario.rate_per_s
            where = f"at {rate:,.0f}/s" if rate else f"closed loop, {scenario.users} callers"
            findings.violated = f"{where}: {'; '.join(verdict.reasons)}"
        if verdict.status == "invalid" and finished.result.generator.verdict == "VALID":
            raise InconclusiveError(f"a probe did not run to its end: {verdict.reasons[0]}")
        self.warnings += servers.warnings()  # each is told once
        return finished.result

    def _store(self, result: RunResult) -> None:
        """Keep a probe's whole result; what cannot be stored costs nothing but itself."""
        folder = self._order.folder / "probes" / f"{self._runs:02d}"
        try:
            write_result(result, folder)
        except EnvironmentNotReadyError as error:
            self.warnings.append(f"a probe's result could not be stored in {folder} ({error})")


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
