"""How operations ended: *records → counts by name*.

Rules: names are lock outcomes in lower case and every name is present, with 0 if it never happened. Source: the
vocabulary of outcomes in README.
"""

import numpy as np
from numpy.typing import NDArray

from bench.measure.record import OUTCOME_CODES, Records

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
