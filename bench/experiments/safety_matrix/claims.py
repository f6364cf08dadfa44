"""What is claimed of Redlock and of persistence: *a claim's name → confirmed or refuted, with its figure*.

Rules: a claim that needs power cuts or slow disks is listed and not measured here, with the reason. Two figures are
told apart by more than noise, or the claim is not known. Claims about clocks, leases and restarts stand in modules of
their own. Source: the Redis documentation, "Distributed Locks with Redis".
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.experiments.safety_matrix import leases, servers
from bench.experiments.safety_matrix.leases import confirmed
from bench.experiments.safety_matrix.result import Finding
from bench.experiments.safety_matrix.row import ELSEWHERE, PlannedRow, RowSetup, cannot
from bench.experiments.split_votes.experiment import run_split_votes
from bench.experiments.split_votes.plan import ORDERS, RetrySettings, SplitVotesPlan
from bench.experiments.split_votes.result import SplitVotesResult
from bench.measure.latency import Latency
from bench.run.experiment import ExperimentOrder
from bench.topology.child import Child, orders, say

PROCESSES, TOKENS = 4, 50_000  # of each kind, by each process
GUESSABLE = (
    "20 random bytes cannot be guessed; uuid1 tells its clock and its host, time and client id are known to anybody: "
    "harmless among friends, as a token is no password"
)
_PATIENCE_S = 60.0
MadeTokens = dict[str, tuple[float, list[str]]]  # by kind: how long one took (ns), all of them


def owner_tokens(_setup: RowSetup) -> Finding:
    """Collisions over all processes: none of random ones, some of those made of a time."""
    with ExitStack() as stack:
        name = "a process that makes owner tokens"
        clients = [stack.enter_context(Child(name, __name__)) for _ in range(PROCESSES)]
        for number, client in enumerate(clients):
            client.tell(number)
        made = [client.hear(MadeTokens, _PATIENCE_S) for client in clients]
    figures: dict[str, float] = {}
    for kind in made[0]:
        tokens = [token for one in made for token in one[kind][1]]
        figures[f"{kind}_collisions"] = len(tokens) - len(set(tokens))
        figures[f"{kind}_ns"] = round(sum(one[kind][0] for one in made) / PROCESSES)
    shown = bool(figures["microseconds_collisions"])
    needs = {"tokens of time and client id were made within a microsecond": shown or figures["microseconds_ns"] < 1000}
    broken = figures["urandom_collisions"] + figures["uuid1_collisions"]
    return confirmed(shown, figures, needs, broken=broken, reason=GUESSABLE)


def main() -> None:
    """Make tokens as one client, each kind in a tight loop."""
    for client in orders(int):
        makers: dict[str, Callable[[], bytes]] = {
            "urandom": lambda: os.urandom(20),
            "uuid1": lambda: uuid.uuid1().bytes,
            "microseconds": lambda client=client: b"%d:%d" % (time.time_ns() // 1000, client),  # type: ignore[misc]
        }
        made: MadeTokens = {}
        for kind, make in makers.items():
            began_ns = time.perf_counter_ns()
            tokens = [make() for _ in range(TOKENS)]
            made[kind] = (time.perf_counter_ns() - began_ns) / TOKENS, [token.hex() for token in tokens]
        say(made)


Look = Callable[[RowSetup], Finding]

CONTENDERS = 5
LEAST_DEAD_TIMES, CLEARLY = 10, 2.0  # a mean of so many dead times may be off by a part of itself, not by twice
_POWER = "`lockbench crash` measures it, with power cuts at random moments"
_DISKS = "`lockbench fsync` its price, over disks, clients and pipelines"


def claim_cases() -> Iterator[PlannedRow]:
    """One row per claim."""
    for name, about, look in CLAIMS:
        yield PlannedRow("claim", "redlock", name, "confirmed", about, look)
    for name, about, why in NOT_HERE:
        yield PlannedRow("claim", "persistence", name, "confirmed", about, cannot(ELSEWHERE, why))


def split_vote_window(setup: RowSetup) -> Finding:
    """Votes by pure chance against the closed form; processes released together, by the order they ask in."""
    result = _split_votes(setup)
    calibration = result.calibration[0]
    figures = {"by_chance": calibration.split_rate.rate, "closed_form": calibration.closed_form}
    rates = {row.order: row.nobody_won_rate for row in result.contention}
    for row in result.contention:
        figures[f"nobody_won_{row.order}"] = row.nobody_won_rate.rate
        figures[f"attempt_p50_ms_{row.order}"] = _ms(row.attempt_s.p50)
    less, more = rates["parallel"], rates["random"]
    holds, refuted = _below(less.high, more.low), _below(more.high, less.low)
    return _compared(result, figures, "the intervals of the two rates lie apart", holds=holds, refuted=refuted)


def retry_delay(setup: RowSetup) -> Finding:
    """RetrySettings policies side by side, where nobody wins most often: time to a first grant, attempts per grant.

    They are judged by the dead time: of the trials that nobody's first attempt won, which alone had a delay.
    """
    result = _split_votes(setup)
    figures: dict[str, float | None] = {}
    dead: dict[str, Latency] = {}
    for row in result.retries:
        if row.order == "random":
            name = row.retry.policy.replace("-", "_")
            dead[name] = row.dead_time_s
            figures[f"first_grant_p50_ms_{name}"] = _ms(row.first_grant_s.p50)
            figures[f"dead_time_mean_ms_{name}"] = _ms(row.dead_time_s.mean)
            figures[f"attempts_per_grant_{name}"] = row.attempts_per_grant
    means = [
        one.mean if one and one.count >= LEAST_DEAD_TIMES else None for one in map(dead.get, ("full_jitter", "fixed"))
    ]
    if None in means:  # of too few nothing is said
        means = [None, None]
    holds, refuted = _below(means[0], means[1], CLEARLY), _below(means[1], means[0], CLEARLY)
    needs = f"{LEAST_DEAD_TIMES} dead times of each policy, {CLEARLY:g} times apart"
    return _compared(result, figures, needs, holds=holds, refuted=refuted)


def _below(one: float | None, other: float | None, times: float = 1.0) -> bool:
    return one is not None and other is not None and times * one < other


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds


def _split_votes(setup: RowSetup) -> SplitVotesResult:
    """A short `lockbench split-votes`, made once for both claims that ask for it."""
    known = setup.memory.get("split-votes")
    if not isinstance(known, SplitVotesResult) or known.verdict.status == "inconclusive":
        rounds = 40 if setup.quick else 200
        plan = SplitVotesPlan(
            instances=5,
            contenders=(CONTENDERS,),
            spreads_ms=(0.0,),
            orders=ORDERS,
            retries=(RetrySettings("fixed", 200.0), RetrySettings("full-jitter", 5.0)),
            retry_contenders=(CONTENDERS,),
            rounds=rounds,
            parallel_retry_rounds=rounds,
            budget_s=12.0 if setup.quick else 120.0,
            seed=setup.seed,
        )
        with tempfile.TemporaryDirectory(dir=setup.scratch) as folder:
            order = ExperimentOrder(plan, setup.run_id, [], Path(folder), setup.server)
            setup.memory["split-votes"] = known = run_split_votes(order, lambda _text: None).result
    return known


def _compared(
    result: SplitVotesResult, figures: dict[str, float | None], apart: str, *, holds: bool, refuted: bool
) -> Finding:
    """Confirmed or refuted where two figures are clearly `apart` and the measurement itself came out as expected."""
    verdict = result.verdict
    reason = "; ".join(verdict.reasons) or None
    needs = {"the measurement came out as expected": verdict.status == "pass", apart: holds or refuted}
    return confirmed(holds, figures, needs, broken=verdict.status == "violated", reason=reason)


CLAIMS: tuple[tuple[str, str, Look], ...] = (
    ("owner-tokens", "tokens of many processes never collide", owner_tokens),
    ("votes", "granted on N/2+1 votes only, and never after the validity has ended", leases.votes),
    ("validity-drift", "with clocks off by less than the drift factor leases never overlap", servers.validity_drift),
    ("split-vote-window", "sending to all at once narrows the window in which nobody wins", split_vote_window),
    ("retry-delay", "a random delay before the next attempt ends split votes", retry_delay),
    ("release-to-all", "released on all instances, believed granted or not", leases.release_to_all),
    (
        "extension",
        "extended on a quorum only, before the lease's end only, a limited number of times",
        leases.extension,
    ),
    ("restart-margin", "without persistence one restart loses the lock, by vote margin", servers.restart_margin),
    ("clean-shutdown", "AOF and a clean SHUTDOWN are fine, time passes while off", servers.clean_shutdown),
    ("delayed-restart", "a restart delayed by the longest TTL is safe, and costs that time", servers.delayed_restart),
    ("partition-ttl", "a holder that is cut off costs a TTL", leases.partition),
    ("clock-drift", "drift is small against the TTL: what 10 % would cost", servers.clock_drift),
)
NOT_HERE: tuple[tuple[str, str, str], ...] = (
    ("everysec-loses", "everysec can lose the key at a power cut", _POWER),
    ("always-is-slow", "always is safe but slow", f"{_POWER}; {_DISKS}"),
)

if __name__ == "__main__":
    main()
