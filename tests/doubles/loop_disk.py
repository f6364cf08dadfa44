"""A disk of our own whose power can be cut: *an image → an ext4 on a loop device, mounted nowhere*.

FS_IOC_SHUTDOWN stops every write to it at once, the journal's too, as when the power goes; mounting
it again replays the journal. Only a file system that was made here is ever shut down. Image, loop
device and mount live as long as our descriptors do. It needs root, loop devices, mkfs.ext4 and
Linux 5.8.

Source: EXT4_IOC_SHUTDOWN (fs/ext4/ioctl.c); loop(4): LOOP_CONFIGURE with LO_FLAGS_AUTOCLEAR;
fsopen(2), fsconfig(2), fsmount(2), their numbers the same on every architecture.
"""

import contextlib
import ctypes
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

_FSOPEN = 430
_FSCONFIG = 431
_FSMOUNT = 432
_CLOSE_ON_EXEC = 1
_SET_STRING = 1
_CREATE = 6
_LOOP_CTL_GET_FREE = 0x4C82
_LOOP_CONFIGURE = 0x4C0A
_AUTOCLEAR = 4
_LOOP_INFO_BYTES = 232
_FLAGS_AT = 52
_RESERVED_BYTES = 64
_SHUTDOWN = 0x8004587D
_NO_LOG_FLUSH = 2
_MAKE_S = 30.0
_MOUNT_TRIES = 200
_MOUNT_AGAIN_S = 0.01
# somebody else may take the free one first
_DEVICE_TRIES = 20


def _mounted(kind: str, settings: Mapping[str, str]) -> int:
    """Mount a file system of this `kind` (as /proc/filesystems names it) nowhere; close what is
    returned. Raises OSError."""
    context = _call(_FSOPEN, kind.encode(), _CLOSE_ON_EXEC)
    try:
        for name, value in settings.items():
            _call(_FSCONFIG, context, _SET_STRING, name.encode(), value.encode(), 0)
        _call(_FSCONFIG, context, _CREATE, None, None, 0)
        return _call(_FSMOUNT, context, _CLOSE_ON_EXEC, 0)
    finally:
        os.close(context)


def _call(number: int, *arguments: int | bytes | None) -> int:
    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


class LoopDisk:
    """An ext4 of `size_bytes` on a loop device.

    Raises EnvironmentNotReadyError when none can be had.
    """

    def __init__(self, size_bytes: int = 64 << 20) -> None:
        self._root = self._device = -1
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
                f"no ext4 on a loop device can be made ({reason}): it needs root, loop "
                "devices and mkfs.ext4"
            ) from error
        except BaseException:
            self.close()
            raise
        self._number = self.folder.stat().st_dev

    @property
    def folder(self) -> Path:
        """The root of the file system as it is mounted now."""
        return Path(f"/proc/{os.getpid()}/fd/{self._root}")

    def take_the_place_of(self, folder: Path) -> None:
        """Have the empty `folder` lead here from now on; whoever removes it removes a link, not
        what is here."""
        folder.rmdir()
        folder.symlink_to(self.folder)

    def cut_power(self) -> None:
        """Let nothing reach the disk from now on. Raises OSError."""
        root = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if os.fstat(root).st_dev != self._number or self._number == Path("/").stat().st_dev:
                raise EnvironmentNotReadyError(
                    "the disk to shut down is not the one that was made here"
                )
            fcntl.ioctl(root, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(root)

    def mount_again(self) -> None:
        """Mount what is on the disk; nobody may use it any more.

        Raises EnvironmentNotReadyError when somebody does.
        """
        os.close(self._root)
        self._root = -1
        for _ in range(_MOUNT_TRIES):
            root = _mounted("ext4", {"source": self._path})
            try:
                with tempfile.TemporaryFile(dir=f"/proc/{os.getpid()}/fd/{root}"):
                    # one that is still shut down takes no file
                    pass
            except OSError:
                os.close(root)
                # its last user is on the way out
                time.sleep(_MOUNT_AGAIN_S)
            else:
                self._root = root
                return
        raise EnvironmentNotReadyError("the file system that was shut down is still in use")

    def close(self) -> None:
        """Let go of file system and device; more than once is fine."""
        for opened in (self._root, self._device):
            if opened >= 0:
                os.close(opened)
        self._root = self._device = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


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
