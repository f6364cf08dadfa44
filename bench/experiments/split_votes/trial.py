"""What a contender is told and what it tells: *orders and attempts ↔ lines of JSON*.

Rules: one line per message on the contender's stdin and stdout; an attempt is a short list, because there are many.
No Locust, no gevent: both sides import this. Source: bench.experiments.split_votes.judge for what an attempt is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.experiments.split_votes.judge import Attempt, Ballot
from lockcore import Outcome, Vote

ORDERS = ("parallel", "sequential", "random")
TTL_MS = 10_000


@dataclass(frozen=True, slots=True)
class Enrolment:
    """What a contender is told once. `seat`: its number, from 0; `gate`: the shared memory's file, for `seats`."""

    urls: Sequence[str]
    key_prefix: str
    gate: str
    seats: int
    seat: int
    seed: int
    parent_pid: int


@dataclass(frozen=True, slots=True)
class Block:
    """Some trials in a row: `count` from number `first` on, each of a resource of its own.

    The first `contenders` seats take part, each starting U(0, `spread_ms`) after the trial's start. `order`: how the
    instances are asked. `policy`, `window_ms`: lockcore's retry policy; "none": one attempt each. `patience_ms`: when
    nobody has won by then, everybody gives up.
    """

    first: int
    count: int
    contenders: int
    order: str
    spread_ms: float = 0.0
    policy: str = "none"
    window_ms: float = 0.0
    patience_ms: float = 0.0

    @property
    def trials(self) -> range:
        """Their numbers."""
        return range(self.first, self.first + self.count)


def resource_of(trial: int) -> str:
    """The resource that is contended for in a trial."""
    return f"trial-{trial}"


def row_of(trial: int, attempt: Attempt) -> list[Any]:
    """An attempt as a list for JSON."""
    ballots = [
        [ballot.vote.value, ballot.sent_ns, ballot.replied_ns, ballot.release_sent_ns, ballot.release_replied_ns]
        for ballot in attempt.ballots
    ]
    facts = [attempt.contender, attempt.started_ns, attempt.decided_ns, attempt.outcome.value, attempt.valid_until_ns]
    return [trial, *facts, ballots]


def attempt_of(row: Sequence[Any]) -> tuple[int, Attempt]:
    """The trial and the attempt of such a list."""
    trial, contender, started_ns, decided_ns, outcome, valid_until_ns, ballots = row
    known = tuple(Ballot(Vote(vote), *times) for vote, *times in ballots)
    return trial, Attempt(contender, started_ns, decided_ns, Outcome(outcome), known, valid_until_ns)
