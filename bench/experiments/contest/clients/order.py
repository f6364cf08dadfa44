"""What a driver is told and what it answers: *a JSON order on stdin → a JSON answer on stdout*.

    order    what to lock, how long, by how many callers; `own` gives each caller a resource, else all want one
    answer   cycles completed between the end of the warm-up and the end, CPU of the same span; of all acquires begun
             in it, however long they took, how long (by bucket) or that they were never granted

Rules
- The standard library only, because this runs in every peer's own environment; drivers in other languages read and
  write the same two documents, and count alike. A cycle is acquire, hold, release.
- A release that fails is an error and no cycle. An acquire that gave up, failed or never returned took for ever
  (`failed`); every one counts. A bucket of times is a hundredth wide.
- While the load runs, a caller only notes times; they are counted when it is over. CPU of servers is what the kernel
  says they ran.

Source: README, "Beside other libraries".
"""

from __future__ import annotations

import math
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

BIN_S = 0.1
BUCKET = math.log(1.01)  # times in µs are kept as floor(ln(µs) / this)
NEVER = math.inf


@dataclass(frozen=True)
class ClientOrder:
    """`urls`, `pids` of the servers; `seconds` of load after `warmup_s`; `ttl_ms` of a lock, `wait_ms` an acquire may
    take where a library can be told so. Of lockcore alone: `merge` releases; `waiting`: callers besides, who stand in
    line for a resource that is held."""

    name: str
    urls: Sequence[str]
    pids: Sequence[int]
    seconds: float
    warmup_s: float
    callers: int
    own: bool
    hold_s: float
    ttl_ms: int
    wait_ms: int
    merge: bool = False
    waiting: int = 0

    def resource(self, caller: int) -> str:
        """What this caller locks."""
        return f"peers:r{caller}" if self.own else "peers:hot"


@dataclass
class DriverAnswer:
    """What happened, as every driver writes it; `acquires` by bucket of their time, `bins` by tenth of a second since
    the begin, `all_cycles` those of warm-up and end, too."""

    seconds: float
    cycles: float = 0
    client_us: float = 0.0
    server_us: float = 0.0
    acquires: dict[int, int] = field(default_factory=dict)
    failed: int = 0
    leases_by_caller: Sequence[int] = ()
    bins: dict[int, int] = field(default_factory=dict)
    gave_up: int = 0
    all_cycles: float = 0
    errors: dict[str, int] = field(default_factory=dict)


@dataclass
class Calls:
    """What one caller did, cycle after cycle: when (s) its acquire was granted, or NEVER; when it had completed it, or
    lost it (negative), which is when it began the next."""

    first_s: float = NEVER
    granted: array[float] = field(default_factory=lambda: array("d"))
    ended: array[float] = field(default_factory=lambda: array("d"))
    gave_up: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def lose(self, error: BaseException | None) -> float:
        """The cycle is lost: by an error, or (None) because the acquire gave up. Returns now."""
        if error is None:
            self.gave_up += 1
        else:
            self.errors[type(error).__name__] += 1
        if len(self.granted) == len(self.ended):
            self.granted.append(NEVER)
        now_s = time.perf_counter()
        self.ended.append(-now_s)
        return now_s

    def cycles(self, end_s: float) -> Iterator[tuple[float, float, float]]:
        """Yield when each was begun, granted and completed, or NEVER; one that has not returned yet never will."""
        begun_s = self.first_s
        for granted_s, ended_s in zip(self.granted, self.ended, strict=False):
            yield begun_s, granted_s, ended_s if ended_s > 0 else NEVER
            begun_s = abs(ended_s)
        if begun_s < end_s:
            yield begun_s, self.granted[-1] if len(self.granted) > len(self.ended) else NEVER, NEVER


class Meter:
    """The CPU that this process and the servers use from its making on."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._server_ns, self._client_s = run_ns(pids), time.process_time()

    def read(self, answer: DriverAnswer) -> None:
        """Write what was used until now."""
        answer.client_us = (time.process_time() - self._client_s) * 1e6
        answer.server_us = (run_ns(self._pids) - self._server_ns) / 1e3


class ClientTurn:
    """A load from its begin on. `calls`: of every caller; `enter` when the warm-up is over, `leave` at the end."""

    def __init__(self, order: ClientOrder) -> None:
        sys.stderr.write("begin\n")  # whoever stops a server in the middle goes by this
        self.order, self.calls = order, [Calls() for _ in range(order.callers)]
        self.begin_s = time.perf_counter()
        self.measure_s = self.begin_s + order.warmup_s
        self.end_s = self.measure_s + order.seconds

    def enter(self) -> None:
        """The measured time begins now, which may be later than it should; without a warm-up it is all of the time."""
        self._meter = Meter(self.order.pids)
        if self.order.warmup_s:
            self.measure_s = time.perf_counter()

    def leave(self) -> DriverAnswer:
        """The measured time is over: an answer that has its CPU. `count` makes it whole."""
        answer = DriverAnswer(self.end_s - self.measure_s)
        self._meter.read(answer)
        return answer

    def count(self, answer: DriverAnswer) -> DriverAnswer:
        """Count what all callers have noted, once they have ended."""
        acquires, bins, leases, asked = Counter[int](), Counter[int](), [0] * len(self.calls), 0
        for caller, calls in enumerate(self.calls):
            for began_s, granted_s, ended_s in calls.cycles(self.end_s):
                if measured := self.measure_s <= began_s < self.end_s:
                    asked += 1
                if measured and granted_s < NEVER:
                    acquires[bucket_of(granted_s - began_s)] += 1
                if ended_s < NEVER:
                    bins[int((ended_s - self.begin_s) / BIN_S)] += 1
                    leases[caller] += measured and ended_s <= self.end_s
            answer.gave_up += calls.gave_up
            for name, number in calls.errors.items():
                answer.errors[name] = answer.errors.get(name, 0) + number
        answer.cycles, answer.all_cycles, answer.leases_by_caller = sum(leases), sum(bins.values()), leases
        answer.acquires, answer.failed, answer.bins = dict(acquires), asked - sum(acquires.values()), dict(bins)
        return answer


def run_ns(pids: Sequence[int]) -> int:
    """CPU time (ns) of all threads of these processes so far, as the kernel's scheduler counted it."""
    threads = (path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(path.read_text().split()[0]) for path in threads)


def bucket_of(seconds: float) -> int:
    """Which bucket a time belongs to."""
    return int(math.log(max(seconds * 1e6, 1.0)) / BUCKET)


def middle_us(bucket: int) -> float:
    """The time (µs) that stands for a bucket, right to half a hundredth."""
    return math.exp((bucket + 0.5) * BUCKET)
