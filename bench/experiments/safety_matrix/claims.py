"""What is claimed of Redlock and of persistence: *a claim's name → confirmed or refuted, with its figure*.

Rules: a claim that needs power cuts or slow disks is listed and not measured here, with the reason. Two figures are
told apart by more than noise, or the claim is not known. Source: the second
table of the project's recipes; each claim's own module.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bench.experiments.safety_matrix import clocks, leases, restarts
from bench.experiments.safety_matrix.row import ELSEWHERE, Case, Finding, Ground, cannot, find
from bench.experiments.safety_matrix.tokens import owner_tokens
from bench.experiments.split_votes.experiment import SplitVotesOrder, SplitVotesPlan, run_split_votes
from bench.experiments.split_votes.trial import ORDERS
from lockcore import RetryPolicy

Look = Callable[[Ground], Finding]

CONTENDERS = 5
LEAST_DEAD_TIMES, CLEARLY = 10, 2.0  # a mean of so many dead times may be off by a part of itself, not by twice
_POWER = "`lockbench crash` measures it, with power cuts at random moments"
_DISKS = "`lockbench fsync` its price, over disks, clients and pipelines"


def claim_cases() -> Iterator[Case]:
    """One row per claim."""
    for name, about, look in CLAIMS:
        yield Case("claim", "redlock", name, "confirmed", about, look)
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
    rates: dict[str, Mapping[str, float | None]] = {}
    for row in result["contention"]:
        rates[row["order"]] = row["nobody_won_rate"]
        figures[f"nobody_won_{row['order']}"] = row["nobody_won_rate"]["rate"]
        figures[f"attempt_p50_ms_{row['order']}"] = _ms(row["attempt_s"]["p50"])
    less, more = rates["parallel"], rates["random"]
    holds, refuted = _below(less["high"], more["low"]), _below(more["high"], less["low"])
    return _compared(result, figures, "the intervals of the two rates lie apart", holds=holds, refuted=refuted)


def retry_delay(ground: Ground) -> Finding:
    """Retry policies side by side, where nobody wins most often: time to a first grant, attempts per grant.

    They are judged by the dead time: of the trials that nobody's first attempt won, which alone had a delay.
    """
    result = _split_votes(ground)
    figures: dict[str, float | None] = {}
    dead: dict[str, Mapping[str, float | None]] = {}
    for row in result["retries"]:
        if row["order"] == "random":
            name = row["retry"]["policy"].replace("-", "_")
            dead[name] = row["dead_time_s"]
            figures[f"first_grant_p50_ms_{name}"] = _ms(row["first_grant_s"]["p50"])
            figures[f"dead_time_mean_ms_{name}"] = _ms(row["dead_time_s"]["mean"])
            figures[f"attempts_per_grant_{name}"] = row["attempts_per_grant"]
    less, more = (dead.get(name, {}) for name in ("full_jitter", "fixed"))
    known = all((one.get("count") or 0) >= LEAST_DEAD_TIMES for one in (less, more))
    means = [(one.get("mean") or 0.0) if known else None for one in (less, more)]
    holds, refuted = _below(means[0], means[1], CLEARLY), _below(means[1], means[0], CLEARLY)
    needs = f"{LEAST_DEAD_TIMES} dead times of each policy, {CLEARLY:g} times apart"
    return _compared(result, figures, needs, holds=holds, refuted=refuted)


def _below(one: float | None, other: float | None, times: float = 1.0) -> bool:
    return one is not None and other is not None and times * one < other


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _elsewhere(why: str, _ground: Ground) -> Finding:
    return cannot(ELSEWHERE, why)


def _split_votes(ground: Ground) -> dict[str, Any]:
    """A short `lockbench split-votes`, made once for both claims that ask for it."""
    if ground.memory.get("split-votes", {"verdict": {"status": ""}})["verdict"]["status"] in ("", "inconclusive"):
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


def _compared(
    result: dict[str, Any], figures: dict[str, float | None], apart: str, *, holds: bool, refuted: bool
) -> Finding:
    """Confirmed or refuted where two figures are clearly `apart` and the measurement itself came out as expected."""
    verdict = result["verdict"]
    reason = "; ".join(verdict["reasons"]) or None
    needs = {"the measurement came out as expected": verdict["status"] == "pass", apart: holds or refuted}
    broken = verdict["status"] == "violated"
    return find(("confirmed", "refuted"), figures, needs, holds=holds, broken=broken, reason=reason)


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
