"""Runs the audit of lock libraries: *libraries and schedules → a cell for each pair → a verdict*.
Several libraries play in parallel, and each library has servers of its own.

All libraries get the same schedules. The audit treats lockcore like any other library, but a
schedule that breaks lockcore is a violation. Each control is a simple Redlock with a planted fault,
and one of the schedules must find this fault. One more control has no fault, and it must pass all
schedules. The cells of the other libraries do not affect the verdict.

If a lock never fails in a schedule, the audit plays this schedule `held` times. If the lock fails
at least once, the audit plays the schedule `repeats` times. If a play gives no result, the audit
plays the schedule again. The last try takes place when no other library is playing. Ctrl-C ends
every wait almost at once, and the audit drops the unfinished schedules.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Event

from msgspec import structs

from bench.errors import UsageError
from bench.experiments.audit.installed import install, ours
from bench.experiments.audit.judge import judge_cells
from bench.experiments.audit.libraries import LibraryEntry, promise_of
from bench.experiments.audit.result import (
    CONTROL,
    NO_FAULT,
    AuditConditions,
    AuditedSchedule,
    AuditResult,
    MissingLibrary,
)
from bench.experiments.judge.library import LibraryDriver
from bench.experiments.judge.library_stage import Stage
from bench.experiments.judge.party import NotApplicableError
from bench.experiments.judge.playing import Plays, judged, play_together
from bench.experiments.judge.result import JudgedRow
from bench.experiments.judge.row import JudgeRow, RowFinding
from bench.experiments.judge.schedules import SCHEDULES
from bench.measure.fleet_facts import OwnFleet
from bench.measure.server_facts import ServerBinary
from bench.run.experiment import Done, Experiment, ExperimentOrder, Show
from bench.scenario.quantity import nearest, require_known
from bench.topology.server import find_server

# The folder of the libraries' environments.
CACHE = Path(".peers")
INSTANCES = 3
# A schedule without a result gets this many tries while other libraries play. Then it is played
# alone.
TRIES = 3
# How many libraries per core play at once. A library mostly waits until keys expire and time-outs
# end.
AT_ONCE = 6
SLOW = ("java", "node")


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """The plan of an audit. The plan says which libraries play which schedules, and how often each
    schedule is played."""

    libraries: Sequence[LibraryEntry]
    schedules: Sequence[JudgeRow[Stage]]
    conditions: AuditConditions
    seed: int


def chosen(names: Sequence[str]) -> list[JudgeRow[Stage]]:
    """Return the schedules with these names. If `names` is empty, return all schedules. Raises
    UsageError for an unknown name."""
    require_known("schedule", names, SCHEDULES)
    return [SCHEDULES[name] for name in SCHEDULES if name in (names or SCHEDULES)]


def known(entries: Sequence[LibraryEntry], words: Sequence[str]) -> Sequence[LibraryEntry]:
    """Return the libraries whose name contains one of `words`. If `words` is empty, return all
    libraries. The word "control" and each part of it, such as "con", are also allowed, but
    select no library. Raises UsageError if a word is neither a part of a library's name nor a part
    of "control"."""
    names = [entry.library.name for entry in entries] + ["control"]
    for word in words:
        if not any(word in name for name in names):
            meant = nearest(word, names) or f"; write one of these names: {', '.join(names)}"
            raise UsageError(f"there is no library {word!r}{meant}")
    return [
        entry for entry in entries if not words or any(word in entry.library.name for word in words)
    ]


def run_audit(order: ExperimentOrder[AuditPlan], show: Show) -> Done[AuditResult]:
    """Play all schedules of `order` with all libraries, and return the stored result.

    Raises BenchError. Raises KeyboardInterrupt if the user presses Ctrl-C before the first schedule
    of any library has ended.
    """
    plan = order.plan
    server = find_server(order.server)
    with Experiment(order) as experiment:
        libraries: list[LibraryDriver | MissingLibrary] = []
        cells: list[JudgedRow] = []
        with experiment.cuttable():
            controls = (
                ours(CONTROL + name) for name in (NO_FAULT, *(one.name for one in plan.schedules))
            )
            libraries += [*controls, *install(plan.libraries, CACHE.resolve(), show)]
            _Playing(plan, server, show).run(
                [one for one in libraries if isinstance(one, LibraryDriver)], cells
            )
        experiment.require(cells)
        result = AuditResult(
            **experiment.header(seed=plan.seed, interrupted=experiment.cut),
            fleet=OwnFleet(server=server),
            conditions=plan.conditions,
            schedules=tuple(
                AuditedSchedule(one.name, one.question, one.about, one.source)
                for one in plan.schedules
            ),
            libraries=tuple(one.library for one in libraries if isinstance(one, LibraryDriver)),
            absent=tuple(one for one in libraries if isinstance(one, MissingLibrary)),
            cells=tuple(cells),
            verdict=judge_cells(cells, interrupted=experiment.cut),
        )
        return experiment.store(result)


class _Playing:
    """An object that plays all schedules with all libraries. If the event `_stop` is set, every
    wait ends and the unfinished schedules are dropped."""

    def __init__(self, plan: AuditPlan, server: ServerBinary, show: Show) -> None:
        self._plan = plan
        self._server = server
        self._show = show
        self._stop = Event()

    def run(self, drivers: Sequence[LibraryDriver], cells: list[JudgedRow]) -> None:
        """Add a cell for each library and each schedule to `cells`. The libraries in `cells` have
        the same order as in `drivers`. The method adds no cell for a schedule that Ctrl-C
        interrupts."""
        by_name = {one.library.name: one for one in drivers}
        slow_first = sorted(drivers, key=lambda one: one.library.kind not in SLOW)
        jobs = {one.library.name: partial(self._play_all, one, cells) for one in slow_first}
        try:
            play_together(jobs, AT_ONCE, self._stop, self._show)
        finally:
            cells.sort(key=lambda cell: list(by_name).index(cell.library))
        for index, cell in enumerate(cells):
            # Other libraries were playing. That may be the only reason why the schedule had no
            # result.
            if cell.verdict == "not known":
                self._show(f"again, alone: {cell.library}, {cell.topic}")
                with self._stage(by_name[cell.library]) as stage:
                    cells[index] = self._cell(stage, SCHEDULES[cell.topic])

    def _play_all(self, driver: LibraryDriver, cells: list[JudgedRow]) -> None:
        name = driver.library.name
        fault = name.removeprefix(CONTROL) if name.startswith(CONTROL) else NO_FAULT
        with self._stage(driver) as stage:
            for one in self._plan.schedules:
                if self._stop.is_set():
                    break
                if fault in (NO_FAULT, one.name):
                    cells.append(self._cell(stage, one))

    def _stage(self, driver: LibraryDriver) -> Stage:
        return Stage(
            driver, min(INSTANCES, max(driver.library.instances)), self._server, self._stop
        )

    def _cell(self, stage: Stage, one: JudgeRow[Stage]) -> JudgedRow:
        """Play the schedule `one` until a play gives a result. Then play the schedule again, as
        often as the plan requires."""
        conditions = self._plan.conditions
        plays = Plays(conditions.held, conditions.repeats, TRIES)
        row = judged(stage, one, asked, plays, self._stop)
        promise = promise_of(stage.driver.words, one.name) if row.verdict == "does not" else ""
        return structs.replace(row, library=stage.name, promise=promise)


def asked(stage: Stage, row: JudgeRow[Stage]) -> RowFinding:
    """Play a schedule once with a library, and return what happened. Raises NotApplicableError if
    the schedule needs more instances than `stage` has."""
    if stage.instances < row.least:
        raise NotApplicableError("it locks on one instance")
    finding = row.play(stage)
    return replace(finding, wrong=finding.wrong or stage.broken())
