"""The writer of a history: *one finished operation → a record in a memory-mapped file* (record.py says its form).

Rules: `sequence` is packed last; one thread writes. Compiled with the core (lockcore/compiled.py), where a wheel is
built.
"""

import mmap
import os
import struct
from pathlib import Path
from typing import Final

import numpy as np

from bench.errors import EnvironmentNotReadyError
from bench.measure.record import RECORD_DTYPE, RECORD_FIELDS, Records

RECORD_BYTES: Final = 8 * len(RECORD_FIELDS)
# Py_ssize_t where that is a little-endian int64: packed in two thirds of the time of "q" (0.26 µs a record, 0.39)
_CODE = "@{}n" if struct.pack("@n", 1) == struct.pack("<q", 1) else "<{}q"
_pack_into = struct.Struct(_CODE.format(len(RECORD_FIELDS))).pack_into
_pack_votes_into = struct.Struct("<q").pack_into
_VOTES_OFFSET: Final = 8 * RECORD_FIELDS.index("votes")


class Recorder:
    """Appends one worker's operations to its history files. One thread writes; its greenlets need no lock.

    `segment_records`: records per file (≥ 1). Raises EnvironmentNotReadyError when a file cannot be made.
    """

    def __init__(self, workdir: str | os.PathLike[str], worker_index: int, segment_records: int = 1 << 17) -> None:
        self._prefix = Path(workdir) / f"history-{worker_index}-{os.getpid()}"
        self._segment_records = segment_records
        self._older: mmap.mmap | None = None
        self._older_base = 0
        self._base = self._offset = 0
        self.written = 0  # operations recorded
        self._limit = segment_records
        self._buffer = self._make_segment(0)

    def write(  # noqa: PLR0917 - one argument per field, by position: a tuple would cost its building
        self, intended_ns: object, start_ns: object, attempt_ns: object, granted_ns: object, valid_until_ns: object,
        work_end_ns: object, release_sent_ns: object, release_replied_ns: object, ended_ns: object, resource: object,
        caller: object, outcome: object, votes: object, attempts: object, owner: object,
    ) -> int:  # fmt: skip
        """Append one operation (`RECORD_FIELDS` but the last, each within int64) and return its slot: 0, 1, 2, …

        Raises EnvironmentNotReadyError when the disk has no room for the next segment, struct.error when a value is no
        int64, ValueError after `close`.
        """
        slot = self.written
        if slot == self._limit:
            self._next_segment()
        _pack_into(
            self._buffer, self._offset, intended_ns, start_ns, attempt_ns, granted_ns, valid_until_ns, work_end_ns,
            release_sent_ns, release_replied_ns, ended_ns, resource, caller, outcome, votes, attempts, owner, slot + 1,
        )  # fmt: skip
        self._offset += RECORD_BYTES
        self.written = slot + 1
        return slot

    def patch_votes(self, slot: int, votes: int) -> bool:
        """Replace the votes of a written record, once its round has closed.

        Reaches the present and the previous segment; returns False when the record is older than that.
        """
        if slot >= self._base:
            _pack_votes_into(self._buffer, (slot - self._base) * RECORD_BYTES + _VOTES_OFFSET, votes)
        elif self._older is not None and slot >= self._older_base:
            _pack_votes_into(self._older, (slot - self._older_base) * RECORD_BYTES + _VOTES_OFFSET, votes)
        else:
            return False
        return True

    def read(self, slot: int, limit: int) -> Records:
        """Up to `limit` (≥ 1) records from `slot` (≥ 0) on, as written so far; fewer where a segment ends."""
        base = slot - slot % self._segment_records
        stop = min(slot + limit, base + self._segment_records, self.written)
        if stop <= slot:
            return np.empty(0, RECORD_DTYPE)
        first, end = (slot - base) * RECORD_BYTES, (stop - base) * RECORD_BYTES
        buffer = self._buffer if base == self._base else self._older if base == self._older_base else None
        if buffer is None:
            return np.fromfile(self._path(base), dtype=RECORD_DTYPE, count=stop - slot, offset=first)
        return np.frombuffer(buffer[first:end], dtype=RECORD_DTYPE)

    def close(self) -> None:
        """Unmap, and shorten the last file to what was written."""
        if self._older is not None:
            self._older.close()
        self._buffer.close()
        os.truncate(self._path(self._base), (self.written - self._base) * RECORD_BYTES)

    def _next_segment(self) -> None:
        base = self._base + self._segment_records
        buffer = self._make_segment(base)
        if self._older is not None:
            self._older.close()
        self._older, self._older_base = self._buffer, self._base
        self._buffer, self._base, self._offset = buffer, base, 0
        self._limit = base + self._segment_records

    def _path(self, base: int) -> Path:
        return self._prefix.with_name(f"{self._prefix.name}.{base // self._segment_records}.bin")

    def _make_segment(self, base: int) -> mmap.mmap:
        path, size = self._path(base), self._segment_records * RECORD_BYTES
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, size)
                return mmap.mmap(descriptor, size)
            except OSError:
                path.unlink()
                raise
            finally:
                os.close(descriptor)
        except OSError as error:
            raise EnvironmentNotReadyError(
                f"cannot make room for the history ({size} bytes at {path}): {error.strerror}; "
                "free disk space or run with a shorter --duration"
            ) from error
