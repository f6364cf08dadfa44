"""A disk in memory that is mounted nowhere: *bytes → a folder that exists as long as somebody uses it*.

Rules: its path leads through a descriptor of ours, which a server can have as its working folder. It is made full by
shrinking it to what is in use: at once, without memory. Needs root (CAP_SYS_ADMIN) and Linux 5.2.
Source: bench/topology/detached_mount.py; tmpfs(5).
"""

import errno
import os
from pathlib import Path

from bench.errors import EnvironmentNotReadyError
from bench.topology.detached_mount import mount_detached, set_again

_GROWING_TRIES = 100


class MemoryDisk:
    """A tmpfs of `size_bytes` (pages of 4 KiB, taken as they are written).

    Raises EnvironmentNotReadyError when this machine or user cannot have one.
    """

    def __init__(self, size_bytes: int = 1 << 30) -> None:
        self._size_bytes, self._root = size_bytes, -1
        try:
            self._root = mount_detached("tmpfs", {"size": str(size_bytes), "mode": "0700"})
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
        set_again(self._root, {"size": str(size_bytes)})
