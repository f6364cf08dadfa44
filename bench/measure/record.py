"""The history: *one finished operation → 128 bytes in a memory-mapped file → a numpy array*, and
what it cannot hold.

- A record is 16 little-endian int64 (`RECORD_FIELDS`); times are nanoseconds of CLOCK_MONOTONIC, 0
  = did not happen.
- `sequence` (slot + 1) is packed last (recorder.py), so a record cut short by a kill is noticed: it
  alone is missing.
- The pages belong to the kernel: what was written before a `kill -9` of the worker is read back in
  full. Readers read, they never map: a segment may be shortened by its writer when the run ends.
- A record is written when its operation has ended; so its start stands in a page of its own from
  before anything is sent until then. An acquire that tries again says of each lost attempt when it
  was begun: its resource was asked for.
"""

import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray

from bench.errors import EnvironmentNotReadyError
from bench.measure import seals
from bench.measure.clocks import Clock, Integers, Who, read_clocks, rows_of, worker_files
from bench.measure.grown import Grown
from bench.measure.section import Section, says


class OperationFacts(Section, frozen=True, kw_only=True):
    """One recorded operation.

    Times: ns of CLOCK_MONOTONIC, 0 = did not happen. The first 16 fields are a record's.
    """

    intended_ns: Annotated[
        int, says("when the schedule wanted the acquire to start (closed loop: start_ns)")
    ] = 0
    start_ns: Annotated[int, says("when the caller really called acquire")]
    attempt_ns: Annotated[
        int, says("before the first command of the last attempt that was sent")
    ] = 0
    granted_ns: Annotated[int, says("the clock reading that the validity check used")] = 0
    valid_until_ns: Annotated[int, says("end of the lease on our clock")] = 0
    work_end_ns: Annotated[int, says("end of the protected work")] = 0
    release_sent_ns: Annotated[int, says("before the release was sent")] = 0
    release_replied_ns: Annotated[int, says("when release returned")] = 0
    ended_ns: Annotated[int, says("when acquire returned, whatever its outcome")]
    resource: Annotated[int, says("index of the resource")]
    caller: Annotated[int, says("index of the user over all workers")]
    outcome: Annotated[str, says("of the acquire")]
    votes: Annotated[
        int,
        says(
            "granted, refused, errored, silent, absent, undecided: a byte each, lowest "
            "first; then 1 where some came "
            "after the record was written"
        ),
    ] = 0
    attempts: Annotated[int, says("rounds; those that were split votes × 2^32")] = 0
    owner: Annotated[int, says("64-bit digest of the owner token, as a signed integer")] = 0
    sequence: Annotated[int, says("its place in the history of its worker, from 1")]
    release_outcome: Annotated[str, says("of the release; none: there was none")] = "none"

    @classmethod
    def of(cls, record: np.void) -> Self:
        """A record, its outcomes in words."""
        fields: dict[str, Any] = {name: int(record[name]) for name in RECORD_FIELDS}
        released, outcome = divmod(fields["outcome"], 256)
        return cls(**fields | {"outcome": OUTCOMES[outcome], "release_outcome": OUTCOMES[released]})


# The fields as they are packed. `outcome` is the code of the acquire | that of the release << 8.
# `sequence` is slot + 1 and is written last.
RECORD_FIELDS = OperationFacts.__struct_fields__[:16]
RECORD_DTYPE = np.dtype([(name, "<i8") for name in RECORD_FIELDS])
RECORD_BYTES = RECORD_DTYPE.itemsize

OUTCOMES = (
    "none",
    "acquired",
    "contended",
    "split_vote",
    "unreachable",
    "too_late",
    "extended",
    "released",
    "gone",
)
# Outcome.value -> code
OUTCOME_CODES: dict[str, int] = {name: code for code, name in enumerate(OUTCOMES)}

# A `caller` is the index of its worker times this, plus its own number there.
CALLERS_PER_WORKER = 100_000
# So many fields at the beginning are times.
TIMES = 9
# A one-dimensional structured array of RECORD_DTYPE.
Records = NDArray[Any]

BEGUN = "begun"
LOST = "lost"
NEVER_NS = 1 << 62
_NO_ROWS = memoryview(b"").cast("q")


ACQUIRED = OUTCOME_CODES["acquired"]
_DENIED = [OUTCOME_CODES[name] for name in ("contended", "split_vote", "unreachable", "too_late")]
_GIVEN_BACK = [OUTCOME_CODES[name] for name in ("none", "released", "gone", "unreachable")]


