"""The load process of `lockbench fsync`: *an order and phases on stdin → figures on stdout*, a line of JSON each.

    clients × pipeline   so many Redlocks (one connection to each instance), so many callers that share each of them
    closed loop          every caller acquires and releases its own resource, as fast as it is answered: the maximum
    open loop            a Poisson process hands arrivals to free callers: latency from the intended start

Rules: nobody contends for a resource, so what is waited for is the servers and their disks. The instance time-out is
the longest there is (a quarter of the TTL), so that a slow fsync is measured. Every caller ends its cycle before a
phase ends, so nothing is left on the servers. When the parent goes, so does this process.
Source: Redlock on gevent (lockcore), pacer.py for the open loop.
"""

from __future__ import annotations

import json
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import gevent
import numpy as np

from bench.experiments.fsync.load import TIMEOUT_MS, TTL_MS, LoadOrder, Phase, PhaseFigures
from bench.experiments.fsync.waitaof_lock import WaitAofLock
from bench.measure.histogram import Histogram
from bench.workloads.alarm import PreciseAlarm
from bench.workloads.arrivals import offsets_ns
from bench.workloads.launch import die_with_parent
from bench.workloads.pacer import Pacer
from lockcore import Denied, LagCap, Lease, Outcome, Redlock, RetryPolicy
from lockcore.clock import NS_PER_S, monotonic_ns
from lockcore.shells.target import target_of

CONNECT_S = 5.0
WAITAOF_MS = 2000
REST_S = 0.005  # after a denied acquire
MOST_AWAITED = 1 << 20


class LoadedLock(Protocol):
    """What a caller uses."""

    def acquire(self, resource: str) -> Any | str:
        """A lease, or the name of the outcome of an acquire that got none."""

    def release(self, lease: Any) -> bool:
        """Give it back; True when a quorum had it."""

    def close(self) -> None:
        """Close the connections."""


class PlainLock:
    """lockcore's Redlock on gevent."""

    def __init__(self, order: LoadOrder) -> None:
        self._lock = Redlock.connect(  # noqa: S604 - a shell is a way of waiting here
            order.urls,
            shell="gevent",
            key_prefix=order.key_prefix,
            max_ttl_ms=TTL_MS,
            instance_timeout_ms=TIMEOUT_MS,
            connect_timeout_s=CONNECT_S,
            lag_cap=LagCap(operations=MOST_AWAITED, age_ms=TIMEOUT_MS),
            rejoin="trust",
            retry=RetryPolicy("none"),
        )
        self.close: Callable[[], None] = self._lock.close

    def acquire(self, resource: str) -> Lease | str:
        """See Lock."""
        result = self._lock.try_acquire(resource, TTL_MS)
        return result.outcome.name.lower() if isinstance(result, Denied) else result

    def release(self, lease: Lease) -> bool:
        """See Lock."""
        return self._lock.try_release(lease) is Outcome.RELEASED


class Tally:
    """What the callers of one phase did. Times in ns."""

    def __init__(self, window: tuple[int, int]) -> None:
        self.window = window
        self.intended, self.ended = array("q"), array("q")
        self.busy_ns = 0
        self.denied: Counter[str] = Counter()
        self.release_failures = 0

    def cycle(self, lock: LoadedLock, resource: str, intended_ns: int) -> None:
        """One acquire and its release, counted."""
        lease = lock.acquire(resource)
        ended_ns = monotonic_ns()
        if isinstance(lease, str):
            self.denied[lease] += 1
            gevent.sleep(REST_S)
        else:
            self.intended.append(intended_ns)
            self.ended.append(ended_ns)
            self.release_failures += not lock.release(lease)
        start_ns, stop_ns = self.window
        self.busy_ns += max(0, min(monotonic_ns(), stop_ns) - max(intended_ns, start_ns))

    def histogram(self) -> tuple[Histogram, int]:
        """The latencies of acquires due in the window, and how many were granted in the window, whenever due."""
        start_ns, stop_ns = self.window
        intended, ended = np.frombuffer(self.intended, np.int64), np.frombuffer(self.ended, np.int64)
        histogram = Histogram()
        histogram.add((ended - intended)[(intended >= start_ns) & (intended < stop_ns)])
        return histogram, int(((ended >= start_ns) & (ended < stop_ns)).sum())


