"""Output that outlasts its readers: *stdout and stderr → the same, but what nobody reads any more is dropped*.

`lockbench run … | head -1` closes the pipe while the result is being shown. A CI job asks for the exit code, and that
must not depend on who still reads. So a broken pipe is no error here: the descriptor is turned to /dev/null, and the
command ends with the code that it earned.
"""

import io
import os
import sys
from typing import Any, TextIO, cast


class Outlasting(io.FileIO):
    """A file descriptor whose reader may go away at any time."""

    def write(self, data: Any) -> int:
        """Write, or drop what nobody reads any more; return how many bytes were taken."""
        try:
            return super().write(data)
        except BrokenPipeError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())
            os.close(nothing)
            return len(data)


def outlast_readers() -> None:
    """Let this process's own stdout and stderr outlast their readers; streams that somebody has put there stay."""
    if sys.stdout is sys.__stdout__ and sys.stdout is not None:
        sys.stdout = outlasting(sys.stdout)
    if sys.stderr is sys.__stderr__ and sys.stderr is not None:
        sys.stderr = outlasting(sys.stderr)


def outlasting(stream: TextIO) -> TextIO:
    """Return a stream like `stream`, on the same descriptor, that outlasts its reader. What waits in it is written
    first."""
    stream.flush()
    raw = Outlasting(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(cast("io.RawIOBase", raw)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.isatty() or stream is sys.__stderr__,
    )
