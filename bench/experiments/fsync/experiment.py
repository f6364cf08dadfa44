"""What an fsync policy costs: *a matrix of cells → visited in random order, turn by turn → a judged, written result*.

    plan → blocks (shuffled) → visits, a piece each in the journal → rows, findings, planner's page

Rules: a block that was finished is in the journal before the next begins, so a cut matrix goes on where it stopped, on
the same server only. Ctrl-C keeps what was measured. The user's servers get their setting back however this ends.
"""

import time
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from bench.errors import EnvironmentNotReadyError
from bench.experiments.fsync.cell_servers import FsyncServers, OwnServers, UserServers, lent
from bench.experiments.fsync.judge import always_costs, findings_of, judge_fsync, rows_of
from bench.experiments.fsync.plan import Block, FsyncPlan
from bench.experiments.fsync.planner import plan_page
from bench.experiments.fsync.result import (
    FsyncCell,
    FsyncConditions,
    FsyncFinding,
    FsyncResult,
    FsyncRow,
    FsyncTimes,
    VisitSeen,
)  # fmt: skip
from bench.experiments.fsync.visit import BlockMeasurement, NothingGrantedError
from bench.experiments.fsync.words import beside
from bench.measure.environment import describe_environment
from bench.measure.section import builtins_of
from bench.run.experiment import Done, Experiment, ExperimentOrder, Show, left_text
from bench.run.journal import Journal, open_journal
from bench.topology.fleet import require_descriptors
from bench.topology.server import find_server

MOST_BARREN = 3  # blocks without one lock, beyond those with some: then something else is wrong


@dataclass(frozen=True, slots=True)
class FsyncMatrix:
    """A plan and where it is measured. `targets`: the user's servers, empty = our own; `disk`: where our servers keep
    their files, None = the temporary folder."""

    plan: FsyncPlan
    disk: Path | None = None
    targets: tuple[str, ...] = ()
    allow_config: bool = False


def run_fsync(order: ExperimentOrder[FsyncMatrix], show: Show) -> Done[FsyncResult]:
    """Measure what is missing of `order`, showing progress; the result is written when all is there.

    Raises BenchError when it cannot be measured here or something broke, KeyboardInterrupt when it was cut before its
    first cell. Finished cells are in the journal in all these cases.
    """
    with Experiment(order) as experiment, lent(_servers(order)) as servers:
        plan = {"experiment": "fsync", **builtins_of(order.plan.plan)}
        machine = describe_environment()
        cores = f"{machine.usable_cores} of {machine.cores} cores"
        plan |= {"servers": servers.identity, "machine": f"{machine.cpu_model}, {cores}"}
        with open_journal(order.folder, plan, VisitSeen, lambda piece: rows_of([piece])) as journal:
            visits = _Visits(order, servers, journal, show)
            with experiment.cuttable():
                visits.measure()
            experiment.require(journal.pieces)
            result = beside(visits.result(experiment), order.folder.absolute().parent)
            if trouble := servers.close():  # it must be said, and nothing measured be lost for it
                result = msgspec.structs.replace(result, warnings=(*result.warnings, trouble))
            if result.interrupted:
                return experiment.unfinished(result)
            done = experiment.store(result)
            if done.path:
                with suppress(OSError):
                    journal.path.unlink()
    return replace(done, exit_code=EnvironmentNotReadyError.exit_code) if trouble else done


def _servers(order: ExperimentOrder[FsyncMatrix]) -> FsyncServers:
    matrix = order.plan
    if matrix.targets:
        policies = list(dict.fromkeys(cell.policy for cell in matrix.plan.cells))
        return UserServers(matrix.targets, policies, allow_config=matrix.allow_config)
    return OwnServers(find_server(order.server), matrix.disk)


