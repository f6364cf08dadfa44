"""How much a fleet can take: *scenario, SLO → closed loops and probes on one fleet → interval, limit, headroom*.

    start      closed loop with 4, 16, … callers, each short: about what the fleet bears
    target     open-loop probes at the rate that is planned for, if one is named
    search     open-loop probes where the model is least sure (model.py), drained in between

Rules: one fleet serves all probes of a point; each probe is a whole run, with arrivals of its own, judged and stored
below probes/. A safety violation ends everything. Ctrl-C keeps the probes that were finished; so does the end of a
point's time. A run that would not be over within the budget is not begun: it takes what is asked of it, and what
those before it took beyond that (starting, draining, judging: seconds on a busy machine); one that is not over when it
ends is cut. Nothing is computed here but what is asked of judge.py.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import mean

import psutil

from bench.errors import BenchError, EnvironmentNotReadyError, InconclusiveError
from bench.experiments.capacity.judge import CapacityPlan, Findings, judge_capacity, next_probe, point_of
from bench.experiments.capacity.model import RateInterval
from bench.experiments.capacity.probe import callers_for, judge_probe
from bench.experiments.capacity.result import CapacityPoint, CapacityResult, ClosedLoop, point_name
from bench.experiments.capacity.words import rate_text
from bench.measure.result import write_result
from bench.measure.run_result import RunResult
from bench.run.experiment import Done, Experiment, ExperimentOrder, Show, left_text
from bench.run.follow import Progress
from bench.run.run import Order, run_on
from bench.run.servers import Servers, open_servers
from bench.scenario import Scenario
from bench.scenario.quantity import duration_text
from bench.topology.probe import info_snapshot

START_CALLERS = (4, 16, 64, 256)
SHORT = 0.5  # of a probe's time: a closed loop's
GROWS = 1.15  # more callers are tried while they make so many times more
TARGET_PROBES = 3
DRAIN_S = 10.0
FIRST_OVERHEAD_S = 2.0
RESERVE = 0.1  # of the budget: for the end of a run that is cut, and the pages
STRETCH = 3  # a probe may last so many times longer to get samples enough


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
    """Another run would not be over within the budget, or was not."""


class Budget:
    """`wanted_s`: from now on."""

    def __init__(self, wanted_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._wanted_s, self._now_s = wanted_s, now_s
        self._overhead_s = FIRST_OVERHEAD_S
        self.restart()

    def restart(self) -> None:
        """From now on."""
        self._began_s = self._now_s()
        self._over_s = self._began_s + (1 - RESERVE) * self._wanted_s

    @property
    def left_s(self) -> float:
        """Seconds until a run that still lasts is cut."""
        return max(self._over_s - self._now_s(), 0.0)

    def lasts_s(self, scenario: Scenario) -> float:
        """How long a run will last, by those before it."""
        return _asked_s(scenario) + self._overhead_s

    def require(self, scenario: Scenario) -> None:
        """This run begins, unless it will not be over in time. Raises OutOfTime."""
        if self.lasts_s(scenario) > self.left_s:
            raise OutOfTime
        self._began_s = self._now_s()

    def ended(self, scenario: Scenario) -> None:
        """The run that began last is over."""
        self._overhead_s = (self._overhead_s + self._now_s() - self._began_s - _asked_s(scenario)) / 2

    def spent(self, what: str) -> str:
        """The sentence that says what the budget left undone."""
        return f"the time budget of {duration_text(self._wanted_s * 1000)} (--budget) was spent: {what}"


def _asked_s(scenario: Scenario) -> float:
    return (scenario.warmup_ms + scenario.duration_ms) / 1000


@dataclass(slots=True)
class _ProbeWatch:
    """Each second of a run: how busy this machine is while it is measured (0…1), and whether time is up.

    `is_awaited`: it begins when other hosts have come."""

    experiment: Experiment
    budget: Budget
    is_awaited: bool = False
    cut: int = 0
    busy: list[float] = field(default_factory=list)

    def __call__(self, progress: Progress) -> None:
        """One look; once time is up it wishes the run's end, as Ctrl-C does. Waiting for other hosts takes none."""
        if progress.phase == "starting" and self.is_awaited:
            self.budget.restart()
        if progress.phase == "measuring":
            self.busy.append(psutil.cpu_percent() / 100)  # since the look before
        if not self.budget.left_s and not self.cut:
            self.cut = 1
            self.experiment.count += 1

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Raise OutOfTime when it cut the run that is made here, unless somebody else wished its end, too."""
        try:
            yield
        except KeyboardInterrupt:
            if not self.cut:
                raise
        finally:
            self.experiment.count -= self.cut
        if self.experiment.is_over:
            raise KeyboardInterrupt
        if self.cut:
            raise OutOfTime

    @property
    def used(self) -> float | None:
        """The share of the machine's CPU time that was used, by whomever."""
        return mean(self.busy[1:]) if len(self.busy) > 1 else None


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
            self._prefix = f"point {number}/{len(self._plan.points)}: " if point.variables else ""
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
            name = f"{point_name(point.variables)}: " if point.variables else ""
            self.warnings += [f"{name}{told}" for told in findings.unmeasured if told not in reasons]
            if self._experiment.cut or self.stopped or findings.violated:
                break
        return found

    def _seek(self, scenario: Scenario, findings: Findings) -> None:
        plan = self._plan
        budget = self._budget = Budget(plan.budget_s)
        with open_servers(scenario, server=self._order.server, allow_missing=False) as servers:
            self._experiment.raising = False
            findings.fleet = servers.section()
            try:
                self._start(scenario, servers, findings)
                self._search(scenario, servers, findings)
            except OutOfTime:
                findings.unmeasured.append(budget.spent(f"the search ended after {len(findings.probes)} probes"))

    def _start(self, scenario: Scenario, servers: Servers, findings: Findings) -> None:
        """Closed loops of more and more callers, until more of them make no more."""
        best = 0.0
        for users in self._allowed(START_CALLERS, scenario):
            self._show(f"{self._prefix}start: {users} callers in closed loop")
            made = self._closed(users, scenario, servers, findings).achieved_per_s or 0.0
            if findings.violated or made < GROWS * best:
                return
            best = made

    def _allowed(self, callers: Sequence[int], scenario: Scenario) -> list[int]:
        """Those of these numbers of callers that the scenario allows."""
        most = scenario.users if self._plan.fixed_users else callers[-1]
        most = min(most, scenario.resources) if scenario.skew.kind == "own" else most
        return sorted({max(min(users, most), scenario.processes) for users in callers})

    def _search(self, scenario: Scenario, servers: Servers, findings: Findings) -> None:
        if target := self._plan.target_rate_per_s:
            for number in range(TARGET_PROBES):
                if not findings.violated:
                    self._show(f"{self._prefix}target: probe {number + 1} of {TARGET_PROBES} at {rate_text(target)}/s")
                    self._probe("target", self._open_loop(scenario, target), servers, findings)
        found, rate = next_probe(findings, self._plan.slo)
        while rate and not findings.violated:
            wanted = self._open_loop(scenario, rate)
            self._show(self._progress(wanted, findings, found))
            self._probe("search", wanted, servers, findings)
            found, rate = next_probe(findings, self._plan.slo)

    def _probe(self, step: str, wanted: Scenario, servers: Servers, findings: Findings) -> None:
        watch, rate = self._watch(), wanted.rate_per_s or 0.0
        result = self._run(wanted, servers, findings, watch)
        busy = watch.used if self._plan.bind is None else None  # this machine makes no load for other hosts' probes
        findings.probes.append(judge_probe(rate, step, result, self._plan.slo, busy))

    def _progress(self, wanted: Scenario, findings: Findings, found: RateInterval) -> str:
        """The line that is seen while a probe is made."""
        left_s, lasts_s = self._budget.left_s, self._budget.lasts_s(wanted)
        done = len(findings.probes)
        more = max(min(int(left_s / lasts_s), found.probes_left(done)), 1)
        count = f"probe {done + 1} of about {done + more}"
        so_far = f"{rate_text(found.low)}–{rate_text(found.high)}/s"
        left = left_text(min(left_s, more * lasts_s))
        return f"{self._prefix}{count} at {rate_text(wanted.rate_per_s)}/s, so far {so_far}, {left}"

    def _open_loop(self, scenario: Scenario, rate: float) -> Scenario:
        samples_ms = self._plan.slo.least_operations / rate * 1000
        duration_ms = max(scenario.duration_ms, min(samples_ms, STRETCH * scenario.duration_ms))
        users = scenario.users if self._plan.fixed_users else callers_for(rate, scenario, self._plan.slo)
        seed = scenario.seed + self._runs  # else chance would be the same in every probe of a rate
        return replace(scenario, rate_per_s=rate, users=users, duration_ms=duration_ms, seed=seed)

    def _closed(self, users: int, scenario: Scenario, servers: Servers, findings: Findings) -> ClosedLoop:
        wanted = replace(
            scenario, users=users, duration_ms=SHORT * scenario.duration_ms, warmup_ms=SHORT * scenario.warmup_ms
        )
        result = self._run(wanted, servers, findings, self._watch())
        loop = ClosedLoop(
            users=users,
            achieved_per_s=result.rate.achieved_per_s,
            acquire_s=result.latency_s.acquire,
            generator_cpu_ratio=result.generator.cpu_ratio,
        )
        findings.callers.append(loop)
        return loop

    def _watch(self) -> _ProbeWatch:
        return _ProbeWatch(self._experiment, self._budget, self._plan.bind is not None and not self._runs)

    def _run(self, scenario: Scenario, servers: Servers, findings: Findings, watch: _ProbeWatch) -> RunResult:
        """One run on the standing servers, stored; drained servers before it."""
        if self._experiment.is_over:
            raise KeyboardInterrupt
        self._budget.require(scenario)
        _drain(servers.urls)
        run_id = f"{self._order.run_id}-{self._runs + 1}"
        order = Order(scenario, run_id, self._order.command, None, self._order.server, bind=self._plan.bind, more=True)
        with watch.watching():
            finished = run_on(servers, order, self._experiment, watch)
        if finished.result.interrupted:
            raise KeyboardInterrupt
        self._runs += 1
        self._budget.ended(scenario)
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
