"""Races for a lock: *clients at one pause point, a crowd, links that fail, a replica promoted → who gets it, when*.

Source: R. Jain, "A quantitative measure of fairness", 1984.
"""

import threading
from collections.abc import Sequence
from functools import partial
from statistics import median

from bench.experiments.safety_matrix.row import Pace, sleep_until
from bench.recipes.several_instances import ReplicaFailover, promote, replicate
from bench.topology.fleet import wait_until
from lockcore import Lease
from lockcore.clock import NS_PER_MS, monotonic_ns
from tests.schedules.stage import (
    LONG_MS,
    PATIENCE_S,
    SHORT_MS,
    TIMESTAMPS,
    Client,
    Shown,
    Stage,
    schedule,
    violated,
)

PATIENT_MS = 2_500.0  # no attempt times out by itself on a busy machine
AHEAD_MS = 7  # how far the second of two takeovers writes another end than the first


def at_once(clients: Sequence[Client]) -> list[Client]:
    """Have all acquire, none before every one stands at its gate or was refused; return those that were granted."""
    for client in clients:
        client.begin(client.acquire)
    for client in clients:
        client.finish()
    return [client for client in clients if client.is_granted]


@schedule("two winners of a free lock", ("get-set",), ("setnx", "set-nx-lua", "timestamp-getset", "redlock"))
def both_read_first(stage: Stage) -> Shown:
    """Two clients have read the free lock before either writes: five rounds."""
    rounds = 5
    for _ in range(rounds):
        for client in at_once([stage.client("after-get", instance_timeout_ms=PATIENT_MS) for _ in range(2)]):
            client.release()
    report = stage.report()
    return violated(stage, violations_per_1000_acquires=1000 * report.service_faults / (2 * rounds))


@schedule(
    "two winners at a takeover, or the winner's end overwritten by the loser",
    TIMESTAMPS,
    ("set-nx-lua", "set-nx-fixed"),
)
def takeover_together(stage: Stage) -> Shown:
    """A dead holder's lock has ended; two clients have seen that before either takes it over.

    Figures: winners and violations of the one takeover; the loser's writes over the winner's end, and by how much they
    moved it.
    """
    dead = stage.client()
    dead.acquire(SHORT_MS)
    stage.until_ended(dead.lease)
    winners = at_once([stage.client("after-get"), stage.client("after-get", skew_ms=AHEAD_MS)])
    held = stage.holds()
    overwritten = int(bool(winners) and held != winners[0].lease.owner_token)
    moved_ms = int(held or 0) - int(winners[0].lease.owner_token) if overwritten else 0
    report = stage.report()
    figures: dict[str, float | None] = {
        "winners": len(winners),
        "violations_per_takeover": report.service_faults,
        "overwritten_ends": overwritten,
        "end_moved_ms": moved_ms,
    }
    return Shown(len(winners) != 1 or overwritten > 0, figures, report)


