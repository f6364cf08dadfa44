"""Defines the commands `lockbench compare` and `lockbench gate`: *stored results, scenarios,
recipes or revisions → ratios and one verdict*.

A command refuses wrong options before it starts servers or load. A missing side is a usage error
and leads to exit code 2. A missing side never leads to exit code 4, because exit code 4 means
noise. A comparison also measures the noise. For this purpose, the comparison runs the first side
twice in every round (A/A).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bench.errors import UsageError
from bench.frame.experiment import measured
from bench.frame.hosts import hosts_options, led
from bench.frame.options import (
    KEY,
    METRIC,
    RECIPE,
    Command,
    Options,
    Read,
    ScenarioPlace,
    Values,
    given_options,
    run_options,
    scenario_options,
    swept,
    together,
)
from bench.frame.outputs import Outputs
from bench.scenario import Scenario, load
from bench.scenario.quantity import nearest, parse_share

if TYPE_CHECKING:
    from bench.experiments.compare.pairs import Side
    from bench.experiments.compare.result import ComparisonResult, Kind
    from bench.experiments.compare.sides import Named
    from bench.gates.threshold import Metric
    from bench.run.experiment import Done

PAIRS = {"compare": 10, "gate": 24}
# A gate judges these figures. The first list is for a closed loop, and the second list is for an
# open loop.
CLOSED = ("rate", "acquire.p50", "acquire.success", "cost.client_cpu_us_per_cycle")
OPEN = ("acquire.p50", "acquire.success")


@dataclass(frozen=True, slots=True)
class ComparisonOptions(Options):
    """The options that `compare` and `gate` share. The class does not contain the options for the
    scenario and the outputs. `variables` holds the names of the settings in which the sides may
    differ."""

    pairs: int
    tolerance: float
    metrics: Sequence[str]
    variables: Sequence[str]
    thresholds: Sequence[str]
    expect_workers: int | None
    allow_missing: bool
    allow_skipped: bool
    server: str | None


def _share(text: str) -> float:
    """Parse a share like 10% or 0.1. Raises ValueError."""
    whole = 100 if text.endswith("%") else 1
    return parse_share(text.removesuffix("%"), 0, whole, "share") / whole


def _options(command: Command, kind: Kind) -> Command:
    options = together(
        click.option(
            *("--pairs", "--repeats", "pairs"),
            metavar="N",
            type=click.IntRange(1, 1000),
            default=PAIRS[kind],
            help="the largest number of pairs; a gate stops as soon as its answer is certain  "
            f"[{PAIRS[kind]}]",
        ),
        click.option(
            "--tolerance",
            type=Read("SHARE", _share),
            default="10%",
            help="how much worse a candidate may be  [10%]",
        ),
        click.option(
            "--metric",
            "metrics",
            metavar="M",
            type=METRIC,
            multiple=True,
            help="judge by this metric (repeatable)",
        ),
        click.option(
            "--variable",
            "variables",
            metavar="KEY",
            type=KEY,
            multiple=True,
            help="a setting that may differ between the sides; KEY=A,B makes one side for each "
            "value",
        ),
        hosts_options,
        scenario_options("recipe", usual={"duration": "1.5s at most", "warmup": "0.3s at most"}),
        run_options(kind),
    )
    return options(command)


@click.argument("things", metavar="[A B …]", type=click.Path(), nargs=-1)
@click.option(
    "--recipe",
    "recipes",
    metavar="NAME",
    type=RECIPE,
    multiple=True,
    help="run this recipe as one more side (repeatable)",
)
@partial(_options, kind="compare")
def compare(
    outputs: Outputs, things: tuple[str, ...], recipes: tuple[str, ...], **values: object
) -> Done[ComparisonResult]:
    """Compare two or more locks. Which lock is faster, by how much, and how certain is the answer?

    For each metric, the table shows a ratio with its 95 % interval, and the noise of two equal runs
    on this machine. The table also shows one of these words: better, worse, same (within the
    tolerance) or inconclusive.
    """
    from bench.experiments.compare.sides import Named, is_stored, opened, read_named

    named_things = [
        *(read_named(text, Path()) for text in things),
        *(Named(name, "recipe") for name in recipes),
    ]
    terms = ComparisonOptions.of(values)
    choices = swept("--variable", [text for text in terms.variables if "=" in text])
    if len(named_things) * len(choices) < 2:
        raise UsageError(
            "name at least two things to compare: result folders, scenario files or --recipe"
        )
    terms = replace(terms, variables=[text.partition("=")[0].strip() for text in terms.variables])
    if is_stored(named_things):
        if any(choices):
            raise UsageError(
                "option --variable KEY=A,B: stored results are not run again with other values; "
                "name scenarios"
            )
        return _stored("compare", named_things, outputs, terms)
    sides: list[Side] = []
    written = given_options(values, quiet=outputs.quiet)
    with ExitStack() as stack:
        for choice in choices:
            options = written | choice
            for side in stack.enter_context(
                opened(named_things, partial(_scenario, options), options)
            ):
                words = (
                    [*choice.values()]
                    if choice and len(named_things) == 1
                    else [side.label, *choice.values()]
                )
                sides.append(replace(side, label=" ".join(words)))
        return _now("compare", sides, outputs, terms, values)


@click.argument("scenario", required=False, type=ScenarioPlace())
@click.option(
    "--baseline",
    metavar="X",
    type=click.Path(),
    default="",
    help="the reference side; the gate fails if the candidate is worse than this side",
)
@click.option(
    "--candidate",
    metavar="Y",
    type=click.Path(),
    default="",
    help="the side to judge  [the code in this folder, if the baseline is a revision]",
)
@click.option(
    "--recipe", metavar="NAME", type=RECIPE, default=None, help="which lock to load  [redlock]"
)
@click.option(
    "--repo",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=Path(),
    help="the git repository of the revisions  [.]",
)
@partial(_options, kind="gate")
def gate(
    outputs: Outputs,
    scenario: Path | None,
    baseline: str,
    candidate: str,
    repo: Path,
    **values: object,
) -> Done[ComparisonResult]:
    """Find out whether a change made the lock slower. The answer is PASS (0), FAIL (1) or
    INCONCLUSIVE (4).

    The gate runs two scenarios, revisions or installed versions in turns on equal servers until the
    answer is certain. PASS means that the interval of the change ends within the tolerance. FAIL
    means that the candidate is certainly worse, and that its measured change exceeds the tolerance.
    Commands, bytes, round trips and connections per acquire must not grow at all. A stored run
    contains only averages of these counts. So a gate of stored runs fails if the growth is certain
    and above 1 %.

    SCENARIO.toml is the load for revisions and installed versions.
    """
    from bench.experiments.compare.sides import Named, is_stored, opened, read_named

    if not baseline:
        raise UsageError("the baseline is missing; name the reference side with --baseline")
    named_things = [read_named(baseline, repo)]
    if candidate:
        named_things.append(read_named(candidate, repo))
    elif named_things[0].kind in ("revision", "library"):
        named_things.append(Named("the code here", "here"))
    else:
        raise UsageError("the candidate is missing; name the side to judge with --candidate")
    terms = ComparisonOptions.of(values)
    if is_stored(named_things):
        return _stored("gate", named_things, outputs, terms)
    options = given_options(values, quiet=outputs.quiet)
    with opened(named_things, partial(_scenario, options, load_of=scenario), options) as sides:
        return _now("gate", sides, outputs, terms, values)


def _now(
    kind: Kind, sides: list[Side], outputs: Outputs, terms: ComparisonOptions, values: Values
) -> Done[ComparisonResult]:
    from bench.experiments.compare.experiment import compare_now
    from bench.experiments.compare.judge import CPU_SHARE, gate_confidence, gate_looks
    from bench.experiments.compare.pairs import Comparison, take_turns
    from bench.experiments.compare.sides import require_declared, scenario_settings
    from bench.measure.statistics import least_pairs

    if terms.expect_workers and any(side.python_path for side in sides):
        raise UsageError(
            "option --expect-workers: each host runs its own installed lockbench and cannot "
            "run another revision or version; use one host, or compare scenarios or recipes"
        )
    scenarios, bind = led([side.scenario for side in sides], values, quiet=outputs.quiet)
    sides = [
        replace(side, scenario=scenario) for side, scenario in zip(sides, scenarios, strict=True)
    ]
    first = sides[0]
    pairs = terms.pairs
    is_gate = kind == "gate"
    judged, shown = _metrics(kind, terms.metrics, first.scenario)
    if is_gate and pairs < (least := least_pairs(gate_confidence(len(judged)))):
        raise UsageError(
            f"option --pairs: {pairs} pairs are too few for an answer; this number of metrics "
            f"needs at least {least}"
        )
    if terms.variables:
        settings = [scenario_settings(side.scenario.shown()) for side in sides]
        require_declared(settings, [side.label for side in sides], terms.variables)
    if not is_gate:
        sides.append(replace(first, label=f"{first.label} again", is_noise=True))
    plan = Comparison(
        kind,
        sides,
        judged,
        shown,
        terms.tolerance,
        first.scenario.seed,
        pairs,
        looks=gate_looks(pairs, len(judged)) if is_gate else (),
        allow_missing=terms.allow_missing,
        allow_skipped=terms.allow_skipped,
        bind=bind,
    )
    # The stricter limit on CPU applies only to the default figures. Figures that the user names get
    # the --tolerance.
    if is_gate and not terms.metrics and take_turns(plan):
        plan = replace(plan, cpu_share=CPU_SHARE)
    return measured(kind, plan, outputs, compare_now, server=terms.server)


def _stored(
    kind: Kind, named_things: Sequence[Named], outputs: Outputs, terms: ComparisonOptions
) -> Done[ComparisonResult]:
    if terms.expect_workers:
        raise UsageError(
            "option --expect-workers: stored results are not run again; leave the option out, or "
            "name scenarios"
        )
    from bench.experiments.compare.experiment import compare_stored
    from bench.experiments.compare.judge import COUNTED
    from bench.experiments.compare.pairs import Comparison, Side
    from bench.experiments.compare.sides import (
        read_series,
        require_alike,
        rounds_of,
    )
    from bench.gates.threshold import find_metric, read_thresholds
    from bench.run.short import require_earned

    series = [read_series(one.where) for one in named_things]
    sides = [
        Side(one.label, results[0].scenario)
        for one, results in zip(named_things, series, strict=True)
    ]
    first = sides[0].scenario
    judged, shown = _metrics(kind, terms.metrics, first)
    require_alike(series, [side.label for side in sides], terms.variables)
    require_earned(kind, series, [side.label for side in sides])
    rounds = rounds_of(series, read_thresholds(terms.thresholds))
    # Stored runs hold only averages of the counted costs, so a gate judges these averages.
    if kind == "gate":
        counted = [metric for metric in map(find_metric, COUNTED) if any(rounds.values(0, metric))]
        judged = tuple(dict.fromkeys((*judged, *counted)))
        shown = tuple(metric for metric in shown if metric not in judged)
    plan = Comparison(kind, sides, judged, shown, terms.tolerance, first.seed, rounds.finished)
    return measured(
        kind,
        plan,
        outputs,
        lambda order, _show: compare_stored(order, rounds),
        server=terms.server,
    )


def _metrics(
    kind: Kind, names: Sequence[str], load: Scenario
) -> tuple[tuple[Metric, ...], tuple[Metric, ...]]:
    """Return two groups of metrics. The command judges the metrics of the first group. It shows the
    metrics of the second group without a verdict. No metric occurs twice. Raises UsageError for a
    wrong name."""
    from bench.gates.threshold import find_metric, shown_at

    shown = shown_at("compare")
    usual = [metric.name for metric in shown]
    comparable = [metric.name for metric in shown_at("several")]
    if kind == "gate":
        usual = [*(CLOSED if load.rate_per_s is None else OPEN)]
    judged = tuple(dict.fromkeys(find_metric(name) for name in names or usual))
    for metric in judged:
        if metric.name not in comparable:
            some = nearest(metric.name, comparable) or f"; compared are {', '.join(usual)}"
            raise UsageError(f"option --metric: lockbench cannot compare {metric.name}{some}")
    others = [] if kind == "compare" else [metric for metric in shown if metric not in judged]
    return judged, tuple(others)


def _scenario(options: Mapping[str, object], one: Named, load_of: Path | None = None) -> Scenario:
    """Return the scenario of the side `one`, with the values from `options`. If the side is a
    scenario file, the function loads this file. Otherwise the function loads the file `load_of`.
    Raises UsageError."""
    from bench.gates.threshold import read_thresholds
    from bench.recipes.registry import find_recipe

    path = one.where if one.kind == "scenario" else load_of
    more = {"recipe": one.label} if one.kind == "recipe" else {}
    scenario = load(path, {**options, **more}, lambda name: find_recipe(name).about.usual)
    read_thresholds(scenario.thresholds)
    recipe = find_recipe(scenario.recipe)
    recipe.require(scenario.instances, scenario.pause, scenario.capacity, shared=scenario.shared)
    return scenario
