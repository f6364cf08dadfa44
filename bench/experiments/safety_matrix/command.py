"""Defines the command `lockbench safety`. The command turns options into a judged matrix of recipes
and claims.

The command refuses an unknown name before any work starts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from bench.frame.experiment import experiment_options, measured
from bench.frame.options import RECIPE, Offered
from bench.frame.outputs import Outputs

if TYPE_CHECKING:
    from bench.experiments.safety_matrix.result import SafetyResult
    from bench.run.experiment import Done


def _claims() -> Iterable[str]:
    from bench.experiments.safety_matrix.experiment import CLAIMS

    return [name for name, _, _ in CLAIMS]


@click.option(
    "--recipe",
    "recipes",
    metavar="R",
    type=RECIPE,
    multiple=True,
    help="test only the rows of this recipe (repeatable)",
)
@click.option(
    "--claim",
    "claims",
    metavar="C",
    type=Offered(_claims),
    multiple=True,
    help="test only this claim (repeatable); a wrong name lists all claims",
)
@click.option(
    "--quick", is_flag=True, help="run a shorter search with fewer schedules and shorter TTLs"
)
@experiment_options("safety")
def safety(
    outputs: Outputs,
    *,
    recipes: tuple[str, ...],
    claims: tuple[str, ...],
    quick: bool,
    seed: int,
    server: str | None,
) -> Done[SafetyResult]:
    """Test each recipe with the faults that are known to break it, and say which recipes hold.

    Simulated schedules come first, and the claims about Redlock follow. Exit code 5 means that a
    recipe was not safe although it must be safe, or that a claim was violated. Exit code 4 means
    that a result differs from the expectation, for example because a known flaw did not appear.
    """
    from bench.experiments.safety_matrix.experiment import choose_cases, run_safety
    from bench.experiments.safety_matrix.result import SafetyPlan

    plan = SafetyPlan(recipes, claims, quick, seed)
    # This line refuses a wrong name before any work starts.
    choose_cases(plan.recipes, plan.claims)
    return measured("safety", plan, outputs, run_safety, server=server)
