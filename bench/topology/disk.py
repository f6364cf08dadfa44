"""Disks: *a folder → how long an append takes to be durable there; bytes → a disk of our own, mounted nowhere*.

Rules
- A file system that is mounted nowhere has no place in the mount table; it lives as long as somebody uses it, and is
  reached by `/proc/<our pid>/fd/<n>`. Image, loop device and mount live as long as our descriptors do.
- A disk in memory is made full by shrinking it to what is in use: at once, without memory.
- FS_IOC_SHUTDOWN stops every write to the loop disk at once, the journal's too, as when the power goes. Mounting it
  again replays the journal. Only a file system that was made here is ever shut down.
- Our own need root and Linux 5.2; the loop disk also loop devices, mkfs.ext4 and Linux 5.8.

Source: fdatasync(2); fsopen(2), fsconfig(2), fsmount(2), fspick(2), their numbers the same on every architecture;
tmpfs(5); EXT4_IOC_SHUTDOWN (fs/ext4/ioctl.c); loop(4): LOOP_CONFIGURE with LO_FLAGS_AUTOCLEAR.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
import subprocess
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


_LOOP_CTL_GET_FREE, _LOOP_CONFIGURE = 0x4C82, 0x4C0A
_AUTOCLEAR = 4
_LOOP_INFO_BYTES, _FLAGS_AT, _RESERVED_BYTES = 232, 52, 64
_SHUTDOWN, _NO_LOG_FLUSH = 0x8004587D, 2
_MAKE_S = 30.0
_MOUNT_TRIES, _MOUNT_AGAIN_S = 200, 0.01
_DEVICE_TRIES = 20  # somebody else may take the free one first


class LoopDisk(DetachedDisk):
    """An ext4 of `size_bytes` on a loop device. Raises EnvironmentNotReadyError when none can be had."""

    def __init__(self, size_bytes: int = 64 << 20) -> None:
        super().__init__()
        self._device = -1
        try:
            image = _image(size_bytes)
            try:
                self._device, self._path = _loop_of(image)
            finally:
                os.close(image)
            self._root = _mounted("ext4", {"source": self._path})
        except (OSError, subprocess.SubprocessError) as error:
            self.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise EnvironmentNotReadyError(
                f"no ext4 on a loop device can be made ({reason}): it needs root, loop devices and mkfs.ext4"
            ) from error
        except BaseException:
            self.close()
            raise
        self._number = self.folder.stat().st_dev

    def cut_power(self) -> None:
        """Let nothing reach the disk from now on. Raises OSError."""
        root = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if os.fstat(root).st_dev != self._number or self._number == Path("/").stat().st_dev:
                raise EnvironmentNotReadyError("the disk to shut down is not the one that was made here")
            fcntl.ioctl(root, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(root)

    def mount_again(self) -> None:
        """Mount what is on the disk; nobody may use it any more. Raises EnvironmentNotReadyError when somebody does."""
        os.close(self._root)
        self._root = -1
        for _ in range(_MOUNT_TRIES):
            root = _mounted("ext4", {"source": self._path})
            try:
                with tempfile.TemporaryFile(dir=f"/proc/{os.getpid()}/fd/{root}"):
                    pass  # one that is still shut down takes no file
            except OSError:
                os.close(root)
                time.sleep(_MOUNT_AGAIN_S)  # its last user is on the way out
            else:
                self._root = root
                return
        raise EnvironmentNotReadyError("the file system that was shut down is still in use")

    def close(self) -> None:
        """Let go of the device as well."""
        super().close()
        if self._device >= 0:
            os.close(self._device)
            self._device = -1


def _image(size_bytes: int) -> int:
    """A file with an empty ext4 in it, and no name."""
    image, name = tempfile.mkstemp(prefix="lockbench-ext4-")
    try:
        os.truncate(image, size_bytes)
        subprocess.run(
            ["mkfs.ext4", "-q", "-F", name],
            check=True,
            env={**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_MAKE_S,
        )
    except BaseException:
        os.close(image)
        raise
    finally:
        Path(name).unlink()
    return image


def _loop_of(image: int) -> tuple[int, str]:
    """A loop device of its own for `image`: descriptor and path."""
    information = bytearray(_LOOP_INFO_BYTES)
    struct.pack_into("<I", information, _FLAGS_AT, _AUTOCLEAR)
    setting = struct.pack("<II", image, 0) + bytes(information) + bytes(_RESERVED_BYTES)
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_DEVICE_TRIES):
            path = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            with contextlib.suppress(BlockingIOError, OSError):
                fcntl.ioctl(device, _LOOP_CONFIGURE, setting)
                return device, path
            os.close(device)
    finally:
        os.close(control)
    raise OSError(16, "no loop device is free")
