"""Searches the capacity of a fleet: *a scenario and an SLO → closed loops and probes on one fleet →
interval, limit and headroom*.

    target     If the user named a target rate, open-loop probes at this rate show whether the
               fleet keeps it.
    start      Short closed loops with 4, 16, … callers give a first estimate of the capacity.
    search     Open-loop probes at the rates at which the model is least sure narrow the interval
               (model.py). The servers are drained before each probe. After every four of these
               probes, one probe is at the target again. At the end, the search probes the target
               until the answer about the target is certain, or until the target has had 12 probes.

Each probe is a complete run with its own random arrivals. The search judges this run and stores its
result in a folder below probes/. Usually one Locust process makes all runs of a point
(bench.workloads.launch.LocustSeries). If workers join from other hosts, each run starts its own
Locust process. A safety violation ends the whole command. If the user presses Ctrl-C or the time
budget of a point ends, the search keeps the finished probes.
"""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

import psutil

from bench.errors import BenchError
from bench.experiments.capacity.judge import (
    CapacityPlan,
    judge_capacity,
    point_of,
    target_holds,
)
from bench.experiments.capacity.model import RateInterval
from bench.experiments.capacity.probe import callers_for, judge_probe
from bench.experiments.capacity.result import CapacityPoint, CapacityResult, ClosedLoop, point_name
from bench.experiments.capacity.search import Findings, next_probe
from bench.experiments.capacity.words import rate_text
from bench.measure.result import write_result
from bench.measure.run_result import RunResult
from bench.report.figures import counted
from bench.run.experiment import Done, Experiment, ExperimentOrder, Show, left_text
from bench.run.follower import RunProgress
from bench.run.run import Order
from bench.run.servers import Servers, open_servers
from bench.run.short import require_whole, run_short
from bench.scenario import Scenario
from bench.scenario.quantity import duration_text
from bench.topology.probe import info_snapshot
from bench.workloads.launch import LocustSeries

START_CALLERS = (4, 16, 64, 256)
# A closed loop lasts this share of a probe's duration.
SHORT = 0.5
# The search starts with closed loops. The search adds callers while each addition multiplies the
# leases by at least this factor.
GROWS = 1.15
# How many target probes come before the search.
TARGET_PROBES = 3
# During the search, this many other probes lie between two target probes.
TARGET_EVERY = 4
MOST_TARGET_PROBES = 12
DRAIN_S = 10.0
FIRST_OVERHEAD_S = 2.0
# This share of the budget is reserved. An interrupted run needs the time to end, and the pages need
# time to be written.
RESERVE = 0.1
# A probe may last longer by up to this factor, so that it gets enough samples.
STRETCH = 3


def run_capacity(order: ExperimentOrder[CapacityPlan], show: Show) -> Done[CapacityResult]:
    """Run the capacity search that `order` describes. Store the result and return it.

    Raises BenchError or KeyboardInterrupt only before the first run has finished.
    """
    plan = order.plan
    with Experiment(order) as experiment:
        seeker = _Seeker(order, experiment, show)
        points = seeker.points()
        # From this line on, Ctrl-C raises no exception. The finished probes must be stored first.
        experiment.raising = False
        result = CapacityResult(
            **experiment.header(seed=plan.points[0].scenario.seed, interrupted=experiment.cut),
            slo=tuple(threshold.expression for threshold in plan.slo.thresholds),
            target_rate_per_s=plan.target_rate_per_s,
            points=tuple(points),
            stopped=seeker.stopped,
            warnings=tuple(dict.fromkeys(seeker.warnings)),
            verdict=judge_capacity(points, stopped=seeker.stopped, interrupted=experiment.cut),
        )
        return experiment.store(result)


class OutOfTime(Exception):  # noqa: N818 - no error: a busy machine gets less far
    """An error because the time budget is too short. In the first case, the next run would end too
    late. In the second case, the budget has ended the current run."""


