"""How a run is doing right now: *the growing history and the workers' own notes → one `Progress`*.

Rules: only reads what the workers write anyway, so watching costs the load nothing; an interval's percentiles are those
of the operations that ended since the last look, and so is what the live oracle judges.
Source: the run's folder protocol (bench/measure, bench/workloads).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from bench.measure import workers
from bench.measure.histogram import Histogram
from bench.measure.outcomes import acquired
from bench.measure.record import OUTCOMES, HistoryTail, Records
from bench.measure.timeline import Integers
from bench.safety.judge import LiveJudge, LiveVerdict
from bench.topology.faults.injection import FaultOrder

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class InstanceTrouble:
    """An instance that does not simply vote: its state, and how many errors the workers counted."""

    index: int
    address: str
    state: str
    errors: int


@dataclass(frozen=True, slots=True)
class Progress:
    """One look at a run. Percentiles are None while fewer than ten samples lie beyond them."""

    phase: str  # starting | warm-up | measuring | draining
    elapsed_s: float
    remaining_s: float
    acquires_per_s: float
    p50_s: float | None
    p99_s: float | None
    outcomes: Mapping[str, int]  # since the start
    troubles: tuple[InstanceTrouble, ...]
    cpu_ratio: float | None  # of the busiest worker's core, in the last interval
    lag_p99_s: float | None  # of the workers' schedulers, since they began
    late_starts: int
    safety: LiveVerdict = field(default_factory=LiveVerdict)
    faults: tuple[str, ...] = ()  # kind and target of those that are there now


@dataclass(slots=True)
class Follower:
    """Looks at a run's folder again and again. `processes` is how many workers are expected, `ttl_ms` the longest TTL.

    `live.verdict` is what the oracle knows by the last look; any thread may read it.
    """

    workdir: Path
    processes: int
    warmup_s: float
    duration_s: float
    began_ns: int
    ttl_ms: float = 10_000.0
    spawned_ns: int | None = None
    live: LiveJudge = field(init=False)
    _tail: HistoryTail = field(init=False)
    _looked_ns: int = field(init=False)
    _counts: Integers = field(init=False)
    _cpu: dict[int, tuple[int, float]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Start at the beginning of the history."""
        self._tail, self.live = HistoryTail(self.workdir), LiveJudge(self.ttl_ms)
        self._looked_ns = self.began_ns
        self._counts = np.zeros(len(OUTCOMES), np.int64)

    @property
    def window_ns(self) -> tuple[int, int] | None:
        """The measured window on the monotonic clock, once every worker has spawned its users."""
        if self.spawned_ns is None:
            return None
        start = self.spawned_ns + int(self.warmup_s * NS)
        return start, start + int(self.duration_s * NS)

    def find_window(self) -> tuple[int, int] | None:
        """The measured window as of now, without waiting for the next look; any thread may ask."""
        if self.spawned_ns is None:
            self._note_spawned(workers.read_workers(self.workdir))
        return self.window_ns

    def _note_spawned(self, notes: Sequence[workers.WorkerNote]) -> None:
        if self.spawned_ns is None and len(notes) >= self.processes:
            self.spawned_ns = max(note.spawned_ns for note in notes)

    def look(self, now_ns: int, faults: Sequence[FaultOrder] = ()) -> Progress:
        """Return what happened since the last look, at the monotonic time `now_ns`. `faults`: those there are now."""
        notes = workers.read_workers(self.workdir)
        self._note_spawned(notes)
        records = self._tail.new_records()
        interval_s = max((now_ns - self._looked_ns) / NS, 1e-9)
        self._looked_ns = now_ns
        leases, latencies = self._count(records)
        phase, elapsed_s, remaining_s = self._clock(now_ns)
        return Progress(
            phase=phase,
            elapsed_s=elapsed_s,
            remaining_s=remaining_s,
            acquires_per_s=leases / interval_s,
            p50_s=_seconds(latencies.percentile(50)),
            p99_s=_seconds(latencies.percentile(99)),
            outcomes={name: int(count) for name, count in zip(OUTCOMES, self._counts, strict=True) if count},
            troubles=_troubles(notes),
            cpu_ratio=self._busiest(notes, now_ns),
            lag_p99_s=_seconds(workers.scheduler_lag(notes).percentile(99)),
            late_starts=sum(note.late_starts for note in notes),
            safety=self.live.add(records),
            faults=tuple(f"{fault.kind} {fault.target}" for fault in faults),
        )

    def _count(self, records: Records) -> tuple[int, Histogram]:
        codes = records["outcome"] & 0xFF
        self._counts += np.bincount(codes, minlength=len(OUTCOMES))[: len(OUTCOMES)]
        granted = acquired(records)
        times_ns = records["ended_ns"][granted] - records["intended_ns"][granted]
        return len(times_ns), Histogram.of(np.maximum(times_ns, 0))

    def _clock(self, now_ns: int) -> tuple[str, float, float]:
        window = self.window_ns
        if window is None:
            return "starting", 0.0, self.warmup_s + self.duration_s
        start, end = window
        if now_ns < start:
            return "warm-up", 0.0, (end - now_ns) / NS
        if now_ns < end:
            return "measuring", (now_ns - start) / NS, (end - now_ns) / NS
        return "draining", self.duration_s, 0.0

    def _busiest(self, notes: Sequence[workers.WorkerNote], now_ns: int) -> float | None:
        """The CPU share of the busiest worker since the last look; None at the first."""
        shares = []
        for note in notes:
            cpu_s = cpu_seconds(note.pid)
            if cpu_s is not None:
                before_ns, before_s = self._cpu.get(note.pid, (now_ns, cpu_s))
                self._cpu[note.pid] = (now_ns, cpu_s)
                if now_ns > before_ns:
                    shares.append((cpu_s - before_s) * NS / (now_ns - before_ns))
        return max(shares, default=None)


def cpu_seconds(pid: int) -> float | None:
    """CPU time that process `pid` has used so far, None when it is gone."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return None
    return float(times.user + times.system)


def _troubles(notes: Sequence[workers.WorkerNote]) -> tuple[InstanceTrouble, ...]:
    """The worst state and the sum of errors of every instance over all workers, if either is worth a word."""
    found: dict[int, InstanceTrouble] = {}
    for note in notes:
        for status in note.instances:
            errors = sum(status.errors.values())
            known = found.get(status.index)
            state = status.state if known is None or known.state == "voting" else known.state
            errors += known.errors if known else 0
            found[status.index] = InstanceTrouble(status.index, status.address, state, errors)
    return tuple(trouble for _, trouble in sorted(found.items()) if trouble.errors or trouble.state != "voting")


def _seconds(ns: int | None) -> float | None:
    return None if ns is None else ns / NS
