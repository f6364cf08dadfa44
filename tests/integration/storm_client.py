"""One client of a storm: *kind, worker, clients, operations, folder, URLs → so many recorded
operations*. A process of its own, which begins when all clients are connected.

It contends as fast as it can, without waiting (`rush`), or waiting to hear of each release
(`line`), but for the first client, which polls: who waits to hear asks for nothing that is held,
and a lease is tested by who asks for it. Every sixteenth caller holds its lease for a moment.
"""

import os
import sys
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from random import Random

import gevent

from bench.measure.begun import Begun
from bench.measure.recorder import Recorder
from bench.topology.child import die_with_parent
from bench.workloads.operation import Books, Caller, CallerSetting, Ledger, PackedVotes
from lockcore import Redlock, RetryPolicy
from lockcore.bench import Counted
from lockcore.clock import NS_PER_MS, NS_PER_S, monotonic_ns

HOLD_NS = NS_PER_MS
TOGETHER_S = 60.0


@dataclass(frozen=True)
class Storm:
    """So many callers a process, who want one of so many resources."""

    callers: int
    resources: int
    ttl_ms: int
    wait_ms: int
    retry: RetryPolicy


POLL = RetryPolicy(window_ms=10, attempts=1_000_000)
KINDS = {
    "rush": Storm(200, 400, 60, 0, RetryPolicy()),
    "line": Storm(32, 4, 400, 60_000, RetryPolicy("push", attempts=1_000_000)),
}


def main(
    storm: Storm, worker: int, clients: int, operations: int, folder: Path, urls: list[str]
) -> None:
    """Make so many operations and end."""
    die_with_parent(os.getppid())
    retry = POLL if storm.retry.policy == "push" and not worker else storm.retry
    lock = Redlock.connect(urls, shell="gevent", rejoin="trust-first", max_ttl_ms=1000, retry=retry)
    begin_together(folder, worker, clients)
    recorder = Recorder(folder, worker)
    rng = Random(worker)
    places = Begun(folder, worker)
    patched: list[tuple[int, Counted]] = []
    load = CallerSetting(
        acquire=lock.try_acquire,
        acquire_shared=lock.try_acquire,
        release=lock.try_release,
        ttl_ms=storm.ttl_ms,
        wait_ms=storm.wait_ms,
        take=None,
        nap_until=nap_until,
        rest_until=nap_until,
        keep=lambda _ns: None,
        pause_ns=0,
        believes_grant=False,
    )
    books = Books(
        recorder=recorder,
        votes=PackedVotes(),
        lost=places.lost,
        pending=patched.append,
        tell=None,
        cut=lambda: None,
        misreport=lambda _sentence: None,
        still_open=len(urls) << 40,
        held=set(),
    )

    def call(caller: int) -> None:
        holds = repeat(HOLD_NS) if caller % 16 == 0 else None
        ledger = Ledger(books, worker * storm.callers + caller, *places.place())
        operate = Caller(load, ledger, iter(()), holds, None).operate
        for _ in range(operations // storm.callers):
            now_ns = monotonic_ns()
            operate(int(rng.random() * storm.resources), now_ns, now_ns)
            patched.clear()

    gevent.joinall(
        [gevent.spawn(call, caller) for caller in range(storm.callers)], raise_error=True
    )
    lock.close()
    recorder.close()
    places.close()


def begin_together(folder: Path, worker: int, clients: int) -> None:
    """On a busy machine one would be through with all of it before another has begun.

    Raises gevent.Timeout.
    """
    (folder / f"connected-{worker}").touch()
    with gevent.Timeout(TOGETHER_S):
        while len(list(folder.glob("connected-*"))) < clients:
            gevent.sleep(0.005)


def nap_until(due_ns: int) -> int:
    """Sleep; return how late it woke (ns)."""
    gevent.sleep(max(due_ns - monotonic_ns(), 0) / NS_PER_S)
    return monotonic_ns() - due_ns


if __name__ == "__main__":
    main(KINDS[sys.argv[1]], *map(int, sys.argv[2:5]), Path(sys.argv[5]), sys.argv[6:])
