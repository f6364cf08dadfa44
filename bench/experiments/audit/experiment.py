"""The audit: *libraries × schedules → cells → a verdict*, several libraries at once, each on
servers of its own.

Rules: the same schedules for all. lockcore is a library like any other, but what it breaks is a
violation. A control is Redlock by hand with the fault that one schedule must find; one without a
fault must pass all. Other libraries' cells are told and decide nothing. What holds is played `held`
times, and what went wrong once, `repeats` times. What is not known is played again, and once more
when nobody else plays. Ctrl-C ends every wait within a moment. The schedules that are under way are
dropped then.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from msgspec import structs
from redis.exceptions import RedisError

from bench.errors import BenchError, UsageError
from bench.experiments.audit.installed import install, ours
from bench.experiments.audit.judge import judge_cells
from bench.experiments.audit.libraries import LibraryEntry, promise_of
from bench.experiments.audit.result import (
    CONTROL,
    NO_FAULT,
    AuditConditions,
    AuditResult,
    Cell,
    CellWord,
    MissingLibrary,
)
from bench.experiments.judge.library import LibraryDriver
from bench.experiments.judge.library_stage import Stage
from bench.experiments.judge.party import HangsError, NotApplicableError
from bench.experiments.judge.schedules import SCHEDULES, AuditSchedule, UnmetError
from bench.measure.run_result import OwnFleet
from bench.measure.server_facts import ServerBinary
from bench.run.experiment import Done, Experiment, ExperimentOrder, Show
from bench.scenario.quantity import nearest, require_known
from bench.topology.server import find_server

# The libraries' environments are installed here.
CACHE = Path(".peers")
INSTANCES = 3
# A schedule that does not come about is tried so often among others. Then it is played alone.
TRIES = 3
# So many libraries per core play at once. They mostly wait, for ends of keys and for time-outs.
AT_ONCE = 6
SLOW = ("java", "node")


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """What to play, with its controls, and how often."""

    libraries: Sequence[LibraryEntry]
    schedules: Sequence[AuditSchedule]
    conditions: AuditConditions
    seed: int


def chosen(names: Sequence[str]) -> list[AuditSchedule]:
    """The schedules called so, all if none is named. Raises UsageError for a name that is none."""
    require_known("schedule", names, SCHEDULES)
    return [SCHEDULES[name] for name in SCHEDULES if name in (names or SCHEDULES)]


def known(entries: Sequence[LibraryEntry], words: Sequence[str]) -> Sequence[LibraryEntry]:
    """Those whose name contains one of `words`; all, if there are none. Raises UsageError for a
    word that stands in no library's name; that of the controls is fine."""
    names = [entry.library.name for entry in entries] + ["control"]
    for word in words:
        if not any(word in name for name in names):
            meant = nearest(word, names) or f"; the libraries are {', '.join(names)}"
            raise UsageError(f"there is no library {word!r}{meant}")
    return [
        entry for entry in entries if not words or any(word in entry.library.name for word in words)
    ]


def run_audit(order: ExperimentOrder[AuditPlan], show: Show) -> Done[AuditResult]:
    """Play all schedules of `order`.

    Raises BenchError, or KeyboardInterrupt before the first library is through.
    """
    plan = order.plan
    server = find_server(order.server)
    with Experiment(order) as experiment:
        libraries: list[LibraryDriver | MissingLibrary] = []
        cells: list[Cell] = []
        with experiment.cuttable():
            controls = (
                ours(CONTROL + name)
                for name in (NO_FAULT, *(one.facts.name for one in plan.schedules))
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
            schedules=tuple(one.facts for one in plan.schedules),
            libraries=tuple(one.library for one in libraries if isinstance(one, LibraryDriver)),
            absent=tuple(one for one in libraries if isinstance(one, MissingLibrary)),
            cells=tuple(cells),
            verdict=judge_cells(cells, interrupted=experiment.cut),
        )
        return experiment.store(result)


