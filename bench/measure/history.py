"""The reader of a run's records: *the files of all workers → a numpy array, and its missing parts*.

- The recorder writes `sequence` (slot + 1) last (recorder.py). So the reader notices a record that
  a kill cut short, and only this record is missing.
- The pages belong to the kernel, so a `kill -9` of the worker loses no complete record.
- Readers never map a file, because its writer may shorten it at the end of the run.
"""

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.measure import seals
from bench.measure.begun import read_lost
from bench.measure.clocks import Clock, Integers, Who, read_clocks, worker_files
from bench.measure.record import (
    NEVER_NS,
    RECORD_BYTES,
    RECORD_DTYPE,
    TIMES,
    Records,
    ends_ns,
    records_of,
    sound,
    words_of,
)


@dataclass(frozen=True, slots=True)
class History:
    """All complete records of a run, with times on our clock, and counts of missing parts."""

    records: Records
    # Records that were cut short, or whose checksum does not match.
    torn: int
    # Files that are missing between other files.
    missing_segments: int
    # Attempts before the last attempt of an acquire; see `read_lost`.
    lost: Integers = field(default_factory=lambda: np.empty((0, 2), np.int64))
    # The number of records of each worker that has a file.
    counts: Mapping[Who, int] = field(default_factory=dict)
    # The `records` at their earliest possible times, if other clocks timed some of them.
    early: Records | None = None
    # The `records` at their latest possible times, in the same case.
    late: Records | None = None
    # The records of this host that no checksum covers.
    unsealed: Mapping[Who, int] = field(default_factory=dict)

    def believed(self, until_ns: int = NEVER_NS) -> "History":
        """The history without the records that cannot be true. They count as torn.

        A record with a time later than `until_ns` cannot be true.
        """
        records = self.records
        late = records if self.late is None else self.late
        good = sound(records) & (np.maximum(late.ended_ns, late.release_replied_ns) <= until_ns)
        if good.all():
            return self
        bounds = [None if one is None else one[good] for one in (self.early, self.late)]
        torn = self.torn + int((~good).sum())
        return History(
            records[good],
            torn,
            self.missing_segments,
            self.lost,
            self.counts,
            bounds[0],
            bounds[1],
            self.unsealed,
        )


def read_history(workdir: str | os.PathLike[str], part: int = 0, parts: int = 1) -> History:
    """The complete records of all workers in `workdir`, by worker and slot, once they have ended.

    It needs 128 bytes of memory per operation, so a long run is read in `parts`. A `part` (0 ≤
    `part` < `parts`) has all operations of the resources whose index modulo `parts` is `part`. Only
    part 0 counts torn records and missing files.
    """
    pieces: list[tuple[Records, Records, Records]] = []
    counts: Counter[Who] = Counter()
    unsealed: Counter[Who] = Counter()
    torn = 0
    missing = 0
    clocks = read_clocks(workdir)
    for worker, records, cut, absent, bare in _read_pieces(workdir):
        chosen = records if parts == 1 else records[records.resource % parts == part]
        pieces.append(placed(chosen, clocks.get(worker)))
        torn = torn + cut
        missing = missing + absent
        counts[worker] += len(records)
        unsealed[worker] += bare
    columns = 3 if clocks else 1
    likely, *bounds = (
        records_of(np.concatenate([piece[which] for piece in pieces] or [records_of([])]))
        for which in range(columns)
    )
    lost = read_lost(workdir, clocks)
    lost = lost[lost[:, 0] % parts == part]
    early, late = bounds if bounds else (None, None)
    if part:
        return History(likely, 0, 0, lost, {}, early, late)
    return History(likely, torn, missing, lost, counts, early, late, unsealed)


def read_pieces(workdir: str | os.PathLike[str]) -> Iterator[tuple[Who, Records, int, int]]:
    """For each file, its worker and pid, its complete records, the number of its torn records, and
    the number of files that are missing before it."""
    for worker, records, torn, missing, _ in _read_pieces(workdir):
        yield worker, records, torn, missing


# A record is complete if its sequence is its slot + 1, and the slot follows from the files before.
# If a file is missing, nobody knows how many records it had. From there on `base` is −1, and the
# first record of each file tells its own slot. A killed writer leaves its last file at full length.
# The rest of that file is rows of zeros, which are neither records nor torn. `begun` leaves them
# out.
def _read_pieces(workdir: str | os.PathLike[str]) -> Iterator[tuple[Who, Records, int, int, int]]:
    """The tuples of `read_pieces`, with the number of records without a checksum at the end."""
    for worker, segments in _by_worker(workdir).items():
        base = 0
        expected = 0
        sealed = seals.read(workdir, seals.HISTORY, worker)
        for number, path in segments:
            base = base if number == expected else -1
            raw = np.fromfile(path, RECORD_DTYPE).view(Records)
            first = base if base >= 0 else _first_slot(raw)
            whole = _whole(raw, first)
            broken, bare = seals.check(sealed, first, words_of(raw), whole, seals.VOTES)
            begun = (words_of(raw) != 0).any(axis=1)
            good = whole & begun & ~broken
            yield (
                worker,
                raw if good.all() else raw[good],
                int((begun & ~good).sum()),
                number - expected,
                bare,
            )
            base = base + len(raw) if base >= 0 else -1
            expected = number + 1
    for worker, shares in _by_worker(workdir, "share").items():
        for _, path in shares:
            raw = np.fromfile(path, RECORD_DTYPE).view(Records)
            good = np.diff(raw.sequence, prepend=0) > 0
            yield worker, raw[good], int((~good).sum()), 0, 0


