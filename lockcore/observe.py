"""What an attempt looked like from outside: *a closed round → one frozen record for whoever watches*.

Rules: the core imports no vendor; telemetry is fed through this protocol. A record is made when the attempt's round has
closed (all replies, or the timeout) and its caller has decided. Without an observer nothing of this is run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lockcore.model import Outcome, Tally, Vote


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One attempt. Times in ns of CLOCK_MONOTONIC; per-instance tuples have one entry per configured instance, 0 =
    never.

    `attempt`: 1 for the first round of its acquire, which began at `acquire_ns`: attempts on one resource with the same
    `acquire_ns` are one acquire's. `validity_ns`: what was left when the caller got it (≤ 0: none).
    `margin`: granted votes − quorum, negative when lost.
    """

    resource: str
    attempt: int
    acquire_ns: int
    started_ns: int
    decided_ns: int
    closed_ns: int
    outcome: Outcome
    tally: Tally
    validity_ns: int
    margin: int
    votes: tuple[Vote, ...]
    sent_ns: tuple[int, ...]
    replied_ns: tuple[int, ...]


class Observer(Protocol):
    """Gets every observed attempt, in the thread that does the I/O: return fast, never block, never raise."""

    def observe(self, record: AttemptRecord) -> None:
        """Take one record."""
