"""Disks: *a folder → how long an append takes to be durable there; bytes → a disk of our own, mounted nowhere*.

Rules
- A file system that is mounted nowhere has no place in the mount table; it lives as long as somebody uses it, and is
  reached by `/proc/<our pid>/fd/<n>`. Making one needs root and Linux 5.2.
- A disk in memory is made full by shrinking it to what is in use: at once, without memory.

Source: fdatasync(2); fsopen(2), fsconfig(2), fsmount(2), fspick(2), their numbers the same on every architecture;
tmpfs(5).
"""

import ctypes
import errno
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from bench.errors import EnvironmentNotReadyError
from bench.measure.run_result import SyncLatency as SyncLatency  # noqa: PLC0414 - importers change one by one

_RECORD = b"x" * 100
_FEWEST_FOR_P99 = 100


def fdatasync_latency(folder: Path, *, writes: int = 200, budget_s: float = 0.9) -> SyncLatency:
    """Measure at most `writes` (>= 1) appends of 100 bytes in `folder`, for about `budget_s`. Raises
    EnvironmentNotReadyError when it cannot be written."""
    taken_ns: list[int] = []
    try:
        with tempfile.TemporaryFile(prefix="lockbench-sync-", dir=folder, buffering=0) as file:
            deadline_ns = time.monotonic_ns() + int(budget_s * 1e9)
            for _ in range(writes):
                start_ns = time.monotonic_ns()
                file.write(_RECORD)
                os.fdatasync(file.fileno())
                end_ns = time.monotonic_ns()
                taken_ns.append(end_ns - start_ns)
                if end_ns > deadline_ns:
                    break
    except OSError as error:
        raise EnvironmentNotReadyError(
            f"fdatasync cannot be measured in {folder}: {error.strerror}; choose a folder that can be written"
        ) from error
    taken_ns.sort()
    count = len(taken_ns)
    p99_s = _nearest_rank(taken_ns, 99) / 1e9 if count >= _FEWEST_FOR_P99 else None
    return SyncLatency(count, _nearest_rank(taken_ns, 50) / 1e9, p99_s, taken_ns[-1] / 1e9)


def _nearest_rank(ordered: list[int], percent: int) -> int:
    return ordered[-(-len(ordered) * percent // 100) - 1]


_FSOPEN, _FSCONFIG, _FSMOUNT, _FSPICK = 430, 431, 432, 433
_CLOSE_ON_EXEC, _THIS_FILE = 1, 8
_SET_STRING, _CREATE, _RECONFIGURE = 1, 6, 7


def _mounted(kind: str, settings: Mapping[str, str]) -> int:
    """Mount a file system of this `kind` (as /proc/filesystems names it); close what is returned. Raises OSError."""
    context = _call(_FSOPEN, kind.encode(), _CLOSE_ON_EXEC)
    try:
        _configure(context, settings, _CREATE)
        return _call(_FSMOUNT, context, _CLOSE_ON_EXEC, 0)
    finally:
        os.close(context)


def _configure(context: int, settings: Mapping[str, str], command: int) -> None:
    for name, value in settings.items():
        _call(_FSCONFIG, context, _SET_STRING, name.encode(), value.encode(), 0)
    _call(_FSCONFIG, context, command, None, None, 0)


def _call(number: int, *arguments: int | bytes | None) -> int:
    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


class DetachedDisk:
    """A file system mounted nowhere, whose root is `folder`. A context manager."""

    def __init__(self) -> None:
        self._root = -1

    @property
    def folder(self) -> Path:
        """The root of the file system as it is mounted now."""
        return Path(f"/proc/{os.getpid()}/fd/{self._root}")

    def take_the_place_of(self, folder: Path) -> None:
        """Have the empty `folder` lead here from now on; whoever removes it removes a link, not what is here."""
        folder.rmdir()
        folder.symlink_to(self.folder)

    def close(self) -> None:
        """Let go; it is gone once no server uses it. More than once is fine."""
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


_GROWING_TRIES = 100


class MemoryDisk(DetachedDisk):
    """A tmpfs of `size_bytes`, taken as they are written. Raises EnvironmentNotReadyError when none can be had."""

    def __init__(self, size_bytes: int = 1 << 30) -> None:
        super().__init__()
        self._size_bytes = size_bytes
        try:
            self._root = _mounted("tmpfs", {"size": str(size_bytes), "mode": "0700"})
        except OSError as error:
            raise EnvironmentNotReadyError(
                f"no disk in memory can be made ({error.strerror}): it needs root and Linux 5.2"
            ) from error

    def make_full(self) -> None:
        """Leave not one free page from now on. Raises EnvironmentNotReadyError when it grows faster than it shrinks."""
        for _ in range(_GROWING_TRIES):
            state = os.fstatvfs(self._root)
            try:
                self._resize((state.f_blocks - state.f_bfree) * state.f_frsize)
            except OSError as error:
                if error.errno != errno.EINVAL:  # that one says: more is in use than this by now
                    raise
            else:
                return
        raise EnvironmentNotReadyError("the disk in memory cannot be made full: it is written to too fast")

    def make_room(self) -> None:
        """Have the full size again; more than once is fine."""
        self._resize(self._size_bytes)

    def _resize(self, size_bytes: int) -> None:
        context = _call(_FSPICK, self._root, b"", _CLOSE_ON_EXEC | _THIS_FILE)
        try:
            _configure(context, {"size": str(size_bytes)}, _RECONFIGURE)
        finally:
            os.close(context)
