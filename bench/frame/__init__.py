"""The frame of a command line: *arguments → one exit code, and never a traceback*.

It knows options, outputs, exit codes and progress, and no question. Rules: nothing but sys and os
is imported before the guard below stands, so that Ctrl-C at any moment ends with 130 and one line.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

EXIT_ENVIRONMENT = 3
# The same number as in bench.errors. That module is not imported before the guard stands.
EXIT_INTERRUPTED = 130


def guarded(execute: Callable[[Sequence[str]], int], argv: Sequence[str] | None = None) -> None:
    """Have `execute` run one command line (default: this process's) and exit with its code."""
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
        # This is the last net. Whatever the exception is, the user gets a sentence and a place.
        code = EXIT_ENVIRONMENT
        from bench.screen import lines_of, note

        note(*lines_of(f"lockbench: {_why(error)}"))
    sys.exit(code)


def _open_streams() -> None:
    """Give a process that was started without stdin, stdout or stderr (`>&-`) somewhere to write
    to: nothing."""
    # Each open() takes the lowest free descriptor.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8")


def _why(error: Exception) -> str:
    """What ended the command, in a sentence; the traceback of what nobody foresaw is saved."""
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
    """Exit at once: after an interrupt inside exec() CPython kills itself by SIGINT, whatever the
    exit code."""
    from contextlib import suppress

    with suppress(OSError, KeyboardInterrupt):
        # What was printed before must still go out: os._exit would drop it.
        sys.stdout.flush()
    print("lockbench: interrupted", file=sys.stderr, flush=True)
    os._exit(EXIT_INTERRUPTED)


def _drop_output() -> None:
    """Whoever read our output has gone: say nothing more, and let the interpreter flush into
    nothing."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _save_traceback(error: Exception) -> str:
    """Write a traceback without secrets to a new file (mode 0600) and say where it is."""
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
