"""`lockbench capacity`: *options → the largest rate within an SLO, and what limits it*.

Rules: what is wrong in the options is refused before anything starts; progress goes to stderr, stdout holds the tables,
or with --json the result and nothing else.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.cli.experiment import carry_out, experiment_options
from bench.cli.options import FiniteRange, Grouped, Read, given_options, scenario_options
from bench.errors import UsageError
from bench.scenario import Scenario, load
from bench.scenario.keys import BY_NAME
from bench.scenario.quantity import nearest, parse_duration

if TYPE_CHECKING:
    from bench.experiments.capacity.judge import CapacityPlan

FULL = {"duration": "10s", "warmup": "2s"}
QUICK = {"duration": "3s", "warmup": "1s"}
FULL_BUDGET, QUICK_BUDGET = "12m", "4m"
SEARCHED = {
    "rate": "capacity searches the rate",
    "faults": "capacity is measured without faults",
    "thresholds": "what must hold is said by --slo",
}
NOT_SWEPT = {*SEARCHED, "targets", "pause", "seed", "duration", "warmup"}


def _budget_s(text: str) -> float:
    if not (ms := parse_duration(text)):
        raise ValueError("nothing can be measured in no time")
    return ms / 1000


@click.command(
    cls=Grouped,
    epilog="A point takes about 6 minutes (12 at most), with --quick 2 (4); servers are started and stopped.",
)
@click.argument("scenario", required=False, type=click.Path(path_type=Path))
@click.option("--slo", metavar="EXPR", multiple=True, required=True, help="like 'acquire.p99 < 10ms' (repeatable)")
@click.option("--target-rate", metavar="R", type=FiniteRange(min=0, min_open=True), help="say the headroom at R/s")
@click.option(
    "--sweep",
    "sweeps",
    metavar="KEY=A,B",
    multiple=True,
    help="a table over these values of a scenario key (repeatable)",
)
@click.option(
    "--callers/--no-callers", default=None, help="sweep the callers and fit a scaling law  [unless there is --sweep]"
)
@click.option(
    "--budget",
    metavar="DURATION",
    type=Read("DURATION", _budget_s),
    help=f"how long a point may take; what was not measured then is said  [{FULL_BUDGET}; --quick {QUICK_BUDGET}]",
)
@click.option("--quick", is_flag=True, help=f"a glance: probes of {QUICK['duration']}  [{FULL['duration']}]")
@scenario_options()
@experiment_options("capacity", seed=None)
def capacity(scenario: Path | None, **values: Any) -> int:
    """The largest rate of acquires that keeps an SLO, with what limits it next.

    Open loop: doubling until the SLO is missed, bisecting to within 5 %, confirming three times. Exit code 4: the load
    generator was the limit (the capacity is "at least"), or nothing could be confirmed; 1: no rate keeps the SLO.
    """
    from bench.experiments.capacity.experiment import run_capacity

    return carry_out("capacity", plan_of(scenario, values), values, run_capacity)


def plan_of(path: Path | None, values: dict[str, Any]) -> CapacityPlan:
    """Return what the options ask for. Raises UsageError, naming the option and what it takes."""
    from bench.experiments.capacity.judge import CapacityPlan, SweepPoint
    from bench.experiments.capacity.probe import read_slo

    slo = read_slo(values["slo"])
    given = given_options(values)
    _load(path, given, open_loop="rate" not in given)  # says what is wrong with it, and where
    written = {*given, *(tomllib.loads(path.read_text(encoding="utf-8")) if path else ())}
    for name, why in SEARCHED.items():
        if name in written:
            raise UsageError(f"{BY_NAME[name].option}: {why}; take it out")
    usual = QUICK if values["quick"] else FULL
    given = {**{name: text for name, text in usual.items() if name not in written}, **given}
    swept = [_sweep(text) for text in values["sweeps"]]
    choices = [dict(choice) for choice in product(*swept)]
    points = tuple(SweepPoint(_load(path, {**given, **choice}), choice) for choice in choices)
    callers = values["callers"] if values["callers"] is not None else not swept
    return CapacityPlan(
        points,
        slo,
        values["target_rate"],
        fixed_users="users" in written or any("users" in point.variables for point in points),
        callers=callers,
        seed=points[0].scenario.seed,
        budget_s=values["budget"] or _budget_s(QUICK_BUDGET if values["quick"] else FULL_BUDGET),
    )


def _load(path: Path | None, given: Mapping[str, object], *, open_loop: bool = True) -> Scenario:
    """The scenario, whose rate is the search's: with some rate, so that it is judged as an open loop's."""
    from bench.recipes.registry import find_recipe

    some_rate = {"rate": "1"} if open_loop else {}
    scenario = load(path, {**given, **some_rate}, lambda recipe: find_recipe(recipe).about.usual)
    return replace(scenario, rate_per_s=None)


def _sweep(text: str) -> list[tuple[str, str]]:
    """The values of one --sweep, as pairs of key and text."""
    name, equals, values = text.partition("=")
    name = name.strip()
    if not equals or not values.strip():
        raise UsageError(f"option --sweep: {text!r} is no sweep (write it like instances=1,3,5)")
    if name not in BY_NAME:
        raise UsageError(f"option --sweep: there is no key {name}{nearest(name, BY_NAME)}")
    if name in NOT_SWEPT:
        raise UsageError(f"option --sweep: {name} cannot be swept")
    return [(name, value.strip()) for value in values.split(",")]
