"""The safety matrix: *recipes, claims → each row looked at, judged, written*.

    schedule   recipe × simulated schedules                lockbench explore
    load       recipe × short load under pauses and faults  the oracle over every operation
    claim      what is claimed of Redlock and persistence   a figure each

Rules: own servers on loopback; deterministic rows first. A signal ends it at once: the row it cuts is dropped, the rows
before it are kept, judged and written, and nothing else stays.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from bench.experiments.explore import search_process
from bench.experiments.explore.experiment import explored
from bench.experiments.explore.result import ExplorePlan
from bench.experiments.safety_matrix.claims import claim_cases
from bench.experiments.safety_matrix.loads import load_cases
from bench.experiments.safety_matrix.result import Finding, SafetyPlan, SafetyResult, SafetyRow
from bench.experiments.safety_matrix.row import (
    SKIPPED,
    PlannedRow,
    RowSetup,
    cannot,
    judge_rows,
    look,
)
from bench.measure.expectation import NOT_KNOWN
from bench.measure.run_result import OwnFleet
from bench.recipes.registry import RECIPES, WITHDRAWN
from bench.run.experiment import Done, Experiment, ExperimentOrder, Show
from bench.scenario.quantity import require_known
from bench.topology.child import Child
from bench.topology.fleet import start_fleet
from bench.topology.server import ServerBinary, find_server

QUICK, FULL = 250, 2_000  # schedules
ABOUT = "two leases valid at once: `lockbench explore --recipe …` shows the schedule"


def explored_cases() -> Iterator[PlannedRow]:
    """Every recipe of ours, in simulated schedules."""
    for recipe, entry in RECIPES.items():
        expected = "no flaw" if entry.about.safe else "the flaw"
        yield PlannedRow("schedule", recipe, "explored", expected, ABOUT, partial(look_at_recipe, recipe))


def look_at_recipe(recipe: str, setup: RowSetup) -> Finding:
    """Explore `recipe`, in a process of its own: the smallest schedule that breaks it, or how many did not."""
    plan = ExplorePlan((recipe,), 0.0, QUICK if setup.quick else FULL, None, 1, setup.seed)
    with Child("a search process", search_process.__name__) as searcher:
        row = explored(recipe, plan, [searcher], lambda _progress: None, search_process.SearchAnswer())
    figures: dict[str, float | None] = {"schedules": row.schedules, "tested": row.tested}
    if row.broken:
        figures["steps"] = len(row.broken.steps) - 1
    seen = NOT_KNOWN if row.verdict == NOT_KNOWN else "the flaw" if row.broken else "no flaw"
    return Finding(seen, row.verdict, figures, row.reason or (row.broken.rule if row.broken else None))


INSTANCES = 3


def all_cases() -> list[PlannedRow]:
    """Every row there is, deterministic ones first."""
    withdrawn = (
        PlannedRow("schedule", name, "none", "nothing", why, cannot(SKIPPED, why)) for name, why in WITHDRAWN.items()
    )
    return [*explored_cases(), *withdrawn, *load_cases(), *claim_cases()]


def choose_cases(recipes: Sequence[str] = (), claims: Sequence[str] = ()) -> list[PlannedRow]:
    """The rows of these recipes and claims; of all when none is named. Raises UsageError with the nearest name."""
    cases = all_cases()
    require_known("recipe", recipes, (*RECIPES, *WITHDRAWN))
    require_known("claim", claims, dict.fromkeys(case.fault for case in cases if case.part == "claim"))
    if not recipes and not claims:
        return cases
    return [case for case in cases if (case.fault in claims if case.part == "claim" else case.recipe in recipes)]


def run_safety(order: ExperimentOrder[SafetyPlan], show: Show) -> Done[SafetyResult]:
    """Look at all rows of `order`, showing progress; the result is written by then, if it can be.

    Raises BenchError when nothing can be looked at here, KeyboardInterrupt when it was cut before the first row's end.
    """
    plan = order.plan
    planned = choose_cases(plan.recipes, plan.claims)
    with Experiment(order) as experiment:
        rows, server = _rows(planned, order, show, experiment)
        experiment.require(rows)
        result = SafetyResult(
            **experiment.header(seed=plan.seed, interrupted=len(rows) < len(planned)),
            fleet=OwnFleet(server=server),
            conditions=plan,
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
