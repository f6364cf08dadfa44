"""Reads the records of a run from the files of all workers, and counts missing parts.

- The recorder writes the field `sequence` of a record last (recorder.py). If a worker is killed
  while it writes a record, the reader detects the incomplete record. The kill destroys no other
  record.
- The pages of a file belong to the kernel. Therefore every complete record survives a `kill -9` of
  the worker.
- Readers never map a file, because the writer may shorten the file at the end of the run.
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
    # How many files are missing between other files.
    missing_segments: int
    # The lost attempts of acquires, as `read_lost` returns them. The last attempt of an acquire is
    # in the record of the acquire.
    lost: Integers = field(default_factory=lambda: np.empty((0, 2), np.int64))
    # How many records each worker has. Only workers with a file are listed.
    counts: Mapping[Who, int] = field(default_factory=dict)
    # The `records` at their earliest possible times. None: our clock timed all of them.
    early: Records | None = None
    # The `records` at their latest possible times. None: our clock timed all of them.
    late: Records | None = None
    # How many records of each worker have no checksum. Only workers of this host count.
    unsealed: Mapping[Who, int] = field(default_factory=dict)

    def believed(self, until_ns: int = NEVER_NS) -> "History":
        """Return the history without impossible records. The function counts the removed records as
        torn records.

        A record with a time later than `until_ns` is impossible.
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
    """Return the complete records of all workers in `workdir`, ordered by worker and slot. Call
    this function after the workers have ended.

    The result needs 128 bytes of memory per operation, so a long run is read in several `parts`. A
    resource belongs to the part with the number *index modulo `parts`*. `part` is the number of the
    part to read (0 ≤ `part` < `parts`). Each part has all operations of its resources. Only part 0
    has the counts of torn records and missing files.
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
    """Yield one tuple for each file.

    Each tuple has four items: the worker and its pid, the complete records of the file, the number
    of torn records in the file, and the number of missing files before this file.
    """
    for worker, records, torn, missing, _ in _read_pieces(workdir):
        yield worker, records, torn, missing


# A record is complete if its sequence is its slot + 1. The slot follows from the number of records
# in the earlier files. If a file is missing, its number of records is unknown. In this case, `base`
# is −1 for all later files, and the slot comes from the first record of each later file. A killed
# writer leaves its last file at full length. The rows of zeros at the end of this file are neither
# complete nor torn records. `begun` excludes these rows.
def _read_pieces(workdir: str | os.PathLike[str]) -> Iterator[tuple[Who, Records, int, int, int]]:
    """Yield the same tuples as `read_pieces`, with a fifth item: the number of records without a
    checksum."""
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
    """Return the slot of the first record of a file. Use this function if an earlier file is
    missing. In this case, the number of earlier records is unknown, so the function reads the slot
    from the first record itself."""
    return int(raw.sequence[0]) - 1 if len(raw) else 0


def _whole(raw: Records, first: int) -> NDArray[np.bool_]:
    """Return a mask of the complete records. A record is complete if its `sequence` is correct,
    because the writer stores this field last."""
    return np.asarray(raw.sequence == first + 1 + np.arange(len(raw)))


def placed(records: Records, clock: Clock | None) -> tuple[Records, Records, Records]:
    """Convert the records to our clock. Return three versions of the records: one with the most
    likely times, one with the earliest times, and one with the latest times.

    `clock` is the clock of the worker that made the records, or None if the worker used our clock.
    """
    if clock is None or not len(records):
        return records, records, records
    whole = words_of(records)
    versions = (np.hstack([times, whole[:, TIMES:]]) for times in clock.place(whole[:, :TIMES]))
    likely, early, late = (
        records_of(version.view(RECORD_DTYPE).reshape(-1)) for version in versions
    )
    return likely, early, late


def history_parts(workdir: str | os.PathLike[str], operations_per_part: int = 4_000_000) -> int:
    """Return a number of parts (≥ 1) for `read_history`, so that each part has about
    `operations_per_part` operations."""
    size = sum(path.stat().st_size for path in Path(workdir).glob("history-*.bin"))
    return max(-(-size // (RECORD_BYTES * operations_per_part)), 1)


# For each file, the reader only remembers how many records it has returned. So it cannot skip a
# record and return to it later. If an operation ended too recently, its record and all later
# records of the same worker have to wait. The `break` skips the later files for the same reason.
# The reader never reads a record again. So a record that was returned too early would lack its
# later votes.
class HistoryTail:
    """A reader in another process that follows the history of a run while the history grows."""

    def __init__(self, workdir: str | os.PathLike[str]) -> None:
        self._workdir = Path(workdir)
        # How many records of each path were returned so far.
        self._read: dict[Path, int] = {}

    def new_records(self, settled_before_ns: int = NEVER_NS) -> Records:
        """Return the new records of all workers since the last call.

        For each worker, the method returns all new records before the first operation that ended at
        or after `settled_before_ns`. The votes of the earlier operations can no longer change.
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


# The file has its full length from the start, so its size does not show how many records are
# complete. A binary search finds the first record that has no sequence. The search reads one number
# per step, and a scan would read the whole file again at each call. The search needs a writer that
# completes its records in order. If a writer used another order, the reader would return
# half-written records.
def _read_from(path: Path, record: int) -> Records:
    """Return the complete records of a file. The first returned record has the index `record`.

    The writer completes the records in order, and it stores the field `sequence` of each record
    last. Therefore, if this field of a record is not 0, all earlier records are complete.
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
    """Return the numbered files of each worker.

    Files of the kind "share" come from another host. These files have the records of some resources
    only (bench/hosts/share.py).
    """
    workers: dict[Who, list[tuple[int, Path]]] = {}
    for worker, path in worker_files(workdir, "history"):
        *kind_parts, number = path.name.split(".")[1:-1]
        if "".join(kind_parts) == kind:
            workers.setdefault(worker, []).append((int(number), path))
    return {worker: sorted(workers[worker]) for worker in sorted(workers)}