@dataclass(frozen=True, slots=True)
class History:
    """All complete records of a run, with times of our clock, and what is known to be missing from
    them."""

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
    # The same at their latest possible times.
    late: Records | None = None
    # The records of this host that no checksum covers.
    unsealed: Mapping[Who, int] = field(default_factory=dict)

    def believed(self, until_ns: int = NEVER_NS) -> "History":
        """The same without the records that cannot be true, which are torn.

        Nothing can be later than `until_ns`.
        """
        records = self.records
        late = records if self.late is None else self.late
        good = sound(records) & (
            np.maximum(late["ended_ns"], late["release_replied_ns"]) <= until_ns
        )
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


# A bit of `votes`: some votes came after the record was written.
LATE_VOTES = 1 << 48


def sound(records: Records) -> NDArray[np.bool_]:
    """Which records can be true: intended ≤ start ≤ attempt ≤ granted ≤ ended ≤ release sent ≤
    replied, as far as these happened, with outcomes that there are."""
    start, attempt, granted, ended = (
        records[f"{name}_ns"] for name in ("start", "attempt", "granted", "ended")
    )
    sent = records["release_sent_ns"]
    replied = records["release_replied_ns"]
    until = records["valid_until_ns"]
    code = records["outcome"] & 0xFF
    released = records["outcome"] >> 8
    won = code == ACQUIRED
    attempt_fits = (attempt == 0) | (
        (start <= attempt) & (attempt <= np.where(won, granted, ended))
    )
    of_lease = (start <= granted) & (granted <= ended) & ((sent == 0) | (sent >= ended))
    of_lease &= (replied == 0) | (replied >= sent)
    of_denial = (
        np.isin(code, _DENIED) & (granted == 0) & (sent == 0) & (replied == 0) & (released == 0)
    )
    believable = (
        attempt_fits
        & np.isin(released, _GIVEN_BACK)
        & (records["resource"] >= 0)
        & (records["caller"] >= 0)
    )
    believable &= (
        (records["attempts"] >= 0)
        & (records["intended_ns"] <= start)
        & (start <= ended)
        & (until < NEVER_NS)
    )
    believable &= (records["intended_ns"] >= 0) & (np.maximum(ended, replied) < NEVER_NS)
    return np.asarray(believable & np.where(won, of_lease, of_denial))


def ends_ns(records: Records) -> Integers:
    """When each operation was over: its release returned, or its acquire if it released nothing."""
    return np.asarray(np.maximum(records["ended_ns"], records["release_replied_ns"]))


def words_of(records: Records) -> Integers:
    """A row of int64 for each record."""
    return np.ascontiguousarray(records).view("<i8").reshape(len(records), len(RECORD_FIELDS))


def extent_ns(records: Records) -> tuple[int, int]:
    """The first and the last time of these operations, of what happened."""
    times = words_of(records)[:, :TIMES]
    return int(times.min(where=times != 0, initial=NEVER_NS)), int(times.max(initial=0))


def read_history(workdir: str | os.PathLike[str], part: int = 0, parts: int = 1) -> History:
    """The complete records of all workers in `workdir`, by worker and slot, once they have ended.

    Needs 128 bytes of memory per operation: a long run is read in `parts`, each (0 ≤ `part` <
    `parts`) with all operations of the resources whose index modulo `parts` is `part`. What is torn
    or missing is counted in part 0 only.
    """
    pieces: list[tuple[Records, Records, Records]] = []
    counts: Counter[Who] = Counter()
    unsealed: Counter[Who] = Counter()
    torn = 0
    missing = 0
    clocks = read_clocks(workdir)
    for worker, records, cut, absent, bare in _read_pieces(workdir):
        chosen = records if parts == 1 else records[records["resource"] % parts == part]
        pieces.append(placed(chosen, clocks.get(worker)))
        torn = torn + cut
        missing = missing + absent
        counts[worker] += len(records)
        unsealed[worker] += bare
    columns = 3 if clocks else 1
    likely, *bounds = (
        np.concatenate([piece[which] for piece in pieces] or [np.empty(0, RECORD_DTYPE)])
        for which in range(columns)
    )
    lost = read_lost(workdir, clocks)
    lost = lost[lost[:, 0] % parts == part]
    early, late = bounds if bounds else (None, None)
    if part:
        return History(likely, 0, 0, lost, {}, early, late)
    return History(likely, torn, missing, lost, counts, early, late, unsealed)


def read_pieces(workdir: str | os.PathLike[str]) -> Iterator[tuple[Who, Records, int, int]]:
    """Each file's worker and pid, complete records, number of torn ones and of files that should
    stand before it."""
    for worker, records, torn, missing, _ in _read_pieces(workdir):
        yield worker, records, torn, missing


