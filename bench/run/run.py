"""Carries out one run: *a scenario → servers, Locust, history → a judged result on disk*.

Rules
- While Locust runs, the run counts signals and raises no exception for them. After a signal, the
  run stops the load. The run then judges the measurements and writes the result. The run also
  counts and unlinks the leaked keys, and it removes its own files.
- If nobody requests telemetry, the run does not import the exporter and contacts no collector.
- If the check before the load shows that the collector cannot work, the run stops. If the collector
  fails during the load, the run continues, and the result has a warning.
"""

import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from bench.errors import EXIT_INTERRUPTED, BenchError, EnvironmentNotReadyError, UsageError
from bench.gates.threshold import read_thresholds
from bench.hosts.joining import require_free
from bench.measure.environment import environment_warnings
from bench.measure.limits import limits_between, quota_cores, read_counters
from bench.measure.run_result import RunResult
from bench.measure.workers import read_workers
from bench.run.conclude import RunEvidence, conclude, key_names
from bench.run.experiment import Done, exit_code, now_text, store
from bench.run.faults import FaultTimeline
from bench.run.follow import follow
from bench.run.follower import Follower, Show
from bench.run.interrupt import Interrupts
from bench.run.kept import keep
from bench.run.servers import Servers, counted, open_servers
from bench.scenario import Scenario
from bench.telemetry.run import FSYNCS, Run
from bench.telemetry.settings import settings_of
from bench.topology.faults.injection import FaultOrder
from bench.topology.faults.kinds import injection, read_faults
from bench.topology.fleet import Fleet
from bench.topology.probe import InfoWatch, info_snapshot, leaked_keys
from bench.topology.servants import Guard
from bench.topology.target import databases_of
from bench.workloads.launch import WORKERS_S, Load, LocustProcess, LocustSeries
from bench.workloads.plan import Plan, Ring

if TYPE_CHECKING:
    from bench.telemetry.exporter import Exporter


@dataclass(frozen=True, slots=True)
class Order:
    """A request for one run, with its scenario and its options.

    `command`: the command line as the user typed it, without secrets. `folder`: the folder for the
    result, which can be created (None: the run only returns the result). `ring`: the processes that
    share time slices with this run. `name`: the user's name for the run. `bind`: the address at
    which the run waits for workers on other hosts. The number of workers is the number of processes
    in the scenario. `more`: true if another run may follow with the same workers. `keep_history`:
    true if the record is kept beside the result.
    """

    scenario: Scenario
    run_id: str
    command: Sequence[str]
    folder: Path | None
    server: str | None = None
    allow_missing: bool = False
    allow_skipped: bool = False
    ring: Ring | None = None
    name: str = ""
    bind: tuple[str, int] | None = None
    more: bool = False
    keep_history: bool = False


def run_scenario(order: Order, interrupts: Interrupts, show: Show) -> Done[RunResult]:
    """Run `order` and show the progress. Write the result if possible, and return it.

    The `with` block of `interrupts` must be active. Raises BenchError if the run cannot begin.
    Raises KeyboardInterrupt if a signal ends the run before it has measured anything.
    """
    faults = _faults(order.scenario)
    if order.bind and any(fault.target.startswith("worker") for fault in faults):
        raise UsageError(
            "a fault of a worker works only on this host; leave out the fault or --expect-workers"
        )
    # A wrong threshold is refused before any server starts.
    read_thresholds(order.scenario.thresholds)
    opening = open_servers(
        order.scenario, server=order.server, allow_missing=order.allow_missing, faults=faults
    )
    try:
        with opening as servers:
            finished = run_on(servers, order, interrupts, show)
    except BenchError:
        # Exit code 130 has precedence over every other code.
        if interrupts.count:
            raise KeyboardInterrupt from None
        raise
    # If Ctrl-C came while the result was being stored, this counts, too.
    return replace(finished, exit_code=EXIT_INTERRUPTED) if interrupts.count else finished


