"""`lockbench gate`: *a baseline and a candidate → PASS, FAIL or INCONCLUSIVE*.

Rules: what was named and is not there is a mistake (exit 2), never noise (4). Source: README, "Gate your CI".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.errors import UsageError
from bench.experiments.compare.judge import gate_pairs
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
from bench.gates.metric import Metric, find_metric
from bench.gates.threshold import read_thresholds

if TYPE_CHECKING:
    from bench.experiments.compare.experiment import Identity
    from bench.experiments.compare.sides import Given
    from bench.run.verdict import Done

PAIRS = 24
CLOSED = ("rate", "acquire.p50", "acquire.success", "cost.client_cpu_us_per_cycle")
OPEN = ("acquire.p50", "acquire.success")


@click.command(
    epilog="X and Y: a result folder, a scenario file, git:REV (or a revision), lib:DIR (installed packages)."
)
@click.argument("scenario", required=False, type=click.Path(path_type=Path))
@click.option("--baseline", metavar="X", default="", help="what it must not be worse than")
@click.option(
    "--candidate", metavar="Y", default="", help="what is judged  [beside a revision: the code as it is here]"
)
@click.option("--recipe", metavar="NAME", default=None, help="which lock to load  [redlock]")
@click.option("--repo", metavar="DIR", type=click.Path(path_type=Path), default=Path(), help="where revisions are  [.]")
@partial(comparing_options, name="gate", pairs=PAIRS)
def gate(scenario: Path | None, **values: Any) -> int:
    """Did this change make the lock slower? PASS (0), FAIL (1) or INCONCLUSIVE (4).

    \b
    Two scenarios, revisions or installed versions are run in turn, in random order, on the same servers.
    PASS: the interval of the change ends within the tolerance. FAIL: it is worse for certain, and by more than
    the tolerance. Besides, commands, bytes, round trips and connections per acquire must not grow at all.
    SCENARIO.toml: the load for revisions and installed versions.
    """
    from bench.experiments.compare.sides import Given, is_stored, read_given

    if not values["baseline"]:
        raise UsageError("no baseline was named: say with --baseline what it must not be worse than")
    baseline = read_given(values["baseline"], values["repo"])
    if values["candidate"]:
        candidate = read_given(values["candidate"], values["repo"])
    elif baseline.kind in ("revision", "library"):
        candidate = Given("the code here", "here")
    else:
        raise UsageError("name what is to be judged with --candidate")
    given = [baseline, candidate]
    return _stored(given, values) if is_stored(given) else _run(given, scenario, values)


def _run(given: list[Given], scenario: Path | None, values: dict[str, Any]) -> int:
    from bench.experiments.compare.experiment import Question, compare_now
    from bench.experiments.compare.pairs import PairsOrder
    from bench.experiments.compare.sides import opened

    options = options_of(values)

    def load(path: Path | None) -> Any:
        return read_scenario(path or scenario, options, values["recipe"])

    with opened(given, load, options) as sides:
        judged = asked_metrics(values["metrics"], OPEN if sides[0].scenario.rate_per_s else CLOSED)
        _require_pairs(values["pairs"], judged)
        require_declared(sides, values["variables"])

        def answer(identity: Identity, say: Callable[[str], None]) -> Done:
            order = PairsOrder(
                sides,
                values["pairs"],
                identity.seed,
                identity.command,
                values["server"],
                values["allow_missing"],
                values["allow_skipped"],
            )
            say_time(order, quiet=values["quiet"])
            labels = [side.label for side in sides]
            question = Question("gate", labels, judged, _others(judged), values["tolerance"], exact=True)
            return compare_now(question, order, identity, say)

        return answered(values, "gate", sides[0].scenario.seed, answer)


def _stored(given: list[Given], values: dict[str, Any]) -> int:
    from bench.experiments.compare.experiment import Question, compare_stored
    from bench.experiments.compare.stored import read_series, require_alike, rounds_of

    series = [read_series(one.where) for one in given]
    labels = [one.label for one in given]
    differs = require_alike(series, labels, values["variables"])
    judged = asked_metrics(values["metrics"], OPEN if series[0][0]["scenario"]["rate_per_s"] else CLOSED)
    limits = read_thresholds(values["thresholds"])
    question = Question("gate", labels, judged, _others(judged), values["tolerance"], differs=differs)
    return answered(
        values,
        "gate",
        int(series[0][0]["seed"]),
        lambda identity, _say: compare_stored(question, rounds_of(series, limits), identity),
    )


def _others(judged: tuple[Metric, ...]) -> tuple[Metric, ...]:
    return tuple(metric for metric in map(find_metric, SHOWN) if metric not in judged)


def _require_pairs(pairs: int, judged: tuple[Metric, ...]) -> None:
    """Refuse a gate that could never answer, before it has taken its time."""
    least = gate_pairs(len(judged))
    if pairs < least:
        raise UsageError(f"option --pairs: {pairs} can never decide; {len(judged)} metrics take at least {least}")
