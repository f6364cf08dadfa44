"""Operations that have no record yet: *starts and lost attempts → mapped pages → operations without
a record*.

An operation gets its record when it has ended. Until then a separate page holds its start, from
before the first command. If an acquire retries, it stores the start of each lost attempt, because
each attempt asked for the resource.
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


# A record is written when its operation has ended, so a killed process leaves no record of the
# operation it was in. Nobody could tell that from an operation that never was. So each caller
# stores its start in a mapped page before it sends anything. It stores 0 once the record is written
# or the cut is counted. The page belongs to the kernel and survives `kill -9`. A mark that is left
# (`read_open`) keeps the verdict from SAFE, as that operation may have held a lease. Storing 0
# before the record is written would open a moment in which a kill hides the operation.
class Begun:
    """The starts and the lost attempts of one worker's operations, before the operations end."""

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
        """A new place for one caller: `view[index]` is the start (ns) of its running operation, or
        0 between operations. Raises EnvironmentNotReadyError if the disk has no room."""
        if self._place == len(self._places):
            self._places = self._begun.chunk()
            self._place = 0
        self._place += 1
        return self._places, self._place - 1

    def lost(self, resource: int, times_ns: Sequence[int]) -> None:
        """Store the starts of an acquire's lost attempts.

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
        """Store the checksum of the rows in a full chunk, or in the last chunk."""
        count = self._row // 2
        if count:
            self._seals.add(
                self._sealed, np.frombuffer(self._rows, "<i8", self._row).reshape(count, 2)
            )
            self._sealed += count

    def forget(self) -> None:
        """Remove all lost attempts so far, which nobody can judge."""
        self._rows = _NO_ROWS
        self._row = 0
        self._lost.cut(0)
        self._seals.forget()
        self._sealed = 0

    def close(self) -> None:
        """Seal the rest and shorten the file. No further attempt follows."""
        # If the disk is full, the rows stay unsealed, and the result says so.
        with suppress(EnvironmentNotReadyError):
            self._seal()
        self._seals.close()
        unused = len(self._rows) - self._row
        self._rows = _NO_ROWS
        self._row = 0
        self._lost.cut(self._lost.size - 8 * unused)


def read_open(workdir: str | os.PathLike[str]) -> Counter[Who]:
    """How many operations of each (worker, pid) began and have no record. Call it after their
    processes have ended."""
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
    """All lost attempts, each with its resource and its start (ns). Torn rows are left out.

    `clocks`: the clocks of workers that have their own. With `clocks` each attempt has its earliest
    and its latest start on our clock.
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
