"""What load processes write for the exporter beside the history: *attempts, extensions → rows of a file → the same*.

Rules
- Rows wait in memory until about once a second; a file that cannot be written is given up: the run is never stopped by
  it. The reader never hands out half a row. Files are `<kind>-<process>-<pid>.bin` in the run's folder.
- An observed cycle costs the load 1.6 times a plain one: about `PER_SECOND` acquires a second are, all of them at low
  rates, at least one in `MOST`. Before the rate is known `AT_ONCE` are, then one in `MOST`.
- A row holds a resource's checksum: with the time when the round began enough to find the operation in the history.
- Of the attempts of a caller that waits for a hot resource a sample is kept. What is too much is counted.
"""

import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from bench.measure.record import OUTCOME_CODES, OUTCOMES
from lockcore import AttemptRecord, Lease, Outcome, Vote

PER_SECOND, MOST, AT_ONCE = 250, 64, 400
KEPT = 5000  # rows a second; what is more is dropped
CROWDED, FIRST, LATER = KEPT // 2, 32, 64  # with so many rows: the first attempts of an acquire, then one in so many
_ATTEMPT_FIELDS, _EXTENSION_FIELDS = 8, 5  # int64 in a row; of an attempt, three more per instance
_VOTES = tuple(vote.value for vote in Vote)
_CODES = {vote: code for code, vote in enumerate(Vote)}


class _RowLog:
    """The writing side of the load process `process` (this one). `fields`: how many int64 a row has."""

    def __init__(self, folder: Path, kind: str, process: int, fields: int) -> None:
        self._path = folder / f"{kind}-{process}-{os.getpid()}.bin"
        self._pack = struct.Struct(f"<{fields}q").pack
        self._rows: list[bytes] = []

    def flush(self) -> None:
        """Write what was kept."""
        rows, self._rows = self._rows, []
        if rows:
            with suppress(OSError), self._path.open("ab") as file:
                file.write(b"".join(rows))


class _RowTail:
    """The reading side: follows all files of a kind."""

    def __init__(self, folder: Path, kind: str, fields: int) -> None:
        self._folder, self._pattern = folder, f"{kind}-*.bin"
        self._row = struct.Struct(f"<{fields}q")
        self._read: dict[Path, int] = {}

    def _new_rows(self) -> Iterator[tuple[Path, tuple[int, ...]]]:
        """What was written since the last call, each with the file that it stands in."""
        for path in sorted(self._folder.glob(self._pattern)):
            start = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(start)
                data = file.read()
            data = data[: len(data) - len(data) % self._row.size]
            self._read[path] = start + len(data)
            yield from ((path, row) for row in self._row.iter_unpack(data))


@dataclass(frozen=True, slots=True)
class Ask:
    """One instance in one attempt: `vote` in lower case; `sent_ns`, `replied_ns` 0 = never."""

    vote: str
    sent_ns: int
    replied_ns: int


@dataclass(frozen=True, slots=True)
class ObservedAttempt:
    """One observed attempt, by instance; fields as in AttemptRecord. `resource`: `checksum` of its name."""

    resource: int
    number: int
    acquire_ns: int
    started_ns: int
    decided_ns: int
    closed_ns: int
    outcome: str
    asks: tuple[Ask, ...]


def checksum(resource: str) -> int:
    """What stands for a resource in a row."""
    return crc32(resource.encode())


class AttemptLog(_RowLog):
    """The writing side, in the load process `process`. `observe_every` is told of how many acquires to observe one."""

    def __init__(self, folder: Path, process: int, instances: int, observe_every: Callable[[int], None]) -> None:
        super().__init__(folder, "attempts", process, _ATTEMPT_FIELDS + 3 * instances)
        self._observe_every = observe_every
        self._dropped = self._seen = self._acquires = 0
        self._pace(1)
        self._flushed_s = time.monotonic()

    def observe(self, record: AttemptRecord) -> None:
        """Keep one attempt."""
        number, waiting = record.attempt, len(self._rows)
        if number == 1:
            self._seen += 1
            self._acquires += self._every
            if self._seen == AT_ONCE:
                self._pace(MOST)
        if number > FIRST and number % LATER and waiting >= CROWDED and record.outcome is not Outcome.ACQUIRED:
            return
        if waiting >= KEPT:
            self._dropped += 1
            return
        row = self._pack(
            checksum(record.resource), number, record.acquire_ns, record.started_ns, record.decided_ns,
            record.closed_ns, OUTCOME_CODES[record.outcome.value], self._dropped,
            *[_CODES[vote] for vote in record.votes], *record.sent_ns, *record.replied_ns,
        )  # fmt: skip
        self._rows.append(row)

    def flush(self) -> None:
        """Once a second: write what was kept, and see how many to observe from now on."""
        super().flush()
        now_s = time.monotonic()
        lasted_s, self._flushed_s = max(now_s - self._flushed_s, 0.1), now_s
        acquires_per_s = self._acquires / lasted_s
        self._seen = self._acquires = 0
        self._pace(min(max(round(acquires_per_s / PER_SECOND), 1), MOST))

    def _pace(self, every: int) -> None:
        self._every = every
        self._observe_every(every)


class AttemptTail(_RowTail):
    """The reading side: follows all files of a run."""

    def __init__(self, folder: Path, instances: int) -> None:
        super().__init__(folder, "attempts", _ATTEMPT_FIELDS + 3 * instances)
        self._instances = instances
        self._dropped: dict[Path, int] = {}

    @property
    def dropped(self) -> int:
        """Attempts that were observed and not kept."""
        return sum(self._dropped.values())

    def new_attempts(self) -> Iterator[ObservedAttempt]:
        """What was written since the last call."""
        count = self._instances
        for path, row in self._new_rows():
            resource, number, acquire_ns, started_ns, decided_ns, closed_ns, outcome, self._dropped[path] = row[:8]
            votes, sent, replied = (row[_ATTEMPT_FIELDS + part * count :][:count] for part in range(3))
            asks = tuple(map(Ask, (_VOTES[vote] for vote in votes), sent, replied))
            times_ns = acquire_ns, started_ns, decided_ns, closed_ns
            yield ObservedAttempt(resource, number, *times_ns, OUTCOMES[outcome], asks)


@dataclass(frozen=True, slots=True)
class Extension:
    """One extension of the lease on `resource` (`checksum`) won by the round begun at `attempt_ns`.

    `outcome`: one of table.EXTEND_OUTCOMES.
    """

    resource: int
    attempt_ns: int
    sent_ns: int
    replied_ns: int
    outcome: str


class ExtensionLog(_RowLog):
    """The writing side, in the load process `process`."""

    def __init__(self, folder: Path, process: int) -> None:
        super().__init__(folder, "extensions", process, _EXTENSION_FIELDS)

    def note(self, lease: Lease, sent_ns: int, replied_ns: int, ours: bool | None) -> None:
        """An extension came back: `ours` None = nobody said."""
        outcome = OUTCOME_CODES["unreachable" if ours is None else "extended" if ours else "gone"]
        self._rows.append(self._pack(checksum(lease.resource), lease.started_ns, sent_ns, replied_ns, outcome))


class ExtensionTail(_RowTail):
    """The reading side."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "extensions", _EXTENSION_FIELDS)

    def new_extensions(self) -> Iterator[Extension]:
        """What was written since the last call."""
        for _, (resource, attempt_ns, sent_ns, replied_ns, outcome) in self._new_rows():
            yield Extension(resource, attempt_ns, sent_ns, replied_ns, OUTCOMES[outcome])
