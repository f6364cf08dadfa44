"""Outcomes and votes of operations. This module counts outcomes and votes in the records.

A record has the votes of only one round, which is the last round of its operation. These votes were
counted when the round closed. Only a lease has a vote margin, which is the number of granted votes
minus the quorum.
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

    acquired: Annotated[Count, says("acquires that got the lock", higher_is_better=True)] = 0
    contended: Annotated[
        Count, says("acquires that a quorum refused, because another caller holds the lock")
    ] = 0
    split_vote: Annotated[
        Count, says("acquires for which neither the grants nor the refusals alone made a quorum")
    ] = 0
    unreachable: Annotated[
        Count, says("acquires for which too few instances answered to make a quorum")
    ] = 0
    too_late: Annotated[Count, says("acquires that a quorum granted when no validity was left")] = 0

    @property
    def total(self) -> int:
        """The number of all acquires."""
        return sum(astuple(self))


class OutcomeShares(Section, frozen=True, kw_only=True):
    """For each outcome, the share of all acquires that had this outcome. If there were no acquires,
    every share is null."""

    acquired: Annotated[
        Share | None,
        says(
            "acquires that got the lock",
            shown="several compare",
            metric="acquire.success",
            higher_is_better=True,
        ),
    ] = None
    contended: Annotated[
        Share | None, says("acquires that a quorum refused, because another caller holds the lock")
    ] = None
    split_vote: Annotated[
        Share | None,
        says("acquires for which neither the grants nor the refusals alone made a quorum"),
    ] = None
    unreachable: Annotated[
        Share | None, says("acquires for which too few instances answered to make a quorum")
    ] = None
    too_late: Annotated[
        Share | None, says("acquires that a quorum granted when no validity was left")
    ] = None


class Releases(Section, frozen=True, kw_only=True):
    """Releases by outcome."""

    released: Annotated[
        Count, says("number of releases in which a quorum still had the lease and deleted it")
    ] = 0
    gone: Annotated[Count, says("number of releases in which a quorum no longer had the lease")] = 0
    unreachable: Annotated[
        Count,
        says("number of releases whose outcome is unknown, because too few instances answered"),
    ] = 0


class Votes(Section, frozen=True, kw_only=True):
    """The votes in the last round of each operation. The votes are counted at the moment when the
    round closes."""

    margin: Annotated[
        dict[str, Count],
        says("leases by vote margin, which is the number of grants minus the quorum"),
    ]
    granted: Annotated[Count, says("votes of instances that set the key")]
    refused: Annotated[
        Count, says("votes of instances that refused, because another caller had the key")
    ]
    errored: Annotated[Count, says("votes that were error replies of an instance", shown="line")]
    silent: Annotated[
        Count, says("commands that got no reply and may have taken effect", shown="line")
    ]
    absent: Annotated[
        Count,
        says(
            "commands that were not sent, because the instance was down, lagging or abstaining",
            shown="line",
        ),
    ]
    undecided: Annotated[
        Count, says("number of votes that had not arrived when the record was last written")
    ]


class SplitVotes(Section, frozen=True, kw_only=True):
    """The rounds in which probably no caller could get the lock. A single attempt cannot prove a
    split vote."""

    count: Annotated[Count, says("number of rounds that were split votes")]
    ratio: Annotated[Share | None, says("share of the rounds that were split votes")]


def acquired(records: Records) -> NDArray[np.bool_]:
    """Return a mask of the operations that got the lock."""
    return np.asarray(records.acquire_code == ACQUIRED)


def count_acquires(records: Records) -> Counts:
    """Return how many acquires had each outcome."""
    return _count(records.outcome, ACQUIRE_OUTCOMES)


def count_releases(records: Records) -> Counts:
    """Return how many releases had each outcome. An operation without a release is not counted."""
    return _count(records.outcome >> 8, RELEASE_OUTCOMES)


def _count(codes: NDArray[np.int64], names: tuple[str, ...]) -> Counts:
    counts = np.bincount(codes & 0xFF, minlength=256)
    return {name: int(counts[OUTCOME_CODES[name]]) for name in names}


def count_votes(records: Records) -> Counts:
    """Return, for each kind of vote, the sum over all operations."""
    return {kind: int(votes_of(records, kind).sum()) for kind in KINDS}


def votes_of(records: Records, kind: str) -> Integers:
    """For each operation, return how many votes of the kind `kind` it got. `kind` is one of
    `KINDS`."""
    return np.asarray((records.votes >> (8 * KINDS.index(kind))) & 0xFF)


def attempts_of(records: Records) -> Integers:
    """Return how many rounds each operation took."""
    return np.asarray(records.attempts & 0xFFFF_FFFF)


def split_votes_of(records: Records) -> Integers:
    """For each operation, return the number of rounds that ended as split votes."""
    return np.asarray(records.attempts >> 32)
