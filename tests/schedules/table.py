"""All schedules by name: *name → course of events, the recipes that must show its flaw, those that must not*.

Rules: whether a flaw is seen does not depend on luck: the same answer 20 times out of 20.
"""

from dataclasses import replace

from bench.experiments.safety_matrix.result import Finding
from bench.experiments.safety_matrix.row import RowSetup, find
from bench.measure.expectation import AS_EXPECTED
from bench.measure.run_result import SafetyReport
from bench.recipes.registry import find_recipe
from bench.topology.fleet import Fleet, start_fleet
from tests.schedules import acquiring, holding
from tests.schedules.stage import Schedule, Shown, Stage

SCHEDULES: dict[str, Schedule] = {
    found.name: found
    for module in (acquiring, holding)
    for found in vars(module).values()
    if isinstance(found, Schedule)
}


def play(schedule: Schedule, recipe: str, fleet: Fleet | None = None) -> Shown:
    """Play `schedule` with `recipe` on `fleet`, or on one of its own. Raises BenchError and TimeoutError."""
    entry = find_recipe(recipe)
    if fleet is not None:
        with Stage(entry, fleet) as stage:
            return replace(schedule.play(stage), circumstances=stage.circumstances())
    with start_fleet(entry.about.most or schedule.instances, "none") as own:
        return play(schedule, recipe, own)


ROUNDS = 3


def broken_rules(report: SafetyReport) -> str | None:
    """What of exclusion was broken, in words, or None. It is what a safe recipe must never show."""
    counts = {
        "service faults": report.service_faults,
        "grants after their end": report.granted_invalid,
        "foreign deletes": report.foreign_deletes,
        "unexplained": report.unexplained,
    }
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count) or None


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
