"""The rows that are explored: *a recipe, or rules that lockcore must keep → simulated schedules, does one break them*.

What must hold whatever happens needs no real time: pauses, late and lost messages, stops and restarts are those of
`lockbench explore`, which shows the schedule that breaks it.
"""

from collections.abc import Iterator, Mapping
from functools import partial

from bench.experiments.explore.experiment import explored
from bench.experiments.explore.result import ExploredRow, ExplorePlan
from bench.experiments.explore.search import Hunt
from bench.experiments.safety_matrix.result import Finding
from bench.experiments.safety_matrix.row import PlannedRow, RowSetup, find
from bench.measure.expectation import NOT_KNOWN
from bench.recipes.registry import RECIPES

QUICK, FULL = 250, 2_000  # schedules
ABOUT = "two leases valid at once: `lockbench explore --recipe …` shows the schedule"


def explored_cases() -> Iterator[PlannedRow]:
    """Every recipe of ours, in simulated schedules."""
    for recipe, entry in RECIPES.items():
        expected = "no flaw" if entry.about.safe else "the flaw"
        yield PlannedRow("schedule", recipe, "explored", expected, ABOUT, partial(look_at_recipe, recipe))


def look_at_recipe(recipe: str, setup: RowSetup) -> Finding:
    """Explore `recipe`: the smallest schedule that breaks it, or how many did not."""
    row, _ = _explored(recipe, setup)
    figures: dict[str, float | None] = {"schedules": row.schedules, "tested": row.tested}
    if row.broken:
        figures["steps"] = len(row.broken.steps) - 1
    seen = NOT_KNOWN if row.verdict == NOT_KNOWN else "the flaw" if row.broken else "no flaw"
    return Finding(seen, row.verdict, figures, row.reason or (row.broken.rule if row.broken else None))


def look_at_rules(wanted: Mapping[str, int], setup: RowSetup) -> Finding:
    """Explore lockcore: none of its rules may be broken where what a claim is about came about so often, `wanted`."""
    row, seen = _explored("redlock", setup)
    figures = {"schedules": row.schedules, **{name.replace(" ", "_"): seen.get(name, 0) for name in wanted}}
    figures["broken_rules"] = int(row.broken is not None)
    needs = {f"at least {least} × {name}": seen.get(name, 0) >= least for name, least in wanted.items()}
    needs["the schedules were played"] = row.broken is not None or row.verdict != NOT_KNOWN
    rule = row.broken.rule if row.broken else row.reason
    return find(("confirmed", "refuted"), figures, needs, holds=True, broken=row.broken is not None, reason=rule)


def _explored(recipe: str, setup: RowSetup) -> tuple[ExploredRow, Mapping[str, int]]:
    """What came of it; and how often what came about."""
    plan, total = ExplorePlan((recipe,), 0.0, QUICK if setup.quick else FULL, None, 1, setup.seed), Hunt()
    return explored(recipe, plan, [setup.searcher], lambda _progress: None, total), total.seen
