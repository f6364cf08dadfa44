"""The workers of a run on several hosts. This module makes one row for each worker. The module also
writes warnings about missing evidence."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np

from bench.hosts.share import BUCKETS, budget_per_s, read_folds, read_led
from bench.measure.clocks import Clock, Who
from bench.measure.histogram import SumsState
from bench.measure.load_worker import LoadWorker
from bench.measure.outcomes import acquired
from bench.measure.record import CALLERS_PER_WORKER, Records
from bench.measure.workers import WorkerNote, cpu_ratio, merged

Clocks = Mapping[tuple[int, int], Clock]


@dataclass(frozen=True, slots=True)
class FarCounts:
    """The counts that workers on other hosts computed from their own records.

    `buckets` is how many buckets of records the leader fetched.
    """

    folds: Mapping[Who, SumsState] = field(default_factory=dict)
    buckets: int = BUCKETS

    @classmethod
    def of(cls, workdir: Path) -> Self:
        """Read the counts from a run's folder. The result has no counts if the run used only one
        host."""
        led = read_led(workdir)
        return cls(read_folds(workdir), led.buckets) if led is not None else cls()

    @property
    def whole(self) -> bool:
        """True if the leader fetched the records of all resources."""
        return self.buckets == BUCKETS

    @property
    def left(self) -> Counter[Who]:
        """For each worker, the number of records that did not fit into the budget. The leader did
        not fetch these records, but they do not count as missing evidence.
        """
        counts = Counter[Who]()
        for who, fold in self.folds.items():
            counts[who] = sum(
                count
                for bucket, count in fold.numbers["buckets"].items()
                if int(bucket) >= self.buckets
            )
        return counts

    @property
    def leases(self) -> Counter[int]:
        """The number of leases that each worker acquired."""
        counts = Counter[int]()
        for (worker, _), fold in self.folds.items():
            counts[worker] += fold.numbers["totals"]["acquired"]
        return counts

    def ratio(self, judged: int) -> float:
        """Return the share (0 to 1) of all leases that were judged. `judged` is the number of
        judged leases."""
        return 1.0 if self.whole else min(judged / max(self.leases.total(), 1), 1.0)


def share_warning(judged_ratio: float) -> Iterator[str]:
    """Yield a warning if not all leases were judged."""
    if judged_ratio < 1:
        yield (
            f"the oracle judged {judged_ratio:.2%} of the leases, because all histories would "
            f"exceed {budget_per_s() / 1e6:g} MB/s per host. A hash chose the judged resources. "
            "The oracle did not judge the other leases. Only the judged leases appear in "
            "telemetry and in the counts of holders and hand-offs"
        )


def leases_by_worker(records: Records) -> Counter[int]:
    """Return how many leases each worker was granted."""
    workers, counts = np.unique(
        records.caller[acquired(records)] // CALLERS_PER_WORKER, return_counts=True
    )
    return Counter(dict(zip(workers.tolist(), counts.tolist(), strict=True)))


def load_workers(
    notes: Sequence[WorkerNote], clocks: Clocks, leases: Mapping[int, int]
) -> tuple[LoadWorker, ...]:
    """Return one row for each worker on another host. If the run used only one host, there are no
    rows."""
    return tuple(
        _worker(note, clocks.get((note.worker, note.pid)), leases) for note in notes if note.host
    )


def unbounded(notes: Sequence[WorkerNote], clocks: Clocks) -> Iterator[str]:
    """Yield one sentence for each worker whose clock was never compared with our clock.

    The leases of such a worker cannot be compared with other leases.
    """
    for note in notes:
        if note.clock and (note.worker, note.pid) not in clocks:
            yield f"the clock of {note.name} was never compared with the leader's clock"


def host_warnings(notes: Sequence[WorkerNote], clocks: Clocks, expected: int) -> Iterator[str]:
    """Yield a warning if there are too many workers, if a clock stepped, or if the software of the
    workers differs."""
    if (came := sum(bool(note.host) for note in notes)) > expected:
        yield f"{came} workers made load, but {expected} were expected"
    for note in notes:
        steps = clocks[note.worker, note.pid].lost_ns if (note.worker, note.pid) in clocks else ()
        if steps:
            yield (
                f"the clock of {note.name} stepped {len(steps)} ×, so leases around those steps "
                "are not judged"
            )
    kinds = Counter(note.about for note in notes if note.host)
    if len(kinds) > 1:
        usual = kinds.most_common(1)[0][0]
        for note in notes:
            if note.about != usual:
                yield (
                    f"{note.name} runs {note.about}, but other workers run {usual}; do not "
                    "compare the rate and CPU of these workers"
                )


def _worker(note: WorkerNote, clock: Clock | None, leases: Mapping[int, int]) -> LoadWorker:
    clock_error_s: float | None = None
    clock_error_max_s: float | None = None
    round_trip_s: float | None = None
    round_trips = 0
    clock_steps = 0
    if clock:
        clock_error_s = float(np.median(clock.errors_ns)) / 1e9
        clock_error_max_s = clock.grown_ns / 1e9
        round_trip_s = clock.round_trip_ns / 1e9
        round_trips = clock.exchanges
        clock_steps = len(clock.lost_ns)
    lag_ns = merged([note.lag_histogram]).percentile(99)
    return LoadWorker(
        worker=note.worker,
        host=note.host,
        about=note.about,
        phase=note.phase,
        leases=leases.get(note.worker, 0),
        cpu_ratio=cpu_ratio([note]),
        lag_p99_s=None if lag_ns is None else lag_ns / 1e9,
        same_clock=not note.clock,
        clock_error_s=clock_error_s,
        clock_error_max_s=clock_error_max_s,
        round_trip_s=round_trip_s,
        round_trips=round_trips,
        clock_steps=clock_steps,
    )
