"""What each AOF policy loses at a crash: *a plan of crashes → cut after cut on many small fleets → a judged result*.

    plan → cuts (group by group, many fleets at once) → a piece each in the journal → groups, cells, verdict → result

Rules: own servers on loopback, under the fault shim. A cut is in the journal as soon as it is over, so a matrix that
was cut short goes on where it stopped, on the same server only; what cannot be done here is skipped with its reason.
At Ctrl-C everything of ours ends and finished groups are told. Source: bench.experiments.crash.judge.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from msgspec import structs

from bench.errors import BenchError
from bench.experiments.crash.crashing_fleet import CrashPlace
from bench.experiments.crash.cross_check import cross_check
from bench.experiments.crash.cut_queue import CutQueue
from bench.experiments.crash.judge import Crash, CutFacts, cells, group, impossible
from bench.experiments.crash.plan import TTL_MS, CrashPlan, needs_shim, skipped_of
from bench.experiments.crash.result import (
    CrashConditions,
    CrashFleet,
    CrashGroup,
    CrashResult,
    CrashRow,
    CrashSkipped,
    CrossCheck,
)
from bench.measure.expectation import NOT_KNOWN, NOT_SHOWN, conclude_rows
from bench.measure.verdict import Verdict
from bench.run.experiment import Experiment, ExperimentOrder, Header, Show
from bench.run.journal import open_journal
from bench.run.verdict import Done
from bench.telemetry.points import Buckets, DataPoint, point
from bench.telemetry.run import Run
from bench.telemetry.settings import is_wanted
from bench.topology.disk import fdatasync_latency
from bench.topology.server import ServerBinary, find_server
from lockcore.clock import NS_PER_S

UNFINISHED = "interrupted: groups of cuts that are not finished are missing"


def run_crash(order: ExperimentOrder[CrashPlan], show: Show) -> Done[CrashResult]:
    """Do what is missing of `order`, showing progress; the result is written when all of it is there.

    Raises BenchError when nothing can be done here, KeyboardInterrupt when it was ended before its first cut was over.
    """
    server = find_server(order.server)
    with Experiment(order) as experiment:
        experiment.interrupts.raising = False
        without_shim = _without_shim(server)
        plan, skipped = doable(order.plan, without_shim)
        with open_journal(order.folder, {**order.plan.to_json(), "server": server.sha256}, CutFacts) as journal:
            queue = CutQueue(plan, order.run_id, server, journal, show)
            queue.work(lambda: experiment.is_over)
            cuts = journal.pieces
            experiment.require(cuts)
            finished = finished_groups(plan, cuts)
            checked = cross_check(server, without_shim or _unchecked(plan, cut=experiment.is_over), show)
            header = experiment.header(seed=plan.seed, interrupted=experiment.is_over)
            fleet = CrashFleet(server=server, fdatasync_s=fdatasync_latency(Path(tempfile.gettempdir())))
            result = concluded(
                header,
                fleet,
                conditions(plan, cuts),
                finished,
                skipped=skipped,
                checked=checked,
                failures=queue.failures,
            )
            exported = export_crashes(order.run_id, [cut for cuts in finished for cut in cuts], os.environ)
            result = structs.replace(result, warnings=(*result.warnings, *exported))
            return experiment.unfinished(result) if result.interrupted else experiment.store(result)


def doable(plan: CrashPlan, without_shim: str | None) -> tuple[CrashPlan, list[CrashSkipped]]:
    """The plan as far as it can be done, and what is skipped, with reasons; `without_shim`: why there is none."""
    skipped = skipped_of(plan.crashes)
    if without_shim is None:
        return plan, skipped
    left_out = [crash for crash in plan.crashes if needs_shim(crash)]
    for policy, kind in dict.fromkeys((crash.policy, crash.kind) for crash in left_out):
        of_them = sorted({crash.instances for crash in left_out if (crash.policy, crash.kind) == (policy, kind)})
        skipped.append(CrashSkipped(policy=policy, kind=kind, instances=tuple(of_them), reason=without_shim))
    return replace(plan, crashes=tuple(crash for crash in plan.crashes if not needs_shim(crash))), skipped


def finished_groups(plan: CrashPlan, cuts: Sequence[CutFacts]) -> list[list[CutFacts]]:
    """The cuts of every group that has all of them, in the order of the plan."""
    by_crash: dict[Crash, list[CutFacts]] = {crash: [] for crash in plan.crashes}
    for cut in cuts:
        if cut.crash in by_crash:
            by_crash[cut.crash].append(cut)
    return [found for found in by_crash.values() if len(found) >= plan.cuts]


def concluded(
    header: Header,
    fleet: CrashFleet,
    asked: CrashConditions,
    finished: Sequence[Sequence[CutFacts]],
    *,
    skipped: Sequence[CrashSkipped],
    checked: CrossCheck,
    failures: Sequence[str] = (),
) -> CrashResult:
    """The result: everything that follows from the cuts."""
    rows = [row for cuts in finished for row in cells(cuts)]
    groups = [group(cuts) for cuts in finished]
    undone: dict[str, list[str]] = {}
    for one in skipped:
        if impossible(one.policy, one.kind) is None:
            undone.setdefault(one.reason, []).append(f"{one.policy} × {one.kind}")
    warnings = [f"skipped, as {reason}: {', '.join(names)}" for reason, names in undone.items()]
    if checked.status == "skipped" and checked.reason not in undone:
        warnings.append(f"the shim was not checked against a file system: {checked.reason}")
    return CrashResult(
        **header,
        fleet=fleet,
        conditions=asked,
        groups=tuple(groups),
        rows=tuple(rows),
        skipped=tuple(skipped),
        cross_check=checked,
        counts=dict(Counter(row.verdict for row in rows)),
        warnings=(*warnings, *failures),
        verdict=judge_crash(groups, rows, checked, failures, interrupted=header["interrupted"]),
    )


def judge_crash(
    groups: Sequence[CrashGroup],
    rows: Sequence[CrashRow],
    checked: CrossCheck,
    failures: Sequence[str] = (),
    *,
    interrupted: bool = False,
) -> Verdict:
    """The verdict over all groups and rows, the shim's cross-check, and what could not be done."""
    judged = [(row.verdict, _sentence(row)) for row in [*groups, *rows]]
    if checked.status == "differs":
        judged.append((NOT_SHOWN, f"the shim and a real file system differ: {checked.reason}"))
    judged += [(NOT_KNOWN, failure) for failure in failures]
    if not rows:
        judged.append((NOT_KNOWN, "no group of cuts was finished"))
    return conclude_rows(judged, tested="groups and rows as expected", interrupted=UNFINISHED if interrupted else "")


