"""A file of int64 numbers that is mapped into memory and grows in chunks. The numbers in the mapped
pages survive the end of this process."""

import mmap
import os
from io import FileIO
from pathlib import Path

from bench.errors import writing

CURE = "free disk space"
CHUNK_BYTES = 1 << 16


# `posix_fallocate` comes before `mmap`, because a store into a mapped page cannot report an error.
# If the disk became full during a store, the kernel would kill the process with SIGBUS.
# `posix_fallocate` reports a full disk as an error. Each new chunk is a separate map, so views of
# earlier chunks stay valid. Callers keep their views for the whole run.
class Grown:
    """A file of int64 numbers that grows by mapped chunks. The first chunk creates the file.

    The pages of the file outlive this process.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None
        self.size = 0

    def chunk(self) -> memoryview:
        """Make the file longer by `CHUNK_BYTES`, and return a view of the new part.

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
