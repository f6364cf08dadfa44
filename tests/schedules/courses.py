"""Courses of events whose figure is more than two leases at once, which `lockbench explore` finds
by itself: *a stage → figures by name, their units in the names*.

Source of the index of fairness: R. Jain, "A quantitative measure of fairness", 1984.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from bench.recipes.fencing import FencedLease
from bench.recipes.plain import PlainInstance
from bench.safety import judge as judge_module
from bench.safety import rules
from bench.topology.child import orders, say
from lockcore import Lease
from lockcore.clock import NS_PER_MS, monotonic_ns
from tests.schedules.stage import LONG_MS, RESOURCE, SHORT_MS, Client, Course, Figures, Stage

TIMESTAMPS = ("timestamp-getset", "timestamp-set", "company-2013")
QUORUMS = ("redlock-sequential", "majority-release")
COURSES: dict[str, tuple[Course, tuple[str, ...]]] = {}


def course(*recipes: str) -> Callable[[Course], Course]:
    """The function below is a course of its name, for these recipes."""

    def named(play: Course) -> Course:
        COURSES[play.__name__.replace("_", "-")] = play, recipes
        return play

    return named


@course("get-set", "setnx", "set-nx-lua", "timestamp-getset")
def both_read_first(stage: Stage) -> Figures:
    """Two clients have read the free lock before either writes."""
    clients = [stage.client("after-get", 50) for _ in range(2)]
    stage.start(*(client.acquire for client in clients))()
    return {"violations_per_1000_acquires": 1000 * stage.report().service_faults / 2}


@course(*TIMESTAMPS, "set-nx-lua", "set-nx-fixed")
def takeover_together(stage: Stage) -> Figures:
    """A dead holder's lock has ended; two clients have seen that before either takes it over."""
    dead = stage.client()
    dead.acquire(SHORT_MS)
    stage.until_ended(dead.lease)
    clients = [stage.client("after-get", 50), stage.client("after-get", 51, skew_ms=7)]
    stage.start(*(client.acquire for client in clients))()
    winners = [client for client in clients if client.is_granted]
    held = stage.held[0].get((stage.prefix + RESOURCE).encode())
    return {
        "winners": len(winners),
        "violations": stage.report().service_faults,
        "overwritten_ends": int(bool(winners) and held != winners[0].lease.owner_token),
    }


