"""This package is the frame in which every command of lockbench runs. The frame executes a command
and returns an exit code. The frame never shows a traceback.

The frame handles options, outputs, exit codes and progress. The frame contains no code for a
particular question. This module imports only sys and os until the function `guarded` runs. So if
the user presses Ctrl-C at any moment, the program prints one line and exits with code 130.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

EXIT_ENVIRONMENT = 3
# The same number as in bench.errors. That module is not imported before `guarded` is active.
EXIT_INTERRUPTED = 130


def guarded(execute: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> None:
    """Call `execute` with the arguments of a command line, and exit with the returned code.

    `argv` holds the arguments. If `argv` is None, the arguments of this process are used.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    try:
        from bench.screen import open_screen

        open_screen()
        from bench.frame.pipe import outlast_readers

        outlast_readers()
        code = execute(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        _leave_interrupted()
    except (BrokenPipeError, SystemExit):
        # If the pipe to which rich prints is closed, rich raises SystemExit.
        code = EXIT_ENVIRONMENT
        _drop_output()
    except Exception as error:  # noqa: BLE001
        # Every other exception becomes a sentence for the user, which names its place.
        code = EXIT_ENVIRONMENT
        from bench.screen import lines_of, note

        note(*lines_of(f"lockbench: {_why(error)}"))
    sys.exit(code)


def _open_streams() -> None:
    """Open /dev/null for each missing standard stream. A stream is missing, for example, after
    `>&-`.
    """
    # Each open() takes the lowest free descriptor.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8")


def _why(error: Exception) -> str:
    """Return one sentence about the error. Save the traceback of an unexpected error."""
    import errno

    # An error without a file name is about stdout, because every other file has a name.
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    if isinstance(error, OSError) and error.filename is None and error.errno in full:
        _drop_output()
        return f"the output cannot be written ({error.strerror}); the results are kept"
    package = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if package not in ("", "bench", "lockcore"):
        return f"the package {package} is missing; install lockbench with the extra [run]"
    saved = _save_traceback(error)
    return f"lockbench has an internal fault ({type(error).__name__}); {saved}; please report it"


def _leave_interrupted() -> NoReturn:
    """Print one line about the interrupt, and exit at once with code 130.

    After an interrupt inside exec(), a normal exit of CPython would kill the process with SIGINT.
    """
    from contextlib import suppress

    with suppress(OSError, KeyboardInterrupt):
        # os._exit drops buffered text. So the text is flushed first.
        sys.stdout.flush()
    print("lockbench: interrupted", file=sys.stderr, flush=True)
    os._exit(EXIT_INTERRUPTED)


def _drop_output() -> None:
    """Redirect stdout to /dev/null, because lockbench cannot write to stdout any more.

    The interpreter flushes stdout when the process ends. Without this redirection, the flush would
    fail.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _save_traceback(error: Exception) -> str:
    """Write a traceback without secrets to a new file (mode 0600).

    Return a text that says where the file is. If the file could not be saved, the text says so.
    """
    import tempfile
    import traceback

    from bench.errors import secrets

    try:
        descriptor, name = tempfile.mkstemp(prefix="lockbench-crash-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(secrets()("".join(traceback.format_exception(error))))
    except OSError:
        return "the traceback could not be saved"
    return f"the traceback is in {name}"
