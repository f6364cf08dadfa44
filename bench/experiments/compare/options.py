"""What `compare` and `gate` share: *options → a question, its runs, its files*.

Rules: what is wrong is refused before anything starts; progress goes to stderr, stdout holds the table, or with --json
the result and nothing else. How long it will take is said first. Source: README's command table.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bench.cli.options import given_options, scenario_options_without
from bench.cli.outputs import Outputs, output_options
from bench.errors import UsageError
from bench.gates.metric import Metric, find_metric
from bench.scenario import Scenario, load
from bench.scenario.quantity import duration_text

if TYPE_CHECKING:
    from bench.experiments.compare.experiment import Identity
    from bench.experiments.compare.pairs import PairsOrder, Side
    from bench.run.verdict import Done

SHOWN = (
    *("rate", "acquire.p50", "acquire.p99", "release.p50", "handoff.p50", "acquire.success"),
    *("cost.client_cpu_us_per_cycle", "cost.server_cpu_us_per_cycle"),
)
MOST_PAIRS = 1000
Command = TypeVar("Command", bound=Callable[..., Any])


class Share(click.ParamType[float]):
    """A share like 10% or 0.1, above 0 and below 1."""

    name = "SHARE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return it as a number."""
        if isinstance(value, float):
            return value
        try:
            share = float(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
        except ValueError:
            share = 0.0
        if not 0 < share < 1:
            self.fail(f"{value!r} is not a share above 0 and below 1 (write it like 10%)", param, ctx)
        return share


def comparing_options(command: Command, name: str, pairs: int) -> Command:
    """Give a click command the options of both; `pairs`: the default."""
    options = [
        click.option("--pairs", type=click.IntRange(1, MOST_PAIRS), default=pairs, help=f"rounds to run  [{pairs}]"),
        click.option("--tolerance", type=Share(), default="10%", help="how much worse is still the same  [10%]"),
        click.option("--metric", "metrics", metavar="M", multiple=True, help="judge by this figure (repeatable)"),
        click.option("--variable", "variables", metavar="KEY", multiple=True, help="a setting that is meant to differ"),
        scenario_options_without("recipe"),
        click.option("--server", metavar="PATH", help="the server program to start  [redis-server, valkey-server, …]"),
        click.option("--allow-missing", is_flag=True, help="go on when a minority of the targets cannot be reached"),
        click.option("--allow-skipped", is_flag=True, help="go on without faults that cannot take place here"),
        click.option(
            "--out",
            metavar="DIR",
            type=click.Path(path_type=Path),
            help=f"result folder  [results/<time>-{name}-<id>]",
        ),
        output_options,
        click.option("--json", "as_json", is_flag=True, help="print the result as JSON on stdout, nothing else"),
        click.option("--quiet", is_flag=True, help="no progress and no table"),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def read_scenario(path: Path | None, options: Mapping[str, object], recipe: str | None = None) -> Scenario:
    """Return the scenario of `path` under `options`, with another recipe if one is given. Raises UsageError."""
    from bench.gates.threshold import read_thresholds
    from bench.recipes.registry import find_recipe

    scenario = load(
        path,
        {**options, **({"recipe": recipe} if recipe else {})},
        lambda name: find_recipe(name).about.usual,
    )
    read_thresholds(scenario.thresholds)
    find_recipe(scenario.recipe).require(scenario.instances, scenario.pause)
    return scenario


def asked_metrics(names: Sequence[str], default: Sequence[str]) -> tuple[Metric, ...]:
    """Return the metrics to judge by, each once. Raises UsageError for an unknown one or one that is not recorded."""
    from bench.experiments.compare.pairs import RECORDED

    found = tuple(dict.fromkeys(find_metric(name) for name in names or default))
    for metric in found:
        if metric.name not in RECORDED:
            raise UsageError(f"option --metric: {metric.name} is not compared; compared are {', '.join(RECORDED)}")
    return found


def require_declared(sides: Sequence[Side], variables: Sequence[str]) -> None:
    """Where a variable was declared, refuse scenarios to run that differ in anything else. Raises UsageError."""
    from bench.experiments.compare.stored import require_alike

    if variables:
        scenarios = [[{"scenario": side.scenario.to_json(), "environment": {}}] for side in sides]
        require_alike(scenarios, [side.label for side in sides], variables)


def options_of(values: Mapping[str, Any]) -> dict[str, object]:
    """The scenario options that were written."""
    return given_options({**values, "recipe": None})


def answered(
    values: Mapping[str, Any], name: str, seed: int, answer: Callable[[Identity, Callable[[str], None]], Done]
) -> int:
    """Make the result folder, have the question answered, show and store it; return the exit code."""
    from bench.cli.folder import result_folder
    from bench.cli.part_line import PartLine
    from bench.cli.showing import show
    from bench.experiments.compare.experiment import Identity
    from lockcore.mask import masked_command

    outputs = Outputs.of(values)
    outputs.require_writable()
    run_id = secrets.token_hex(4)
    folder = result_folder(values["out"], name, run_id)
    command = ["lockbench", *masked_command(sys.argv[1:])]
    identity = Identity(run_id, command, folder.path, seed)
    line = PartLine(quiet=values["quiet"])
    try:
        done = answer(identity, line)
    finally:
        line.clear()
        folder.remove_if_empty()
    return show(done, outputs, values)


def say_time(order: PairsOrder, *, quiet: bool) -> None:
    """Say on stderr what is going to be run and how long that takes."""
    from bench.experiments.compare.pairs import BOTH_WAYS

    if quiet:
        return
    first, minutes = order.sides[0].scenario, order.about_s / 60
    about = f"{minutes:.0f} minutes" if minutes >= 2 else f"{order.about_s:.0f} s"
    rounds = "1 round" if order.pairs == 1 else f"{order.pairs} rounds"
    runs = f"{rounds} of {BOTH_WAYS * len(order.sides)} runs, each {duration_text(first.duration_ms)}"
    print(f"{runs} after {duration_text(first.warmup_ms)} of warm-up: about {about} in all", file=sys.stderr)