@course(*TIMESTAMPS, "set-nx-lua")
def skewed_clock(stage: Stage) -> Figures:
    """A lock is held; clients whose clocks are ahead by nothing, half a TTL and twice a TTL ask for
    it."""
    stage.client().acquire()
    ahead = (0, LONG_MS // 2, 2 * LONG_MS)
    return {
        f"steals_at_{ms}_ms": int(isinstance(stage.client(skew_ms=ms).acquire(), Lease))
        for ms in ahead
    }


@course(
    "set-nx-fixed",
    "setnx-expire",
    "company-2013",
    "set-nx-lua",
    "set-nx-get-del",
    "timestamp-getset",
    "multi-write",
    "backoff",
    *QUORUMS,
)
def overslept_holder(stage: Stage) -> Figures:
    """A holder outlives its TTL, another is granted, the first gives back: and so on, as far as it
    goes (5)."""
    first = stage.client()
    holding = stage.client()
    first.acquire(SHORT_MS)
    stage.until_ended(first.lease)
    holding.acquire()
    chain = 0
    leaving = first
    while chain < 5:
        # it works on beside its successor
        time.sleep(0.001)
        leaving.release()
        following = stage.client()
        if not isinstance(following.acquire(), Lease):
            break
        chain = chain + 1
        leaving = holding
        holding = following
    report = stage.report()
    return {
        "chain": chain,
        "foreign_deletes": report.foreign_deletes,
        "overstays": report.client_overstays,
    }


@course(
    "set-nx-get-del", "set-nx-fixed", "setnx-expire", *TIMESTAMPS, "set-nx-lua", "backoff", *QUORUMS
)
def gap_in_release(stage: Stage) -> Figures:
    """A release stalls at its last pause point until the key has expired and another is granted;
    then a third asks."""
    gap = next(
        point
        for point in ("after-check", "after-get", "before-release")
        if point in stage.about.all_points
    )
    first = stage.client(gap, 2 * SHORT_MS)
    first.acquire(SHORT_MS)
    finish = stage.start(first.release)
    stage.until_ended(first.lease)
    stage.client().acquire()
    finish()
    stage.client().acquire()
    return {"violations": stage.report().service_faults}


@course("setnx", "get-set", "set-nx-lua", "timestamp-getset", "watchdog", "redlock-sequential")
def killed_holder(stage: Stage) -> Figures:
    """A holder dies: can anybody lock again, and after how long?"""
    stage.start(partial(stage.client("after-grant").acquire, SHORT_MS))
    time.sleep(0.01)
    died_ns = monotonic_ns()
    for client in stage.clients if "watchdog" in stage.recipe else ():
        # it dies with its process
        client.recipe.close()
    stuck = stage.ttls_ms.count(-1)
    found = stage.client().acquire(SHORT_MS, LONG_MS)
    recovered = (found.granted_ns - died_ns) / NS_PER_MS if isinstance(found, Lease) else None
    return {"keys_without_end": stuck, "recovery_ms": recovered}


@course("setnx-expire", "set-nx-lua")
def killed_between(stage: Stage) -> Figures:
    """A client dies between its SETNX and its EXPIRE, or once it is granted if it has no such
    gap."""
    point = "after-setnx" if "after-setnx" in stage.about.points else "after-grant"
    stage.start(partial(stage.client(point).acquire, SHORT_MS))
    time.sleep(0.01)
    return {"orphan_keys_per_kill": stage.ttls_ms.count(-1)}


@course("backoff", "set-nx-lua")
def raise_in_body(stage: Stage) -> Figures:
    """The work under the lock raises; a `backoff` is used as its description says, without
    try/finally."""
    client = stage.client()
    bodies = list[Lease]()

    def body() -> None:
        bodies.append(client.lease)
        raise ArithmeticError

    client.acquire(SHORT_MS)
    with suppress(ArithmeticError):
        if stage.recipe == "backoff":
            body()
            client.release()
        else:
            try:
                body()
            finally:
                client.release()
    return {"bodies": len(bodies), "leaked_locks": sum(ttl_ms != -2 for ttl_ms in stage.ttls_ms)}


@course("watchdog-naive", "watchdog")
def paused_watchdog(stage: Stage) -> Figures:
    """A client is paused, watchdog and all, until its lock is another's; then its renewal goes
    out."""
    first = stage.client("before-renew", 2 * SHORT_MS)
    second = stage.client()
    first.acquire(SHORT_MS)
    stage.until_ended(first.lease)
    second.acquire()
    before_ms = stage.ttls_ms[0]
    time.sleep(2 * SHORT_MS / 1000)
    figures = first.recipe.figures
    return {
        "foreign_renewals": int(stage.ttls_ms[0] < before_ms - 3 * SHORT_MS),
        "late_renewals": figures.get("late_renewals", 0),
        "noticed_late_ms": figures.get("noticed_late_ms"),
    }


@course("backoff", "set-nx-lua")
def same_time_start(stage: Stage) -> Figures:
    """Six are refused together; the lock is given back: how long does it stand free (median of
    three)? Then all contend for it: the longest of the waits, Jain's index over the clients' leases
    (1: even; 1/6: one has them all)."""
    holder = stage.client()
    crowd = [stage.client() for _ in range(6)]
    idle_ms = median(_stands_free_ms(stage, holder, crowd) for _ in range(3))
    first = [len(client.operations) for client in crowd]
    until_ns = monotonic_ns() + 600 * NS_PER_MS

    def contend(client: Client) -> None:
        while monotonic_ns() < until_ns:
            _once(client, 600)

    stage.start(*(partial(contend, client) for client in crowd))()
    mine = [client.operations[skip:] for client, skip in zip(crowd, first, strict=True)]
    waits_ms = sorted(
        (one.ended_ns - one.start_ns) / NS_PER_MS for operations in mine for one in operations
    )
    leases = [sum(one.sent_ns > 0 for one in operations) for operations in mine]
    jain = sum(leases) ** 2 / (len(leases) * sum(number**2 for number in leases))
    return {"idle_ms": idle_ms, "longest_wait_ms": waits_ms[-1], "jain_index": jain}


def _stands_free_ms(stage: Stage, holder: Client, crowd: list[Client]) -> float:
    holder.acquire()
    finish = stage.start(*(partial(_once, client, 250) for client in crowd))
    time.sleep(0.003)
    holder.release()
    freed_ns = holder.operations[-1].sent_ns
    finish()
    grants_ns = [client.lease.granted_ns for client in crowd if client.is_granted]
    return (min(grants_ns, default=freed_ns + 250 * NS_PER_MS) - freed_ns) / NS_PER_MS


def _once(client: Client, wait_ms: int) -> None:
    if client.acquire(LONG_MS, wait_ms):
        client.release()


@course("multi-write", "multi-write-unique-index", "redlock-sequential")
def slow_copy(stage: Stage) -> Figures:
    """C1 is granted on the first instance and its copies are slow; C2 cannot reach the first
    instance."""
    first = stage.client("before-copy", 50)
    second = stage.client(urls=stage.without_first)
    finish = stage.start(first.acquire)
    time.sleep(0.01)
    second.acquire()
    finish()
    caught = sum(client.recipe.figures.get("caught_double_grants", 0) for client in stage.clients)
    return {
        "double_grants_per_link_fault": stage.report().service_faults,
        "caught_double_grants": caught,
    }


@course(*QUORUMS)
def left_over_minority(stage: Stage) -> Figures:
    """A lock is given back; the next client, which cannot reach the first instance, tries until it
    gets it."""
    first = stage.client()
    second = stage.client(urls=stage.without_first)
    first.acquire(SHORT_MS)
    first.release()
    left_over = sum(ttl_ms > 0 for ttl_ms in stage.ttls_ms)
    asked_ns = monotonic_ns()
    second.acquire(SHORT_MS, 3 * SHORT_MS)
    blocked = (second.lease.granted_ns - asked_ns) / NS_PER_MS / SHORT_MS
    return {"left_over_keys": left_over, "blocked_per_ttl": blocked}


@course("set-nx-lua", "redlock-sequential")
def stale_write(stage: Stage) -> Figures:
    """A holder is paused until another has the lock and has written; then it writes. Without
    fencing tokens a second time, with the pause before the holder marks the register: what an
    owner's mark cannot catch."""
    early = stage.client(fencing=True)
    early.acquire(SHORT_MS)
    stage.until_ended(early.lease)
    figures: Figures = {"rejected": _rejected(stage, early, lambda: None)}
    if not isinstance(early.lease, FencedLease):
        late = stage.client("after-grant", 2 * SHORT_MS, fencing=True)
        finish = stage.start(partial(late.acquire, SHORT_MS))
        time.sleep((SHORT_MS + 50) / 1000)
        figures["rejected_marked_after_the_pause"] = _rejected(stage, late, finish)
    return figures


def _rejected(stage: Stage, stale: Client, finish: Callable[[], None]) -> float:
    successor = stage.client(fencing=True)
    successor.acquire()
    assert successor.recipe.write(successor.lease, "new")
    finish()
    rejected = stale.recipe.write(stale.lease, "stale") is False
    successor.release()
    return float(rejected)


# -- in a process of its own -----------------------------------------------------------------------


def _nobody(*_arguments: object) -> tuple[Any, Any]:
    return np.empty(0, np.int64), np.empty(0, np.int64)


def _plain_delete(instance: PlainInstance, key: str, _token: bytes) -> bool:
    return bool(instance.ask("DEL", key))


PLANTED: dict[str, tuple[Any, str, Any]] = {
    "a release without owner check": (PlainInstance, "delete_own", _plain_delete),
    "an oracle that sees no overlap": (rules, "service_faults", _nobody),
    "an oracle that sees no foreign delete": (rules, "foreign_deletes", _nobody),
    "an oracle that sees no overstay": (rules, "client_overstays", _nobody),
    "an oracle that crashes": (judge_module.rules, "order_leases", lambda *_: 1 / 0),
}


def main() -> None:
    """Play all, once for every planted fault that is named."""
    for fault in orders(str):
        kept = [(place, name, getattr(place, name)) for place, name, _ in PLANTED.values()]
        if fault:
            setattr(*PLANTED[fault])
        say(
            {
                name: {one: Stage(one).play(play) for one in recipes}
                for name, (play, recipes) in COURSES.items()
            }
        )
        for whole in kept:
            setattr(*whole)
