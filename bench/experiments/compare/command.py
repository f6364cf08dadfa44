"""`lockbench compare` and `lockbench gate`: *stored results, scenarios, recipes, revisions → ratios, and one word*.

Rules: what is wrong is refused before anything starts; what was named and is not there is a mistake (2), never noise
(4). A comparison runs the first side once more in every round, as a measure of the noise (A/A).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.cli.experiment import carry_out, experiment_options
from bench.cli.hosts import hosts_options, led
from bench.cli.options import (
    KEY,
    METRIC,
    RECIPE,
    Command,
    Grouped,
    Read,
    ScenarioPlace,
    Values,
    given_options,
    scenario_options,
    swept,
    together,
)
from bench.errors import UsageError
from bench.gates.threshold import USUAL, Metric, find_metric, read_thresholds
from bench.scenario import Scenario, load
from bench.scenario.quantity import nearest

if TYPE_CHECKING:
    from bench.experiments.compare.pairs import Side
    from bench.experiments.compare.result import Kind
    from bench.experiments.compare.sides import Named

PAIRS = {"compare": 10, "gate": 24}
_PAIRS = {"compare": "rounds to run", "gate": "rounds to run at most; certain, it stops"}
_KEY = {"compare": "KEY[=A,B]", "gate": "KEY"}
_VARIABLE = {"compare": "what is meant to differ; each value is run as a side of its own", "gate": "what may differ"}
MOST_PAIRS = 1000
SHOWN = (
    *("rate", "acquire.p50", "acquire.p99", "release.p50", "handoff.p50", "acquire.success"),
    *("cost.commands_per_acquire", "cost.client_cpu_us_per_cycle", "cost.server_cpu_us_per_cycle"),
)
CLOSED = ("rate", "acquire.p50", "acquire.success", "cost.client_cpu_us_per_cycle")  # what a gate judges by
OPEN = ("acquire.p50", "acquire.success")


def _share(text: str) -> float:
    """A share like 10% or 0.1, above 0 and below 1, as a number. Raises ValueError."""
    with suppress(ValueError):
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        if 0 < share < 1:
            return share
    raise ValueError(f"{text!r} is not a share above 0 and below 1 (write it like 10%)")


SHARE = Read("SHARE", _share)


def _options(command: Command, kind: Kind) -> Command:
    options = together(
        click.option(
            *("--pairs", "--repeats", "pairs"), metavar="N", type=click.IntRange(1, MOST_PAIRS), default=PAIRS[kind],
            help=f"{_PAIRS[kind]}  [{PAIRS[kind]}]",
        ),
        click.option("--tolerance", type=SHARE, default="10%", help="how much worse is still the same  [10%]"),
        click.option("--metric", "metrics", metavar="M", type=METRIC, multiple=True, help="judge by it (repeatable)"),
        click.option("--variable", "variables", metavar=_KEY[kind], type=KEY, multiple=True, help=_VARIABLE[kind]),
        hosts_options,
        scenario_options("recipe", usual={"duration": "1.5s at most", "warmup": "0.3s at most"}),
        click.option("--allow-missing", is_flag=True, help="go on when a minority of the targets cannot be reached"),
        click.option("--allow-skipped", is_flag=True, help="go on without faults that cannot take place here"),
        experiment_options(kind, seed=None),
    )  # fmt: skip
    return options(command)


@click.command(cls=Grouped, epilog="A, B: results, folders of results, or scenarios; the first is compared with.")
@click.argument("things", metavar="[A B …]", type=click.Path(), nargs=-1)
@click.option("--recipe", "recipes", metavar="NAME", type=RECIPE, multiple=True, help="run it now (repeatable)")
@partial(_options, kind="compare")
def compare(things: tuple[str, ...], **values: Any) -> int:
    """Which is faster, by how much, and is it certain?

    Ratio per metric with a 95 % interval, the noise of two equal runs on this machine, and one word: different
    (better, worse), same (within the tolerance) or inconclusive."""
    from bench.experiments.compare.pairs import Side
    from bench.experiments.compare.sides import is_stored, opened, read_named, shortened

    given, names = [read_named(text, Path()) for text in things], values["recipes"]
    choices = swept("--variable", [text for text in values["variables"] if "=" in text])
    if (len(given) + len(names)) * len(choices) < 2:
        raise UsageError("name at least two things to compare: result folders, scenario files or --recipe")
    values["variables"] = [text.partition("=")[0].strip() for text in values["variables"]]
    if given and is_stored(given):
        if names or any(choices):
            raise UsageError("stored results cannot be compared with what is run now: a run of another hour is unlike")
        return _stored("compare", given, values)
    sides: list[Side] = []
    with ExitStack() as stack:
        for choice in choices:
            options = given_options(values) | choice
            named = stack.enter_context(opened(given, partial(_scenario, options=options), options))
            named += [shortened(Side(name, _scenario(None, options | {"recipe": name})), options) for name in names]
            label = " ".join(choice.values())
            alone = label and len(named) == 1
            sides += [replace(side, label=label if alone else f"{side.label} {label}".rstrip()) for side in named]
        return _now("compare", sides, values)


@click.command(cls=Grouped, epilog="X, Y: a result folder, a scenario, git:REV (or a revision), lib:DIR (packages).")
@click.argument("scenario", required=False, type=ScenarioPlace())
@click.option("--baseline", metavar="X", type=click.Path(), default="", help="what it must not be worse than")
@click.option(
    "--candidate", metavar="Y", type=click.Path(), default="",
    help="what is judged  [beside a revision: the code as it is here]",
)  # fmt: skip
@click.option("--recipe", metavar="NAME", type=RECIPE, default=None, help="which lock to load  [redlock]")
@click.option("--repo", metavar="DIR", type=click.Path(path_type=Path), default=Path(), help="where revisions are  [.]")
@partial(_options, kind="gate")
def gate(scenario: Path | None, **values: Any) -> int:
    """Did this change make the lock slower? PASS (0), FAIL (1) or INCONCLUSIVE (4).

    Two scenarios, revisions or installed versions are run in turns, on equal servers, until it is certain.
    PASS: the interval of the change ends within the tolerance. FAIL: it is worse for certain, and by more than
    the tolerance. Besides, commands, bytes, round trips and connections per acquire must not grow at all.

    SCENARIO.toml: the load for revisions and installed versions.
    """
    from bench.experiments.compare.sides import Named, is_stored, opened, read_named

    if not values["baseline"]:
        raise UsageError("no baseline was named: say with --baseline what it must not be worse than")
    baseline = read_named(values["baseline"], values["repo"])
    if values["candidate"]:
        candidate = read_named(values["candidate"], values["repo"])
    elif baseline.kind in ("revision", "library"):
        candidate = Named("the code here", "here")
    else:
        raise UsageError("name what is to be judged with --candidate")
    if is_stored([baseline, candidate]):
        return _stored("gate", [baseline, candidate], values)
    options = given_options(values)
    with opened([baseline, candidate], lambda path: _scenario(path or scenario, options), options) as sides:
        return _now("gate", sides, values)


def _now(kind: Kind, sides: list[Side], values: Values) -> int:
    from bench.experiments.compare.experiment import Question, compare_now
    from bench.experiments.compare.judge import gate_confidence, gate_looks
    from bench.experiments.compare.pairs import PairsOrder, take_turns
    from bench.experiments.compare.sides import require_declared, scenario_settings
    from bench.measure.statistics import least_pairs

    if values["expect_workers"] and any(side.python_path for side in sides):
        raise UsageError(
            "option --expect-workers: other hosts run the lockbench that is installed there; over them compare "
            "scenarios or recipes, and on one host revisions and installed versions"
        )
    scenarios, bind = led([side.scenario for side in sides], values)
    sides = [replace(side, scenario=scenario) for side, scenario in zip(sides, scenarios, strict=True)]
    first = sides[0].scenario
    judged, shown = _metrics(kind, values, is_open=first.rate_per_s is not None)
    if kind == "gate" and values["pairs"] < (least := least_pairs(gate_confidence(len(judged)))):
        raise UsageError(f"option --pairs: {values['pairs']} can never decide; so many metrics take at least {least}")
    if values["variables"]:
        settings = [scenario_settings(side.scenario.shown()) for side in sides]
        require_declared(settings, [side.label for side in sides], values["variables"])
    again = len(sides) if kind == "compare" else None
    if again:
        sides = [*sides, replace(sides[0], label=f"{sides[0].label} again")]
    labels = [side.label for side in sides]
    pairs = PairsOrder(
        sides, values["pairs"], first.seed, values["server"], values["allow_missing"], values["allow_skipped"], bind
    )
    looks = gate_looks(values["pairs"], len(judged)) if kind == "gate" else ()
    sharp = kind == "gate" and not values["metrics"] and take_turns(pairs)  # a figure that was named is held as said
    question = Question(kind, labels, judged, shown, values["tolerance"], first.seed, again, looks=looks, sharp=sharp)
    return carry_out(kind, question, values, lambda order, show: compare_now(order, pairs, show))


def _stored(kind: Kind, given: Sequence[Named], values: Values) -> int:
    if values["expect_workers"]:
        raise UsageError("option --expect-workers: what is stored is not run again; leave it out, or name scenarios")
    from bench.experiments.compare.experiment import Question, compare_stored
    from bench.experiments.compare.sides import read_series, require_alike, rounds_of

    series, labels = [read_series(one.where) for one in given], [one.label for one in given]
    first = series[0][0]
    judged, shown = _metrics(kind, values, is_open=first.scenario.rate_per_s is not None)
    require_alike(series, labels, values["variables"])
    rounds = rounds_of(series, read_thresholds(values["thresholds"]))
    question = Question(kind, labels, judged, shown, values["tolerance"], first.seed)
    return carry_out(kind, question, values, lambda order, _show: compare_stored(order, rounds))


def _metrics(kind: Kind, values: Values, *, is_open: bool) -> tuple[tuple[Metric, ...], tuple[Metric, ...]]:
    """The figures to judge by, each once, and those that a gate shows besides. Raises UsageError for wrong ones."""
    usual = SHOWN if kind == "compare" else OPEN if is_open else CLOSED
    judged = tuple(dict.fromkeys(find_metric(name) for name in values["metrics"] or usual))
    for metric in judged:
        if metric.name not in USUAL:
            some = nearest(metric.name, USUAL) or f"; compared are {', '.join(SHOWN)}"
            raise UsageError(f"option --metric: {metric.name} is not compared{some}")
    others = [] if kind == "compare" else [metric for metric in map(find_metric, SHOWN) if metric not in judged]
    return judged, tuple(others)


def _scenario(path: Path | None, options: Mapping[str, object]) -> Scenario:
    """The scenario of `path` under `options`. Raises UsageError."""
    from bench.recipes.registry import find_recipe

    scenario = load(path, options, lambda name: find_recipe(name).about.usual)
    read_thresholds(scenario.thresholds)
    find_recipe(scenario.recipe).require(scenario.instances, scenario.pause)
    return scenario
