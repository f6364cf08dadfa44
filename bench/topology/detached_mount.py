"""A file system that is mounted nowhere: *its kind and settings → a descriptor of its root*.

Rules: it has no place in the mount table, so nothing is left to unmount however we end; it lives as long as somebody
uses it, and is reached by `/proc/<our pid>/fd/<n>`. Needs root (CAP_SYS_ADMIN) and Linux 5.2.
Source: fsopen(2), fsconfig(2), fsmount(2), fspick(2); their numbers are the same on every architecture.
"""

import ctypes
import os
from collections.abc import Mapping

_FSOPEN, _FSCONFIG, _FSMOUNT, _FSPICK = 430, 431, 432, 433
_CLOSE_ON_EXEC, _THIS_FILE = 1, 8
_SET_STRING, _CREATE, _RECONFIGURE = 1, 6, 7


def mount_detached(kind: str, settings: Mapping[str, str]) -> int:
    """Mount a file system of this `kind` (as /proc/filesystems names it); close what is returned. Raises OSError."""
    context = _call(_FSOPEN, kind.encode(), _CLOSE_ON_EXEC)
    try:
        _set(context, settings)
        _call(_FSCONFIG, context, _CREATE, None, None, 0)
        return _call(_FSMOUNT, context, _CLOSE_ON_EXEC, 0)
    finally:
        os.close(context)


def set_again(root: int, settings: Mapping[str, str]) -> None:
    """Give the file system mounted at `root` other settings. Raises OSError."""
    context = _call(_FSPICK, root, b"", _CLOSE_ON_EXEC | _THIS_FILE)
    try:
        _set(context, settings)
        _call(_FSCONFIG, context, _RECONFIGURE, None, None, 0)
    finally:
        os.close(context)


def _set(context: int, settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        _call(_FSCONFIG, context, _SET_STRING, name.encode(), value.encode(), 0)


def _call(number: int, *arguments: int | bytes | None) -> int:
    result: int = ctypes.CDLL(None, use_errno=True).syscall(number, *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
