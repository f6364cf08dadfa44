"""All schedules by name: *name → course of events, the recipes that must show its flaw, those that must not*.

Rules: whether a flaw is seen does not depend on luck: the same answer 20 times out of 20.
"""

from dataclasses import replace

from bench.recipes.registry import find_recipe
from bench.recipes.schedules import acquiring, holding
from bench.recipes.schedules.stage import Schedule, Shown, Stage
from bench.topology.fleet import Fleet, start_fleet

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
