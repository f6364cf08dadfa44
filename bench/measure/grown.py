"""A file of int64 that grows by mapped chunks: *rows, one after the other → pages that outlive
this process*."""

import mmap
import os
from io import FileIO
from pathlib import Path

from bench.errors import writing

CURE = "free disk space"
CHUNK_BYTES = 1 << 16


# `posix_fallocate` comes before `mmap`, because a store into a mapped page has no way to fail. If
# the disk is full at that moment, the kernel kills the process with SIGBUS. Here a full disk is an
# error with a sentence. A new chunk is a map of its own, so views of the earlier ones stay valid:
# callers keep theirs for the whole run.
class Grown:
    """A file of int64 that grows by mapped chunks. The first chunk creates the file.

    The pages of the file outlive this process.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None
        self.size = 0

    def chunk(self) -> memoryview:
        """Lengthen the file by `CHUNK_BYTES`, and return a view of the new part.

        Raises EnvironmentNotReadyError if the disk has no room for the new part.
        """
        with writing(self._path, CURE):
            self._file = self._file or self._path.open("xb+", buffering=0)
            os.posix_fallocate(self._file.fileno(), self.size, CHUNK_BYTES)
            chunk_map = mmap.mmap(self._file.fileno(), CHUNK_BYTES, offset=self.size)
        self.size += CHUNK_BYTES
        return memoryview(chunk_map).cast("q")

    def cut(self, size: int) -> None:
        """Shorten the file to `size` bytes."""
        if self._file is not None:
            self._file.truncate(size)
        self.size = size
