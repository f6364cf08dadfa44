"""Rows of whole numbers from a load process to its exporter: *tuples → a growing file → the same tuples, once each*.

Rules
- The writer keeps rows in memory and writes them when it is told to, about once a second; a file that cannot be written
  is given up: the run is never stopped by it.
- The reader never hands out half a row. Files are named `<kind>-<process>-<pid>.bin` and lie in the run's folder.

Source: the run's folder protocol (bench.measure).
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_NAME = re.compile(r"[a-z]+-(\d+)-\d+\.bin")

Row = tuple[int, ...]


class RowLog:
    """The writing side of the load process `process` (this one). `fields`: how many int64 a row has."""

    def __init__(self, folder: Path, kind: str, process: int, fields: int) -> None:
        self._path = folder / f"{kind}-{process}-{os.getpid()}.bin"
        self._pack = struct.Struct(f"<{fields}q").pack
        self._rows: list[bytes] = []

    def __len__(self) -> int:
        """Rows that wait to be written."""
        return len(self._rows)

    def add(self, *row: int) -> None:
        """Keep one row."""
        self._rows.append(self._pack(*row))

    def flush(self) -> None:
        """Write what was kept."""
        rows, self._rows = self._rows, []
        if rows:
            with suppress(OSError), self._path.open("ab") as file:
                file.write(b"".join(rows))


class RowTail:
    """The reading side: follows all files of a kind."""

    def __init__(self, folder: Path, kind: str, fields: int) -> None:
        self._folder, self._pattern = folder, f"{kind}-*.bin"
        self._row = struct.Struct(f"<{fields}q")
        self._read: dict[Path, int] = {}

    def new_rows(self) -> Iterator[tuple[int, Row]]:
        """What was written since the last call, each with the process that wrote it."""
        for path in sorted(self._folder.glob(self._pattern)):
            if match := _NAME.fullmatch(path.name):
                yield from ((int(match[1]), row) for row in self._follow(path))

    def _follow(self, path: Path) -> Iterator[Row]:
        start = self._read.get(path, 0)
        with path.open("rb") as file:
            file.seek(start)
            data = file.read()
        data = data[: len(data) - len(data) % self._row.size]
        self._read[path] = start + len(data)
        yield from self._row.iter_unpack(data)
