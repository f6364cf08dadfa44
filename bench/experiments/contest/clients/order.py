"""What a driver of `make peers` is told and what it answers: *a JSON order on stdin → a JSON tally on stdout*.

    order   what to lock, how long, by how many callers; `own` gives each caller a resource, else all want one
    tally   cycles completed between the end of the warm-up and the end, CPU of the same span; of all acquires begun in
            it, however long they took, how long (by bucket) or that they were never granted

Rules
- The standard library only, because this runs in every peer's own environment; drivers in other languages read and
  write the same two documents, and count alike. A cycle is acquire, hold, release.
- A release that fails is an error and no cycle. An acquire that gave up, failed or never returned took for ever
  (`failed`); every one counts. A bucket of times is a hundredth wide.
- CPU of servers is what the kernel says they ran.

Source: README, "Beside other libraries".
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BIN_S = 0.1
BUCKET = math.log(1.01)  # times in µs are kept as floor(ln(µs) / this)


@dataclass(frozen=True, slots=True)
class Order:
    """`urls`, `pids` of the servers; `seconds` of load after `warmup_s`; `ttl_ms` of a lock, `wait_ms` an acquire may
    take where a library can be told so."""

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

    def resource(self, caller: int) -> str:
        """What this caller locks."""
        return f"peers:r{caller}" if self.own else "peers:hot"


def run_ns(pids: Sequence[int]) -> int:
    """CPU time (ns) of all threads of these processes so far, as the kernel's scheduler counted it."""
    threads = (path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(path.read_text().split()[0]) for path in threads)


@dataclass(slots=True)
class Tally:
    """What happened. Callers write, one `Span` measures; only what ended within the span counts in `cycles`."""

    order: Order
    begin_s: float = 0.0
    measure_s: float = 0.0
    end_s: float = 0.0
    acquires: Counter[int] = field(default_factory=Counter)  # granted, by bucket of their time
    asked: int = 0
    leases: Counter[int] = field(default_factory=Counter)  # by caller, in the span
    bins: Counter[int] = field(default_factory=Counter)  # completed cycles by tenth of a second since the begin
    gave_up: int = 0
    all_cycles: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    client_us: float = 0.0
    server_us: float = 0.0

    def start(self) -> None:
        """The clock starts now."""
        sys.stderr.write("begin\n")  # whoever stops a server in the middle goes by this
        self.begin_s = time.perf_counter()
        self.measure_s = self.begin_s + self.order.warmup_s
        self.end_s = self.measure_s + self.order.seconds

    def ask(self) -> float:
        """An acquire begins now: the time (s)."""
        now_s = time.perf_counter()
        self.asked += self.measure_s <= now_s < self.end_s
        return now_s

    def grant(self, began_s: float) -> None:
        """It was granted now, however late: who waits longest must count."""
        if self.measure_s <= began_s < self.end_s:
            self.acquires[bucket_of(time.perf_counter() - began_s)] += 1

    def complete(self, caller: int, began_s: float) -> None:
        """One cycle has been completed: its release did what it should."""
        now_s = time.perf_counter()
        self.all_cycles += 1
        self.bins[int((now_s - self.begin_s) / BIN_S)] += 1
        self.leases[caller] += self.measure_s <= began_s and now_s <= self.end_s

    def refuse(self, error: BaseException | None) -> None:
        """An acquire or release failed: by an error, or (None) by giving up."""
        if error is None:
            self.gave_up += 1
        else:
            self.errors[type(error).__name__] += 1

    def to_json(self) -> dict[str, Any]:
        """The document every driver writes."""
        return {
            "cycles": sum(self.leases.values()),
            "seconds": self.order.seconds,
            "acquires": {str(number): count for number, count in sorted(self.acquires.items())},
            "failed": self.asked - sum(self.acquires.values()),
            "leases_by_caller": [self.leases[caller] for caller in range(self.order.callers)],
            "bins": {str(number): count for number, count in sorted(self.bins.items())},
            "gave_up": self.gave_up,
            "all_cycles": self.all_cycles,
            "errors": dict(self.errors),
            "client_us": self.client_us,
            "server_us": self.server_us,
        }


def bucket_of(seconds: float) -> int:
    """Which bucket a time belongs to."""
    return int(math.log(max(seconds * 1e6, 1.0)) / BUCKET)


def middle_us(bucket: int) -> float:
    """The time (µs) that stands for a bucket, right to half a hundredth."""
    return math.exp((bucket + 0.5) * BUCKET)


@dataclass(slots=True)
class Span:
    """The CPU of the measured time: enter when the warm-up is over, leave at the end."""

    tally: Tally
    _client_s: float = 0.0
    _server_ns: int = 0

    def enter(self) -> None:
        """Read the clocks."""
        self._server_ns = run_ns(self.tally.order.pids)
        self._client_s = time.process_time()

    def leave(self) -> None:
        """Write what was used since into the tally."""
        self.tally.client_us = (time.process_time() - self._client_s) * 1e6
        self.tally.server_us = (run_ns(self.tally.order.pids) - self._server_ns) / 1e3
