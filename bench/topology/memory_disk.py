"""A disk in memory that is mounted nowhere: *bytes → a folder that exists as long as somebody uses it*.

Rules: the tmpfs has no place in the mount table, so nothing is left to unmount however we end; it is reached by
`/proc/<our pid>/fd/<n>`, which a server can have as its working folder. It is made full by shrinking it to what is in
use: at once, without memory. Needs root (CAP_SYS_ADMIN) and Linux 5.2.
Source: fsopen(2), fsconfig(2), fsmount(2), fspick(2); their numbers are the same on every architecture.
"""

import ctypes
import errno
import os
from pathlib import Path

from bench.errors import EnvironmentNotReadyError

_FSOPEN, _FSCONFIG, _FSMOUNT, _FSPICK = 430, 431, 432, 433
_CLOSE_ON_EXEC, _THIS_FILE = 1, 8
_SET_STRING, _CREATE, _RECONFIGURE = 1, 6, 7
_GROWING_TRIES = 100


class MemoryDisk:
    """A tmpfs of `size_bytes` (pages of 4 KiB, taken as they are written).

    Raises EnvironmentNotReadyError when this machine or user cannot have one.
    """

    def __init__(self, size_bytes: int = 1 << 30) -> None:
        self._size_bytes, self._root = size_bytes, -1
        try:
            context = _call(_FSOPEN, b"tmpfs", _CLOSE_ON_EXEC)
            try:
                _set(context, "size", size_bytes)
                _call(_FSCONFIG, context, _SET_STRING, b"mode", b"0700", 0)
                _call(_FSCONFIG, context, _CREATE, None, None, 0)
                self._root = _call(_FSMOUNT, context, _CLOSE_ON_EXEC, 0)
            finally:
                os.close(context)
        except OSError as error:
            raise EnvironmentNotReadyError(
                f"no disk in memory can be made ({error.strerror}): it needs root and Linux 5.2"
            ) from error
        self.folder = Path(f"/proc/{os.getpid()}/fd/{self._root}")

    def take_the_place_of(self, folder: Path) -> None:
        """Have the empty `folder` lead here from now on; whoever removes it removes a link, not what is here."""
        folder.rmdir()
        folder.symlink_to(self.folder)

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

    def close(self) -> None:
        """Let go; it is gone once no server uses it. More than once is fine."""
        if self._root >= 0:
            os.close(self._root)
            self._root = -1

    def _resize(self, size_bytes: int) -> None:
        context = _call(_FSPICK, self._root, b"", _CLOSE_ON_EXEC | _THIS_FILE)
        try:
            _set(context, "size", size_bytes)
            _call(_FSCONFIG, context, _RECONFIGURE, None, None, 0)
        finally:
            os.close(context)


def _set(context: int, name: str, value: int) -> None:
    _call(_FSCONFIG, context, _SET_STRING, name.encode(), str(value).encode(), 0)


def _call(number: int, *arguments: int | bytes | None) -> int:
    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
