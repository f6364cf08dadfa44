"""The votes of the rounds that decided: *records → margins, counts by kind, split votes*.

Rules: a record carries the votes of its last round, as they stood when that round closed; margin = granted − quorum,
of acquired operations only. Source: the vote vocabulary of README; the packing is `RECORD_FIELDS`' `votes`.
"""

from collections import Counter

import numpy as np

from bench.measure.outcomes import Counts, acquired
from bench.measure.record import Records
from bench.measure.timeline import Integers

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
