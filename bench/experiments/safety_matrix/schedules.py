"""The deterministic rows of the safety matrix: *recipe × schedule → was the flaw seen, or absent, as it must be*.

Rules: a schedule that kills servers gets its own. A recipe that is safe must keep exclusion even in the schedule that
shows what else it gets wrong. A full look plays every schedule three times, and all must say the same.
Source: bench.recipes.schedules.table.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from bench.experiments.safety_matrix.row import Case, Finding, Ground, broken_rules, find
from bench.measure.expectation import AS_EXPECTED
from bench.recipes.registry import find_recipe
from bench.recipes.schedules.stage import Schedule, Shown
from bench.recipes.schedules.table import SCHEDULES, play

ROUNDS = 3


def schedule_cases() -> Iterator[Case]:
    """Every recipe with every schedule that says something of it."""
    for schedule in SCHEDULES.values():
        for recipes, flawed in ((schedule.shown_by, True), (schedule.absent_in, False)):
            for recipe in recipes:
                expected = "the flaw" if flawed else "no flaw"
                look = partial(look_at, schedule, recipe, flawed)
                yield Case("schedule", recipe, schedule.name, expected, schedule.looks_for, look)


def look_at(schedule: Schedule, recipe: str, flawed: bool, ground: Ground) -> Finding:
    """Play `schedule` with `recipe`, which must show the flaw (`flawed`) or must not."""
    for _ in range(1 if ground.quick else ROUNDS):
        shown = play(schedule, recipe, None if schedule.harms else ground.fleet)
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
        safety=shown.report.to_json(),
    )
