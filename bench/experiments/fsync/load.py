"""What the load process of `lockbench fsync` is told and what it tells: *orders and figures ↔ lines of JSON*.

Rules: one line per message on its stdin and stdout; no gevent here, because both sides import this. Times are of
CLOCK_MONOTONIC, latencies from the intended start. Source: bench.experiments.fsync.load_process, the other end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WAITAOF = "waitaof"
TTL_MS = 10_000
TIMEOUT_MS = TTL_MS / 4  # the longest there is: a slow fsync is measured, not given up on


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """What the process is told once. `clients`: connections per instance; `pipeline`: callers that share one.

    `waitaof`: acquire by SET and WAITAOF, not by lockcore.
    """

    urls: Sequence[str]
    key_prefix: str
    clients: int
    pipeline: int
    waitaof: bool
    seed: int
    parent_pid: int

    @property
    def resources(self) -> list[str]:
        """One per caller: nobody contends, so that only durability is waited for."""
        return [f"r{caller}" for caller in range(self.clients * self.pipeline)]


@dataclass(frozen=True, slots=True)
class Phase:
    """Load for `warmup_s` + `seconds`. `rate_per_s`: of acquires, as a Poisson process; None = closed loop."""

    warmup_s: float
    seconds: float
    rate_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class PhaseFigures:
    """What came of a phase.

    `granted`: in the window of `seconds`, whenever due; `due`: how many acquires the schedule had in it (open loop,
    else None). `histogram`: of acquires due in it, from the intended start; `max_ns`, `sum_ns` are exact. `leases`:
    granted in the whole phase, with warm-up and drain. `denied`: acquires without a lease, by outcome;
    `release_failures`: releases that did not end as RELEASED. `cpu_ratio`, `cpu_wait_ratio`: share of the time that
    the process ran, and that it waited for a core. `littles_law_ratio`: callers at work ÷ callers, closed loop only.
    `lateness_p99_ns`: what the timer added to starts, open loop only. `waitaof`: replies asked for, with the local
    fsync confirmed, and without.
    """

    seconds: float
    granted: int
    due: int | None
    histogram: str
    max_ns: int
    sum_ns: int
    leases: int
    denied: dict[str, int]
    release_failures: int
    cpu_ratio: float
    cpu_wait_ratio: float
    littles_law_ratio: float | None
    lateness_p99_ns: int | None
    waitaof: dict[str, int] | None


def figures_of(row: dict[str, Any]) -> PhaseFigures:
    """The figures in a line that the process wrote."""
    return PhaseFigures(**row)
