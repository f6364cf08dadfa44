"""Replaces stdout and stderr by streams that drop text if nobody reads it any more.

`lockbench run … | head -1` closes the pipe while lockbench shows the result. A CI job needs the
exit code, and the exit code must not depend on the reader. So a broken pipe is not an error. If the
pipe breaks, the descriptor is redirected to /dev/null, and the command ends with the exit code of
its result.

stderr shows only progress and remarks. A write to stderr can fail for any reason, such as a full
disk. In this case, the stream drops the text, and the run continues.
"""

import io
import os
import sys
from typing import Any, TextIO, cast


class Outlasting(io.FileIO):
    """A raw output stream on a file descriptor. The process that reads from this descriptor may end
    at any time.

    If a write raises an error of the type `lost`, the stream drops the text of this write and the
    text of all later writes.
    """

    def __init__(self, descriptor: int, lost: type[OSError]) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._lost = lost

    def write(self, data: Any) -> int:
        """Write `data`, or drop the data if there is no reader. Return the number of written or
        dropped bytes.
        """
        try:
            return super().write(data)
        except self._lost:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())
            os.close(nothing)
            return len(data)


def outlast_readers() -> None:
    """Replace stdout and stderr of this process by streams that drop all text after the reader has
    ended.

    If other code has replaced one of these streams, the stream is not changed.
    """
    if sys.stdout is sys.__stdout__ and sys.stdout is not None:
        sys.stdout = outlasting(sys.stdout)
    if sys.stderr is sys.__stderr__ and sys.stderr is not None:
        sys.stderr = outlasting(sys.stderr)


def outlasting(stream: TextIO) -> TextIO:
    """Return a stream on the same descriptor as `stream`. The new stream drops text after its
    reader has ended.

    The function first flushes the buffer of `stream`.
    """
    stream.flush()
    raw = Outlasting(stream.fileno(), OSError if stream is sys.__stderr__ else BrokenPipeError)
    return io.TextIOWrapper(
        io.BufferedWriter(cast("io.RawIOBase", raw)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.isatty() or stream is sys.__stderr__,
    )