class Load:
    """All callers, connected."""

    def __init__(self, order: LoadOrder) -> None:
        self._order = order
        self._counts: Counter[str] = Counter()
        self._locks = [self._connected() for _ in range(order.clients)]
        self._callers = list(zip(order.resources, self._locks * order.pipeline, strict=True))
        self._seed = order.seed

    def _connected(self) -> LoadedLock:
        if not self._order.waitaof:
            return PlainLock(self._order)
        targets = [target_of(url, CONNECT_S, self._order.key_prefix) for url in self._order.urls]
        return WaitAofLock(targets, TTL_MS, WAITAOF_MS, self._counts)

    def run(self, phase: Phase) -> PhaseFigures:
        """Load for one phase; returns when every caller has ended its cycle."""
        self._counts.clear()
        origin_ns = monotonic_ns() + len(self._callers) * 20_000  # the time it takes to start them
        start_ns = origin_ns + int(phase.warmup_s * NS_PER_S)
        tally = Tally((start_ns, start_ns + int(phase.seconds * NS_PER_S)))
        pacer = None if phase.rate_per_s is None else self._pacer(phase.rate_per_s, origin_ns, tally)
        cpu_ns, waited_ns, began_ns = (*_scheduled_ns(), monotonic_ns())
        if pacer is None:
            callers = [gevent.spawn(self._closed, lock, name, tally) for name, lock in self._callers]
        else:
            callers = [gevent.spawn(self._open, lock, name, pacer, tally) for name, lock in self._callers]
        gevent.joinall(callers, raise_error=True)
        cpu_end_ns, waited_end_ns = _scheduled_ns()
        took_ns = monotonic_ns() - began_ns
        ratios = (cpu_end_ns - cpu_ns) / took_ns, (waited_end_ns - waited_ns) / took_ns
        return self._figures(phase, tally, pacer, ratios)

    def close(self) -> None:
        """Close all connections."""
        for lock in self._locks:
            lock.close()

    def _pacer(self, rate_per_s: float, origin_ns: int, tally: Tally) -> Pacer:
        self._seed += 1
        start_ns, stop_ns = (edge - origin_ns for edge in tally.window)
        return Pacer(PreciseAlarm(), offsets_ns(rate_per_s, "poisson", self._seed), origin_ns, start_ns, stop_ns)

    @staticmethod
    def _closed(lock: LoadedLock, resource: str, tally: Tally) -> None:
        _, stop_ns = tally.window
        while (now_ns := monotonic_ns()) < stop_ns:
            tally.cycle(lock, resource, now_ns)

    @staticmethod
    def _open(lock: LoadedLock, resource: str, pacer: Pacer, tally: Tally) -> None:
        _, stop_ns = tally.window
        while monotonic_ns() < stop_ns and (due_ns := pacer.take()):
            tally.cycle(lock, resource, due_ns)

    def _figures(self, phase: Phase, tally: Tally, pacer: Pacer | None, ratios: tuple[float, float]) -> PhaseFigures:
        histogram, granted = tally.histogram()
        start_ns, stop_ns = tally.window
        due = None
        if pacer is not None:
            due = _due_in(tally.window, phase.rate_per_s, self._seed, start_ns - int(phase.warmup_s * NS_PER_S))
        return PhaseFigures(
            seconds=phase.seconds,
            granted=granted,
            due=due,
            histogram=histogram.encode(),
            max_ns=histogram.max_ns,
            sum_ns=histogram.sum_ns,
            leases=len(tally.ended),
            denied=dict(tally.denied),
            release_failures=tally.release_failures,
            cpu_ratio=ratios[0],
            cpu_wait_ratio=ratios[1],
            littles_law_ratio=None if pacer else tally.busy_ns / (stop_ns - start_ns) / len(self._callers),
            lateness_p99_ns=int(np.percentile(pacer.lateness_ns, 99)) if pacer and pacer.lateness_ns else None,
            waitaof=dict(self._counts) if self._order.waitaof else None,
        )


def _scheduled_ns() -> tuple[int, int]:
    """How long this thread has run, and how long it has waited for a core."""
    ran, waited, _ = Path("/proc/thread-self/schedstat").read_text("ascii").split()
    return int(ran), int(waited)


def _due_in(window: tuple[int, int], rate_per_s: float | None, seed: int, origin_ns: int) -> int:
    """How many arrivals the schedule has in the window, started or not."""
    assert rate_per_s is not None
    due = 0
    for offset_ns in offsets_ns(rate_per_s, "poisson", seed):
        if origin_ns + offset_ns >= window[1]:
            return due
        due += origin_ns + offset_ns >= window[0]
    raise AssertionError("the schedule has no end")


def main(lines: Sequence[str] | Any = sys.stdin) -> None:
    """Connect by the first line of stdin, say so, then answer every further line, a Phase, with its figures."""
    order = LoadOrder(**json.loads(next(iter(lines))))
    die_with_parent(order.parent_pid)
    load = Load(order)
    print(json.dumps("connected"), flush=True)  # noqa: T201 - the parent reads it
    for line in lines:
        print(json.dumps(asdict(load.run(Phase(**json.loads(line))))), flush=True)  # noqa: T201
    load.close()


if __name__ == "__main__":
    main()
