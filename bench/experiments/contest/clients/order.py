"""What a driver is told and what it answers: *a JSON order on stdin → a JSON answer on stdout*.

    order    what to lock, how long, by how many callers; `own` gives each caller a resource, else all want one
    answer   cycles completed between the end of the warm-up and the end, CPU of the same span; of all acquires begun
             in it, however long they took, how long (by bucket) or that they were never granted

Rules
- The standard library only, because this runs in every peer's own environment; drivers in other languages read and
  write the same two documents, and count alike. A cycle is acquire, hold, release.
- A release that fails is an error and no cycle. An acquire that gave up, failed or never returned took for ever
  (`failed`); every one counts. A bucket of times is a hundredth wide.
- CPU of servers is what the kernel says they ran.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

BIN_S = 0.1
BUCKET = math.log(1.01)  # times in µs are kept as floor(ln(µs) / this)
PUSH = ", push"  # ends the name of a lockcore whose waiters hear of a release


@dataclass(frozen=True)
class ClientOrder:
    """`urls`, `pids` of the servers; `seconds` of load after `warmup_s`; `ttl_ms` of a lock, `wait_ms` an acquire may
    take where a library can be told so. `merge`: lockcore merges its releases."""

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


def meter(pids: Sequence[int]) -> Callable[[], tuple[float, float]]:
    """Return what tells the CPU time (µs) that this process, and those of `pids`, have used from now on."""
    client_s, server_ns = time.process_time(), _run_ns(pids)
    return lambda: ((time.process_time() - client_s) * 1e6, (_run_ns(pids) - server_ns) / 1e3)


def _run_ns(pids: Sequence[int]) -> int:
    """CPU time of all threads of these processes so far, as the kernel's scheduler counted it."""
    threads = (path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(path.read_text().split()[0]) for path in threads)


def bucket_of(seconds: float) -> int:
    """Which bucket a time belongs to."""
    return int(math.log(max(seconds * 1e6, 1.0)) / BUCKET)


def middle_us(bucket: int) -> float:
    """The time (µs) that stands for a bucket, right to half a hundredth."""
    return math.exp((bucket + 0.5) * BUCKET)
