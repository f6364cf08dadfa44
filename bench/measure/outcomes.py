"""How operations ended, and how their votes fell: *records → counts by kind, margins, split votes*.

Rules: a record carries the votes of its last round, as they stood when that round closed; margin = granted − quorum,
of acquired operations only. Source: the vote vocabulary of README; the packing is `RECORD_FIELDS`' `votes`.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from bench.measure.record import OUTCOME_CODES, Records
from bench.measure.timeline import Integers

ACQUIRE_OUTCOMES = ("acquired", "contended", "split_vote", "unreachable", "too_late")
RELEASE_OUTCOMES = ("released", "gone", "unreachable")

Counts = dict[str, int]


def acquired(records: Records) -> NDArray[np.bool_]:
    """Which operations got the lock."""
    return np.asarray((records["outcome"] & 0xFF) == OUTCOME_CODES["acquired"])


def count_acquires(records: Records) -> Counts:
    """Acquires by outcome."""
    return _count(records["outcome"] & 0xFF, ACQUIRE_OUTCOMES)


def count_releases(records: Records) -> Counts:
    """Releases by outcome; an operation without release is in none of them."""
    return _count((records["outcome"] >> 8) & 0xFF, RELEASE_OUTCOMES)


def add_counts(total: Counts, more: Counts) -> Counts:
    """The sum by name."""
    return {name: total.get(name, 0) + more.get(name, 0) for name in {**total, **more}}


def shares(counts: Counts) -> dict[str, float | None]:
    """Each count ÷ their sum (0…1); None for all when there is nothing."""
    total = sum(counts.values())
    return {name: count / total if total else None for name, count in counts.items()}


def _count(codes: NDArray[np.int64], names: tuple[str, ...]) -> Counts:
    counts = np.bincount(codes, minlength=256)
    return {name: int(counts[OUTCOME_CODES[name]]) for name in names}


KINDS = ("granted", "refused", "errored", "silent", "absent", "undecided")
_ATTEMPTS_MASK = (1 << 32) - 1


def count_votes(records: Records) -> Counts:
    """Votes by kind over all operations."""
    return {kind: int(votes_of(records, kind).sum()) for kind in KINDS}


def votes_of(records: Records, kind: str) -> Integers:
    """How many votes of one of the `KINDS` each operation got."""
    return np.asarray((records["votes"] >> (8 * KINDS.index(kind))) & 0xFF)


def count_margins(records: Records, quorum: int) -> Counter[int]:
    """Acquired operations whose round closed, by vote margin. A margin below 0 is a lease without a quorum."""
    closed = acquired(records) & (votes_of(records, "undecided") == 0)
    counts = np.bincount(votes_of(records, "granted")[closed])
    return Counter({granted - quorum: int(counts[granted]) for granted in np.flatnonzero(counts).tolist()})


def attempts_of(records: Records) -> Integers:
    """Rounds each operation took."""
    return np.asarray(records["attempts"] & _ATTEMPTS_MASK)


def split_votes_of(records: Records) -> Integers:
    """How many of those rounds ended as split votes."""
    return np.asarray(records["attempts"] >> 32)
