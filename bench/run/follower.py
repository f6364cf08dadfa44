"""The progress of a run: *the files in the run's folder → the progress since the last reading, and
the measured window*.

Rules: the follower only reads files. The workers write the same files even if no follower reads the
files. So the follower does not slow the load.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from msgspec import structs

from bench.hosts.share import read_led
from bench.measure import workers
from bench.measure.clocks import Integers
from bench.measure.facts import Window
from bench.measure.histogram import Histogram
from bench.measure.history import HistoryTail
from bench.measure.latency import Latency
from bench.measure.outcomes import acquired
from bench.measure.record import OUTCOMES, sound
from bench.safety.judge import LiveJudge, LiveVerdict
from bench.scenario import Scenario
from lockcore.clock import NS_PER_MS, NS_PER_S


@dataclass(frozen=True, slots=True)
class RunProgress:
    """The progress of a run at one moment.

    A percentile is None if fewer than ten samples are larger than the percentile.
    """

    # one of: starting, warm-up, measuring, draining
    phase: str
    elapsed_s: float
    remaining_s: float
    acquires_per_s: float
    p50_s: float | None
    p99_s: float | None
    # counts since the start
    outcomes: Mapping[str, int]
    # the state and error count of each instance with trouble, by index
    troubles: Mapping[int, tuple[str, int]]
    # the share of a core that the busiest worker has used since its users ran
    cpu_ratio: float | None
    # the p99 of the delay with which the workers' schedulers ran, since they began
    lag_p99_s: float | None
    late_starts: int
    safety: LiveVerdict = field(default_factory=LiveVerdict)
    # the kind and target of each fault in force now
    faults: Sequence[str] = ()


class Follower:
    """A follower that reads a run's folder again and again.

    `live.verdict` is the verdict of the oracle over all records that the follower has read. Any
    thread may read `live.verdict`.
    """

    def __init__(
        self, workdir: Path, scenario: Scenario, wait_s: float = 0.0, *, began_ns: int | None = None
    ) -> None:
        """Start at the beginning of the history.

        `wait_s`: the longest time (s) to wait for workers. `began_ns`: the start of the run (None:
        now).
        """
        self.workdir = workdir
        self.scenario = scenario
        self.wait_s = wait_s
        self.began_ns = self._looked_ns = time.monotonic_ns() if began_ns is None else began_ns
        self.spawned_ns: int | None = None
        self.live = LiveJudge(scenario.ttl_ms, scenario.capacity)
        self._tail = HistoryTail(workdir)
        self._counts: Integers = np.zeros(len(OUTCOMES), np.int64)

    @property
    def window_ns(self) -> tuple[int, int] | None:
        """The measured window on the monotonic clock.

        The window is None until every worker has spawned its users.
        """
        if self.spawned_ns is None:
            return None
        start = self.spawned_ns + round(self.scenario.warmup_ms * NS_PER_MS)
        return start, start + round(self.scenario.duration_ms * NS_PER_MS)

    def until(self, stop_ns: int) -> Window | None:
        """Return the measured window of a run that another program ended at `stop_ns`.

        Return None if the window had not begun.
        """
        self.find_window()
        lasted_ns = stop_ns - (self.spawned_ns or stop_ns)
        self.scenario = replace(self.scenario, duration_ms=lasted_ns / NS_PER_MS)
        return self.window_before(stop_ns)

    def window_before(self, ended_ns: int) -> Window | None:
        """Return the part of the planned window that lies before `ended_ns`.

        If workers run on other hosts, return the whole window that the leader sent to these
        workers. Return None if the window had not begun.
        """
        if (led := read_led(self.workdir)) is not None:
            return Window(*led.window_ns)
        if self.window_ns is None or ended_ns <= self.window_ns[0]:
            return None
        return Window(self.window_ns[0], min(self.window_ns[1], ended_ns))

    def find_window(self) -> tuple[int, int] | None:
        """Return the measured window, or None if it is not known yet. Any thread may call this
        method."""
        if (
            self.spawned_ns is None
            and len(notes := workers.read_workers(self.workdir)) >= self.scenario.processes
        ):
            self.spawned_ns = max(note.spawned_ns for note in notes)
        return self.window_ns

    def look(self, now_ns: int, faults: Sequence[str] = ()) -> RunProgress:
        """Return the progress since the last call. `now_ns`: the present monotonic time.

        `faults`: the kind and target of each fault in force now.
        """
        self.find_window()
        notes = workers.read_workers(self.workdir)
        new = self._tail.new_records()
        records = new[sound(new)]
        interval_s = max((now_ns - self._looked_ns) / NS_PER_S, 1e-9)
        self._looked_ns = now_ns
        codes = records.acquire_code
        granted = acquired(records)
        self._counts += np.bincount(codes, minlength=len(OUTCOMES))[: len(OUTCOMES)]
        leases = int(granted.sum())
        took_ns = records.ended_ns[granted] - records.intended_ns[granted]
        latency = Latency.of(Histogram.of(np.maximum(took_ns, 0)))
        # Workers on other hosts send their records only after they have ended.
        far = any(note.host for note in notes)
        phase, elapsed_s, remaining_s = self._clock(now_ns)
        return RunProgress(
            phase=phase,
            elapsed_s=elapsed_s,
            remaining_s=remaining_s,
            acquires_per_s=_told_per_s(notes) if far else leases / interval_s,
            p50_s=latency.p50,
            p99_s=latency.p99,
            outcomes={
                name: int(count)
                for name, count in zip(OUTCOMES, self._counts, strict=True)
                if count
            },
            troubles={
                instance.index: (instance.state, sum(instance.errors.values()))
                for instance in workers.instances(notes)
                if not instance.is_well
            },
            cpu_ratio=_busiest(notes),
            lag_p99_s=Latency.of(workers.merged(note.lag_histogram for note in notes)).p99,
            late_starts=sum(note.late_starts for note in notes),
            safety=self.live.add(records),
            faults=faults,
        )

    def _clock(self, now_ns: int) -> tuple[str, float, float]:
        if self.window_ns is None:
            return "starting", 0.0, (self.scenario.warmup_ms + self.scenario.duration_ms) / 1000
        start, end = self.window_ns
        if now_ns < start:
            return "warm-up", 0.0, (end - now_ns) / NS_PER_S
        if now_ns < end:
            return "measuring", (now_ns - start) / NS_PER_S, (end - now_ns) / NS_PER_S
        return "draining", (end - start) / NS_PER_S, 0.0


def _told_per_s(notes: Sequence[workers.WorkerNote]) -> float:
    """Return the mean number of leases per second since the users started.

    The notes of the workers report the numbers for this calculation.
    """
    rates = []
    for note in notes:
        attempts, failed = note.locust.get("acquire", (0, 0))
        rates.append((attempts - failed) * NS_PER_S / max(note.told_ns - note.spawned_ns, NS_PER_S))
    return sum(rates)


def _busiest(notes: Sequence[workers.WorkerNote]) -> float | None:
    # During the first second of a worker, its CPU share would be too inaccurate.
    measured = [note for note in notes if note.told_ns - note.spawned_ns >= NS_PER_S]
    return workers.cpu_ratio([structs.replace(note, stopped_ns=note.told_ns) for note in measured])


Show = Callable[[RunProgress], None]
