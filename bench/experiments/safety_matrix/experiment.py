"""The safety matrix: *recipes, claims → each row looked at, judged, written*.

    schedule   recipe × deterministic course of events     bench.recipes.schedules
    load       recipe × short load under pauses and faults  the oracle over every operation
    claim      what is claimed of Redlock and persistence   a figure each

Rules: own servers on loopback; deterministic rows first. A signal ends it at once: the row it cuts is dropped, the rows
before it are kept, judged and written, and nothing else stays.
"""

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.errors import UsageError
from bench.experiments.safety_matrix.claims import claim_cases
from bench.experiments.safety_matrix.loads import load_cases
from bench.experiments.safety_matrix.result import Finding, SafetyConditions, SafetyResult, SafetyRow
from bench.experiments.safety_matrix.row import (
    SKIPPED,
    PlannedRow,
    RowSetup,
    broken_rules,
    cannot,
    find,
    judge_rows,
    look,
)
from bench.measure.expectation import AS_EXPECTED
from bench.measure.run_result import OwnFleet
from bench.recipes.registry import RECIPES, WITHDRAWN, find_recipe
from bench.recipes.schedules.stage import Schedule, Shown
from bench.recipes.schedules.table import SCHEDULES, play
from bench.run.experiment import Done, Experiment, ExperimentOrder, Show
from bench.scenario.quantity import nearest
from bench.topology.fleet import start_fleet
from bench.topology.server import ServerBinary, find_server

ROUNDS = 3


def schedule_cases() -> Iterator[PlannedRow]:
    """Every recipe with every schedule that says something of it."""
    for schedule in SCHEDULES.values():
        for recipes, flawed in ((schedule.shown_by, True), (schedule.absent_in, False)):
            for recipe in recipes:
                expected = "the flaw" if flawed else "no flaw"
                look = partial(look_at, schedule, recipe, flawed)
                yield PlannedRow("schedule", recipe, schedule.name, expected, schedule.looks_for, look)


def look_at(schedule: Schedule, recipe: str, flawed: bool, setup: RowSetup) -> Finding:
    """Play `schedule` with `recipe`, which must show the flaw (`flawed`) or must not."""
    for _ in range(1 if setup.quick else ROUNDS):
        shown = play(schedule, recipe, None if schedule.harms else setup.fleet)
        finding = judge_shown(shown, flawed=flawed, safe=find_recipe(recipe).about.safe)
        if finding.verdict != AS_EXPECTED:
            break
    return finding


def judge_shown(shown: Shown, *, flawed: bool, safe: bool) -> Finding:
    """What a schedule says of a recipe that must show its flaw (`flawed`) or must not, and is `safe` or not."""
    broken = broken_rules(shown.report) if safe else None
    needs = {**({} if shown.seen and flawed else shown.circumstances), **shown.preconditions}
    return find(
        ("the flaw", "no flaw") if flawed else ("no flaw", "the flaw"),
        dict(shown.figures),
        needs,
        holds=shown.seen == flawed,
        broken=bool(broken) or (shown.seen and not flawed and all(needs.values())),
        reason=broken,
        safety=shown.report,
    )


INSTANCES = 3


@dataclass(frozen=True, slots=True)
class SafetyPlan:
    """Which rows to look at. `recipes`, `claims`: both empty = all of both."""

    recipes: tuple[str, ...]
    claims: tuple[str, ...]
    quick: bool
    seed: int


def all_cases() -> list[PlannedRow]:
    """Every row there is, deterministic ones first."""
    withdrawn = (
        PlannedRow("schedule", name, "none", "nothing", why, cannot(SKIPPED, why)) for name, why in WITHDRAWN.items()
    )
    return [*schedule_cases(), *withdrawn, *load_cases(), *claim_cases()]


def choose_cases(recipes: Sequence[str] = (), claims: Sequence[str] = ()) -> list[PlannedRow]:
    """The rows of these recipes and claims; of all when none is named. Raises UsageError with the nearest name."""
    cases = all_cases()
    require_names("recipe", recipes, (*RECIPES, *WITHDRAWN))
    require_names("claim", claims, dict.fromkeys(case.fault for case in cases if case.part == "claim"))
    if not recipes and not claims:
        return cases
    return [case for case in cases if (case.fault in claims if case.part == "claim" else case.recipe in recipes)]


def require_names(noun: str, wanted: Iterable[str], names: Iterable[str]) -> None:
    """Raise UsageError for the first of `wanted` that is none of `names`: with the one it is close to, else all."""
    known = list(names)
    for name in wanted:
        if name not in known:
            meant = nearest(name, known) or f"; the {noun}s are {', '.join(known)}"
            raise UsageError(f"there is no {noun} {name!r}{meant}")


def run_safety(order: ExperimentOrder[SafetyPlan], show: Show) -> Done[SafetyResult]:
    """Look at all rows of `order`, showing progress; the result is written by then, if it can be.

    Raises BenchError when nothing can be looked at here, KeyboardInterrupt when it was cut before the first row's end.
    """
    plan = order.plan
    planned = choose_cases(plan.recipes, plan.claims)
    with Experiment(order) as experiment:
        rows, server = _rows(planned, order, show, experiment)
        experiment.require(rows)
        conditions = SafetyConditions(
            quick=plan.quick,
            recipes=tuple(plan.recipes),
            claims=tuple(plan.claims),
            usable_cores=len(os.sched_getaffinity(0)),
        )
        result = SafetyResult(
            **experiment.header(seed=plan.seed, interrupted=len(rows) < len(planned)),
            fleet=OwnFleet(server=server),
            conditions=conditions,
            rows=tuple(rows),
            counts=dict(Counter(row.verdict for row in rows)),
            warnings=tuple(  # what was not looked at here, and why: never silently
                f"{row.recipe}, {row.fault}: {row.verdict}: {row.reason}" for row in rows if row.verdict == SKIPPED
            ),
            verdict=judge_rows(rows, len(planned)),
        )
        return experiment.store(result)


def _rows(
    planned: Sequence[PlannedRow], order: ExperimentOrder[SafetyPlan], show: Show, experiment: Experiment
) -> tuple[list[SafetyRow], ServerBinary]:
    """Look at them, one after the other, until a signal: the rows, and which server it was."""
    rows: list[SafetyRow] = []
    plan = order.plan
    with (
        start_fleet(INSTANCES, "none", server=find_server(order.server)) as fleet,
        tempfile.TemporaryDirectory(prefix="safety-", dir=fleet.folder) as scratch,
    ):
        setup = RowSetup(
            fleet, plan.seed, plan.quick, order.server, Path(scratch), order.run_id,
            is_over=lambda: experiment.is_over,
        )  # fmt: skip
        with experiment.cuttable():  # the row that is cut is no row
            for number, one in enumerate(planned, 1):
                show(f"{one.part}: row {number} of {len(planned)}, {one.recipe}, {one.fault}")
                began_s = time.monotonic()
                rows.append(one.row(look(one, setup), time.monotonic() - began_s))
                if experiment.is_over:
                    break  # whoever was told has swallowed it
        return rows, fleet.server
