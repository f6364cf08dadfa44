"""Defines the expected errors that end a command of `lockbench`. Each error has a message of one
sentence and an exit code.

A message says what is wrong, where it is wrong, and what to do next. The mask of secrets
(lockcore/mask.py) filters every message. The README has a table of the exit codes. The exit codes
are 0 (pass), 1 (gate), 2 (usage), 3 (environment), 4 (inconclusive), 5 (violated) and 130
(interrupted).
"""

from __future__ import annotations

import errno
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from lockcore.bench import Mask


# The handler for text that UTF-8 cannot encode. The name of a file may hold bytes that are not
# UTF-8. Python keeps these bytes as halves of surrogate pairs, which UTF-8 cannot encode. The
# handler writes an escape instead. JSON uses the same escape, and other files stay readable.
UNPAIRED = "backslashreplace"
# The exit code of a command that Ctrl-C ended.
EXIT_INTERRUPTED = 130


@cache
def secrets() -> Mask:
    """Return the mask of this process.

    When the process reads a URL, the mask stores the secrets in this URL. All output of the process
    passes through the mask, and the mask hides the secrets.
    """
    # Imported here, because the command line must start without loading the lock.
    from lockcore.bench import Mask

    return Mask()


class BenchError(Exception):
    """An error that ends the command. The user sees one sentence instead of a traceback."""

    exit_code = 3

    def __init__(self, *arguments: object) -> None:
        super().__init__(
            *[
                secrets().sentence(argument) if isinstance(argument, str) else argument
                for argument in arguments
            ]
        )


class UsageError(BenchError):
    """An error in the command line or in the scenario. At the time of this error, the command has
    not started anything yet."""

    exit_code = 2


class EnvironmentNotReadyError(BenchError):
    """An error because the machine, a server or a folder is not ready for the command."""

    exit_code = 3


class InconclusiveError(BenchError):
    """An error because the measurements cannot answer the user's question."""

    exit_code = 4


# Errors from limits of this process. Another file or an emptier disk does not help.
_LIMITS = {
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    errno.ENOMEM: "give this process more memory (ulimit -v, or the container's limit)",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


@contextmanager
def writing(path: Path, cure: str) -> Iterator[None]:
    """Turn an OSError into a message for the user. The code in the `with` block writes to `path`.

    If the code raises OSError, the context raises EnvironmentNotReadyError. The message gives the
    reason and the advice `cure`. If the write failed because the process reached one of its limits,
    the advice to raise this limit replaces `cure`.
    """
    try:
        yield
    except OSError as error:
        cure = _LIMITS.get(error.errno or 0, cure)
        raise EnvironmentNotReadyError(
            f"cannot write {path}: {error.strerror or error}; {cure}"
        ) from error
