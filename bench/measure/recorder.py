"""The writer of a history: *one finished operation → a record in a memory-mapped file* (record.py
says its form).

Rules: `sequence` is written last. One thread writes. Each full block is sealed (seals.py). Compiled
with the core (lockcore/compiled.py), where a wheel is built: there a field is a machine's int64
from its caller to the file, and no Python object is made of it.
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
    """One file of a history while it is mapped.

    `base`: slot of its first record; `fields`: all of its int64.
    """

    def __init__(self, base: int, file: mmap.mmap) -> None:
        self.base = base
        self.file = file
        self.fields = memoryview(file).cast("q")

    def close(self) -> None:
        """Unmap it."""
        self.fields.release()
        self.file.close()


class Recorder:
    """Appends one worker's operations to its history files, of so many records each. One thread
    writes; its greenlets need no lock. Raises EnvironmentNotReadyError when a file cannot be
    made."""

    def __init__(
        self, workdir: str | os.PathLike[str], worker_index: int, segment_records: int = 1 << 17
    ) -> None:
        self._prefix = Path(workdir) / f"history-{worker_index}-{os.getpid()}"
        self._segment_records = segment_records
        self._older: Segment | None = None
        # The number of operations recorded.
        self.written = 0
        self._limit = segment_records
        self._record = BytesWriter()
        self._seals = Seals(workdir, HISTORY, worker_index)
        # The number of records that have a checksum.
        self._sealed = 0
        self._seal_at = min(BLOCK, segment_records)
        self._segment = self._make_segment(0)

    # One argument per field, by position: building a tuple would cost time in every operation.
    # The fields are gathered outside the file, with a sequence of 0, and copied at once. Only then
    # is the sequence stored by itself. A copy gives no promise which of its bytes arrive first.
    # With the sequence in it, a reader in another process could find a whole sequence beside fields
    # that are half written. In machine code an `i64` goes from the caller to the file, and no
    # Python object is made of it.
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
        """Append one operation (`RECORD_FIELDS` but the last) and return its slot: 0, 1, 2, …
        Raises ValueError when a value is no int64 and after `close`, EnvironmentNotReadyError when
        the disk has no room for the next segment."""
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
        """Keep the checksum of what was written since the last one, which is all of one file."""
        base = self._segment.base
        # Records that a full disk kept from being sealed stay unsealed.
        first = max(self._sealed, base)
        if self.written > first:
            block = self._segment.file[
                (first - base) * RECORD_BYTES : (self.written - base) * RECORD_BYTES
            ]
            self._seals.add(first, np.frombuffer(block, "<i8").reshape(-1, FIELDS), VOTES)
        self._sealed = self.written
        self._seal_at = min(self._sealed + BLOCK, base + self._segment_records)

    # Only the newest two files are mapped, so a round that stays open for longer keeps its votes
    # undecided. The newer file is tried first because its slots are above the base of both. In the
    # other order a new slot would be looked for in the older file, beyond its end. A patch never
    # breaks a seal, because the votes are no part of the sum (seals.py).
    def patch_votes(self, slot: int, votes: int) -> bool:
        """Replace the votes of a written record, once its round has closed; False when it is too
        old for that."""
        for segment in (self._segment, self._older):
            if segment is not None and slot >= segment.base:
                segment.fields[(slot - segment.base) * FIELDS + VOTES] = votes
                return True
        return False

    def read(self, slot: int, limit: int) -> Records:
        """Up to `limit` (≥ 0) records from `slot` (≥ 0) on, as written so far; fewer where a
        segment ends."""
        base = slot - slot % self._segment_records
        stop = min(slot + limit, base + self._segment_records, self.written)
        if stop <= slot:
            return records_of([])
        return np.fromfile(
            self._path(base), RECORD_DTYPE, stop - slot, offset=(slot - base) * RECORD_BYTES
        ).view(Records)

    def close(self) -> None:
        """Unmap, and shorten the last file to what was written."""
        # Without room on the disk the records stay unsealed, and the result says so.
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
        cure = f"free disk space ({size} bytes) or run with a shorter --duration"
        with writing(path, cure), path.open("xb+", buffering=0) as file:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
                return Segment(base, mmap.mmap(file.fileno(), size))
            except OSError:
                path.unlink()
                raise
