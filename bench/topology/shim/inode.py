"""Which file this really is: *a path → inode and birth time*, the shim's name for it.

Rules: an inode number is used again once its file is gone, so the birth time belongs to the name; Python's `os.stat`
has none on Linux. A file system without birth times gives 0 to both sides. Source: statx(2), whose layout is fixed.
"""

import ctypes
import os
import struct
from dataclasses import dataclass
from pathlib import Path

_AT_FDCWD, _FOLLOW = -100, 0
_WANTED = 0x100 | 0x200 | 0x800  # STATX_INO, STATX_SIZE, STATX_BTIME
_STATX_BYTES = 256
_INODE, _SIZE, _BORN = 32, 40, 80  # offsets of stx_ino, stx_size, stx_btime (s64 seconds, u32 nanoseconds)
_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """One file of one file system, for as long as it exists and ever after."""

    inode: int
    born_ns: int


def identify_file(path: Path) -> tuple[FileIdentity, int]:
    """Return what the file at `path` is, and its size in bytes. Raises OSError when there is none."""
    statx = ctypes.CDLL(None, use_errno=True).statx
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    if statx(_AT_FDCWD, os.fsencode(path), _FOLLOW, _WANTED, answer):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), str(path))
    inode, size = struct.unpack_from("=QQ", answer, _INODE)
    seconds, nanoseconds = struct.unpack_from("=qI", answer, _BORN)
    return FileIdentity(inode, seconds * _NS + nanoseconds), size