class _Visits:
    """The visits that are missing, and the result of all."""

    def __init__(
        self, order: ExperimentOrder[FsyncMatrix], servers: FsyncServers, journal: Journal[VisitSeen], show: Show
    ) -> None:
        self._run_id, self._plan = order.run_id, order.plan.plan
        self._servers, self._journal, self._show = servers, journal, show
        policies = dict.fromkeys(cell.policy for cell in self._plan.cells)
        self._skipped = {policy: reason for policy in policies if (reason := servers.why_not(policy))}
        self._blocks = [block for block in self._plan.blocks() if block[0].policy not in self._skipped]
        self._planned = self._plan.repeats * sum(map(len, self._blocks))
        if self._skipped and {*policies} - {*self._skipped} <= {"none"}:
            reasons = "; ".join(dict.fromkeys(self._skipped.values()))
            raise EnvironmentNotReadyError(f"there are no policies to compare here: {reasons}")
        for block in self._blocks:
            require_descriptors(block[0].instances, block[0].connections)
        self._barren: list[str] = []

    def measure(self) -> None:
        """Visit what is missing, in the plan's order."""
        plan, begun_s = self._plan, time.monotonic()
        found = {(piece.repeat, piece.cell) for piece in self._journal.pieces}
        missing = [block for block in self._blocks if not all((plan.repeats - 1, cell) in found for cell in block)]
        done_s = 0.0
        total_s = sum(map(plan.block_s, missing))
        for number, block in enumerate(missing):
            pace = (time.monotonic() - begun_s) / done_s if done_s else 1.0
            place, all_ = number + len(self._blocks) - len(missing), len(self._blocks)
            left = f"{place * 10 // all_ * 10} % done: about {left_text(pace * (total_s - done_s))}"
            self._show(f"{left}, block {place + 1} of {all_}: {_named(block)}")
            self._visit(block, found)
            done_s += plan.block_s(block)

    def _visit(self, block: Block, found: Container[tuple[int, FsyncCell]]) -> None:
        prefix, cell = f"lockbench:{self._run_id}:", block[0]
        keys = [f"{prefix}r{caller}" for caller in range(cell.clients * cell.pipeline)]
        with self._servers.serving(cell, keys) as serving:
            try:
                pieces = BlockMeasurement(self._plan, block, serving, prefix).measure()
            except NothingGrantedError as error:
                self._barren.append(str(error))
                if len(self._barren) > len(self._journal.pieces) + min(MOST_BARREN, len(self._blocks) - 1):
                    raise
                return
        for piece in pieces:
            if (piece.repeat, piece.cell) not in found:
                self._journal.add(piece)

    def result(self, experiment: Experiment) -> FsyncResult:
        """Everything measured so far."""
        rows, planned, done = rows_of(self._journal.pieces), self._planned, len(self._journal.pieces)
        findings, fleet, plan = findings_of(rows), self._servers.fleet, self._plan
        return FsyncResult(
            **experiment.header(seed=plan.seed, interrupted=experiment.is_over),
            fleet=fleet,
            conditions=FsyncConditions(
                **{name: getattr(plan, name) for name in FsyncTimes.__struct_fields__},
                cells=len(plan.cells),
                visits_planned=planned,
                visits_done=done,
            ),
            rows=tuple(rows),
            costs=tuple(always_costs(rows)),
            findings=tuple(findings),
            planner=plan_page(rows, None, self._run_id, fleet.server),
            warnings=(*self._limits(), *warnings_of(rows, findings)),
            verdict=judge_fsync(findings, rows, planned=planned, done=done, interrupted=experiment.is_over),
        )

    def _limits(self) -> Iterator[str]:
        """What could not be measured here, or not so often."""
        yield from (f"{policy} is not measured: {reason}" for policy, reason in self._skipped.items())
        yield from self._servers.warnings
        if self._plan.scenario:
            yield self._plan.scenario
        if self._barren:
            yield f"blocks in which no lock was granted, and nothing measured: {len(self._barren)}, {self._barren[0]}"


def warnings_of(rows: Sequence[FsyncRow], findings: Sequence[FsyncFinding]) -> Iterator[str]:
    """What qualifies these figures."""
    if bound := sum(row.generator.bound and row.load == "max" for row in rows):
        yield (
            f"generator-bound maxima (≥ 0.9 of a core), marked ≥: {bound}; lower bounds, what a policy costs there is "
            "understated"
        )
    if behind := sum(row.sustained is False for row in rows):
        yield f"open loads that were not sustained: {behind}; their latencies are those of a growing queue"
    if invalid := [row.generator.reason for row in rows if row.generator.reason]:
        yield f"loads that were not what they claim: {len(invalid)}, the first: {invalid[0]}"
    if denied := sum(sum(row.denied.values()) for row in rows):
        failed = sum(row.release_failures for row in rows)
        yield f"{denied:,} acquires were denied and {failed:,} releases failed"
    yield from (finding.text for finding in findings if finding.verdict in ("not judged", "server fault"))


def _named(block: Block) -> str:
    cell = block[0]
    return str(cell).replace(cell.policy, "/".join(one.policy for one in block), 1)
