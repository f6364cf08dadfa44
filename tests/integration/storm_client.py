"""One client of a storm: *worker, operations, folder, URLs → so many recorded operations*. A process of its own.

It contends without waiting, as fast as it can; every sixteenth caller holds its lease for a moment.
"""

import os
import sys
from itertools import repeat
from pathlib import Path
from random import Random

import gevent

from bench.measure.begun import Begun
from bench.measure.recorder import Recorder
from bench.topology.child import die_with_parent
from bench.workloads.operation import Caller, CallerSetup, PackedVotes
from lockcore import Lease, Redlock
from lockcore.clock import NS_PER_MS, NS_PER_S, monotonic_ns

CALLERS, RESOURCES, TTL_MS = 200, 400, 60
HOLD_NS = NS_PER_MS


def main(worker: int, operations: int, folder: Path, urls: list[str]) -> None:
    """Make so many operations and end."""
    die_with_parent(os.getppid())
    lock = Redlock.connect(urls, shell="gevent", rejoin="trust-first", max_ttl_ms=1000)
    recorder, votes, rng = Recorder(folder, worker), PackedVotes(), Random(worker)
    places = Begun(folder, worker)
    patched: list[tuple[int, Lease]] = []

    def call(caller: int) -> None:
        holds = repeat(HOLD_NS) if caller % 16 == 0 else None
        begun, place = places.place()
        operate = Caller(
            CallerSetup(
                acquire=lock.try_acquire, release=lock.try_release, ttl_ms=TTL_MS, wait_ms=0,
                caller=worker * CALLERS + caller,
                resources=iter(()), take=None, holds_ns=holds, thinks_ns=None, nap_until=nap_until,
                rest_until=nap_until, write=recorder.write, begun=begun, place=place, lost=places.lost, votes=votes,
                still_open=len(urls) << 40, pending=patched.append, tell=None, cut=lambda: None, keep=lambda _ns: None,
            )
        ).operate  # fmt: skip
        for _ in range(operations // CALLERS):
            now_ns = monotonic_ns()
            operate(int(rng.random() * RESOURCES), now_ns, now_ns)
            patched.clear()

    gevent.joinall([gevent.spawn(call, caller) for caller in range(CALLERS)], raise_error=True)
    lock.close()
    recorder.close()
    places.close()


def nap_until(due_ns: int) -> int:
    """Sleep; return how late it woke (ns)."""
    gevent.sleep(max(due_ns - monotonic_ns(), 0) / NS_PER_S)
    return monotonic_ns() - due_ns


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:])
