"""Observed attempts on their way to the exporter: *AttemptRecord → a row in a file → spans and reply times*.

Rules
- In the load process an observed attempt costs one `pack` and one append; a write a second puts them into the run's
  folder (`attempts-<process>-<pid>.bin`). About `PER_SECOND` acquires a second are observed, all of them at low rates,
  never fewer than one in `MOST`.
- A row holds no resource, only its checksum: enough to find the operation in the history.
- A file that cannot be written is given up: the run is never stopped by it. What is lost is counted in the rows.

Source: lockcore.observe.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from bench.measure.record import OUTCOME_CODES, OUTCOMES
from lockcore import AttemptRecord, Vote

PER_SECOND, MOST, AT_ONCE = 1000, 64, 1500
KEPT = 5000  # rows a second; what is more is dropped
_FIELDS = 9
_NAME = re.compile(r"attempts-(\d+)-(\d+)\.bin")
_VOTES = tuple(vote.value for vote in Vote)
_CODES = {vote: code for code, vote in enumerate(Vote)}


@dataclass(frozen=True, slots=True)
class Ask:
    """One instance in one attempt: `vote` in lower case; `sent_ns`, `replied_ns` 0 = never."""

    vote: str
    sent_ns: int
    replied_ns: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """One observed attempt, by instance; fields as in AttemptRecord. `resource`: `checksum` of its name."""

    process: int
    resource: int
    number: int
    acquire_ns: int
    started_ns: int
    decided_ns: int
    closed_ns: int
    outcome: str
    margin: int
    asks: tuple[Ask, ...]


def checksum(resource: str) -> int:
    """What stands for a resource in a row."""
    return crc32(resource.encode())


def attempts_path(folder: Path, process: int) -> Path:
    """Where the load process `process` (this one) leaves its attempts."""
    return folder / f"attempts-{process}-{os.getpid()}.bin"


class AttemptLog:
    """The writing side. `observe_every` is told how many acquires to pass by for each that is observed."""

    def __init__(self, path: Path, instances: int, observe_every: Callable[[int], None]) -> None:
        self._path, self._observe_every = path, observe_every
        self._pack = struct.Struct(f"<{_FIELDS + 3 * instances}q").pack
        self._rows: list[bytes] = []
        self._dropped = self._seen = self._acquires = 0
        self._every = 1
        self._flushed_s = time.monotonic()

    def observe(self, record: AttemptRecord) -> None:
        """Keep one attempt."""
        rows = self._rows
        if record.attempt == 1:
            self._seen += 1
            self._acquires += self._every
            if self._seen == AT_ONCE:
                self._pace(MOST)
        if len(rows) >= KEPT:
            self._dropped += 1
            return
        codes = [_CODES[vote] for vote in record.votes]
        rows.append(
            self._pack(
                checksum(record.resource), record.attempt, record.acquire_ns, record.started_ns, record.decided_ns,
                record.closed_ns, OUTCOME_CODES[record.outcome.value], record.margin, self._dropped,
                *codes, *record.sent_ns, *record.replied_ns,
            )
        )  # fmt: skip

    def flush(self) -> None:
        """Once a second: write what was kept, and see how many to observe from now on."""
        rows, self._rows = self._rows, []
        now_s = time.monotonic()
        lasted_s, self._flushed_s = max(now_s - self._flushed_s, 0.1), now_s
        acquires_per_s = self._acquires / lasted_s
        self._seen = self._acquires = 0
        self._pace(min(max(round(acquires_per_s / PER_SECOND), 1), MOST))
        if rows:
            with suppress(OSError), self._path.open("ab") as file:
                file.write(b"".join(rows))

    def _pace(self, every: int) -> None:
        self._every = every
        self._observe_every(every)


class AttemptTail:
    """The reading side: follows all files of a run."""

    def __init__(self, folder: Path, instances: int) -> None:
        self._folder, self._instances = folder, instances
        self._row = struct.Struct(f"<{_FIELDS + 3 * instances}q")
        self._read: dict[Path, int] = {}
        self._dropped: dict[Path, int] = {}

    @property
    def dropped(self) -> int:
        """Attempts that were observed and not kept."""
        return sum(self._dropped.values())

    def new_attempts(self) -> Iterator[Attempt]:
        """What was written since the last call."""
        for path in sorted(self._folder.glob("attempts-*.bin")):
            if match := _NAME.fullmatch(path.name):
                yield from self._follow(path, int(match[1]))

    def _follow(self, path: Path, process: int) -> Iterator[Attempt]:
        start = self._read.get(path, 0)
        with path.open("rb") as file:
            file.seek(start)
            data = file.read()
        data = data[: len(data) - len(data) % self._row.size]
        self._read[path] = start + len(data)
        for row in self._row.iter_unpack(data):
            self._dropped[path] = row[8]
            yield self._attempt(process, row)

    def _attempt(self, process: int, row: tuple[int, ...]) -> Attempt:
        resource, number, acquire_ns, started_ns, decided_ns, closed_ns, outcome, margin = row[:8]
        count, votes = self._instances, row[_FIELDS:]
        asks = tuple(
            Ask(_VOTES[votes[index]], votes[count + index], votes[2 * count + index]) for index in range(count)
        )
        return Attempt(
            process, resource, number, acquire_ns, started_ns, decided_ns, closed_ns, OUTCOMES[outcome], margin, asks
        )