# A record is complete if its sequence is its slot + 1, and the slot follows from the files before.
# Where a file is missing, nobody knows how many records it had. From there on `base` is −1, and the
# first record of each file says its own slot. A killed writer leaves its last file at full length.
# The rest of it are rows of zeros, which are neither records nor torn: `begun` leaves them out.
def _read_pieces(workdir: str | os.PathLike[str]) -> Iterator[tuple[Who, Records, int, int, int]]:
    """As `read_pieces`, and how many of the records have no checksum."""
    for worker, segments in _by_worker(workdir).items():
        base = 0
        expected = 0
        sealed = seals.read(workdir, seals.HISTORY, worker)
        for number, path in segments:
            base = base if number == expected else -1
            raw = np.fromfile(path, dtype=RECORD_DTYPE)
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
            raw = np.fromfile(path, dtype=RECORD_DTYPE)
            good = np.diff(raw["sequence"], prepend=0) > 0
            yield worker, raw[good], int((~good).sum()), 0, 0


def _first_slot(raw: Records) -> int:
    """The slot of the first record of a file before which another is missing, as that record says
    it."""
    return int(raw["sequence"][0]) - 1 if len(raw) else 0


def _whole(raw: Records, first: int) -> NDArray[np.bool_]:
    """Which records were written to their end: `sequence` comes last."""
    return np.asarray(raw["sequence"] == first + 1 + np.arange(len(raw)))


def placed(records: Records, clock: Clock | None) -> tuple[Records, Records, Records]:
    """The records on our clock: most likely, at the earliest, at the latest; `clock`: that told
    them, None = ours."""
    if clock is None or not len(records):
        return records, records, records
    whole = words_of(records)
    versions = (np.hstack([times, whole[:, TIMES:]]) for times in clock.place(whole[:, :TIMES]))
    likely, early, late = (version.view(RECORD_DTYPE).reshape(-1) for version in versions)
    return likely, early, late


