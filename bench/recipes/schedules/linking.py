"""Races between instances: *links that fail, keys left behind, a replica promoted → who got the lock*.

Source: the column "shown by" of the table in the README of the folder above.
"""

from __future__ import annotations

from bench.recipes.replica_failover import ReplicaFailover, promote, replicate
from bench.recipes.schedules.pace import Pace
from bench.recipes.schedules.stage import LONG_MS, Shown, Stage, violated
from lockcore import Lease
from lockcore.clock import NS_PER_MS, monotonic_ns

LINK_FAULTS = 3
PROMOTION_TTL_MS = 500
LEFT_OVER_TTL_MS = 600  # of which a busy machine may use up some, before the second client asks


def slow_copy(stage: Stage) -> Shown:
    """C1 is granted on the first instance and its copies are slow; C2's link to the first instance is reset."""
    for _ in range(LINK_FAULTS):
        first, second = stage.client("before-copy"), stage.client(urls=stage.cut_off_from_first())
        first.begin_acquire()
        second.acquire()
        first.finish()
        for client in (first, second):
            if isinstance(client.operations[-1].result, Lease):
                client.release()
        stage.unlink()
    report = stage.report()
    caught = sum(client.recipe.figures.get("caught_double_grants", 0) for client in stage.clients)
    per_fault = 1000 * report.service_faults / LINK_FAULTS
    return violated(stage, double_grants_per_1000_link_faults=per_fault, caught_double_grants=caught)


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
    stage.until_ns(died_ns + first.recipe.promotion_delay_ms * NS_PER_MS)
    promote(stage.urls[1])
    lost = int(stage.holds(1) is None)
    second = stage.client(max_ttl_ms=ttl_ms)
    granted = second.acquire(ttl_ms)
    unavailable_s = (granted.granted_ns - died_ns) / 1e9 if isinstance(granted, Lease) else None
    return violated(stage, replicas_that_confirmed=confirmed, lost_locks=lost, unavailable_s=unavailable_s)
