"""Defines the command `lockbench split-votes`. It measures how often votes split, and how long a
split vote lasts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bench.frame.experiment import Several, experiment_options, measured
from bench.frame.outputs import Outputs
from bench.scenario.quantity import parse_duration

if TYPE_CHECKING:
    from bench.experiments.split_votes.plan import RetrySettings
    from bench.experiments.split_votes.result import SplitVotesResult
    from bench.run.experiment import Done

ROUNDS = 300
QUICK_ROUNDS = 60
MOST_CONTENDERS = 64
SPREADS_MS = (0.0, 0.5)
QUICK_SPREADS_MS = (0.0,)
RETRIES = "fixed:200ms,full-jitter:5ms"


def _spread(text: str) -> float:
    spread_ms = parse_duration(text)
    if spread_ms > 1000:
        raise ValueError(
            f"{text} is too long, because the attempts of all contenders must overlap; use at "
            "most 1s"
        )
    return spread_ms


def _retry(text: str) -> RetrySettings | None:
    from bench.experiments.split_votes.plan import RetrySettings

    policy, _, window = text.partition(":")
    if policy == "fixed":
        return RetrySettings("fixed", parse_duration(window))
    if policy == "full-jitter":
        return RetrySettings("full-jitter", parse_duration(window))
    if text == "none":
        return None
    raise ValueError(f"{text!r} is not a retry policy (write fixed:200ms, full-jitter:5ms or none)")


_KS = Several(click.IntRange(2, MOST_CONTENDERS))
_ORDERS = Several(click.Choice(("parallel", "sequential", "random")))
_TRIALS = (
    "number of trials per row; a row with parallel retries has four times this number  "
    f"[{ROUNDS}; quick {QUICK_ROUNDS}]"
)
_APART = "each contender starts at a random time within this spread  [0ms,0.5ms; quick 0ms]"
_POLICIES = f"retry policies to compare; none means no retries  [{RETRIES}]"
_ALL = "parallel,sequential,random"


@click.option(
    "--instances", metavar="N", type=click.IntRange(2, 15), default=5, help="how many servers  [5]"
)
@click.option(
    "--contenders",
    metavar="K,…",
    type=_KS,
    default="3,5,10",
    help="how many processes want the same lock  [3,5,10]",
)
@click.option("--spread", metavar="TIME,…", type=Several(_spread), help=_APART)
@click.option("--repeats", "rounds", metavar="R", type=click.IntRange(1, 100_000), help=_TRIALS)
@click.option(
    "--order",
    metavar="ORDER,…",
    type=_ORDERS,
    default=_ALL,
    help="the order in which a contender asks the instances  [all three orders]",
)
@click.option(
    "--retry-policy",
    "retry",
    metavar="POLICY,…",
    type=Several(_retry),
    default=RETRIES,
    help=_POLICIES,
)
@click.option("--quick", is_flag=True, help="a shorter measurement of about a minute")
@experiment_options("split-votes")
def split_votes(
    outputs: Outputs,
    *,
    instances: int,
    contenders: tuple[int, ...],
    spread: tuple[float, ...] | None,
    rounds: int | None,
    order: tuple[str, ...],
    retry: tuple[RetrySettings | None, ...],
    quick: bool,
    seed: int,
    server: str | None,
) -> Done[SplitVotesResult]:
    """Measure how often a split vote occurs, and how long it lasts under each retry policy. A split
    vote is a vote in which nobody wins the lock.

    In the part "calibration", the votes depend only on chance. The rate of split votes in this part
    must be within 0.05 of the closed form. The part "contention" measures real processes. The part
    "retries" measures the time until somebody wins.
    """
    from bench.experiments.split_votes.experiment import run_split_votes
    from bench.experiments.split_votes.plan import ORDERS, SplitVotesPlan

    usual_spreads_ms: tuple[float, ...] = SPREADS_MS
    usual_rounds = ROUNDS
    if quick:
        usual_spreads_ms = QUICK_SPREADS_MS
        usual_rounds = QUICK_ROUNDS
    plan = SplitVotesPlan(
        instances=instances,
        contenders=tuple(sorted(contenders)),
        spreads_ms=tuple(sorted(spread or usual_spreads_ms)),
        orders=tuple(one for one in ORDERS if one in order),
        retries=tuple(filter(None, retry)),
        rounds=rounds or usual_rounds,
        seed=seed,
    )
    return measured("split-votes", plan, outputs, run_split_votes, server=server)