def run_on(
    servers: Servers,
    order: Order,
    interrupts: Interrupts,
    show: Show | None,
    *,
    environ: Mapping[str, str] = os.environ,
    series: LocustSeries | None = None,
) -> Done[RunResult]:
    """Carry out `order` on servers that are prepared for its faults. Runs may share these servers.

    If `show` is None, the run judges its records only at its end. `series`: a Locust process that
    several runs share (None: a new process). Raises the same errors as `run_scenario`.
    """
    if order.bind:
        require_free(*order.bind)
    scenario = order.scenario
    started = now_text()
    planned = Run.of(scenario, order.run_id, scenario.processes, order.name, started)
    run = planned.on_servers(servers.facts, databases_of(servers.load_urls))
    with Guard(Path(tempfile.gettempdir()), "lockbench-run-") as guard:
        follower = Follower(guard.folder, scenario, WORKERS_S if order.bind else 0.0)
        timeline = _timeline(order, servers.fleet, follower)
        telemetry = telemetry_of(run, servers, follower, timeline, environ)
        with closing(telemetry) if telemetry else nullcontext():
            plan = _plan(order, servers, guard.folder)
            info_before = info_snapshot(servers.urls)
            keys_before = servers.key_counts()
            kernel_before = read_counters()
            interrupts.raising = False
            load = _begun(plan, environ, series)
            with closing(load), timeline:
                grace_s = plan.grace_s + plan.others_s
                course = follow(load, follower, interrupts, grace_s, show, faults=timeline)
            if course.window is None:
                if not course.orderly:
                    names = key_names(plan.key_prefix, scenario, range(scenario.resources))
                    leaked_keys(servers.urls, names)
                raise KeyboardInterrupt
            evidence = RunEvidence(
                scenario,
                servers,
                guard.folder,
                plan.key_prefix,
                course,
                course.window,
                timeline,
                *counted(servers.urls, info_before),
                limits_between(kernel_before, read_counters(), quota_cores()),
                keys_before,
                follower.live.verdict.violations,
            )
            result = conclude(
                evidence, run_id=order.run_id, command=order.command, started_at=started
            )
            troubles = list[str]()
            if telemetry is not None:
                troubles = telemetry.finish(result.safety, hurried=course.interrupted)
            done = _ended(result, order, troubles, interrupts)
            return _kept(done, evidence) if order.keep_history else done


def _ended(
    result: RunResult, order: Order, troubles: Sequence[str], interrupts: Interrupts
) -> Done[RunResult]:
    """Add the name, the warnings and the exit code to the result.

    Then store the result in the folder of the order.
    """
    # If Ctrl-C came during the judgement, this counts, too.
    code = exit_code(result.verdict, interrupted=interrupts.count > 0)
    result = structs.replace(
        result,
        name=order.name,
        warnings=(*result.warnings, *troubles, *environment_warnings()),
        verdict=structs.replace(result.verdict, exit_code=code),
    )
    return Done(result, None, code) if order.folder is None else store(result, order.folder, code)


def _begun(plan: Plan, environ: Mapping[str, str], series: LocustSeries | None) -> Load:
    """Start the load of this run.

    If `series` is not None, the Locust process of `series` runs the load. If `series` is None, a
    new Locust process runs the load.
    """
    return series.begin(plan, environ) if series else LocustProcess(plan, environ)


def _plan(order: Order, servers: Servers, workdir: Path) -> Plan:
    """Return the plan that the load processes of this run receive."""
    return Plan(
        order.run_id,
        servers.load_urls,
        f"lockbench:{order.run_id}:",
        order.scenario,
        workdir,
        timed=True,
        allow_missing=order.allow_missing,
        ring=order.ring,
        bind=order.bind,
        more=order.more,
    )


def _kept(done: Done[RunResult], evidence: RunEvidence) -> Done[RunResult]:
    """Copy the record into the folder of a stored result.

    If the record cannot be copied, the returned object has the exit code and the message of the
    error. The exit code of an interrupted run stays 130.
    """
    if done.path is None:
        return done
    try:
        keep(evidence.workdir, done.path.parent, evidence.context)
    except EnvironmentNotReadyError as error:
        code = done.exit_code if done.exit_code == EXIT_INTERRUPTED else error.exit_code
        return replace(done, exit_code=code, unstored=str(error))
    return done


def _faults(scenario: Scenario) -> tuple[FaultOrder, ...]:
    return read_faults(scenario.faults, seed=scenario.seed, duration_ms=scenario.duration_ms)


def _timeline(order: Order, fleet: Fleet | None, follower: Follower) -> FaultTimeline:
    """Return the timeline with the faults of a run.

    The faults act on the servers and on the running workers.

    Raises BenchError.
    """

    def workers() -> dict[int, int]:
        return {note.worker: note.pid for note in read_workers(follower.workdir)}

    faults = [injection(fleet, fault, workers) for fault in _faults(order.scenario)]
    return FaultTimeline(faults, follower.find_window, allow_skipped=order.allow_skipped)


def telemetry_of(
    run: Run,
    servers: Servers,
    follower: Follower,
    timeline: FaultTimeline,
    environ: Mapping[str, str],
) -> "Exporter | None":
    """Start the export of the run's telemetry, if `environ` asks for telemetry.

    Raises BenchError if the export cannot start.
    """
    settings = settings_of(environ)
    if settings is None:
        return None
    from bench.telemetry import exporter

    export = exporter.Exporter(
        settings,
        run,
        follower.workdir,
        watch=InfoWatch(servers.urls, partial(_syncs, servers.fleet)),
        faults=timeline.shown,
        judged=lambda: (follower.live.verdict.leases, follower.live.verdict.counts),
    )
    export.start()
    return export


def _syncs(fleet: Fleet | None, index: int) -> Mapping[str, int]:
    """Return an extra field for the INFO of instance `index`.

    The field has the number of syncs that the instance has made. The server's own INFO does not
    have this field. If the fleet runs without a shim, the result is empty.
    """
    return {FSYNCS: fleet.controls[index].syncs} if fleet and fleet.controls else {}
