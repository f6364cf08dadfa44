"""Outcomes and votes of operations: *records → counts by kind, margins, split votes*.

A record has the votes of the last round of its operation, as they were when the round closed. Only
leases have a vote margin, which is granted − quorum.
"""

from typing import Annotated

import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from bench.measure.clocks import Integers
from bench.measure.record import ACQUIRED, OUTCOME_CODES, Records
from bench.measure.section import Count, Section, Share, says

ACQUIRE_OUTCOMES = ("acquired", "contended", "split_vote", "unreachable", "too_late")
RELEASE_OUTCOMES = ("released", "gone", "unreachable")

# The kinds of votes. The field `votes` has one byte for each kind, in this order, with the lowest
# byte first.
KINDS = ("granted", "refused", "errored", "silent", "absent", "undecided")

Counts = dict[str, int]


class Outcomes(Section, frozen=True, kw_only=True):
    """Acquires by outcome."""

    acquired: Annotated[Count, says("got the lock", higher_is_better=True)] = 0
    contended: Annotated[Count, says("a quorum refused, because another caller holds the lock")] = 0
    split_vote: Annotated[Count, says("grants and refusals made a quorum only together")] = 0
    unreachable: Annotated[Count, says("a quorum was impossible")] = 0
    too_late: Annotated[Count, says("a quorum granted, but no validity was left")] = 0

    @property
    def total(self) -> int:
        """The number of all acquires."""
        return sum(astuple(self))


class OutcomeShares(Section, frozen=True, kw_only=True):
    """The share of all acquires that had each outcome. Without acquires, a share is null."""

    acquired: Annotated[
        Share | None,
        says(
            "got the lock", shown="several compare", metric="acquire.success", higher_is_better=True
        ),
    ] = None
    contended: Annotated[
        Share | None, says("a quorum refused, because another caller holds the lock")
    ] = None
    split_vote: Annotated[Share | None, says("grants and refusals made a quorum only together")] = (
        None
    )
    unreachable: Annotated[Share | None, says("a quorum was impossible")] = None
    too_late: Annotated[Share | None, says("a quorum granted, but no validity was left")] = None


class Releases(Section, frozen=True, kw_only=True):
    """Releases by outcome."""

    released: Annotated[Count, says("a quorum still had the lease and deleted it")] = 0
    gone: Annotated[Count, says("no longer ours")] = 0
    unreachable: Annotated[Count, says("neither could be established")] = 0


class Votes(Section, frozen=True, kw_only=True):
    """The votes of the last round of each operation, as they were when the round closed."""

    margin: Annotated[dict[str, Count], says("leases by vote margin (granted − quorum)")]
    granted: Annotated[Count, says("the key was set")]
    refused: Annotated[Count, says("the key is held")]
    errored: Annotated[Count, says("a definite error reply", shown="line")]
    silent: Annotated[
        Count, says("sent without a reply; the command may have taken effect", shown="line")
    ]
    absent: Annotated[
        Count, says("not sent, because the instance was down, lagging or abstaining", shown="line")
    ]
    undecided: Annotated[Count, says("votes still open when the record was last written")]


class SplitVotes(Section, frozen=True, kw_only=True):
    """The rounds in which probably nobody could win. One attempt alone cannot prove a split
    vote."""

    count: Annotated[Count, says("rounds")]
    ratio: Annotated[Share | None, says("rounds ÷ all rounds")]


def acquired(records: Records) -> NDArray[np.bool_]:
    """Return which operations got the lock."""
    return np.asarray(records.acquire_code == ACQUIRED)


def count_acquires(records: Records) -> Counts:
    """Return how many acquires had each outcome."""
    return _count(records.outcome, ACQUIRE_OUTCOMES)


def count_releases(records: Records) -> Counts:
    """Return how many releases had each outcome. Operations without a release do not count."""
    return _count(records.outcome >> 8, RELEASE_OUTCOMES)


def _count(codes: NDArray[np.int64], names: tuple[str, ...]) -> Counts:
    counts = np.bincount(codes & 0xFF, minlength=256)
    return {name: int(counts[OUTCOME_CODES[name]]) for name in names}


def count_votes(records: Records) -> Counts:
    """Return how many votes of each kind all operations got together."""
    return {kind: int(votes_of(records, kind).sum()) for kind in KINDS}


def votes_of(records: Records, kind: str) -> Integers:
    """Return how many votes of one of the `KINDS` each operation got."""
    return np.asarray((records.votes >> (8 * KINDS.index(kind))) & 0xFF)


def attempts_of(records: Records) -> Integers:
    """Return how many rounds each operation took."""
    return np.asarray(records.attempts & 0xFFFF_FFFF)


def split_votes_of(records: Records) -> Integers:
    """Return how many rounds of each operation ended as split votes."""
    return np.asarray(records.attempts >> 32)