def _first_slot(raw: Records) -> int:
    """The slot of the first record of a file, from that record. For a file after a missing file."""
    return int(raw.sequence[0]) - 1 if len(raw) else 0


def _whole(raw: Records, first: int) -> NDArray[np.bool_]:
    """Which records are complete. `sequence` proves it, because it is written last."""
    return np.asarray(raw.sequence == first + 1 + np.arange(len(raw)))


def placed(records: Records, clock: Clock | None) -> tuple[Records, Records, Records]:
    """The records on our clock, at their most likely, earliest and latest times. `clock`: the clock
    that timed the records; None means our clock."""
    if clock is None or not len(records):
        return records, records, records
    whole = words_of(records)
    versions = (np.hstack([times, whole[:, TIMES:]]) for times in clock.place(whole[:, :TIMES]))
    likely, early, late = (
        records_of(version.view(RECORD_DTYPE).reshape(-1)) for version in versions
    )
    return likely, early, late


def history_parts(workdir: str | os.PathLike[str], operations_per_part: int = 4_000_000) -> int:
    """The number of parts (≥ 1) in which to read the history, with about `operations_per_part`
    operations in each."""
    size = sum(path.stat().st_size for path in Path(workdir).glob("history-*.bin"))
    return max(-(-size // (RECORD_BYTES * operations_per_part)), 1)


# The reader keeps one number per file, which is how many records it has handed out. So it cannot
# leave out a record and come back for it. If a record has ended too recently, all records after it
# wait, too. That includes the later files of the same worker, hence the `break`. A record that was
# handed out too early would miss later votes, because nobody reads it again.
class HistoryTail:
    """Follows the history of a run from another process while it grows."""

    def __init__(self, workdir: str | os.PathLike[str]) -> None:
        self._workdir = Path(workdir)
        # Path → the number of records already handed out.
        self._read: dict[Path, int] = {}

    def new_records(self, settled_before_ns: int = NEVER_NS) -> Records:
        """The new records of all workers since the last call.

        Each worker's records end before its first operation that returned at or after
        `settled_before_ns`. So the votes of the returned records can no longer change.
        """
        parts = []
        for segments in _by_worker(self._workdir).values():
            for _, path in segments:
                start = self._read.get(path, 0)
                records = _read_from(path, start)
                late = np.flatnonzero(ends_ns(records) >= settled_before_ns)
                settled = records[: late[0]] if len(late) else records
                self._read[path] = start + len(settled)
                if len(settled):
                    parts.append(settled)
                if len(late):
                    break
        return records_of(np.concatenate(parts)) if len(parts) > 1 else (*parts, records_of([]))[0]


# The file has its full length from the beginning, so its size does not tell how many records are
# complete. A binary search finds the first record without its sequence. It reads one number per
# step, while a scan would read the whole file again in every look. The search relies on the order
# of writing: a writer that completed records out of order would have some of them handed out half
# written.
def _read_from(path: Path, record: int) -> Records:
    """The records from index `record` on that were complete at the call.

    The writer completes one record after the other and stores each sequence last. So every record
    before an existing sequence is complete.
    """
    with path.open("rb", buffering=0) as file:

        def sequence(index: int) -> int:
            return int.from_bytes(
                os.pread(file.fileno(), 8, (index + 1) * RECORD_BYTES - 8), "little"
            )

        first = sequence(record)
        there = range(os.fstat(file.fileno()).st_size // RECORD_BYTES - record if first else 0)
        count = bisect_left(there, 1, key=lambda index: sequence(record + index) != first + index)
        return np.fromfile(file, RECORD_DTYPE, count, offset=record * RECORD_BYTES).view(Records)


def _by_worker(
    workdir: str | os.PathLike[str], kind: str = ""
) -> dict[Who, list[tuple[int, Path]]]:
    """The numbered files of each worker. Files of the kind "share" hold some resources' records
    from another host (bench/hosts/share.py)."""
    workers: dict[Who, list[tuple[int, Path]]] = {}
    for worker, path in worker_files(workdir, "history"):
        *kind_parts, number = path.name.split(".")[1:-1]
        if "".join(kind_parts) == kind:
            workers.setdefault(worker, []).append((int(number), path))
    return {worker: sorted(workers[worker]) for worker in sorted(workers)}
