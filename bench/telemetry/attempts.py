"""Observed attempts on their way to the exporter: *AttemptRecord → a row in a file → spans and reply times*.

Rules
- In the load process an observed attempt costs one `pack` and one append; a write a second puts them into the run's
  folder. About `PER_SECOND` acquires a second are observed, all of them at low rates,
  never fewer than one in `MOST`.
- A row holds no resource, only its checksum: enough to find the operation in the history.
- Callers that wait for a hot resource try again hundreds of times a second: of those attempts a sample is enough. What
  is too much to keep even so is counted in the rows that follow.

Source: `AttemptRecord` in lockcore/model.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from bench.measure.record import OUTCOME_CODES, OUTCOMES
from bench.telemetry.rows import Row, RowLog, RowTail
from lockcore import AttemptRecord, Outcome, Vote

PER_SECOND, MOST, AT_ONCE = 1000, 64, 1500
KEPT = 5000  # rows a second; what is more is dropped
CROWDED, FIRST, LATER = KEPT // 2, 32, 64  # with so many rows: the first attempts of an acquire, then one in so many
_KIND, _FIELDS = "attempts", 9
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


class AttemptLog:
    """The writing side, in the load process `process`. `observe_every` is told of how many acquires to observe one."""

    def __init__(self, folder: Path, process: int, instances: int, observe_every: Callable[[int], None]) -> None:
        self._observe_every = observe_every
        self._rows = RowLog(folder, _KIND, process, _FIELDS + 3 * instances)
        self._dropped = self._seen = self._acquires = 0
        self._every = 1
        self._pace(1)
        self._flushed_s = time.monotonic()

    def observe(self, record: AttemptRecord) -> None:
        """Keep one attempt."""
        if record.attempt == 1:
            self._seen += 1
            self._acquires += self._every
            if self._seen == AT_ONCE:
                self._pace(MOST)
        number = record.attempt
        if number > FIRST and number % LATER and len(self._rows) >= CROWDED and record.outcome is not Outcome.ACQUIRED:
            return
        if len(self._rows) >= KEPT:
            self._dropped += 1
            return
        self._rows.add(
            checksum(record.resource), record.attempt, record.acquire_ns, record.started_ns, record.decided_ns,
            record.closed_ns, OUTCOME_CODES[record.outcome.value], record.margin, self._dropped,
            *[_CODES[vote] for vote in record.votes], *record.sent_ns, *record.replied_ns,
        )  # fmt: skip

    def flush(self) -> None:
        """Once a second: write what was kept, and see how many to observe from now on."""
        self._rows.flush()
        now_s = time.monotonic()
        lasted_s, self._flushed_s = max(now_s - self._flushed_s, 0.1), now_s
        acquires_per_s = self._acquires / lasted_s
        self._seen = self._acquires = 0
        self._pace(min(max(round(acquires_per_s / PER_SECOND), 1), MOST))

    def _pace(self, every: int) -> None:
        self._every = every
        self._observe_every(every)


class AttemptTail:
    """The reading side: follows all files of a run."""

    def __init__(self, folder: Path, instances: int) -> None:
        self._instances = instances
        self._rows = RowTail(folder, _KIND, _FIELDS + 3 * instances)
        self._dropped: dict[int, int] = {}

    @property
    def dropped(self) -> int:
        """Attempts that were observed and not kept."""
        return sum(self._dropped.values())

    def new_attempts(self) -> Iterator[Attempt]:
        """What was written since the last call."""
        for process, row in self._rows.new_rows():
            self._dropped[process] = row[_FIELDS - 1]
            yield self._attempt(process, row)

    def _attempt(self, process: int, row: Row) -> Attempt:
        resource, number, acquire_ns, started_ns, decided_ns, closed_ns, outcome, margin = row[:8]
        count, votes = self._instances, row[_FIELDS:]
        asks = tuple(
            Ask(_VOTES[votes[index]], votes[count + index], votes[2 * count + index]) for index in range(count)
        )
        return Attempt(
            process, resource, number, acquire_ns, started_ns, decided_ns, closed_ns, OUTCOMES[outcome], margin, asks
        )
