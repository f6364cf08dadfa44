"""A log that load processes write for the exporter: *attempts, extensions → lines of a file → the
same attempts, extensions*.

Rules
- Lines wait in memory until they are flushed about once a second. If the file cannot be written,
  the lines are dropped and the run continues. The reader never returns half a line. The files are
  in the run's folder and have names of the form `<kind>-<process>-<pid>.json`.
- For a load process, an observed cycle costs 1.6 times as much as a cycle that is not observed. So
  only about `PER_SECOND` acquires a second are observed. At low rates, all acquires are observed.
  At high rates, at least one in `MOST` acquires is observed. Before the rate is known, the first
  `AT_ONCE` acquires are observed. After these acquires, one in `MOST` acquires is observed until
  the rate is known.
- A line holds the checksum of a resource's name. The checksum and the start of the round identify
  the operation in the history.
- The log keeps the first `FIRST` attempts of an acquire, and the attempt that won. If there are too
  many attempts, the log drops some attempts and counts the dropped attempts.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Generic, Self, TypeVar
from zlib import crc32

from msgspec import Struct, json

from lockcore import AttemptRecord, Lease, Outcome

PER_SECOND = 250
MOST = 64
AT_ONCE = 400
# One flush writes at most this many attempts. It covers about a second. Further attempts are
# dropped.
KEPT = 5000
FIRST = 16

Line = TypeVar("Line")


class Ask(Struct, frozen=True, array_like=True):
    """The command that an attempt sent to one instance, with the answer of the instance.

    `vote`: the name of the vote in lower case. `sent_ns`, `replied_ns`: 0 if nothing was sent or if
    no reply came. `error`: the first word of the instance's error reply.
    """

    vote: str
    sent_ns: int
    replied_ns: int
    error: str = ""


class ObservedAttempt(Struct, frozen=True, array_like=True):
    """One observed attempt, with an `Ask` for each instance.

    Fields that are not described here have the same meaning as in AttemptRecord. `resource`: the
    `checksum` of the resource's name. `dropped`: how many attempts were dropped since the last
    line.
    """

    resource: int
    number: int
    acquire_ns: int
    started_ns: int
    decided_ns: int
    closed_ns: int
    outcome: str
    asks: tuple[Ask, ...]
    dropped: int = 0


class Extension(Struct, frozen=True, array_like=True):
    """One extension of a lease.

    `resource`: the `checksum` of the resource's name. `attempt_ns`: the start of the round in which
    the caller got the lease. `outcome`: one of table.EXTEND_OUTCOMES.
    """

    resource: int
    attempt_ns: int
    sent_ns: int
    replied_ns: int
    outcome: str

    @classmethod
    def of(cls, lease: Lease, sent_ns: int, replied_ns: int, ours: bool | None) -> Self:
        """Return the record of an extension after the call to extend has returned.

        `ours`: true if the caller still had the lease, false if the lease was gone, and None if
        this is unknown.
        """
        if ours is None:
            outcome = "unreachable"
        else:
            outcome = "extended" if ours else "gone"
        return cls(checksum(lease.resource), lease.started_ns, sent_ns, replied_ns, outcome)


def checksum(resource: str) -> int:
    """Return the number that identifies the resource in the lines of a log."""
    return crc32(resource.encode())


class LineLog:
    """An object that writes a log.

    All lines of the log have the same `kind`. `process`: the number of this load process.
    """

    def __init__(self, folder: Path, kind: str, process: int) -> None:
        self._path = folder / f"{kind}-{process}-{os.getpid()}.json"
        self._lines: list[bytes] = []

    def keep(self, line: Struct) -> None:
        """Keep a line for the next flush."""
        self._lines.append(json.encode(line))

    def flush(self) -> None:
        """Write the lines that were kept."""
        lines = self._lines
        self._lines = []
        if lines:
            with suppress(OSError), self._path.open("ab") as file:
                file.write(b"\n".join(lines) + b"\n")


class AttemptLog(LineLog):
    """The log of the observed attempts of one load process.

    `observe_every`: a function that decides how many acquires are observed. After the call
    `observe_every(n)`, one in n acquires is observed.
    """

    def __init__(self, folder: Path, process: int, observe_every: Callable[[int], None]) -> None:
        super().__init__(folder, "attempts", process)
        self._observe_every = observe_every
        self._dropped = self._seen = self._acquires = 0
        self._pace(1)
        self._flushed_s = time.monotonic()

    def observe(self, record: AttemptRecord) -> None:
        """Keep one attempt."""
        number = record.attempt
        if number == 1:
            self._seen += 1
            self._acquires += self._every
            if self._seen == AT_ONCE:
                self._pace(MOST)
        if number > FIRST and record.outcome is not Outcome.ACQUIRED:
            return
        if len(self._lines) >= KEPT:
            self._dropped += 1
            return
        votes = [vote.value for vote in record.votes]
        errors = record.errors or [""] * len(votes)
        asks = tuple(map(Ask, votes, record.sent_ns, record.replied_ns, errors))
        times_ns = record.acquire_ns, record.started_ns, record.decided_ns, record.closed_ns
        resource = checksum(record.resource)
        outcome = record.outcome.value
        self.keep(ObservedAttempt(resource, number, *times_ns, outcome, asks, self._dropped))
        # The line that was just kept reports the earlier drops.
        self._dropped = 0

    def flush(self) -> None:
        """Write the lines that were kept, and adapt the share of observed acquires to the present
        rate.

        The load process calls this about once a second.
        """
        super().flush()
        now_s = time.monotonic()
        lasted_s = max(now_s - self._flushed_s, 0.1)
        self._flushed_s = now_s
        acquires_per_s = self._acquires / lasted_s
        self._seen = self._acquires = 0
        self._pace(min(max(round(acquires_per_s / PER_SECOND), 1), MOST))

    def _pace(self, every: int) -> None:
        self._every = every
        self._observe_every(every)


# The load writes while this reader reads, so a file may end with half a line. The reader takes only
# the text up to the last newline and moves its position by the length of this text. The next call
# of `new` reads the half line again, and the line may be complete at that time. If the reader used
# the file's size as its position, it would split that line and could decode neither part.
class LineTail(Generic[Line]):
    """The reader of the log. The reader follows the files of one `kind` in a run's folder.

    `line`: the Python type of one line.
    """

    def __init__(self, folder: Path, kind: str, line: type[Line]) -> None:
        self._folder = folder
        self._pattern = f"{kind}-*.json"
        self._decoder = json.Decoder(line)
        self._read: dict[Path, int] = {}

    def new(self) -> Iterator[Line]:
        """Yield the lines that were written since the last call."""
        for path in sorted(self._folder.glob(self._pattern)):
            start = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(start)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = start + len(whole)
            yield from self._decoder.decode_lines(whole)
