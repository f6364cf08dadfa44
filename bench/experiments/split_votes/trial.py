"""When nobody wins: *attempts of all contenders → contention rounds and how they ended; N and K → the chance of it*.

Rules, with q = N // 2 + 1:
- Exact: a vote is *certain* from its OK until its release is sent. A contention round is *split* if at some moment
  nobody had won and nobody still could: for every contender certain votes + free live instances < q, while ≥ q
  instances had answered. All evidence is late and ends early, so a split that is found was one; a round that nobody won
  without such a moment is *unproven*. Nobody-won is the upper bound, split the lower one.
- A contention round is a maximal cluster of overlapping attempts on a resource without a valid holder: it ends with
  the first grant, and an attempt that starts while a lease is valid belongs to none.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from itertools import groupby
from math import comb, inf

from msgspec import Struct

from lockcore.model import Outcome, Vote
from lockcore.quorum import quorum_of

ANSWERS = (Vote.GRANTED, Vote.REFUSED)


class CastVote(Struct, frozen=True, array_like=True):
    """One instance's part in one attempt. Times in ns of CLOCK_MONOTONIC, 0 = never.

    `release_sent_ns` must not be late.
    """

    vote: Vote
    sent_ns: int = 0
    replied_ns: int = 0
    release_sent_ns: int = 0


class Attempt(Struct, frozen=True, array_like=True):
    """One contender's round of SETs, one vote per configured instance; `valid_until_ns` counts if it was won."""

    contender: int
    started_ns: int
    decided_ns: int
    outcome: Outcome
    votes: tuple[CastVote, ...]
    valid_until_ns: int = 0

    @property
    def is_won(self) -> bool:
        """Whether it gave a lease."""
        return self.outcome is Outcome.ACQUIRED

    @property
    def lease_end_ns(self) -> int:
        """When the lease it gave was over: at its first release, or its own end."""
        releases = [cast.release_sent_ns for cast in self.votes if cast.release_sent_ns]
        return min([self.valid_until_ns, *releases])


class Ending(Enum):
    """How a contention round ended."""

    WON = "won"
    SPLIT = "split"
    UNPROVEN = "unproven"  # nobody won, and there was no moment at which that was certain
    UNREACHABLE = "unreachable"  # fewer than a quorum answered: no matter of votes


# -- the chance ------------------------------------------------------------------------------------------------------


def closed_form(instances: int, contenders: int) -> float:
    """The chance that nobody wins a simultaneous start, 1 − K · P(Bin(N, 1/K) ≥ q): each instance falls to each
    contender with the chance 1/K, and at most one can have q of them. Both arguments ≥ 1."""
    quorum = quorum_of(instances)
    enough = range(quorum, instances + 1)
    ways = sum(comb(instances, votes) * (contenders - 1) ** (instances - votes) for votes in enough)
    return float(1 - Fraction(contenders * ways, contenders**instances))


# -- what happened ---------------------------------------------------------------------------------------------------


def rounds_of(attempts: Sequence[Attempt]) -> list[tuple[Attempt, ...]]:
    """The rounds of one resource in order; those of two or more attempts are contention rounds."""
    leases = [(attempt.decided_ns, attempt.lease_end_ns) for attempt in attempts if attempt.is_won]
    rounds: list[list[Attempt]] = []
    won_ns, all_decided_ns = inf, 0  # of the present round: over when somebody has won it, or nobody runs any more
    for attempt in sorted(attempts, key=lambda attempt: attempt.started_ns):
        start_ns = attempt.started_ns
        if any(granted_ns <= start_ns < end_ns for granted_ns, end_ns in leases):
            continue
        if not rounds or start_ns >= min(won_ns, all_decided_ns):
            rounds.append([])
            won_ns, all_decided_ns = inf, 0
        rounds[-1].append(attempt)
        won_ns = min(won_ns, attempt.decided_ns) if attempt.is_won else won_ns
        all_decided_ns = max(all_decided_ns, attempt.decided_ns)
    return [tuple(round_) for round_ in rounds]


def double_grants(attempts: Sequence[Attempt]) -> int:
    """How many leases on one resource began while another one was valid: must be 0."""
    leases = sorted((attempt.decided_ns, attempt.lease_end_ns) for attempt in attempts if attempt.is_won)
    found, end_ns = 0, 0
    for granted_ns, over_ns in leases:
        found += granted_ns < end_ns
        end_ns = max(end_ns, over_ns)
    return found


def ending_of(attempts: Sequence[Attempt]) -> Ending:
    """How a round ended; its attempts have one vote per configured instance."""
    if any(attempt.is_won for attempt in attempts):
        return Ending.WON
    instances = len(attempts[0].votes)
    quorum = quorum_of(instances)
    columns = [[attempt.votes[index] for attempt in attempts] for index in range(instances)]
    answers = [[cast.replied_ns for cast in column if cast.vote in ANSWERS] for column in columns]
    first_answers = sorted(min(replied_ns) for replied_ns in answers if replied_ns)
    if (live := len(first_answers)) < quorum:
        return Ending.UNREACHABLE
    changes: list[
        tuple[float, bool, int, int]
    ] = []  # when, whether from then on, which instance is held by which attempt
    for index, column in enumerate(columns):
        for number, cast in enumerate(column):
            until_ns = cast.release_sent_ns or inf
            if cast.vote is Vote.GRANTED and until_ns > cast.replied_ns:
                changes += [(cast.replied_ns, True, index, number), (until_ns, False, index, number)]
    return Ending.SPLIT if _can_nobody(changes, first_answers[quorum - 1], live, quorum) else Ending.UNPROVEN


def _can_nobody(changes: list[tuple[float, bool, int, int]], enough_ns: int, live: int, quorum: int) -> bool:
    """Whether at `enough_ns` or later so many instances are held, for certain, that no attempt can reach a quorum."""
    held: dict[int, int] = {}  # instance -> attempt
    changes.sort()  # an end is exclusive: before the begins of the same moment
    for _, moment in groupby(changes, lambda change: max(change[0], enough_ns)):
        for _, begins, instance, attempt in moment:
            if begins:
                held[instance] = attempt
            elif held.get(instance) == attempt:
                del held[instance]
        most = max(Counter(held.values()).values(), default=0)
        if most + live - len(held) < quorum:
            return True
    return False


@dataclass(frozen=True, slots=True)
class UntilGrant:
    """A resource from the first start to the first grant. `first_grant_ns`: how long that took, 0 if never.

    `attempts`: started until then, by all; `winners_attempt`: which of the winner's own it was, 0 if nobody won. 2 and
    more: nobody's first attempt won.
    """

    first_grant_ns: int
    attempts: int
    winners_attempt: int


def until_grant(attempts: Sequence[Attempt]) -> UntilGrant:
    """How one resource that was free at first was won; `attempts` must not be empty."""
    start_ns = min(attempt.started_ns for attempt in attempts)
    won = min((attempt for attempt in attempts if attempt.is_won), key=lambda one: one.decided_ns, default=None)
    before = [attempt for attempt in attempts if won is None or attempt.started_ns < won.decided_ns]
    return UntilGrant(
        first_grant_ns=0 if won is None else won.decided_ns - start_ns,
        attempts=len(before),
        winners_attempt=0 if won is None else sum(attempt.contender == won.contender for attempt in before),
    )
