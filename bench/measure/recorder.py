"""Writes the history of a worker. It stores each finished operation as a record in a memory-mapped
file.

In a wheel, this file is compiled, like the core (lockcore/compiled.py). Compiled code passes each
field from the caller to the file as a machine int64, without a Python object.

record.py defines the format of a record. The recorder writes the field `sequence` of a record last.
Only one thread may write records. The recorder stores a checksum for each full block of records
(seals.py).
"""

import mmap
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
from librt.strings import BytesWriter, write_i64_le
from mypy_extensions import i64

from bench.errors import EnvironmentNotReadyError, writing
from bench.measure.record import RECORD_DTYPE, RECORD_FIELDS, Records, records_of
from bench.measure.seals import BLOCK, HISTORY, VOTES, Seals

RECORD_BYTES: Final = 8 * len(RECORD_FIELDS)
FIELDS: Final = len(RECORD_FIELDS)
SEQUENCE: Final = RECORD_FIELDS.index("sequence")


class Segment:
    """One mapped file of a history.

    `base` is the slot of the first record in the file. `fields` is a view of the whole file as
    int64 numbers.
    """

    def __init__(self, base: int, file: mmap.mmap) -> None:
        self.base = base
        self.file = file
        self.fields = memoryview(file).cast("q")

    def close(self) -> None:
        """Unmap the file."""
        self.fields.release()
        self.file.close()


class Recorder:
    """The writer that appends one worker's operations to history files.

    Only one thread may write. Several greenlets of this thread may write without a lock. Raises
    EnvironmentNotReadyError if a file cannot be created.
    """

    def __init__(
        self, workdir: str | os.PathLike[str], worker_index: int, segment_records: int = 1 << 17
    ) -> None:
        self._prefix = Path(workdir) / f"history-{worker_index}-{os.getpid()}"
        self._segment_records = segment_records
        self._older: Segment | None = None
        # How many operations have been recorded.
        self.written = 0
        self._limit = segment_records
        self._record = BytesWriter()
        self._seals = Seals(workdir, HISTORY, worker_index)
        # How many records have a checksum.
        self._sealed = 0
        self._seal_at = min(BLOCK, segment_records)
        self._segment = self._make_segment(0)

    # Each field is one positional argument, because building a tuple would cost time in every
    # operation. The method first collects the fields in a buffer, with a sequence of 0. It copies
    # the buffer to the file in one step and then stores the sequence separately. The bytes of a
    # copy may arrive in any order. If the copy contained the sequence, a reader in another process
    # could see the sequence beside half-written fields. In compiled code, an `i64` is passed from
    # the caller to the file and never becomes a Python object.
    def write(  # noqa: PLR0917
        self,
        intended_ns: i64,
        start_ns: i64,
        attempt_ns: i64,
        granted_ns: i64,
        valid_until_ns: i64,
        work_end_ns: i64,
        release_sent_ns: i64,
        release_replied_ns: i64,
        ended_ns: i64,
        resource: i64,
        caller: i64,
        outcome: i64,
        votes: i64,
        attempts: i64,
        owner: i64,
    ) -> int:
        """Append one operation and return its slot: 0, 1, 2, …

        There is one argument for each of `RECORD_FIELDS`, except for the last field, which the
        method sets. Raises ValueError if a value is not an int64, or if the recorder is closed.
        Raises EnvironmentNotReadyError if the disk has no room for the next segment.
        """
        slot = self.written
        if slot == self._limit:
            self._next_segment()
        record = self._record
        record.truncate(0)
        write_i64_le(record, intended_ns)
        write_i64_le(record, start_ns)
        write_i64_le(record, attempt_ns)
        write_i64_le(record, granted_ns)
        write_i64_le(record, valid_until_ns)
        write_i64_le(record, work_end_ns)
        write_i64_le(record, release_sent_ns)
        write_i64_le(record, release_replied_ns)
        write_i64_le(record, ended_ns)
        write_i64_le(record, resource)
        write_i64_le(record, caller)
        write_i64_le(record, outcome)
        write_i64_le(record, votes)
        write_i64_le(record, attempts)
        write_i64_le(record, owner)
        write_i64_le(record, 0)
        segment = self._segment
        index = slot - segment.base
        segment.file[index * RECORD_BYTES : (index + 1) * RECORD_BYTES] = record.getvalue()
        segment.fields[index * FIELDS + SEQUENCE] = slot + 1
        self.written = slot + 1
        if self.written == self._seal_at:
            self._seal()
        return slot

    def _seal(self) -> None:
        """Store one checksum for all records of the current file that have no checksum yet."""
        base = self._segment.base
        # If the disk was full at an earlier checksum, the records of that block stay without a
        # checksum.
        first = max(self._sealed, base)
        if self.written > first:
            block = self._segment.file[
                (first - base) * RECORD_BYTES : (self.written - base) * RECORD_BYTES
            ]
            self._seals.add(first, np.frombuffer(block, "<i8").reshape(-1, FIELDS), VOTES)
        self._sealed = self.written
        self._seal_at = min(self._sealed + BLOCK, base + self._segment_records)

    # Only the newest two files are mapped. If a round closes after its file is unmapped, its votes
    # remain undecided. The search starts with the newer file, because a slot in the newer file is
    # above the bases of both files. If the search started with the older file, it would look for
    # such a slot beyond the end of the older file. A patch never breaks a checksum, because
    # checksums leave out the votes (seals.py).
    def patch_votes(self, slot: int, votes: int) -> bool:
        """Replace the votes of a written record. Call this method after the round has closed.

        Returns False if the record's file is no longer mapped.
        """
        for segment in (self._segment, self._older):
            if segment is not None and slot >= segment.base:
                segment.fields[(slot - segment.base) * FIELDS + VOTES] = votes
                return True
        return False

    def read(self, slot: int, limit: int) -> Records:
        """Return at most `limit` (≥ 0) written records. The first returned record has the slot
        `slot` (≥ 0). The method reads only one file. The result has fewer than `limit` records if
        this file does not contain enough records."""
        base = slot - slot % self._segment_records
        stop = min(slot + limit, base + self._segment_records, self.written)
        if stop <= slot:
            return records_of([])
        return np.fromfile(
            self._path(base), RECORD_DTYPE, stop - slot, offset=(slot - base) * RECORD_BYTES
        ).view(Records)

    def close(self) -> None:
        """Unmap the files, and shorten the last file to its written records."""
        # If the disk is full, the records stay without a checksum, and the result says so.
        with suppress(EnvironmentNotReadyError):
            self._seal()
        self._seals.close()
        if self._older is not None:
            self._older.close()
        self._segment.close()
        os.truncate(
            self._path(self._segment.base), (self.written - self._segment.base) * RECORD_BYTES
        )

    def _next_segment(self) -> None:
        segment = self._make_segment(self._segment.base + self._segment_records)
        if self._older is not None:
            self._older.close()
        self._older = self._segment
        self._segment = segment
        self._limit = segment.base + self._segment_records
        self._seal_at = min(self._sealed + BLOCK, self._limit)

    def _path(self, base: int) -> Path:
        return self._prefix.with_name(f"{self._prefix.name}.{base // self._segment_records}.bin")

    def _make_segment(self, base: int) -> Segment:
        path = self._path(base)
        size = self._segment_records * RECORD_BYTES
        cure = f"free disk space ({size} bytes), or run with a shorter --duration"
        with writing(path, cure), path.open("xb+", buffering=0) as file:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
                return Segment(base, mmap.mmap(file.fileno(), size))
            except OSError:
                path.unlink()
                raise
