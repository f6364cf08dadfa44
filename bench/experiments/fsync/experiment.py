"""What an fsync policy costs: *a matrix of cells → visited in random order, repeatedly → a judged, written result*.

    plan → visits (repeat by repeat, shuffled) → a piece each in the journal → rows, findings, planner's page → result

Rules: a visit that was finished is in the journal before the next begins, so a cut matrix goes on where it stopped, on
the same server only. Ctrl-C keeps what was measured. The user's servers get their setting back however this ends.
Source: bench.experiments.fsync.plan, fsync_ground, fsync_visit; bench.experiments.fsync.figures_of.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.errors import EnvironmentNotReadyError
from bench.experiments.fsync.cell_servers import OwnServers, Servers, UserServers
from bench.experiments.fsync.figures_of import costs_of_pair, rows_of
from bench.experiments.fsync.judge import NOT_JUDGED, SERVER_FAULT, findings_of, judge_fsync
from bench.experiments.fsync.plan import FsyncCell, FsyncPlan
from bench.experiments.fsync.planner import plan_page
from bench.experiments.fsync.visit import Visit
from bench.measure.environment import describe_environment
from bench.measure.result import SCHEMA_VERSION, Result, write_result
from bench.measure.section import builtins_of
from bench.run.interrupt import Interrupts
from bench.run.journal import Journal, open_journal
from bench.run.verdict import INTERRUPTED, Done, exit_code
from bench.topology.fleet import require_descriptors
from bench.topology.server import find_server

Show = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FsyncOrder:
    """A plan and where it is measured. `targets`: the user's servers, empty = our own; `crash`: a crash result to put
    beside it; `disk`: where our servers keep their files, None = the temporary folder; `folder`: exists, empty or with
    a cut matrix."""

    plan: FsyncPlan
    run_id: str
    command: Sequence[str]
    folder: Path
    server: str | None = None
    disk: Path | None = None
    targets: tuple[str, ...] = ()
    allow_config: bool = False
    crash: Mapping[str, Any] | None = None


def run_fsync(order: FsyncOrder, show: Show) -> Done:
    """Measure what is missing of `order`, showing progress; the result is written when all is there.

    `path` None: it was cut. Raises BenchError when it cannot be measured here or something broke, KeyboardInterrupt
    when it was cut before its first cell. Finished cells are in the journal in all these cases.
    """
    started_s, started_at = time.monotonic(), datetime.datetime.now(datetime.UTC)
    with Interrupts() as interrupts, _servers(order) as servers, _journal(order, servers) as journal:
        matrix = _Matrix(order, servers, journal, show)
        try:
            matrix.measure()
        except KeyboardInterrupt:
            if not journal.pieces:
                raise
        interrupts.raising = False
        result = matrix.result(cut=interrupts.count > 0)
        result |= {"started_at": f"{started_at:%Y-%m-%dT%H:%M:%SZ}", "duration_s": time.monotonic() - started_s}
        troubles = _put_back(servers)
        result["warnings"] += troubles
        if result["interrupted"]:
            return Done(result, None, INTERRUPTED)
        path = write_result(result, order.folder)
        with suppress(OSError):
            journal.path.unlink()
    code = EnvironmentNotReadyError.exit_code if troubles else exit_code(result["verdict"], interrupted=False)
    return Done(result, path, code)


def _put_back(servers: Servers) -> list[str]:
    """Close the servers; what could not be put back must be said, and nothing measured be lost for it."""
    try:
        servers.close()
    except EnvironmentNotReadyError as error:
        return [str(error)]
    return []


def _servers(order: FsyncOrder) -> Servers:
    if order.targets:
        policies = list(dict.fromkeys(cell.policy for cell in order.plan.cells))
        return UserServers(order.targets, policies, allow_config=order.allow_config)
    return OwnServers(find_server(order.server), order.disk)


def _journal(order: FsyncOrder, servers: Servers) -> AbstractContextManager[Journal[dict[str, Any]]]:
    plan = {"experiment": "fsync", **order.plan.to_json(), "servers": servers.identity(), "machine": _machine()}
    return open_journal(order.folder, plan, dict[str, Any], _require_visit)


def _require_visit(piece: Mapping[str, Any]) -> None:
    """Raises whatever it may when `piece` tells no visit, or no rows can be made of it."""
    FsyncCell(**piece["cell"]), int(piece["repeat"])
    rows_of([piece])


def _machine() -> str:
    environment = builtins_of(describe_environment())
    return f"{environment['cpu_model']}, {environment['usable_cores']} of {environment['cores']} cores"


class _Matrix:
    """The visits of one sitting."""

    def __init__(self, order: FsyncOrder, servers: Servers, journal: Journal[dict[str, Any]], show: Show) -> None:
        self._order, self._servers, self._journal, self._show = order, servers, journal, show
        reasons = {cell: servers.why_not(cell) for cell in order.plan.cells}
        self._skipped = {cell: reason for cell, reason in reasons.items() if reason}
        self._visits = [visit for visit in order.plan.visits() if visit[1] not in self._skipped]
        if not self._visits:
            raise EnvironmentNotReadyError(f"nothing can be measured here: {'; '.join(set(self._skipped.values()))}")
        self._done = {(piece["repeat"], FsyncCell(**piece["cell"])) for piece in journal.pieces}
        for size in sorted({(cell.instances, cell.clients) for _, cell in self._visits}, reverse=True):
            require_descriptors(*size)
        self._dropped = 0

    def measure(self) -> None:
        """Visit what is missing, in the plan's order."""
        plan, begun_s = self._order.plan, time.monotonic()
        missing = [visit for visit in self._visits if visit not in self._done]
        planned_s = done_s = 0.0
        total_s = sum(plan.visit_s(cell) for _, cell in missing)
        for number, (repeat, cell) in enumerate(missing):
            spent_s = time.monotonic() - begun_s
            pace = spent_s / done_s if done_s else 1.0
            if plan.budget_s and repeat and spent_s + pace * plan.visit_s(cell) > plan.budget_s:
                self._dropped = len(missing) - number
                return
            left_s = pace * (total_s - planned_s)
            if plan.budget_s:
                left_s = min(left_s, max(plan.budget_s - spent_s, 0))
            self._tell(number + len(self._visits) - len(missing), cell, repeat, left_s)
            self._visit(repeat, cell)
            planned_s += plan.visit_s(cell)
            done_s = planned_s

    def _tell(self, number: int, cell: FsyncCell, repeat: int, left_s: float) -> None:
        tenth = number * 10 // len(self._visits) * 10
        where = f"cell {number + 1} of {len(self._visits)}, repeat {repeat + 1}"
        self._show(f"{tenth} % done: about {_clock(left_s)} left, {where}: {cell}")

    def _visit(self, repeat: int, cell: FsyncCell) -> None:
        prefix = f"lockbench:{self._order.run_id}:"
        with self._servers.ground(cell) as ground:
            seed = self._order.plan.seed * 1000 + repeat
            try:
                row = Visit(self._order.plan, cell, ground, prefix).measure(seed)
            finally:
                self._servers.sweep([f"{prefix}r{caller}" for caller in range(cell.callers)])
        self._journal.add({"repeat": repeat, "cell": asdict(cell), **row})

    def result(self, cut: bool) -> Result:
        """Everything measured so far, as a result."""
        order, rows = self._order, rows_of(self._journal.pieces)
        findings = findings_of(rows)
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": "fsync",
            "id": order.run_id,
            "command": list(order.command),
            "seed": order.plan.seed,
            "started_at": "",
            "duration_s": 0.0,
            "interrupted": cut,
            "environment": builtins_of(describe_environment()),
            "fleet": self._servers.describe(),
            "conditions": self._conditions(),
            "rows": rows,
            "skipped": [{**asdict(cell), "reason": reason} for cell, reason in self._skipped.items()],
            "costs": costs_of_pair(rows, "everysec", "always"),
            "findings": findings,
            "planner": plan_page(rows, order.crash, order.run_id, self._servers.describe()["server"]),
            "warnings": self._warnings(rows, findings),
            "verdict": judge_fsync(findings, rows, self._conditions(), interrupted=cut),
        }

    def _conditions(self) -> dict[str, Any]:
        plan = self._order.plan
        return {
            **{name: value for name, value in asdict(plan).items() if name not in ("cells", "seed")},
            "cells": len(plan.cells),
            "visits_planned": len(self._visits),
            "visits_done": len(self._journal.pieces),
            "usable_cores": len(os.sched_getaffinity(0)),
        }

    def _warnings(self, rows: Sequence[Mapping[str, Any]], findings: Sequence[Mapping[str, Any]]) -> list[str]:
        found = [f"{reason}: {_policies(self._skipped, reason)} not measured" for reason in {*self._skipped.values()}]
        found += self._servers.warnings()
        if self._dropped:
            found.append(
                f"the time was up: {self._dropped} of {len(self._visits)} visits left out, so less is repeated"
            )
        bound = [row for row in rows if row["generator"]["bound"] and row["load"] == "max"]
        if bound:
            found.append(
                f"generator-bound maxima (≥ 0.9 of a core), marked ≥: {len(bound)}; lower bounds, what a policy "
                "costs there is understated"
            )
        behind = sum(row["sustained"] is False for row in rows)
        if behind:
            found.append(f"open loads that were not sustained: {behind}; their latencies are those of a growing queue")
        invalid = [row for row in rows if row["generator"]["reason"]]
        if invalid:
            reason = invalid[0]["generator"]["reason"]
            found.append(f"loads that were not what they claim: {len(invalid)}, the first: {reason}")
        denied = sum(sum(row["denied"].values()) for row in rows)
        if denied:
            found.append(f"{denied:,} acquires were denied and {_failed(rows):,} releases failed")
        return found + [finding["text"] for finding in findings if finding["verdict"] in (NOT_JUDGED, SERVER_FAULT)]


def _failed(rows: Sequence[Mapping[str, Any]]) -> int:
    return sum(row["release_failures"] for row in rows)


def _policies(skipped: Mapping[FsyncCell, str], reason: str) -> str:
    return ", ".join(dict.fromkeys(cell.policy for cell, why in skipped.items() if why == reason))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
