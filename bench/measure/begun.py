"""What was begun, and what lost: *operations in progress, attempts without a grant → what a history cannot hold*.

Rules: a record is written when its operation has ended; so its start stands in a page of the kernel's from before
anything is sent until then, where a `kill -9` or a stop finds it. An acquire that tries again says of each lost attempt
when it was begun: evidence that the resource was asked for. Files of the run's folder, by worker and pid.
"""

import mmap
import os
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path

import numpy as np

from bench.errors import writing
from bench.measure.clocks import Clock
from bench.measure.timeline import Integers

PLACES = 512  # operations in progress per page
BEGUN, LOST = "begun", "lost"
CURE = "free disk space"

_pack = struct.Struct("<2q").pack


class Begun:
    """What the operations of one worker leave before they have ended. Its files are made when they are needed."""

    def __init__(self, workdir: str | os.PathLike[str], worker_index: int) -> None:
        self._name = f"{worker_index}-{os.getpid()}"
        self._workdir, self._lost_path = Path(workdir), Path(workdir) / f"{LOST}-{self._name}.bin"
        self._pages: list[memoryview] = []
        self._taken = 0
        self._lost: FileIO | None = None

    def place(self) -> tuple[memoryview, int]:
        """A caller's place: `view[index]` is the start (ns) of the operation it is in, 0 between two.

        Raises EnvironmentNotReadyError when the disk has no room for the next page.
        """
        page, index = divmod(self._taken, PLACES)
        if page == len(self._pages):
            path = self._workdir / f"{BEGUN}-{self._name}.{page}.bin"
            with writing(path, CURE), path.open("xb+", buffering=0) as file:
                os.posix_fallocate(file.fileno(), 0, 8 * PLACES)
                self._pages.append(memoryview(mmap.mmap(file.fileno(), 8 * PLACES)).cast("q"))
        self._taken += 1
        return self._pages[page], index

    def lost(self, resource: int, times_ns: Sequence[int]) -> None:
        """Keep when attempts of one acquire that lost were begun. Raises EnvironmentNotReadyError on a full disk."""
        with writing(self._lost_path, CURE):
            if self._lost is None:
                self._lost = self._lost_path.open("ab", buffering=0)
            self._lost.write(b"".join(_pack(resource, time_ns) for time_ns in times_ns))

    def forget(self) -> None:
        """Nobody can judge what was lost so far."""
        if self._lost is not None:
            self._lost.truncate(0)

    def close(self) -> None:
        """Nothing more comes."""
        if self._lost is not None:
            self._lost.close()


def read_open(workdir: str | os.PathLike[str]) -> Counter[tuple[int, int]]:
    """How many operations of each (worker, pid) were begun and never recorded, once their processes have ended."""
    found: Counter[tuple[int, int]] = Counter()
    for worker, path in _files(workdir, BEGUN):
        found[worker] += int(np.count_nonzero(np.fromfile(path, "<i8")))
    return found


def read_lost(workdir: str | os.PathLike[str], clocks: Mapping[tuple[int, int], Clock] | None = None) -> Integers:
    """All attempts that lost: resource and when it was begun (ns). What is torn off an end is left out. With `clocks`,
    of the workers that have one of their own: when at the earliest and at the latest, on ours."""
    found = []
    for worker, path in _files(workdir, LOST):
        part = np.fromfile(path, "<i8")
        rows = part[: len(part) - len(part) % 2].reshape(-1, 2)
        if clocks:
            bounds = clocks[worker].bounds(rows[:, 1]) if worker in clocks else (0, 0)
            rows = np.column_stack([rows[:, 0], *(rows[:, 1] + bound for bound in bounds)])
        found.append(rows)
    return np.concatenate(found) if found else np.empty((0, 2), np.int64)


def _files(workdir: str | os.PathLike[str], kind: str) -> Iterator[tuple[tuple[int, int], Path]]:
    for path in sorted(Path(workdir).glob(f"{kind}-*-*.bin")):
        _, worker, pid = path.name.partition(".")[0].split("-")
        yield (int(worker), int(pid)), path
