"""`lockbench split-votes`: *options → how often nobody wins, and how long that lasts*.

Rules: what is wrong in the options is refused before anything starts; progress goes to stderr, stdout holds the tables,
or with --json the result and nothing else. Source: README's command table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bench.cli.experiment import carry_out, each, experiment_options
from bench.scenario.quantity import parse_duration

if TYPE_CHECKING:
    from bench.experiments.split_votes.plan import RetrySettings, SplitVotesPlan

ROUNDS, QUICK_ROUNDS = 300, 60
PARALLEL_RETRY_ROUNDS = 1000  # a p99 wants so many
BUDGET_S, QUICK_BUDGET_S = 600.0, 36.0
MOST_CONTENDERS = 64
SPREADS, QUICK_SPREADS = "0ms,0.5ms", "0ms"
RETRIES = "fixed:200ms,full-jitter:5ms"


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
@experiment_options("split-votes")
def split_votes(**values: Any) -> int:
    """How often nobody wins, by contenders, order and spread; how long that lasts, by retry policy.

    Calibration: votes shared out by pure chance must be within 0.05 of the closed form. Contention: real processes,
    the rate beside it. Retries: the same until somebody wins.
    """
    from bench.experiments.split_votes.experiment import run_split_votes

    return carry_out("split-votes", plan_of(**values), values, run_split_votes)


def plan_of(
    *, instances: int, contenders: str, spread: str | None, rounds: int | None, order: str, retry: str, quick: bool,
    seed: int, **_others: object,
) -> SplitVotesPlan:  # fmt: skip
    """Return what the options ask for. Raises UsageError, naming the option and what it takes."""
    from bench.experiments.split_votes.plan import LEAST_PROCESSES, ORDERS, RETRY_CONTENDERS, SplitVotesPlan

    counts = sorted(each("contenders", contenders, _contenders))
    spreads = spread or (QUICK_SPREADS if quick else SPREADS)
    orders = each("order", order, _order)
    most = sorted({max(LEAST_PROCESSES, *counts), RETRY_CONTENDERS})
    return SplitVotesPlan(
        instances=instances,
        contenders=tuple(counts),
        spreads_ms=tuple(sorted(each("spread", spreads, _spread))),
        orders=tuple(order for order in ORDERS if order in orders),
        retries=() if retry == "none" else each("retry", retry, _retry),
        retry_contenders=tuple(most[-1:] if quick else most),
        rounds=rounds or (QUICK_ROUNDS if quick else ROUNDS),
        parallel_retry_rounds=rounds or (QUICK_ROUNDS if quick else PARALLEL_RETRY_ROUNDS),
        budget_s=QUICK_BUDGET_S if quick else BUDGET_S,
        seed=seed,
    )


def _contenders(text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= MOST_CONTENDERS:
        raise ValueError(f"{text!r} is not a number of contenders, 2 to {MOST_CONTENDERS} (write them like 3,5,10)")
    return int(text)


def _spread(text: str) -> float:
    spread_ms = parse_duration(text)
    if spread_ms > 1000:
        raise ValueError(f"{text} is too long for starts that are to meet: at most 1s")
    return spread_ms


def _order(text: str) -> str:
    from bench.experiments.split_votes.plan import ORDERS

    if text not in ORDERS:
        raise ValueError(f"{text!r} is not an order (one or more of {','.join(ORDERS)})")
    return text


def _retry(text: str) -> RetrySettings:
    from bench.experiments.split_votes.plan import RetrySettings

    policy, _, window = text.partition(":")
    if policy in ("fixed", "full-jitter"):
        return RetrySettings(policy, parse_duration(window))  # type: ignore[arg-type]
    raise ValueError(f"{text!r} is not a retry policy (write fixed:200ms, full-jitter:5ms or none)")
