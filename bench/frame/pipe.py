"""Output that outlasts its readers: *stdout and stderr → the same, but what nobody reads any more
is dropped*.

`lockbench run … | head -1` closes the pipe while the result is being shown. A CI job asks for the
exit code, and that must not depend on who still reads. So a broken pipe is no error here: the
descriptor is turned to /dev/null, and the command ends with the code that it earned. stderr has
progress and remarks alone: where it cannot be written at all (a full disk, a terminal that is gone)
they are dropped, and the run goes on.
"""

import io
import os
import sys
from typing import Any, TextIO, cast


class Outlasting(io.FileIO):
    """A file descriptor whose reader may go away at any time. `lost`: errors after which what is
    written is dropped."""

    def __init__(self, descriptor: int, lost: type[OSError]) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._lost = lost

    def write(self, data: Any) -> int:
        """Write, or drop what nobody reads any more; return how many bytes were taken."""
        try:
            return super().write(data)
        except self._lost:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())
            os.close(nothing)
            return len(data)


def outlast_readers() -> None:
    """Let this process's own stdout and stderr outlast their readers; streams that somebody has put
    there stay."""
    if sys.stdout is sys.__stdout__ and sys.stdout is not None:
        sys.stdout = outlasting(sys.stdout)
    if sys.stderr is sys.__stderr__ and sys.stderr is not None:
        sys.stderr = outlasting(sys.stderr)


def outlasting(stream: TextIO) -> TextIO:
    """Return a stream like `stream`, on the same descriptor, that outlasts its reader. What waits
    in it is written first."""
    stream.flush()
    raw = Outlasting(stream.fileno(), OSError if stream is sys.__stderr__ else BrokenPipeError)
    return io.TextIOWrapper(
        io.BufferedWriter(cast("io.RawIOBase", raw)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.isatty() or stream is sys.__stderr__,
    )