class Budget:
    """The time budget of one point. The budget lasts `wanted_s` seconds from the creation of this
    object. The current run reports its progress once a second. Whenever the run reports its
    progress, this object checks whether the budget is used up. If `awaits` is true, the first run
    waits for workers on other hosts. The time of this wait does not count. `cut` is 1 if this
    object ended the current run because the budget was used up. Otherwise `cut` is 0."""

    def __init__(self, experiment: Experiment, wanted_s: float, *, awaits: bool) -> None:
        self._experiment = experiment
        self._wanted_s = wanted_s
        self._awaits = awaits
        self._overhead_s = FIRST_OVERHEAD_S
        self._restart()

    def _restart(self) -> None:
        self._began_s = time.monotonic()
        self._over_s = self._began_s + (1 - RESERVE) * self._wanted_s

    @property
    def left_s(self) -> float:
        """The remaining time in seconds. If no time remains, the budget ends the current run."""
        return max(self._over_s - time.monotonic(), 0.0)

    def lasts_s(self, scenario: Scenario) -> float:
        """Return an estimate of how long a run of this scenario will last, in seconds. The estimate
        uses the duration of earlier runs."""
        return _asked_s(scenario) + self._overhead_s

    def begin(self, scenario: Scenario) -> None:
        """Start to measure the time of a run. Raises OutOfTime if the run would end too late."""
        if self.lasts_s(scenario) > self.left_s:
            raise OutOfTime
        self._began_s = time.monotonic()
        self.cut = 0
        self._busy = list[float]()

    def __call__(self, progress: RunProgress) -> None:
        """Check the time. If the time is up, end the run in the same way as Ctrl-C does."""
        if progress.phase == "starting" and self._awaits:
            self._restart()
        if progress.phase == "measuring":
            # psutil reports the CPU use since the last call of cpu_percent, which was the previous
            # check.
            self._busy.append(psutil.cpu_percent() / 100)
        if not self.left_s and not self.cut:
            self.cut = 1
            self._experiment.count += 1

    def ended(self, scenario: Scenario) -> float | None:
        """Update the estimates after the end of a run. Return the share of this machine's CPU time
        that all processes used during the measurement. Return None if there are too few samples of
        this share."""
        self._overhead_s = (
            self._overhead_s + time.monotonic() - self._began_s - _asked_s(scenario)
        ) / 2
        self._awaits = False
        return mean(self._busy[1:]) if len(self._busy) > 1 else None


def _asked_s(scenario: Scenario) -> float:
    return (scenario.warmup_ms + scenario.duration_ms) / 1000


