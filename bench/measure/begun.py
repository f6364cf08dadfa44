"""Operations that have no record yet. Each worker stores the starts of its operations in mapped
pages, which survive a kill of the worker.

The worker writes the record of an operation when the operation has ended. While the operation runs,
only its start is stored, on one of these pages. The caller stores the start before it sends the
first command. If an acquire needs several attempts, the caller also stores the start of each failed
attempt. The judge needs the start of each attempt, because an attempt can test a lease that another
caller holds at that time.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.errors import EnvironmentNotReadyError
from bench.measure import seals
from bench.measure.clocks import Clock, Integers, Who, rows_of, worker_files
from bench.measure.grown import Grown
from bench.measure.record import NEVER_NS

BEGUN = "begun"

LOST = "lost"

_NO_ROWS = memoryview(b"").cast("q")


# A record is written when its operation has ended, so a killed process leaves no record of its
# running operation. Without further data, this operation would look as if it had never begun. So
# each caller stores the start of its operation in a mapped page before it sends anything. After the
# record is written, the caller stores 0. It also stores 0 when the operation is counted as cut off.
# The page belongs to the kernel and survives `kill -9`. If a start is left in the page
# (`read_open`), the verdict cannot be SAFE, because that operation may have held a lease. The
# caller must not store 0 before it writes the record. Otherwise a kill between these two steps
# would hide the operation.
class Begun:
    """Writes two files of one worker. The first file contains the starts of running operations. The
    second file contains the starts of all lost attempts."""

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
        """Return a view and an index for one caller. At the start of each operation, the caller
        stores the time (ns) in `view[index]`. After the operation, the caller stores 0 in
        `view[index]`.

        Raises EnvironmentNotReadyError if the disk has no room.
        """
        if self._place == len(self._places):
            self._places = self._begun.chunk()
            self._place = 0
        self._place += 1
        return self._places, self._place - 1

    def lost(self, resource: int, times_ns: Sequence[int]) -> None:
        """Store the starts (ns) of all lost attempts of one acquire.

        Raises EnvironmentNotReadyError on a full disk.
        """
        for time_ns in times_ns:
            row = self._row
            if row == len(self._rows):
                self._seal()
                self._rows = self._lost.chunk()
                row = 0
            self._rows[row] = resource
            # The time is written last, because readers accept every row that has a time.
            self._rows[row + 1] = time_ns
            self._row = row + 2

    def _seal(self) -> None:
        """Store the checksum of the rows in the current chunk. The class calls this method when the
        chunk is full, and when the file is closed."""
        count = self._row // 2
        if count:
            self._seals.add(
                self._sealed, np.frombuffer(self._rows, "<i8", self._row).reshape(count, 2)
            )
            self._sealed += count

    def forget(self) -> None:
        """Remove all lost attempts that were stored so far. The records of these attempts have been
        removed, so the judge cannot use the attempts."""
        self._rows = _NO_ROWS
        self._row = 0
        self._lost.cut(0)
        self._seals.forget()
        self._sealed = 0

    def close(self) -> None:
        """Store the last checksum, and cut the unused end off the file. After this call, the object
        cannot store any lost attempts."""
        # If the disk is full, the last rows stay without a checksum, and the result reports that.
        with suppress(EnvironmentNotReadyError):
            self._seal()
        self._seals.close()
        unused = len(self._rows) - self._row
        self._rows = _NO_ROWS
        self._row = 0
        self._lost.cut(self._lost.size - 8 * unused)


def read_open(workdir: str | os.PathLike[str]) -> Counter[Who]:
    """Return, for each worker and pid, the number of operations that began but have no record. Call
    this function after the processes have ended."""
    unfinished: Counter[Who] = Counter()
    for worker, path in worker_files(workdir, BEGUN):
        unfinished[worker] += int(np.count_nonzero(np.fromfile(path, "<i8")))
    return unfinished


def _good_lost(
    workdir: str | os.PathLike[str], worker: Who, path: Path, rows: Integers
) -> NDArray[np.bool_]:
    """Return a mask of the intact rows of lost attempts. A row is intact if its values are possible
    and its checksum is correct."""
    good = (rows[:, 0] >= 0) & (rows[:, 1] > 0) & (rows[:, 1] < NEVER_NS)
    # If the name has no dot before its suffix, this host wrote the file. Files from other hosts
    # were checked when they were unpacked.
    if "." not in path.stem:
        broken, _ = seals.check(seals.read(workdir, seals.LOST, worker), 0, rows, rows[:, 1] != 0)
        good &= ~broken
    return np.asarray(good)


def torn_lost(workdir: str | os.PathLike[str]) -> int:
    """Return how many rows of lost attempts are damaged or missing."""
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
    """Return all intact lost attempts. Each row has two columns, which are the resource and the
    start of the attempt (ns).

    `clocks` has the clock of each worker that does not use our clock. If `clocks` is given, each
    row has the earliest possible start and the latest possible start on our clock.
    """
    parts = []
    for worker, path in worker_files(workdir, LOST):
        rows = rows_of(path, 2)
        rows = rows[_good_lost(workdir, worker, path, rows)]
        if clocks:
            bounds = clocks[worker].bounds(rows[:, 1]) if worker in clocks else (0, 0)
            rows = np.column_stack([rows[:, 0], *(rows[:, 1] + bound for bound in bounds)])
        parts.append(rows)
    return np.concatenate(parts) if parts else np.empty((0, 2), np.int64)
