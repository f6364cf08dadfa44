"""One run, from order to result: *a scenario → servers, Locust, history → a judged, written result*.

Rules: once Locust runs, signals are only counted, so that whatever happens the load is stopped, what was measured is
judged and written, leaks are counted and unlinked, and nothing of the run stays behind. Source: the folder protocol.
"""

from __future__ import annotations

import datetime
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

from msgspec import structs

from bench.errors import BenchError, EnvironmentNotReadyError
from bench.gates.threshold import read_thresholds
from bench.measure.result import write_result
from bench.measure.run_result import RunResult
from bench.measure.workers import read_workers
from bench.run.conclude import RunEvidence, conclude, key_names
from bench.run.faults import FaultTimeline
from bench.run.follow import Course, Show, follow
from bench.run.interrupt import Interrupts
from bench.run.progress import Follower
from bench.run.servers import Counters, Servers, open_servers, work_folder
from bench.run.telemetry import RunTelemetry, open_telemetry
from bench.run.verdict import INTERRUPTED, Done, exit_code
from bench.scenario import Scenario
from bench.topology.faults.injection import FaultOrder
from bench.topology.faults.kinds import injection, read_faults
from bench.topology.faults.site import Site
from bench.topology.probe import leaked_keys
from bench.workloads.launch import LocustProcess
from bench.workloads.plan import Plan


@dataclass(frozen=True, slots=True)
class Order:
    """What to run and where its result belongs. `command`: as typed, without secrets; `folder`: can be made.

    `folder` None: the result is only returned. `allow_skipped`: a fault that cannot take place is no obstacle.
    """

    scenario: Scenario
    run_id: str
    command: Sequence[str]
    folder: Path | None
    server: str | None = None
    allow_missing: bool = False
    keep_history: bool = False
    allow_skipped: bool = False


def run_scenario(order: Order, interrupts: Interrupts, show: Show) -> Done[RunResult]:
    """Run `order`, showing its progress, and return its result, which is written by then if it can be.

    `interrupts`: entered by the caller; with a result returned, they only count. Raises BenchError when the run cannot
    begin, KeyboardInterrupt when it was cut short before anything was measured.
    """
    faults = _faults(order.scenario)
    read_thresholds(order.scenario.thresholds)  # a wrong name is refused before anything starts
    wanted = open_servers(order.scenario, server=order.server, allow_missing=order.allow_missing, faults=faults)
    try:
        with wanted as servers:
            finished = run_on(servers, order, interrupts, show)
    except BenchError:
        if interrupts.count:  # 130 comes before every other code
            raise KeyboardInterrupt from None
        raise
    return replace(finished, exit_code=INTERRUPTED) if interrupts.count else finished  # also while it was put away


def run_on(
    servers: Servers, order: Order, interrupts: Interrupts, show: Show, *, environ: Mapping[str, str] = os.environ
) -> Done[RunResult]:
    """Run `order` on servers that are there and stay: one run of several. `environ`: of the load's processes.

    Raises as `run_scenario` does; the servers must have been opened for the scenario's own faults.
    """
    scenario, faults = order.scenario, _faults(order.scenario)
    with (
        work_folder(servers) as workdir,
        open_telemetry(scenario, order.run_id, servers, workdir, environ) as telemetry,
    ):
        plan = _plan(order, servers, workdir)
        counters = Counters.start(servers.urls)
        interrupts.raising = False
        started_at = datetime.datetime.now(datetime.UTC)
        start = partial(LocustProcess.start, plan, environ)
        course, timeline = _load(
            plan, start, interrupts, show, partial(_timeline, faults, servers.site, telemetry, order)
        )
        if course.window is None:
            if not course.orderly:
                leaked_keys(servers.urls, key_names(plan.key_prefix, range(scenario.resources)))
            raise KeyboardInterrupt
        evidence = RunEvidence(
            scenario, servers, workdir, plan.key_prefix, course, course.window, timeline, *counters.section()
        )
        started = f"{started_at:%Y-%m-%dT%H:%M:%SZ}"
        result = conclude(evidence, run_id=order.run_id, command=order.command, started_at=started)
        troubles = telemetry.finish(result.safety, hurried=course.interrupted)
        code = exit_code(result.verdict, interrupted=interrupts.count > 0)  # also while it was judged
        verdict = structs.replace(result.verdict, exit_code=code)
        result = structs.replace(result, warnings=(*result.warnings, *troubles), verdict=verdict)
        return Done(result, *_stored(result, order, workdir, code))


def _faults(scenario: Scenario) -> tuple[FaultOrder, ...]:
    return read_faults(scenario.faults, seed=scenario.seed, duration_ms=scenario.duration_ms)


def _stored(result: RunResult, order: Order, workdir: Path, code: int) -> tuple[Path | None, int, str]:
    """Store what there is; a full disk takes neither the result, which can still be shown, nor 130 from the code."""
    path = None
    if order.folder is None:
        return None, code, ""
    try:
        path = write_result(result, order.folder)
        if order.keep_history:
            _keep(workdir, order.folder / "history")
    except EnvironmentNotReadyError as error:
        return path, code if code == INTERRUPTED else error.exit_code, str(error)
    return path, code, ""


def _plan(order: Order, servers: Servers, workdir: Path) -> Plan:
    return Plan(
        run_id=order.run_id,
        targets=servers.load_urls,
        key_prefix=f"lockbench:{order.run_id}:",
        scenario=order.scenario,
        workdir=workdir,
        timed=True,
        allow_missing=order.allow_missing,
    )


def _load(
    plan: Plan,
    start: Callable[[], LocustProcess],
    interrupts: Interrupts,
    show: Show,
    timeline_of: Callable[[Follower], FaultTimeline],
) -> tuple[Course, FaultTimeline]:
    """Run Locust to its end, whatever that is, with the faults of the run beside it."""
    scenario = plan.scenario
    assert plan.workdir is not None
    follower = Follower(
        workdir=plan.workdir,
        processes=scenario.processes,
        warmup_s=scenario.warmup_ms / 1000,
        duration_s=scenario.duration_ms / 1000,
        began_ns=time.monotonic_ns(),
        ttl_ms=scenario.ttl_ms,
    )
    timeline = timeline_of(follower)
    load = start()
    try:
        with timeline:
            course = follow(load, follower, interrupts, plan.grace_s, show, faults=timeline)
    finally:
        load.close()
    return course, timeline


def _timeline(
    faults: Sequence[FaultOrder], site: Site, telemetry: RunTelemetry, order: Order, follower: Follower
) -> FaultTimeline:
    """The faults of a run, aimed at its servers and at the workers that have said they run. Raises BenchError."""
    site.workers = lambda: {note.worker: note.pid for note in read_workers(follower.workdir)}
    timeline = FaultTimeline(faults, partial(injection, site), follower.find_window, allow_skipped=order.allow_skipped)
    timeline.require()
    telemetry.start(timeline, follower.live)
    return timeline


def _keep(workdir: Path, folder: Path) -> None:
    """Move the history and the workers' notes to `folder`; the plan, which holds passwords, stays behind."""
    try:
        folder.mkdir()
        for path in chain.from_iterable(map(workdir.glob, ("history-*.bin", "lost-*.bin", "worker-*.json"))):
            shutil.move(path, folder / path.name)
    except OSError as error:
        raise EnvironmentNotReadyError(f"the history cannot be kept in {folder} ({error.strerror})") from None
