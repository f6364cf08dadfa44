"""The history: *one finished operation → 128 bytes in a memory-mapped file → a numpy array*.

Rules
- A record is 16 little-endian int64 (`RECORD_FIELDS`); times are nanoseconds of CLOCK_MONOTONIC, 0 = did not happen.
- `sequence` (slot + 1) is packed last (recorder.py), so a record cut short by a kill is noticed: it alone is missing.
- Files are made in segments with posix_fallocate: a full disk is an error at a known point, never a SIGBUS on the way.
- The pages belong to the kernel: what was written before a `kill -9` of the worker is read back in full. Readers read,
  they never map: a segment may be shortened by its writer when the run ends.
"""

import os
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from bench.measure.begun import read_lost
from bench.measure.clocks import Clock, read_clocks
from bench.measure.section import Section, says
from bench.measure.timeline import Integers


class OperationFacts(Section, frozen=True, kw_only=True):
    """One recorded operation. Times: ns of CLOCK_MONOTONIC, 0 = did not happen. The first 16 fields are a record's."""

    intended_ns: Annotated[int, says("when the schedule wanted the acquire to start (closed loop: start_ns)")] = 0
    start_ns: Annotated[int, says("when the caller really called acquire")]
    attempt_ns: Annotated[int, says("before the first command of the last attempt that was sent")] = 0
    granted_ns: Annotated[int, says("the clock reading that the validity check used")] = 0
    valid_until_ns: Annotated[int, says("end of the lease on our clock")] = 0
    work_end_ns: Annotated[int, says("end of the protected work")] = 0
    release_sent_ns: Annotated[int, says("before the release was sent")] = 0
    release_replied_ns: Annotated[int, says("when release returned")] = 0
    ended_ns: Annotated[int, says("when acquire returned, whatever its outcome")]
    resource: Annotated[int, says("index of the resource")]
    caller: Annotated[int, says("index of the user over all workers")]
    outcome: Annotated[str, says("of the acquire")]
    votes: Annotated[int, says("granted, refused, errored, silent, absent, undecided: a byte each, lowest first")] = 0
    attempts: Annotated[int, says("rounds; those that were split votes × 2^32")] = 0
    owner: Annotated[int, says("64-bit digest of the owner token, as a signed integer")] = 0
    sequence: Annotated[int, says("its place in the history of its worker, from 1")]
    release_outcome: Annotated[str, says("of the release; none: there was none")] = "none"


# as packed: `outcome` is the code of the acquire | that of the release << 8; `sequence` is slot + 1, written last
RECORD_FIELDS = OperationFacts.__struct_fields__[:16]
RECORD_DTYPE = np.dtype([(name, "<i8") for name in RECORD_FIELDS])
RECORD_BYTES = RECORD_DTYPE.itemsize

OUTCOMES = (
    "none", "acquired", "contended", "split_vote", "unreachable", "too_late", "extended", "released", "gone",
)  # fmt: skip
OUTCOME_CODES: dict[str, int] = {name: code for code, name in enumerate(OUTCOMES)}  # Outcome.value -> code

TIMES = 9  # the first so many fields are times
Records = NDArray[Any]  # a one-dimensional structured array of RECORD_DTYPE

_SEGMENT_NAME = re.compile(r"history-(\d+)-(\d+)\.(\d+)\.bin")
_SHARE_NAME = re.compile(r"history-(\d+)-(\d+)\.share\.(\d+)\.bin")  # of some resources, from another host (share.py)


@dataclass(frozen=True, slots=True)
class History:
    """All complete records of a run and what is known to be missing from them.

    `lost`: attempts of their acquires before the last one: resource, when it was begun (ns). `counts`: records of each
    (worker, pid) that has a file. All times are on our clock; `early` and `late`: the `records` at the earliest and at
    the latest that they can be where another clock told some of them (`lost` has two times then), else None.
    """

    records: Records
    torn: int  # records whose writing was cut short
    missing_segments: int  # files that should stand between others, and do not
    lost: Integers = field(default_factory=lambda: np.empty((0, 2), np.int64))
    counts: Mapping[tuple[int, int], int] = field(default_factory=dict)
    early: Records | None = None
    late: Records | None = None


def ends_ns(records: Records) -> Integers:
    """When each operation was over: its release returned, or its acquire if it released nothing."""
    return np.asarray(np.maximum(records["ended_ns"], records["release_replied_ns"]))


def read_history(workdir: str | os.PathLike[str], part: int = 0, parts: int = 1) -> History:
    """The complete records of all workers in `workdir`, by worker and slot.

    For writers that have ended; while they write, follow them with HistoryTail. Needs 128 bytes of memory per
    operation: a long run is read in `parts`, each (0 ≤ `part` < `parts`) with all operations of its resources, those
    whose index modulo `parts` is `part`. What is torn, missing or there is counted in part 0 only.
    """
    pieces: list[tuple[Records, Records, Records]] = []
    counts: Counter[tuple[int, int]] = Counter()
    torn, missing, clocks = 0, 0, read_clocks(workdir)
    for worker, records, cut, absent in read_pieces(workdir):
        chosen = records if parts == 1 else records[records["resource"] % parts == part]
        pieces.append(placed(chosen, clocks.get(worker)))
        torn, missing = torn + cut, missing + absent
        counts[worker] += len(records)
    wanted = 3 if clocks else 1
    likely, *bounds = (
        np.concatenate([piece[which] for piece in pieces] or [np.empty(0, RECORD_DTYPE)]) for which in range(wanted)
    )
    lost = read_lost(workdir, clocks)
    lost = lost[lost[:, 0] % parts == part]
    said = (0, 0, lost, {}) if part else (torn, missing, lost, counts)
    return History(likely, *said, *bounds)


