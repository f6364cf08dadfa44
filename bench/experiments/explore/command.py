"""Defines the command `lockbench explore`. The command reads its options, and explores one or
more recipes.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from bench.frame.experiment import experiment_options, measured
from bench.frame.options import BUDGET, RECIPE
from bench.frame.outputs import Outputs

if TYPE_CHECKING:
    from bench.experiments.explore.result import ExploreResult
    from bench.run.experiment import Done


@click.option(
    "--recipe",
    "recipes",
    metavar="R",
    type=RECIPE,
    multiple=True,
    help="only this recipe (repeatable)  [all]",
)
@click.option(
    "--budget",
    metavar="TIME",
    type=BUDGET,
    help="search time for each recipe  [10s; no limit with --exhaustive]",
)
@click.option(
    "--schedules",
    metavar="N",
    type=click.IntRange(1),
    help="play this many schedules for each recipe, without a time limit",
)
@click.option(
    "--exhaustive",
    metavar="K",
    type=click.IntRange(0, 4),
    help="play every schedule with at most K changes, and no random schedules",
)
@click.option(
    "--processes",
    metavar="P",
    type=click.IntRange(1, 64),
    default=len(os.sched_getaffinity(0)),
    help="processes that search at once  [one per core]",
)
@experiment_options("explore")
def explore(
    outputs: Outputs,
    *,
    recipes: tuple[str, ...],
    budget: float | None,
    schedules: int | None,
    exhaustive: int | None,
    processes: int,
    seed: int,
    server: str | None,
) -> Done[ExploreResult]:
    """Search thousands of simulated schedules for a schedule that breaks a recipe. Show each step
    of the smallest schedule that the search found.

    Messages arrive late or are lost. Clients pause or die. Servers freeze, restart empty or die.
    Exit code 5 means that a schedule broke a recipe that must be safe. Exit code 4 means that no
    schedule broke a recipe with a known flaw.
    """
    from bench.experiments.explore.experiment import run_explore
    from bench.experiments.explore.result import ExplorePlan
    from bench.recipes.registry import all_recipes, find_recipe

    recipes = recipes or tuple(all_recipes())
    budget_s = budget or (10.0 if exhaustive is None else None)
    for recipe in recipes:
        # This line refuses a wrong name before any work starts.
        _ = find_recipe(recipe).about
    plan = ExplorePlan(
        recipes=tuple(dict.fromkeys(recipes)),
        budget_s=budget_s,
        schedules=schedules,
        exhaustive=exhaustive,
        processes=processes,
        seed=seed,
    )
    return measured("explore", plan, outputs, run_explore, server=server)