def history_parts(workdir: str | os.PathLike[str], operations_per_part: int = 4_000_000) -> int:
    """Into how many parts to read the history so that each holds about that many operations (≥
    1)."""
    size = sum(path.stat().st_size for path in Path(workdir).glob("history-*.bin"))
    return max(-(-size // (RECORD_BYTES * operations_per_part)), 1)


# The reader keeps one number per file, which is how many records it has handed out. So it cannot
# leave out a record and come back for it. Where a record has ended too recently, all records after
# it wait, too. That includes the later files of the same worker, hence the `break`. A record handed
# out too early would keep votes that are patched afterwards, because nobody reads it again.
class HistoryTail:
    """Follows the history of a run from another process while it grows."""

    def __init__(self, workdir: str | os.PathLike[str]) -> None:
        self._workdir = Path(workdir)
        # Path → the number of records already handed out.
        self._read: dict[Path, int] = {}

    def new_records(self, settled_before_ns: int = NEVER_NS) -> Records:
        """What was recorded since the last call, of all workers: of each up to its first operation
        that returned at or after `settled_before_ns`, so that the votes of what is handed out can
        no longer be patched."""
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
        return np.concatenate(parts) if len(parts) > 1 else (*parts, np.empty(0, RECORD_DTYPE))[0]


# The file has its full length from the beginning, so its size does not tell how many records are
# complete. A binary search finds the first record without its sequence. It reads one number per
# step, while a scan would read the whole file again in every look. The search relies on the order
# of writing: a writer that completed records out of order would have some of them handed out half
# written.
def _read_from(path: Path, record: int) -> Records:
    """The records from index `record` on that were complete when this was called: one after the
    other is written, each with its sequence last, so what stands before a sequence that is there is
    whole."""
    with path.open("rb", buffering=0) as file:

        def sequence(index: int) -> int:
            return int.from_bytes(
                os.pread(file.fileno(), 8, (index + 1) * RECORD_BYTES - 8), "little"
            )

        first = sequence(record)
        there = range(os.fstat(file.fileno()).st_size // RECORD_BYTES - record if first else 0)
        count = bisect_left(there, 1, key=lambda index: sequence(record + index) != first + index)
        return np.fromfile(file, RECORD_DTYPE, count, offset=record * RECORD_BYTES)


def _by_worker(
    workdir: str | os.PathLike[str], kind: str = ""
) -> dict[Who, list[tuple[int, Path]]]:
    """The numbered files of each worker; of kind "share": of some resources, from another host
    (bench/hosts/share.py)."""
    workers: dict[Who, list[tuple[int, Path]]] = {}
    for worker, path in worker_files(workdir, "history"):
        *kind_parts, number = path.name.split(".")[1:-1]
        if "".join(kind_parts) == kind:
            workers.setdefault(worker, []).append((int(number), path))
    return {worker: sorted(workers[worker]) for worker in sorted(workers)}


# A record is written when its operation has ended, so a killed process leaves no record of the
# operation it was in. Nobody could tell that from an operation that never was. So each caller
# stores its start in a mapped page before it sends anything. It stores 0 once the record is written
# or the cut is counted. The page belongs to the kernel and survives `kill -9`. A mark that is left
# (`read_open`) keeps the verdict from SAFE, as that operation may have held a lease. Storing 0
# before the record is written would open a moment in which a kill hides the operation.
class Begun:
    """What the operations of one worker leave before they have ended."""

    def __init__(self, workdir: str | os.PathLike[str], worker_index: int) -> None:
        begun, lost = (
            Path(workdir) / f"{kind}-{worker_index}-{os.getpid()}.bin" for kind in (BEGUN, LOST)
        )
        self._begun = Grown(begun)
        self._places = _NO_ROWS
        self._place = 0
        self._lost = Grown(lost)
        self._rows = _NO_ROWS
        self._row = 0
        self._seals = seals.Seals(workdir, seals.LOST, worker_index)
        self._sealed = 0

    def place(self) -> tuple[memoryview, int]:
        """A caller's place: `view[index]` is the start (ns) of the operation it is in, 0 between
        two. Raises EnvironmentNotReadyError when the disk has no room for it."""
        if self._place == len(self._places):
            self._places = self._begun.chunk()
            self._place = 0
        self._place += 1
        return self._places, self._place - 1

    def lost(self, resource: int, times_ns: Sequence[int]) -> None:
        """Keep when attempts of one acquire that lost were begun.

        Raises EnvironmentNotReadyError on a full disk.
        """
        for time_ns in times_ns:
            row = self._row
            if row == len(self._rows):
                self._seal()
                self._rows = self._lost.chunk()
                row = 0
            self._rows[row] = resource
            # The time is written last, because a row counts once it has a time.
            self._rows[row + 1] = time_ns
            self._row = row + 2

    def _seal(self) -> None:
        """Keep the checksum of the rows of a chunk that is full, or the last."""
        count = self._row // 2
        if count:
            self._seals.add(
                self._sealed, np.frombuffer(self._rows, "<i8", self._row).reshape(count, 2)
            )
            self._sealed += count

    def forget(self) -> None:
        """Nobody can judge what was lost so far."""
        self._rows = _NO_ROWS
        self._row = 0
        self._lost.cut(0)
        self._seals.forget()
        self._sealed = 0

    def close(self) -> None:
        """Nothing more comes."""
        # Without room on the disk the records stay unsealed, and the result says so.
        with suppress(EnvironmentNotReadyError):
            self._seal()
        self._seals.close()
        unused = len(self._rows) - self._row
        self._rows = _NO_ROWS
        self._row = 0
        self._lost.cut(self._lost.size - 8 * unused)


def read_open(workdir: str | os.PathLike[str]) -> Counter[Who]:
    """How many operations of each (worker, pid) were begun and never recorded, once their processes
    have ended."""
    unfinished: Counter[Who] = Counter()
    for worker, path in worker_files(workdir, BEGUN):
        unfinished[worker] += int(np.count_nonzero(np.fromfile(path, "<i8")))
    return unfinished


def _good_lost(
    workdir: str | os.PathLike[str], worker: Who, path: Path, rows: Integers
) -> NDArray[np.bool_]:
    """Which rows of lost attempts can be believed."""
    good = (rows[:, 0] >= 0) & (rows[:, 1] > 0) & (rows[:, 1] < NEVER_NS)
    # This host wrote the file. Pieces from other hosts were checked when they were unpacked.
    if "." not in path.stem:
        broken, _ = seals.check(seals.read(workdir, seals.LOST, worker), 0, rows, rows[:, 1] != 0)
        good &= ~broken
    return np.asarray(good)


def torn_lost(workdir: str | os.PathLike[str]) -> int:
    """How many rows of lost attempts cannot be believed."""
    torn = 0
    for worker, path in worker_files(workdir, LOST):
        rows = rows_of(path, 2)
        torn += int(((rows != 0).any(axis=1) & ~_good_lost(workdir, worker, path, rows)).sum())
        if "." not in path.stem:
            blocks = seals.read(workdir, seals.LOST, worker)
            torn += seals.malformed(blocks) + max(
                max((first + count for first, count, _ in blocks), default=0) - len(rows), 0
            )
    return torn


def read_lost(
    workdir: str | os.PathLike[str], clocks: Mapping[Who, Clock] | None = None
) -> Integers:
    """All attempts that lost: resource and when it was begun (ns). What is torn off an end is left
    out. With `clocks`, of the workers that have one of their own: when at the earliest and at the
    latest, on ours."""
    parts = []
    for worker, path in worker_files(workdir, LOST):
        rows = rows_of(path, 2)
        rows = rows[_good_lost(workdir, worker, path, rows)]
        if clocks:
            bounds = clocks[worker].bounds(rows[:, 1]) if worker in clocks else (0, 0)
            rows = np.column_stack([rows[:, 0], *(rows[:, 1] + bound for bound in bounds)])
        parts.append(rows)
    return np.concatenate(parts) if parts else np.empty((0, 2), np.int64)
