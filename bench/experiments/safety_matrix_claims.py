"""What is claimed of Redlock and of persistence: *a claim's name → confirmed or refuted, with its figure*.

Rules: a claim that needs power cuts or slow disks is listed and not measured here, with the reason. Source: the second
table of the project's recipes; each claim's own module.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from bench.errors import BenchError
from bench.experiments import safety_matrix_clocks as clocks
from bench.experiments import safety_matrix_leases as leases
from bench.experiments import safety_matrix_restarts as restarts
from bench.experiments.safety_matrix_row import (
    AS_EXPECTED,
    ELSEWHERE,
    NOT_SHOWN,
    VIOLATED,
    Case,
    Finding,
    Ground,
    cannot,
)
from bench.experiments.safety_matrix_tokens import owner_tokens
from bench.experiments.split_votes import SplitVotesOrder, SplitVotesPlan, run_split_votes
from bench.workloads.trial import ORDERS
from lockcore import RetryPolicy
from lockcore.errors import LockcoreError

Look = Callable[[Ground], Finding]

CONTENDERS = 5
TRIES = 3
_VERDICTS = {
    "pass": ("confirmed", AS_EXPECTED),
    "inconclusive": ("refuted", NOT_SHOWN),
    "violated": ("refuted", VIOLATED),
}
_POWER = "`lockbench crash` measures it, with power cuts at random moments"
_DISKS = "`lockbench fsync` its price, over disks, clients and pipelines"


def claim_cases() -> Iterator[Case]:
    """One row per claim."""
    for name, about, look in CLAIMS:
        yield Case("claim", "redlock", name, "confirmed", about, partial(looked, look))
    for name, about, why in NOT_HERE:
        yield Case("claim", "persistence", name, "confirmed", about, partial(_elsewhere, why))


def split_vote_window(ground: Ground) -> Finding:
    """Votes by pure chance against the closed form; processes released together, by the order they ask in."""
    result = _split_votes(ground)
    calibration = result["calibration"][0]
    figures: dict[str, float | None] = {
        "by_chance": calibration["split_rate"]["rate"],
        "closed_form": calibration["closed_form"],
    }
    for row in result["contention"]:
        figures[f"nobody_won_{row['order']}"] = row["nobody_won_rate"]["rate"]
        figures[f"attempt_p50_ms_{row['order']}"] = _ms(row["attempt_s"]["p50"])
    return _split_votes_finding(result, figures, (figures["nobody_won_parallel"], figures["nobody_won_random"]))


def retry_delay(ground: Ground) -> Finding:
    """Retry policies side by side, where nobody wins most often: time to a first grant, attempts per grant.

    They are judged by the dead time: of the trials that nobody's first attempt won, which alone had a delay.
    """
    result = _split_votes(ground)
    figures: dict[str, float | None] = {}
    dead_ms: dict[str, float | None] = {}
    for row in result["retries"]:
        if row["order"] == "random":
            name = row["retry"]["policy"].replace("-", "_")
            dead_ms[name] = _ms(row["dead_time_s"]["mean"])
            figures[f"first_grant_p50_ms_{name}"] = _ms(row["first_grant_s"]["p50"])
            figures[f"dead_time_mean_ms_{name}"] = dead_ms[name]
            figures[f"attempts_per_grant_{name}"] = row["attempts_per_grant"]
    return _split_votes_finding(result, figures, (dead_ms.get("full_jitter"), dead_ms.get("fixed")))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def looked(look: Look, ground: Ground) -> Finding:
    """Look; what went wrong on the way (a machine too busy to answer in time) says nothing, and is tried again."""
    finding = Finding("–", NOT_SHOWN)
    for _ in range(TRIES):
        try:
            return look(ground)
        except (BenchError, LockcoreError, RedisError, TimeoutError) as error:
            finding = Finding("it went wrong", NOT_SHOWN, reason=f"{type(error).__name__}: {error}")
    return finding


def _elsewhere(why: str, _ground: Ground) -> Finding:
    return cannot(ELSEWHERE, why)


def _split_votes(ground: Ground) -> dict[str, Any]:
    """A short `lockbench split-votes`, made once for both claims that ask for it."""
    if "split-votes" not in ground.memory:
        rounds = 40 if ground.quick else 200
        plan = SplitVotesPlan(
            instances=5,
            contenders=(CONTENDERS,),
            spreads_ms=(0.0,),
            orders=ORDERS,
            retries=(RetryPolicy("fixed", 200.0), RetryPolicy("full-jitter", 5.0)),
            retry_contenders=(CONTENDERS,),
            rounds=rounds,
            parallel_retry_rounds=rounds,
            budget_s=12.0 if ground.quick else 120.0,
            seed=ground.seed,
        )
        with tempfile.TemporaryDirectory(dir=ground.scratch) as folder:
            order = SplitVotesOrder(plan, ground.run_id, [], Path(folder), ground.server)
            ground.memory["split-votes"] = run_split_votes(order, lambda _text: None).result
    result: dict[str, Any] = ground.memory["split-votes"]
    return result


def _split_votes_finding(
    result: dict[str, Any], figures: dict[str, float | None], less_and_more: tuple[float | None, float | None]
) -> Finding:
    """Confirmed if the measurement passed and the first of two figures is the smaller one."""
    seen, verdict = _VERDICTS[result["verdict"]["status"]]
    less, more = less_and_more
    if verdict == AS_EXPECTED and (less is None or more is None or less >= more):
        seen, verdict = "refuted", NOT_SHOWN
    return Finding(seen, verdict, figures, "; ".join(result["verdict"]["reasons"]) or None)


CLAIMS: tuple[tuple[str, str, Look], ...] = (
    ("owner-tokens", "tokens of many processes never collide", owner_tokens),
    ("votes", "granted on N/2+1 votes only, and never after the validity has ended", leases.votes),
    ("validity-drift", "with clocks off by less than the drift factor leases never overlap", clocks.validity_drift),
    ("split-vote-window", "sending to all at once narrows the window in which nobody wins", split_vote_window),
    ("retry-delay", "a random delay before the next attempt ends split votes", retry_delay),
    ("release-to-all", "released on all instances, believed granted or not", leases.release_to_all),
    (
        "extension",
        "extended on a quorum only, before the lease's end only, a limited number of times",
        leases.extension,
    ),
    ("restart-margin", "without persistence one restart loses the lock, by vote margin", restarts.restart_margin),
    ("clean-shutdown", "AOF and a clean SHUTDOWN are fine, time passes while off", restarts.clean_shutdown),
    ("delayed-restart", "a restart delayed by the longest TTL is safe, and costs that time", restarts.delayed_restart),
    ("partition-ttl", "a holder that is cut off costs a TTL", leases.partition),
    ("clock-drift", "drift is small against the TTL: what 10 % would cost", clocks.clock_drift),
)
NOT_HERE: tuple[tuple[str, str, str], ...] = (
    ("everysec-loses", "everysec can lose the key at a power cut", _POWER),
    ("always-is-slow", "always is safe but slow", f"{_POWER}; {_DISKS}"),
)
