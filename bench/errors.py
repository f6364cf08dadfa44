"""The expected errors that end a command of `lockbench`: *a fault → one sentence and an exit code*.

Rules: the message says what is wrong, where, and what to do next. The mask of secrets
(lockcore/mask.py) filters every message. The README's table lists the exit codes: 0 pass, 1 gate,
2 usage, 3 environment, 4 inconclusive, 5 violated, 130 interrupted.
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

    The mask learns the secrets of every URL that the process reads. Every output passes through the
    mask.
    """
    # Imported here, because the command line must start without loading the lock.
    from lockcore.bench import Mask

    return Mask()


class BenchError(Exception):
    """A fault that ends the command with one sentence instead of a traceback."""

    exit_code = 3

    def __init__(self, *arguments: object) -> None:
        super().__init__(
            *[
                secrets().sentence(argument) if isinstance(argument, str) else argument
                for argument in arguments
            ]
        )


class UsageError(BenchError):
    """The command line or the scenario is wrong. Nothing was started."""

    exit_code = 2


class EnvironmentNotReadyError(BenchError):
    """The machine, a server or a folder is not ready for the command."""

    exit_code = 3


class InconclusiveError(BenchError):
    """The measurements cannot answer the question."""

    exit_code = 4


# Errors from limits of this process. Another file or an emptier disk does not help.
_LIMITS = {
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    errno.ENOMEM: "give it more memory (ulimit -v, or the container's limit)",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


@contextmanager
def writing(path: Path, cure: str) -> Iterator[None]:
    """Guard code that writes into `path`.

    If the writing fails, raise EnvironmentNotReadyError with the reason and the `cure`. If a limit
    of this process is the reason, the message has the cure for that limit instead.
    """
    try:
        yield
    except OSError as error:
        cure = _LIMITS.get(error.errno or 0, cure)
        raise EnvironmentNotReadyError(
            f"cannot write {path}: {error.strerror or error}; {cure}"
        ) from error
