"""The load of `lockbench fsync`, from outside: *an order, phases → figures*, by a process of its own.

Rules: no gevent here, because both sides import this. Times are of CLOCK_MONOTONIC, latencies from the intended start.
A process that ends early takes the cell with it, by its own last words.
Source: bench.experiments.fsync.load_process, the other end; bench.topology.child.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from bench.experiments.fsync.result import FsyncCell, PhaseFigures
from bench.topology.child import Child

TTL_MS = 10_000
TIMEOUT_MS = TTL_MS / 4  # the longest there is: a slow fsync is measured, not given up on
PATIENCE_S = 60.0  # for an answer, beyond what a phase itself takes
CONNECTED = "connected"


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """What the process is told first. `clients`: connections per instance; `pipeline`: callers that share one.

    `waitaof`: acquire by SET and WAITAOF, not by lockcore.
    """

    urls: Sequence[str]
    key_prefix: str
    clients: int
    pipeline: int
    waitaof: bool
    seed: int

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


class Generator:
    """A connected load process. A context manager: at its end the process is gone."""

    def __init__(self, cell: FsyncCell, urls: Sequence[str], key_prefix: str, seed: int) -> None:
        """Start it and wait until it is connected. Raises EnvironmentNotReadyError."""
        self._child = Child("the load process", "bench.experiments.fsync.load_process")
        try:
            waitaof = cell.policy == "waitaof"
            self._child.tell(LoadOrder(urls, key_prefix, cell.clients, cell.pipeline, waitaof, seed))
            self._child.hear(str, PATIENCE_S)
        except BaseException:
            self._child.close()
            raise

    def begin(self, phase: Phase) -> None:
        """Let it load for a phase; `figures` is what comes of it. Raises EnvironmentNotReadyError."""
        self._child.tell(phase)
        self._phase = phase

    def figures(self) -> PhaseFigures:
        """Wait for the end of the phase. Raises EnvironmentNotReadyError."""
        return self._child.hear(PhaseFigures, self._phase.warmup_s + self._phase.seconds + PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._child.close()
