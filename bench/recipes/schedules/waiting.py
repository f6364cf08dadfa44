"""Those who wait for a held lock: *it is given back, everybody wants it → who gets it, when, how evenly*.

Source: the column "figure" of the table in the README of the folder above; R. Jain, "A quantitative measure of
fairness", 1984.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from statistics import median

from bench.recipes.schedules.pace import Pace
from bench.recipes.schedules.shown import Shown
from bench.recipes.schedules.stage import LONG_MS, Client, Stage
from lockcore import Lease
from lockcore.clock import NS_PER_MS, monotonic_ns

CROWD = 6
PATIENCE_MS = 250
TIMES = 3
CONTEST_S = 0.6
IDLE_MS = 50  # a lock that stands free for longer, with a crowd waiting, is starving them


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
    stage.until(lambda: stage.sets() >= before + CROWD)
    holder.release()
    freed_ns = holder.operations[-1].sent_ns
    for client in crowd:
        client.finish()
    grants_ns = [result.granted_ns for client in crowd if isinstance(result := client.operations[-1].result, Lease)]
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
