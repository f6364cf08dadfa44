"""Defines the command `lockbench capacity`: *options → the highest rate that keeps an SLO, and what
limits that rate*.

The command refuses wrong options before it starts servers or load. The command writes its progress
to stderr. The command writes its tables to stdout. With --json it writes only the result to stdout.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.errors import UsageError
from bench.frame.experiment import experiment_options, measured
from bench.frame.hosts import hosts_options, led
from bench.frame.options import (
    BUDGET,
    METRIC,
    FiniteRange,
    Offered,
    Options,
    ScenarioPlace,
    Values,
    budget_s,
    given_options,
    scenario_options,
    swept,
)
from bench.frame.outputs import Outputs
from bench.scenario import Scenario, load
from bench.scenario.keys import BY_NAME, document_of
from bench.scenario.quantity import duration_text

if TYPE_CHECKING:
    from bench.experiments.capacity.judge import CapacityPlan
    from bench.experiments.capacity.result import CapacityResult
    from bench.run.experiment import Done

FULL = {"duration": "8s", "warmup": "2s"}
QUICK = {"duration": "2s", "warmup": "500ms"}
FULL_BUDGET = "6m"
QUICK_BUDGET = "2m"
SEARCHED = {
    "rate": "capacity searches the rate",
    "faults": "capacity is measured without faults",
    "thresholds": "use --slo for the limits that must hold",
}
NOT_SWEPT = {*SEARCHED, "targets", "pause", "seed", "duration", "warmup"}


_SLO = "a limit that the load must keep, such as 'acquire.p99 < 10ms' (repeatable)"
_OVER = "find the capacity for each of these values (repeatable)"
_SWEPT = Offered(lambda: [f"{name}=" for name in BY_NAME if name not in NOT_SWEPT])


@dataclass(frozen=True, slots=True)
class CapacityOptions(Options):
    """The options of the command. `target_rate` is in acquires/s. `budget` is the time in s for the
    search of one capacity. If `budget` is None, the search has the default time."""

    slo: Sequence[str]
    target_rate: float | None = None
    sweeps: Sequence[str] = ()
    budget: float | None = None
    quick: bool = False


@click.argument("scenario", required=False, type=ScenarioPlace())
@click.option("--slo", metavar="EXPR", type=METRIC, multiple=True, required=True, help=_SLO)
@click.option(
    "--target-rate",
    metavar="R",
    type=FiniteRange(min=0, min_open=True),
    help="the rate that you plan for, in acquires per second",
)
@click.option("--sweep", "sweeps", metavar="KEY=A,B", type=_SWEPT, multiple=True, help=_OVER)
@click.option(
    "--budget",
    metavar="DURATION",
    type=BUDGET,
    help=f"time for the search of each capacity  [{FULL_BUDGET}; --quick {QUICK_BUDGET}]",
)
@click.option(
    "--quick",
    is_flag=True,
    help="use short probes, even if the scenario file sets a longer duration",
)
@hosts_options
@scenario_options(
    refused=SEARCHED, usual={key: f"{FULL[key]}; --quick {QUICK[key]}" for key in FULL}
)
@experiment_options("capacity", seed=None)
def capacity(outputs: Outputs, scenario: Path | None, **values: Any) -> Done[CapacityResult]:
    """Find the highest rate of acquires that keeps your SLO, and the resource that limits this
    rate. The rate has a 95 % interval.

    The command makes open-loop probes at the rates at which its model is least sure. The search
    stops when the interval is within ±10 % or when the time budget is used up. Exit code 1 means
    that no rate keeps the SLO. Exit code 4 means that the interval is wider than ±25 %, or that the
    load process reached its limit first. If the load process reached its limit first, the command
    reports only that the capacity is at least a certain rate.
    """
    from bench.experiments.capacity.experiment import run_capacity

    plan = plan_of(scenario, CapacityOptions.of(values), values, quiet=outputs.quiet)
    return measured("capacity", plan, outputs, run_capacity, server=values["server"])


def plan_of(
    path: Path | None, search: CapacityOptions, values: Values, *, quiet: bool = False
) -> CapacityPlan:
    """Return the plan of the search that the user's options describe. `search` has the options of
    the search, and `values` has the options for the scenario and the hosts. Raises UsageError for a
    wrong option. The error names the option and its legal values."""
    from bench.experiments.capacity.judge import CapacityPlan, SweepPoint
    from bench.experiments.capacity.probe import read_slo

    slo = read_slo(search.slo)
    options = given_options(values, quiet=quiet)
    # This line loads the scenario early. So a wrong option is refused here, with a message that
    # names the option's place.
    _load(path, options, open_loop="rate" not in options)
    written = {*options, *(document_of(path) if path else ())}
    for name, why in SEARCHED.items():
        if name in written:
            raise UsageError(f"{BY_NAME[name].option}: {why}; take it out")
    # --quick overrides the duration in a scenario file, because that duration is meant for a whole
    # run.
    usual, own_keys = (QUICK, {*options}) if search.quick else (FULL, written)
    options = {**{name: text for name, text in usual.items() if name not in own_keys}, **options}
    choices = swept("--sweep", search.sweeps, NOT_SWEPT)
    swept_scenarios = [_load(path, {**options, **choice}) for choice in choices]
    scenarios, bind = led(swept_scenarios, values, quiet=quiet)
    points = tuple(
        SweepPoint(scenario, choice) for scenario, choice in zip(scenarios, choices, strict=True)
    )
    spend_s = search.budget or budget_s(QUICK_BUDGET if search.quick else FULL_BUDGET)
    _require_time(spend_s, scenarios)
    fixed = "users" in written or any("users" in choice for choice in choices)
    return CapacityPlan(points, slo, search.target_rate, fixed, spend_s, bind)


def _require_time(spend_s: float, scenarios: Sequence[Scenario]) -> None:
    """Raise UsageError if the budget is too short for one probe. Without this check, the user would
    wait until the budget is used up and then get no answer."""
    from bench.experiments.capacity.experiment import FIRST_OVERHEAD_S, RESERVE

    probe_ms = max(one.warmup_ms + one.duration_ms for one in scenarios)
    least_s = math.ceil((probe_ms / 1000 + FIRST_OVERHEAD_S) / (1 - RESERVE))
    if spend_s < least_s:
        raise UsageError(
            f"option --budget: {duration_text(spend_s * 1000)} is too short for one probe. A "
            f"probe takes {duration_text(probe_ms)} with its warm-up. One probe needs a budget of "
            f"{least_s}s, and an answer needs more. Raise --budget, or shorten --duration and "
            "--warmup (as --quick does)"
        )


def _load(path: Path | None, options: Mapping[str, object], *, open_loop: bool = True) -> Scenario:
    """Load and check the scenario, and return it without a rate. The search sets a rate for each
    run later. If `open_loop` is true, the scenario has a rate of 1 during the check, so the check
    uses the rules of an open loop."""
    from bench.recipes.registry import find_recipe

    some_rate = {"rate": "1"} if open_loop else {}
    scenario = load(path, {**options, **some_rate}, lambda recipe: find_recipe(recipe).about.usual)
    return replace(scenario, rate_per_s=None)
