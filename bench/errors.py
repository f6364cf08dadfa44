"""Every way `lockbench` ends badly on purpose: *a fault → one sentence and an exit code*.

Rules: the message says what is wrong, where, and what to do next; it passes through the one mask of
secrets (lockcore/mask.py). Exit codes are those of the README's table (0 pass, 1 gate, 2 usage, 3
environment, 4 inconclusive, 5 violated, 130 interrupted).
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


# Of files that we write in UTF-8: a file's name may hold bytes that are none. Python keeps them as
# halves of surrogate pairs, which UTF-8 does not have. Their escape is what JSON has for them, and
# can be read in every other file.
UNPAIRED = "backslashreplace"
# The code of a command that only Ctrl-C ends.
EXIT_INTERRUPTED = 130


@cache
def secrets() -> Mask:
    """What is secret in this process: it learns every URL that is read, and is asked before
    anything is said."""
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
    """The command line or the scenario is wrong: nothing was started."""

    exit_code = 2


class EnvironmentNotReadyError(BenchError):
    """The machine, a server or a folder is not ready for what was asked."""

    exit_code = 3


class InconclusiveError(BenchError):
    """There is no valid measurement to answer from."""

    exit_code = 4


# Limits of this process. Neither another file nor an emptier disk helps.
_LIMITS = {
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    errno.ENOMEM: "give it more memory (ulimit -v, or the container's limit)",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


@contextmanager
def writing(path: Path, cure: str) -> Iterator[None]:
    """Write into `path`; where that cannot be done, EnvironmentNotReadyError says why, and the
    `cure`. A limit of this process has a cure of its own."""
    try:
        yield
    except OSError as error:
        cure = _LIMITS.get(error.errno or 0, cure)
        raise EnvironmentNotReadyError(
            f"cannot write {path}: {error.strerror or error}; {cure}"
        ) from error
