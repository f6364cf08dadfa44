"""What one client did to a lock, as a record of the history: *an acquire, its release → a row*."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bench.measure.record import OUTCOME_CODES, RECORD_DTYPE, History
from lockcore import Denied, Lease, Outcome
from lockcore.clock import monotonic_ns


@dataclass(slots=True)
class Operation:
    """One acquire and, 0 or None until then, its release. Times in ns."""

    start_ns: int
    result: Lease | Denied
    ended_ns: int
    sent_ns: int = 0
    replied_ns: int = 0
    release: Outcome | None = None

    def record(self, caller: int, sequence: int) -> tuple[int, ...]:
        """The fields of a record, in their order."""
        result, release = self.result, self.release.value if self.release else "none"
        attempt_ns, granted_ns, valid_until_ns, owner = 0, 0, 0, 0
        if isinstance(result, Lease):
            attempt_ns, granted_ns, valid_until_ns = result.started_ns, result.granted_ns, result.valid_until_ns
            owner = hash(result.owner_token)
        elif result.lost_ns:
            attempt_ns = result.lost_ns[-1]
        work_end_ns = (self.sent_ns or monotonic_ns()) if granted_ns else 0
        votes = sum(number << 8 * place for place, number in enumerate(result.tally))
        outcome = OUTCOME_CODES[result.outcome.value] | OUTCOME_CODES[release] << 8
        attempts = result.attempts | result.split_votes << 32
        return (
            self.start_ns, self.start_ns, attempt_ns, granted_ns, valid_until_ns, work_end_ns, self.sent_ns,
            self.replied_ns, self.ended_ns, 0, caller, outcome, votes, attempts, owner, sequence,
        )  # fmt: skip


def history_of(operations: Iterable[tuple[int, Operation]]) -> History:
    """A history of each caller's number and operation."""
    rows = [one.record(caller, sequence) for sequence, (caller, one) in enumerate(operations, 1)]
    return History(np.array(rows, dtype=RECORD_DTYPE), torn=0, missing_segments=0)