@schedule("a clock that is ahead steals a lock that is held", TIMESTAMPS, ("set-nx-lua", "redlock"))
def skewed_clock(stage: Stage) -> Shown:
    """A lock is held; clients whose clocks are ahead by nothing, half a TTL and twice a TTL ask for it."""
    holder = stage.client()
    holder.acquire()
    steals: dict[str, float | None] = {}
    for skew_ms in (0, LONG_MS // 2, 2 * LONG_MS):
        thief = stage.client(skew_ms=skew_ms)
        steals[f"steals_at_{skew_ms}_ms"] = int(isinstance(thief.acquire(), Lease))
    return violated(stage, **steals)


CROWD = 6
PATIENCE_MS = 250
TIMES = 3
CONTEST_S = 0.6
IDLE_MS = 50  # a lock that stands free for longer, with a crowd waiting, is starving them


@schedule("the lock stands free although everybody waits for it", ("backoff",), ("set-nx-lua",))
def same_time_start(stage: Stage) -> Shown:
    """Six are refused together; the lock is given back: how long does it stand free? Then all contend for a while.

    Figures: the median of that over a few times (ms); of the contest, 99th percentile and longest of the waits (ms),
    failed ones included, and Jain's index over the clients' leases (1: even; 1/6: one has them all).
    """
    holder, crowd = stage.client(), [stage.client() for _ in range(CROWD)]
    with Pace() as pace:
        idle_ms = median(_stands_free_ms(stage, holder, crowd) for _ in range(TIMES))
    waits_ms, leases = _contest(crowd)
    figures = {
        "idle_ms": idle_ms,
        "p99_wait_ms": waits_ms[int(len(waits_ms) * 0.99)],
        "longest_wait_ms": waits_ms[-1],
        "jain_index": sum(leases) ** 2 / (len(leases) * sum(count**2 for count in leases)) if any(leases) else None,
    }
    return Shown(idle_ms > IDLE_MS, figures, stage.report(), pace.kept(IDLE_MS / 2))


def _stands_free_ms(stage: Stage, holder: Client, crowd: Sequence[Client]) -> float:
    """From the holder's release to the crowd's first lease."""
    holder.acquire()
    before = stage.sets()
    for client in crowd:
        client.start(partial(_once, client, PATIENCE_MS))
    wait_until(lambda: stage.sets() >= before + CROWD, PATIENCE_S, "not all of them asked")
    holder.release()
    freed_ns = holder.operations[-1].sent_ns
    for client in crowd:
        client.finish()
    grants_ns = [client.lease.granted_ns for client in crowd if client.is_granted]
    return (min(grants_ns, default=freed_ns + PATIENCE_MS * NS_PER_MS) - freed_ns) / NS_PER_MS


def _contest(crowd: Sequence[Client]) -> tuple[list[float], list[int]]:
    """Waits in ms, ascending, and each client's leases."""
    start = threading.Barrier(len(crowd))
    end_ns = monotonic_ns() + int(CONTEST_S * 1e9)
    first = [len(client.operations) for client in crowd]

    def contend(client: Client) -> None:
        start.wait()
        while monotonic_ns() < end_ns:
            _once(client, int(CONTEST_S * 1000))

    for client in crowd:
        client.start(partial(contend, client))
    for client in crowd:
        client.finish()
    done = [client.operations[skip:] for client, skip in zip(crowd, first, strict=True)]
    waits_ms = sorted((operation.ended_ns - operation.start_ns) / NS_PER_MS for mine in done for operation in mine)
    return waits_ms, [sum(operation.sent_ns > 0 for operation in mine) for mine in done]


def _once(client: Client, wait_ms: int) -> None:
    if client.acquire(LONG_MS, wait_ms):
        client.release()


# -- between instances ------------------------------------------------------------------------------------------------

LINK_FAULTS = 3
PROMOTION_TTL_MS = 500
LEFT_OVER_TTL_MS = 600  # of which a busy machine may use up some, before the second client asks


@schedule(
    "two instances grant the same lock, one of them to a client that cannot reach the other",
    ("multi-write",),
    ("multi-write-unique-index", "redlock", "redlock-sequential"),
)
def slow_copy(stage: Stage) -> Shown:
    """C1 is granted on the first instance and its copies are slow; C2's link to the first instance is reset."""
    for _ in range(LINK_FAULTS):
        first, second = stage.client("before-copy"), stage.client(urls=stage.cut_off_from_first())
        first.begin(first.acquire)
        second.acquire()
        first.finish()
        for client in (first, second):
            if client.is_granted:
                client.release()
        stage.unlink()
    report = stage.report()
    caught = sum(client.recipe.figures.get("caught_double_grants", 0) for client in stage.clients)
    per_fault = 1000 * report.service_faults / LINK_FAULTS
    return violated(stage, double_grants_per_1000_link_faults=per_fault, caught_double_grants=caught)


@schedule("keys left on a minority block the next holder", ("majority-release",), ("redlock", "redlock-sequential"))
def left_over_minority(stage: Stage) -> Shown:
    """A lock is given back; the next client, which cannot reach the first instance, tries until it gets it."""
    first, second = stage.client(), stage.client(urls=stage.cut_off_from_first())
    with Pace() as pace:
        first.acquire(LEFT_OVER_TTL_MS)
        first.release()
        left_over = sum(ttl_ms > 0 for ttl_ms in stage.ttls_ms())
        asked_ns = monotonic_ns()
        granted = second.acquire(LEFT_OVER_TTL_MS, 3 * LEFT_OVER_TTL_MS)
    assert isinstance(granted, Lease), granted
    blocked_ms = (granted.granted_ns - asked_ns) / NS_PER_MS
    figures = {"left_over_keys": left_over, "blocked_ms": blocked_ms, "blocked_per_ttl": blocked_ms / LEFT_OVER_TTL_MS}
    blocked = left_over > 0 and blocked_ms > LEFT_OVER_TTL_MS / 2
    return Shown(blocked, figures, stage.report(), pace.kept(LEFT_OVER_TTL_MS / 4))


@schedule(
    "a lock that was acknowledged is granted again by a promoted replica",
    ("replica-failover",),
    ("replica-delayed-promotion",),
    instances=2,
    harms=True,
)
def promotion(stage: Stage) -> Shown:
    """The link to the replica is frozen, a lock is granted, the master dies, the replica is promoted, another asks.

    The link is frozen by stopping the replica and closing its connection on the master: what is written then goes to
    nobody, and WAIT says so.
    """
    replicate(stage.urls)
    ttl_ms = PROMOTION_TTL_MS if stage.about.safe else LONG_MS
    first = stage.client(max_ttl_ms=ttl_ms)
    assert isinstance(first.recipe, ReplicaFailover)
    stage.fleet.stop(1)
    stage.command(0, "CLIENT", "KILL", "TYPE", "replica")
    first.acquire(ttl_ms)
    confirmed = stage.command(0, "WAIT", "1", "1")
    stage.fleet.kill(0)
    died_ns = monotonic_ns()
    stage.fleet.cont(1)
    sleep_until(died_ns + first.recipe.promotion_delay_ms * NS_PER_MS)
    promote(stage.urls[1])
    lost = int(stage.holds(1) is None)
    second = stage.client(max_ttl_ms=ttl_ms)
    granted = second.acquire(ttl_ms)
    unavailable_s = (granted.granted_ns - died_ns) / 1e9 if isinstance(granted, Lease) else None
    return violated(stage, replicas_that_confirmed=confirmed, lost_locks=lost, unavailable_s=unavailable_s)