class _Seeker:
    """An object that makes all measurements of one capacity command. It measures one point after
    another."""

    _budget: Budget
    _scenario: Scenario
    _servers: Servers
    _findings: Findings
    _series: LocustSeries | None = None

    def __init__(
        self, order: ExperimentOrder[CapacityPlan], experiment: Experiment, show: Show
    ) -> None:
        self._order = order
        self._plan = order.plan
        self._experiment = experiment
        self._show = show
        self._runs = 0
        self._prefix = ""
        self.stopped = ""
        self.warnings: list[str] = []

    def points(self) -> list[CapacityPoint]:
        """Measure the points one after another, and return them. The search stops after Ctrl-C, an
        error or a safety violation.

        Raises BenchError or KeyboardInterrupt only before the first run has finished.
        """
        points: list[CapacityPoint] = []
        for number, point in enumerate(self._plan.points, 1):
            self._prefix = f"point {number}/{len(self._plan.points)}: " if point.variables else ""
            self._scenario = point.scenario
            self._findings = Findings()
            try:
                self._seek()
            except (BenchError, KeyboardInterrupt) as error:
                if not self._runs:
                    # After the first run, an error only ends the measurement. The finished probes
                    # still count.
                    raise
                self._experiment.cut = isinstance(error, KeyboardInterrupt)
                self.stopped = "" if self._experiment.cut else str(error)
            points.append(point_of(point, self._findings, self._plan))
            name = f"{point_name(point.variables)}: " if point.variables else ""
            self.warnings += [
                f"{name}{reason}"
                for reason in self._findings.unmeasured
                if reason not in points[-1].reasons
            ]
            if self._experiment.cut or self.stopped or self._findings.violated:
                break
        return points

    def _seek(self) -> None:
        plan = self._plan
        self._budget = Budget(
            self._experiment, plan.budget_s, awaits=plan.bind is not None and not self._runs
        )
        with (
            open_servers(
                self._scenario, server=self._order.server, allow_missing=False
            ) as self._servers,
            contextlib.ExitStack() as stack,
        ):
            # Workers of other hosts join again for each run. Without such workers, one load process
            # serves all runs.
            if plan.bind is None:
                self._series = stack.enter_context(contextlib.closing(LocustSeries()))
            self._experiment.raising = False
            self._findings.fleet = self._servers.section()
            try:
                for number in range(TARGET_PROBES):
                    self._probe_target(f" {number + 1} of {TARGET_PROBES}")
                if not self._findings.violated:
                    self._start()
                self._search()
            except OutOfTime:
                budget = duration_text(plan.budget_s * 1000)
                each = duration_text(self._scenario.duration_ms)
                probes_text = (
                    f"{counted(len(self._findings.probes), 'probe')} of {each} (--duration)"
                )
                self._findings.unmeasured.append(
                    f"the search stopped at its time limit of {budget} (--budget), after "
                    f"{probes_text}"
                )

    def _start(self) -> None:
        """Run several closed loops, one after another. Each loop has more callers than the previous
        loop. Stop when a loop with more callers does not reach a higher rate of leases. No loop has
        more callers than the scenario allows."""
        scenario = self._scenario
        best = 0.0
        most = scenario.users if self._plan.fixed_users else START_CALLERS[-1]
        most = min(most, scenario.resources) if scenario.skew.kind == "own" else most
        for users in sorted({max(min(users, most), scenario.processes) for users in START_CALLERS}):
            self._show(f"{self._prefix}first measurement: {users} callers in a closed loop")
            duration_ms = SHORT * scenario.duration_ms
            warmup_ms = SHORT * scenario.warmup_ms
            result, _ = self._run(
                replace(scenario, users=users, duration_ms=duration_ms, warmup_ms=warmup_ms)
            )
            loop = ClosedLoop(
                users=users,
                achieved_per_s=result.rate.achieved_per_s,
                acquire_s=result.latency_s.acquire,
                generator_cpu_ratio=result.generator.cpu_ratio,
            )
            self._findings.callers.append(loop)
            rate_per_s = loop.achieved_per_s or 0.0
            if self._findings.violated or rate_per_s < GROWS * best:
                return
            best = rate_per_s

    def _search(self) -> None:
        findings = self._findings
        since_target = 0
        while not findings.violated:
            interval, rate = next_probe(findings, self._plan.slo)
            if rate is None:
                break
            if since_target == TARGET_EVERY:
                self._probe_target()
                since_target = 0
                continue
            scenario = self._open_loop(rate)
            if self._budget.lasts_s(scenario) + self._target_again_s() > self._budget.left_s:
                self._probe_target()
                raise OutOfTime
            self._show(self._progress(scenario, interval))
            self._probe("search", rate, scenario)
            since_target += 1
        self._probe_target()
        while self._is_target_open():
            self._probe_target()

    def _is_target_open(self) -> bool:
        """Return whether the search should probe the target again. Return False if the probes
        already show whether the fleet keeps the target. Also return False after MOST_TARGET_PROBES
        probes at the target."""
        findings = self._findings
        target = self._plan.target_rate_per_s
        done = sum(probe.rate_per_s == target for probe in findings.probes)
        is_known = findings.violated or target_holds(findings, target) is not None
        return target is not None and not is_known and done < MOST_TARGET_PROBES

    def _probe_target(self, number: str = "") -> None:
        """Make a probe at the target rate. Do nothing if the user named no target, or if a safety
        rule was violated."""
        target = self._plan.target_rate_per_s
        if target is not None and not self._findings.violated:
            self._show(f"{self._prefix}target: probe{number} at {rate_text(target)}/s")
            self._probe("target", target, self._open_loop(target))

    def _target_again_s(self) -> float:
        """Return an estimate of how long the last probe at the target will take, in seconds. Return
        0 if there is no target."""
        target = self._plan.target_rate_per_s
        return 0.0 if target is None else self._budget.lasts_s(self._open_loop(target))

    def _probe(self, step: str, rate: float, scenario: Scenario) -> None:
        result, busy = self._run(scenario)
        # If other hosts join, the other hosts make the load. This machine's CPU then says nothing
        # about the load.
        busy = None if self._plan.bind else busy
        self._findings.probes.append(judge_probe(rate, step, result, self._plan.slo, busy))

    def _progress(self, scenario: Scenario, interval: RateInterval) -> str:
        """Return the progress line for the next probe."""
        left_s = self._budget.left_s
        lasts_s = self._budget.lasts_s(scenario)
        done = len(self._findings.probes)
        more = max(min(int(left_s / lasts_s), interval.probes_left(done)), 1)
        count = f"probe {done + 1} of about {done + more}"
        so_far = f"{rate_text(interval.low)}–{rate_text(interval.high)}/s"
        left = left_text(min(left_s, more * lasts_s))
        return (
            f"{self._prefix}{count} at {rate_text(scenario.rate_per_s)}/s, so far {so_far}, {left}"
        )

    def _open_loop(self, rate: float) -> Scenario:
        scenario = self._scenario
        slo = self._plan.slo
        samples_ms = slo.least_operations / rate * 1000
        duration_ms = max(scenario.duration_ms, min(samples_ms, STRETCH * scenario.duration_ms))
        users = scenario.users if self._plan.fixed_users else callers_for(rate, scenario, slo)
        # Each run has its own seed. With one seed, every probe of a rate would have the same
        # arrivals.
        seed = scenario.seed + self._runs
        return replace(scenario, rate_per_s=rate, users=users, duration_ms=duration_ms, seed=seed)

    def _run(self, scenario: Scenario) -> tuple[RunResult, float | None]:
        """Wait until the servers have no pending fsync, and make one run. Return two values. The
        first value is the run's result. The second value is the share of this machine's CPU time
        that all processes used, or None if the share is unknown.

        Raises OutOfTime if the run would end too late. Also raises OutOfTime if the budget ended
        the run.
        """
        experiment = self._experiment
        budget = self._budget
        bind = self._plan.bind
        if experiment.is_over:
            raise KeyboardInterrupt
        budget.begin(scenario)
        _drain(self._servers.urls)
        run_id = f"{self._order.run_id}-{self._runs + 1}"
        order = Order(scenario, run_id, self._order.command, None, self._order.server, bind=bind)
        result = None
        try:
            result = run_short(self._servers, order, experiment, budget, series=self._series)
        except KeyboardInterrupt:
            if not budget.cut:
                raise
        finally:
            # A used-up budget ends a run like Ctrl-C: `Budget.__call__` adds one to the count of
            # interrupts. The user did not press Ctrl-C, so this line subtracts that interrupt.
            # Below, `budget.cut` still shows which of the two ended the run.
            experiment.count -= budget.cut
        if budget.cut and not experiment.is_over:
            raise OutOfTime
        if experiment.is_over or result is None:
            raise KeyboardInterrupt
        self._runs += 1
        busy = budget.ended(scenario)
        self._keep(result)
        return result, busy

    def _keep(self, result: RunResult) -> None:
        """Store the complete result of a run, and remember its warnings.

        Raises BenchError if the run cannot count as a measurement.
        """
        verdict = result.verdict
        rate = result.scenario.rate_per_s
        if verdict.status == "violated":
            where = f"at {rate:,.0f}/s" if rate else f"closed loop, {result.scenario.users} callers"
            self._findings.violated = f"{where}: {'; '.join(verdict.reasons)}"
        write_result(result, self._order.folder / "probes" / f"{self._runs:02d}")
        require_whole(result)
        # The servers return each warning only once.
        self.warnings += self._servers.warnings()


def _drain(urls: Sequence[str]) -> None:
    """Wait until no instance has a pending background fsync. Instances that do not answer are
    ignored. The function waits 10 s at most."""
    deadline_s = time.monotonic() + DRAIN_S
    while time.monotonic() < deadline_s:
        values = [snapshot.values or {} for snapshot in info_snapshot(urls)]
        if not any(value.get("aof_pending_bio_fsync") for value in values):
            return
        # No event reports the end of a background fsync, so this loop polls.
        time.sleep(0.05)
