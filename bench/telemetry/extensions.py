"""Extensions on their way to the exporter: *lease and answer → a row → `redlock.extend.duration` and spans*.

Rules: for recipes that extend leases while they are held; written about once a second. A row holds no resource, only
its checksum and when the round that won began: enough to find the operation. Source: rows.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.measure.record import OUTCOME_CODES, OUTCOMES
from bench.telemetry.attempts import checksum
from bench.telemetry.rows import RowLog, RowTail
from lockcore import Lease

_KIND, _FIELDS = "extensions", 5


@dataclass(frozen=True, slots=True)
class Extension:
    """One extension of the lease on `resource` (`checksum`) won by the round begun at `attempt_ns`.

    `outcome`: one of attributes.EXTEND_OUTCOMES.
    """

    resource: int
    attempt_ns: int
    sent_ns: int
    replied_ns: int
    outcome: str


class ExtensionLog:
    """The writing side, in the load process `process`."""

    def __init__(self, folder: Path, process: int) -> None:
        self._rows = RowLog(folder, _KIND, process, _FIELDS)
        self.flush = self._rows.flush

    def note(self, lease: Lease, sent_ns: int, replied_ns: int, ours: bool | None) -> None:
        """An extension came back: `ours` None = nobody said."""
        outcome = "unreachable" if ours is None else "extended" if ours else "gone"
        self._rows.add(checksum(lease.resource), lease.started_ns, sent_ns, replied_ns, OUTCOME_CODES[outcome])


class ExtensionTail:
    """The reading side."""

    def __init__(self, folder: Path) -> None:
        self._rows = RowTail(folder, _KIND, _FIELDS)

    def new_extensions(self) -> Iterator[Extension]:
        """What was written since the last call."""
        for _, (resource, attempt_ns, sent_ns, replied_ns, outcome) in self._rows.new_rows():
            yield Extension(resource, attempt_ns, sent_ns, replied_ns, OUTCOMES[outcome])
