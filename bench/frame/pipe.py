"""Output that survives when its reader ends: *stdout and stderr → the same streams, which drop text
without a reader*.

`lockbench run … | head -1` closes the pipe while lockbench shows the result. A CI job needs the
exit code, and the exit code must not depend on the reader. So a broken pipe is not an error. The
descriptor then leads to /dev/null, and the command ends with the exit code of its result.

stderr carries only progress and remarks. If stderr cannot be written at all (a full disk, a closed
terminal), its text is dropped and the run goes on.
"""

import io
import os
import sys
from typing import Any, TextIO, cast


class Outlasting(io.FileIO):
    """A file descriptor whose reader may end at any time.

    `lost`: the errors after which all further text is dropped.
    """

    def __init__(self, descriptor: int, lost: type[OSError]) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._lost = lost

    def write(self, data: Any) -> int:
        """Write `data`, or drop it if there is no reader. Return how many bytes were taken."""
        try:
            return super().write(data)
        except self._lost:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())
            os.close(nothing)
            return len(data)


def outlast_readers() -> None:
    """Let stdout and stderr of this process survive their readers.

    Streams that other code has installed stay.
    """
    if sys.stdout is sys.__stdout__ and sys.stdout is not None:
        sys.stdout = outlasting(sys.stdout)
    if sys.stderr is sys.__stderr__ and sys.stderr is not None:
        sys.stderr = outlasting(sys.stderr)


def outlasting(stream: TextIO) -> TextIO:
    """Return a stream on the descriptor of `stream` that survives its reader.

    Text in the buffer of `stream` is written first.
    """
    stream.flush()
    raw = Outlasting(stream.fileno(), OSError if stream is sys.__stderr__ else BrokenPipeError)
    return io.TextIOWrapper(
        io.BufferedWriter(cast("io.RawIOBase", raw)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.isatty() or stream is sys.__stderr__,
    )
