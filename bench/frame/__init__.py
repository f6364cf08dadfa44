"""The frame of a command line: *arguments → one exit code, and never a traceback*.

The frame knows options, outputs, exit codes and progress. It knows no question. Rule: before the
guard below is active, only sys and os are imported. So Ctrl-C at any moment ends with code 130 and
one line.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

EXIT_ENVIRONMENT = 3
# This is the number of bench.errors. That module is not imported before the guard is active.
EXIT_INTERRUPTED = 130


def guarded(execute: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> None:
    """Have `execute` run one command line (default: the one of this process), and exit with its
    code."""
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
        # When the pipe to which rich prints is closed, rich leaves by SystemExit.
        code = EXIT_ENVIRONMENT
        _drop_output()
    except Exception as error:  # noqa: BLE001
        # This is the last safety net. Every exception becomes a sentence for the user, with its
        # place.
        code = EXIT_ENVIRONMENT
        from bench.screen import lines_of, note

        note(*lines_of(f"lockbench: {_why(error)}"))
    sys.exit(code)


def _open_streams() -> None:
    """Open /dev/null for each standard stream that this process was started without (`>&-`)."""
    # Each open() takes the lowest free descriptor.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8")


def _why(error: Exception) -> str:
    """Say in one sentence why the command ended. Save the traceback of an unexpected error."""
    import errno

    # Without a name the error is about stdout: every other file has a name.
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
    if isinstance(error, OSError) and error.filename is None and error.errno in full:
        _drop_output()
        return f"what was to be shown cannot be written ({error.strerror}); results are kept"
    package = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if package not in ("", "bench", "lockcore"):
        return f"the package {package} is missing; install lockbench with its extra: [run]"
    saved = _save_traceback(error)
    return f"a fault of lockbench itself ({type(error).__name__}); {saved}; please report it"


def _leave_interrupted() -> NoReturn:
    """Exit at once. After an interrupt inside exec() CPython would kill itself by SIGINT, whatever
    the exit code."""
    from contextlib import suppress

    with suppress(OSError, KeyboardInterrupt):
        # os._exit would drop the text that is still buffered. So the text is flushed first.
        sys.stdout.flush()
    print("lockbench: interrupted", file=sys.stderr, flush=True)
    os._exit(EXIT_INTERRUPTED)


def _drop_output() -> None:
    """Point stdout at /dev/null, because its reader has gone. The interpreter still flushes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _save_traceback(error: Exception) -> str:
    """Write a traceback without secrets to a new file (mode 0600). Return its place in words."""
    import tempfile
    import traceback

    from bench.errors import secrets

    try:
        descriptor, name = tempfile.mkstemp(prefix="lockbench-crash-", suffix=".txt")
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(secrets()("".join(traceback.format_exception(error))))
    except OSError:
        return "its traceback could not be saved"
    return f"the traceback is in {name}"