def read_pieces(workdir: str | os.PathLike[str]) -> Iterator[tuple[tuple[int, int], Records, int, int]]:
    """Each file's worker and pid, complete records, number of torn ones and of files that should stand before it."""
    for worker, segments in _by_worker(Path(workdir)).items():
        base, expected = 0, 0
        for number, path in segments:
            base = base if number == expected else -1
            raw = np.fromfile(path, dtype=RECORD_DTYPE)
            yield worker, *_complete(raw, base), number - expected
            base, expected = (base + len(raw) if base >= 0 else -1), number + 1
    shares = [match for path in Path(workdir).glob("history-*.bin") if (match := _SHARE_NAME.fullmatch(path.name))]
    for index, pid, number in sorted((int(match[1]), int(match[2]), int(match[3])) for match in shares):
        raw = np.fromfile(Path(workdir) / f"history-{index}-{pid}.share.{number}.bin", dtype=RECORD_DTYPE)
        later = np.diff(raw["sequence"], prepend=0) > 0
        yield (index, pid), raw[later], int((~later).sum()), 0


def placed(records: Records, clock: Clock | None) -> tuple[Records, Records, Records]:
    """The records on our clock: most likely, at the earliest, at the latest; `clock`: that told them, None = ours."""
    if clock is None or not len(records):
        return records, records, records
    whole = np.ascontiguousarray(records).view("<i8").reshape(len(records), -1)
    found = tuple(whole.copy() for _ in range(3))
    for version, times in zip(found, clock.place(whole[:, :TIMES]), strict=True):
        version[:, :TIMES] = times
    likely, early, late = (version.view(RECORD_DTYPE).reshape(-1) for version in found)
    return likely, early, late


def history_parts(workdir: str | os.PathLike[str], operations_per_part: int = 4_000_000) -> int:
    """Into how many parts to read the history so that each holds about that many operations (≥ 1)."""
    size = sum(path.stat().st_size for path in Path(workdir).glob("history-*.bin"))
    return max(-(-size // (RECORD_BYTES * operations_per_part)), 1)


class HistoryTail:
    """Follows the history of a run from another process while it grows."""

    def __init__(self, workdir: str | os.PathLike[str]) -> None:
        self._workdir = Path(workdir)
        self._read: dict[Path, int] = {}  # path -> records already handed out

    def new_records(self, settled_before_ns: int | None = None) -> Records:
        """What was recorded since the last call, of all workers.

        With `settled_before_ns` each worker's part ends before its first operation that returned at or after that
        time: the votes of what is handed out can then no longer be patched.
        """
        parts = [
            part
            for segments in _by_worker(self._workdir).values()
            for part in self._advance(segments, settled_before_ns)
            if len(part)
        ]
        return np.concatenate(parts) if len(parts) > 1 else (*parts, np.empty(0, RECORD_DTYPE))[0]

    def _advance(self, segments: Sequence[tuple[int, Path]], settled_before_ns: int | None) -> list[Records]:
        parts: list[Records] = []
        for _, path in segments:
            start = self._read.get(path, 0)
            records = _read_from(path, start)
            whole = len(records)
            if settled_before_ns is not None:
                late = ends_ns(records) >= settled_before_ns
                records = records[: int(late.argmax())] if late.any() else records
            self._read[path] = start + len(records)
            parts.append(records)
            if len(records) < whole:
                break
        return parts


def _read_from(path: Path, record: int) -> Records:
    """The records from index `record` on that were complete when this was called.

    One after the other is written, each with its sequence last: what stands before a sequence that is there is whole.
    """
    with path.open("rb", buffering=0) as file:

        def sequence(index: int) -> int:
            return int.from_bytes(os.pread(file.fileno(), 8, (index + 1) * RECORD_BYTES - 8), "little")

        first = sequence(record)
        there = range(os.fstat(file.fileno()).st_size // RECORD_BYTES - record if first else 0)
        count = bisect_left(there, 1, key=lambda index: sequence(record + index) != first + index)
        return np.fromfile(file, RECORD_DTYPE, count, offset=record * RECORD_BYTES)


def _by_worker(workdir: Path) -> dict[tuple[int, int], list[tuple[int, Path]]]:
    workers: dict[tuple[int, int], list[tuple[int, Path]]] = {}
    for path in workdir.glob("history-*.bin"):
        if match := _SEGMENT_NAME.fullmatch(path.name):
            worker, pid, number = (int(text) for text in match.groups())
            workers.setdefault((worker, pid), []).append((number, path))
    return {worker: sorted(workers[worker]) for worker in sorted(workers)}


def _complete(raw: Records, base: int) -> tuple[Records, int]:
    """The records with the right sequence and the number of torn ones. `base`: slot of the first, −1 = believe it."""
    if base < 0:
        base = int(raw["sequence"][0]) - 1 if len(raw) else 0
    whole = raw["sequence"] == base + 1 + np.arange(len(raw))
    if whole.all():
        return raw, 0
    begun = (raw.view("<i8").reshape(len(raw), -1) != 0).any(axis=1)
    return raw[whole & begun], int((begun & ~whole).sum())
