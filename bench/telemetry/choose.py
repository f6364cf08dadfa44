"""Which operations get a trace: *records of one look → a few of them, and why*.

Rules
- Of every look: the slowest, those that failed, met a split vote or an instance that did not vote, releases that
  found nothing, up to `PER_REASON` of each; and one operation in `one_in`. What is chosen for a reason is chosen once.
- Of the refused, and for half of the slowest, those are preferred whose attempts were observed: their traces show each
  instance.
- An operation that had to wait brings along the one that held the lock until its grant: the traces are linked.

Source: the project's list of what a trace must explain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.measure import votes
from bench.measure.outcomes import acquired
from bench.measure.record import OUTCOME_CODES, Records

PER_REASON = 10
_RELEASED = OUTCOME_CODES["released"]
_ROUTINE = {OUTCOME_CODES["acquired"], OUTCOME_CODES["contended"]}

Rows = NDArray[np.int64]


class Looks(NamedTuple):
    """What is known besides of each record: was an attempt of it `observed`; was an instance silent or in error in
    one, `without_vote`."""

    observed: NDArray[np.bool_]
    without_vote: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Chosen:
    """An operation to trace: `record` has one row. `holder`: the index in the list of chosen ones of whom it waited
    for, None if unknown."""

    record: Records
    reason: str
    holder: int | None = None


def choose(records: Records, looks: Looks, one_in: int, draw: Callable[[int], int]) -> list[Chosen]:
    """The operations to trace. `one_in` 0 = none by chance; `draw(n)` gives a random whole number below n."""
    if not len(records):
        return []
    reasons: dict[int, str] = {}
    for reason, rows in _by_reason(records, looks, one_in, draw):
        for row in rows.tolist():
            reasons.setdefault(row, reason)
    waited = [row for row in reasons if votes.attempts_of(records[row : row + 1])[0] > 1]
    holders = {row: holder for row in waited if (holder := _holder_of(records, row)) is not None}
    for holder in holders.values():
        reasons.setdefault(holder, "holder")
    places = {row: place for place, row in enumerate(reasons)}
    return [
        Chosen(records[row : row + 1].copy(), reason, places[holders[row]] if row in holders else None)
        for row, reason in reasons.items()
    ]


def _by_reason(records: Records, looks: Looks, one_in: int, draw: Callable[[int], int]) -> Iterator[tuple[str, Rows]]:
    observed = looks.observed
    codes, won = records["outcome"] & 0xFF, acquired(records)
    released = (records["outcome"] >> 8) & 0xFF
    yield "failed", _first(~np.isin(codes, list(_ROUTINE)), observed)
    yield "release", _first((released != 0) & (released != _RELEASED), observed)
    yield "split vote", _first(votes.split_votes_of(records) > 0, observed)
    yield "no vote", _first(looks.without_vote, observed)
    yield "refused", _first(codes == OUTCOME_CODES["contended"], observed)
    took = np.where(won, records["ended_ns"] - records["intended_ns"], -1)
    yield "slow", _slowest(took, PER_REASON // 2)
    yield "slow", _slowest(np.where(observed, took, -1), PER_REASON // 2)
    if one_in:
        yield "one in many", np.arange(draw(one_in), len(records), one_in)[:PER_REASON]


def _first(rows: NDArray[np.bool_], observed: NDArray[np.bool_]) -> Rows:
    """Up to `PER_REASON` of the rows, observed ones first."""
    seen, unseen = np.flatnonzero(rows & observed), np.flatnonzero(rows & ~observed)
    return np.concatenate([seen[:PER_REASON], unseen[: max(PER_REASON - len(seen), 0)]])


def _slowest(took: NDArray[np.int64], number: int) -> Rows:
    """The rows that took longest; −1 = not to be taken."""
    rows = np.argsort(took)[-number:][::-1]
    return rows[took[rows] >= 0]


def _holder_of(records: Records, row: int) -> int | None:
    """Who had the lock that `row` waited for: the last on its resource that released between its start and its end."""
    one = records[row]
    until_ns = one["granted_ns"] or one["ended_ns"]
    sent = records["release_sent_ns"]
    rows = np.flatnonzero((records["resource"] == one["resource"]) & (sent > one["start_ns"]) & (sent <= until_ns))
    return int(rows[np.argmax(sent[rows])]) if len(rows) else None