class _Playing:
    """The work of all libraries; `_stop` ends every wait, and drops the schedules under way."""

    def __init__(self, plan: AuditPlan, server: ServerBinary, show: Show) -> None:
        self._plan = plan
        self._server = server
        self._show = show
        self._stop = Event()

    def run(self, drivers: Sequence[LibraryDriver], cells: list[Cell]) -> None:
        """Add a cell per library and schedule to `cells`, in order; what Ctrl-C cuts is left
        out."""
        by_name = {one.library.name: one for one in drivers}
        slow_first = sorted(drivers, key=lambda one: one.library.kind not in SLOW)
        with ThreadPoolExecutor(AT_ONCE * len(os.sched_getaffinity(0))) as pool:
            begun = {
                pool.submit(self._play_all, one, cells): one.library.name for one in slow_first
            }
            try:
                for number, one in enumerate(as_completed(begun), 1):
                    one.result()
                    self._show(f"{number} of {len(begun)}: {begun[one]} is through")
            finally:
                self._stop.set()
                pool.shutdown(cancel_futures=True)
                cells.sort(key=lambda cell: list(by_name).index(cell.library))
        self._stop.clear()
        for index, cell in enumerate(cells):
            # The schedule may have failed to come about only because others were playing.
            if cell.verdict == "not known":
                self._show(f"again, alone: {cell.library}, {cell.schedule}")
                with self._stage(by_name[cell.library]) as stage:
                    cells[index] = self._cell(stage, SCHEDULES[cell.schedule])

    def _play_all(self, driver: LibraryDriver, cells: list[Cell]) -> None:
        name = driver.library.name
        fault = name.removeprefix(CONTROL) if name.startswith(CONTROL) else NO_FAULT
        with self._stage(driver) as stage:
            for one in self._plan.schedules:
                if self._stop.is_set():
                    break
                if fault in (NO_FAULT, one.facts.name):
                    cells.append(self._cell(stage, one))

    def _stage(self, driver: LibraryDriver) -> Stage:
        return Stage(
            driver, min(INSTANCES, max(driver.library.instances)), self._server, self._stop
        )

    def _cell(self, stage: Stage, one: AuditSchedule) -> Cell:
        """Play `one` until it is known what comes of it, and again as often as the plan says."""
        failures = 0
        of = 0
        unknown = 0
        plays = self._plan.conditions
        while True:
            again = play(stage, one)
            if not of or again.verdict == "does not":
                cell = again
            of += again.verdict in ("holds", "does not")
            failures += again.verdict == "does not"
            unknown += again.verdict == "not known"
            enough = of >= (plays.repeats if failures else plays.held) or unknown >= TRIES
            if enough or again.verdict == "not applicable" or self._stop.is_set():
                return structs.replace(cell, seen=failures, of=of)


def play(stage: Stage, one: AuditSchedule) -> Cell:
    """Play a schedule once."""
    verdict, happened = _played(stage, one)
    promise = ""
    if verdict == "does not":
        promise = promise_of(stage.driver.words, one.facts.name)
    return Cell(
        library=stage.name,
        schedule=one.facts.name,
        verdict=verdict,
        happened=happened,
        promise=promise,
        course=tuple(stage.course) if verdict in ("does not", "not known") else (),
    )


def _played(stage: Stage, one: AuditSchedule) -> tuple[CellWord, str]:
    if stage.instances < one.least:
        return "not applicable", "it locks on one instance"
    try:
        stage.clear()
        try:
            wrong = one.play(stage) or stage.broken()
        except HangsError as error:
            wrong = str(error)
        stage.require_servers()
    except NotApplicableError as error:
        return "not applicable", str(error)
    except UnmetError as error:
        return "not known", f"did not come about: {error}"
    except (BenchError, RedisError, TimeoutError, OSError) as error:
        return "not known", f"{type(error).__name__}: {error}"
    return ("does not", wrong) if wrong else ("holds", "")
