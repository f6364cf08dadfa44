"""`lockbench compare`: *stored results, scenarios or recipes → ratios with their intervals*.

Rules: stored results are refused when more than the declared variable differs; what is run now is run in turn, with the
first side once more in every round as a measure of the noise (A/A). Source: README, "Gate your CI".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.errors import UsageError
from bench.experiments.compare.options import (
    SHOWN,
    answered,
    asked_metrics,
    comparing_options,
    options_of,
    read_scenario,
    require_declared,
    say_time,
)
from bench.gates.metric import Metric
from bench.gates.threshold import read_thresholds

if TYPE_CHECKING:
    from bench.experiments.compare.experiment import Identity
    from bench.experiments.compare.pairs import Side
    from bench.run.verdict import Done

PAIRS = 10


@click.command(
    epilog="A, B: result folders (or folders of several runs), or scenario files; the first is compared with."
)
@click.argument("things", metavar="[A B …]", nargs=-1)
@click.option("--recipe", "recipes", metavar="NAME", multiple=True, help="run this recipe now (repeatable)")
@partial(comparing_options, name="compare", pairs=PAIRS)
def compare(things: tuple[str, ...], **values: Any) -> int:
    """Which is faster, by how much, and is it certain?

    \b
    Ratio per metric with a 95 % interval, the noise of two equal runs on this machine, the effect that so many
    pairs can show, and one word: different (better, worse), same (within the tolerance) or inconclusive.
    """
    from bench.experiments.compare.sides import is_stored, read_given

    given = [read_given(text, Path()) for text in things]
    if len(given) + len(values["recipes"]) < 2:
        raise UsageError("name at least two things to compare: result folders, scenario files or --recipe")
    judged = asked_metrics(values["metrics"], SHOWN)
    if given and is_stored(given):
        if values["recipes"]:
            raise UsageError("stored results cannot be compared with recipes run now: a run of another hour is unlike")
        return _stored(things, judged, values)
    return _run(given, judged, values)


def _stored(things: tuple[str, ...], judged: tuple[Metric, ...], values: dict[str, Any]) -> int:
    from bench.experiments.compare.experiment import Question, compare_stored
    from bench.experiments.compare.stored import read_series, require_alike, rounds_of

    series = [read_series(Path(text)) for text in things]
    differs = require_alike(series, things, values["variables"])
    limits = read_thresholds(values["thresholds"])
    question = Question("compare", things, judged, (), values["tolerance"], differs=differs)
    return answered(
        values,
        "compare",
        int(series[0][0]["seed"]),
        lambda identity, _say: compare_stored(question, rounds_of(series, limits), identity),
    )


def _run(given: list[Any], judged: tuple[Metric, ...], values: dict[str, Any]) -> int:
    from bench.experiments.compare.experiment import Question, compare_now
    from bench.experiments.compare.pairs import PairsOrder, Side
    from bench.experiments.compare.sides import opened, shortened

    options = options_of(values)
    recipes = [Side(name, shortened(read_scenario(None, options, name), options)) for name in values["recipes"]]
    with opened(given, lambda path: read_scenario(path, options), options) as named:
        sides: list[Side] = [*named, *recipes]
        require_declared(sides, values["variables"])
        everyone = [*sides, Side(f"{sides[0].label} again", sides[0].scenario, sides[0].python_path)]

        def answer(identity: Identity, say: Callable[[str], None]) -> Done:
            order = PairsOrder(
                everyone,
                values["pairs"],
                identity.seed,
                identity.command,
                values["server"],
                values["allow_missing"],
                values["allow_skipped"],
            )
            say_time(order, quiet=values["quiet"])
            labels = [side.label for side in everyone]
            question = Question("compare", labels, judged, (), values["tolerance"], again=len(sides))
            return compare_now(question, order, identity, say)

        return answered(values, "compare", sides[0].scenario.seed, answer)