def _sentence(row: CrashGroup) -> str:
    where = f"N={row.instances}, {row.policy}, {row.kind} of {row.crashed}, {row.restart}"
    if isinstance(row, CrashRow):
        where += f", margin {row.margin}{', abstaining' if row.abstention else ''}"
    return f"{where}: {row.reason}"


def _without_shim(server: ServerBinary) -> str | None:
    """Start one server to see whether it takes the shim; why not, or None."""
    place = CrashPlace(1, "none", server)
    try:
        place.open()
        return place.without_shim
    finally:
        place.close()


def _unchecked(plan: CrashPlan, *, cut: bool) -> str | None:
    """Why the shim need not be checked, or None."""
    if cut:
        return "the matrix was cut short"
    return None if any(crash.cuts_power for crash in plan.crashes) else "no power was cut"


def conditions(plan: CrashPlan, cuts: Sequence[CutFacts]) -> CrashConditions:
    """What was asked for, and how much of it is there."""
    return CrashConditions(
        quick=plan.quick,
        ttl_ms=TTL_MS,
        cuts_per_cell=plan.cuts,
        locks_per_s=plan.locks_per_s,
        instances=tuple(sorted({crash.instances for crash in plan.crashes})),
        concurrent=plan.concurrent,
        usable_cores=len(os.sched_getaffinity(0)),
        planned_cuts=len(plan.orders),
        finished_cuts=sum(cut.crash in plan.crashes for cut in cuts),
    )


def export_crashes(run_id: str, cuts: Sequence[CutFacts], environ: Mapping[str, str]) -> list[str]:
    """Export what `cuts` came to, if `environ` asks for telemetry. Returns warnings; never costs the result."""
    if not is_wanted(environ):
        return []
    from bench.telemetry.otlp import export_once

    warnings: list[str] = []
    for policy in dict.fromkeys(cut.crash.policy for cut in cuts):
        of_it = [cut for cut in cuts if cut.crash.policy == policy]
        most = max(cut.crash.instances for cut in of_it)
        run = Run(
            id=run_id, recipe="redlock", fsync=policy, addresses=[("127.0.0.1", 0)] * most, users=1, processes=1,
            rate_per_s=None, instance_timeout_ms=0.0, instance=f"{run_id}-{policy}",
        )  # fmt: skip
        try:
            warnings += export_once(run, tuple(_points(of_it)), environ)
        except BenchError as error:
            warnings.append(str(error))
    return list(dict.fromkeys(warnings))


def _points(cuts: Sequence[CutFacts]) -> Iterator[DataPoint]:
    losses = [cut.of() for cut in cuts]
    windows = Buckets()
    windows.add(np.array([round(one.window_s * NS_PER_S) for one in losses if one.window_s is not None], np.int64))
    yield point("redlock.crash.lost_locks", sum(loss.lost for loss in losses))
    yield point("redlock.crash.lost_window", windows)
    yield point("redlock.crash.double_grants", sum(one.double_grants for cut in cuts for one in cut.asked))
