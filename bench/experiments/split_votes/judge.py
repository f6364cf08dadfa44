"""When nobody wins: *attempts by trial → rounds and how they ended → rows with intervals → the
verdict*. Pure.

Rules, with q = N // 2 + 1:
- Exact: a vote is *certain* from its OK until its release is sent. A contention round is *split* if
  at some moment nobody had won and nobody still could: for every contender certain votes + free
  live instances < q, while ≥ q instances had answered. All evidence is late and ends early, so a
  split that is found was one; a round that nobody won without such a moment is *unproven*.
  Nobody-won is the upper bound, split the lower one.
- A contention round is a maximal cluster of overlapping attempts on a resource without a valid
  holder: it ends with the first grant, and an attempt that starts while a lease is valid belongs to
  none. A rate's whole is the rounds of two or more attempts.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import comb, inf
from typing import Literal

import numpy as np
from msgspec.structs import asdict, astuple, replace

from bench.experiments.split_votes.plan import Attempt, Contest
from bench.experiments.split_votes.result import (
    CalibrationRow,
    ContentionRow,
    ContestRow,
    Endings,
    RetryRow,
    SplitVotesResult,
)
from bench.measure.histogram import Histogram
from bench.measure.latency import Latency
from bench.measure.statistics import wilson
from bench.measure.verdict import (
    AS_EXPECTED,
    INTERRUPTED,
    NOT_AS_EXPECTED,
    NOT_KNOWN,
    VIOLATED,
    Evidence,
    Verdict,
    conclude,
)
from lockcore.bench import Outcome, Vote, quorum_of

# In so many rounds a rate is off by 0.05 by chance less than 2 times in 1,000.
LEAST_ROUNDS = 1000
# The largest difference between a calibrated rate and the closed form.
TOLERANCE = 0.05
ANSWERS = (Vote.GRANTED, Vote.REFUSED)
# A moment, whether the vote begins or ends then, the instance, and the attempt that holds it.
Change = tuple[float, bool, int, int]
# Each is a field of Endings.
Ending = Literal["won", "split", "unproven", "unreachable"]


def closed_form(instances: int, contenders: int) -> float:
    """The chance that nobody wins a simultaneous start, 1 − K · P(Bin(N, 1/K) ≥ q): each instance
    falls to each contender with the chance 1/K, and at most one can have q of them. Both arguments
    ≥ 1."""
    quorum = quorum_of(instances)
    enough = range(quorum, instances + 1)
    ways = sum(comb(instances, votes) * (contenders - 1) ** (instances - votes) for votes in enough)
    return float(1 - contenders * ways / contenders**instances)


def rounds_of(attempts: Sequence[Attempt]) -> list[tuple[Attempt, ...]]:
    """The rounds of one resource in order; those of two or more attempts are contention rounds."""
    leases = [(attempt.decided_ns, attempt.lease_end_ns) for attempt in attempts if attempt.is_won]
    rounds: list[list[Attempt]] = []
    # The present round is over when somebody has won it, or when nobody runs any more.
    won_ns = inf
    all_decided_ns = 0
    for attempt in sorted(attempts, key=lambda attempt: attempt.started_ns):
        start_ns = attempt.started_ns
        if any(granted_ns <= start_ns < end_ns for granted_ns, end_ns in leases):
            continue
        if not rounds or start_ns >= min(won_ns, all_decided_ns):
            rounds.append([])
            won_ns = inf
            all_decided_ns = 0
        rounds[-1].append(attempt)
        won_ns = min(won_ns, attempt.decided_ns) if attempt.is_won else won_ns
        all_decided_ns = max(all_decided_ns, attempt.decided_ns)
    return [tuple(round_) for round_ in rounds]


def double_grants(attempts: Sequence[Attempt]) -> int:
    """How many leases on one resource began while another one was valid: must be 0."""
    leases = sorted(
        (attempt.decided_ns, attempt.lease_end_ns) for attempt in attempts if attempt.is_won
    )
    doubled = 0
    end_ns = 0
    for granted_ns, over_ns in leases:
        doubled += granted_ns < end_ns
        end_ns = max(end_ns, over_ns)
    return doubled


def ending_of(attempts: Sequence[Attempt]) -> Ending:
    """How a round ended; its attempts have one vote per configured instance."""
    if any(attempt.is_won for attempt in attempts):
        return "won"
    instances = len(attempts[0].votes)
    quorum = quorum_of(instances)
    columns = [[attempt.votes[index] for attempt in attempts] for index in range(instances)]
    answers = [[cast.replied_ns for cast in column if cast.vote in ANSWERS] for column in columns]
    first_answers = sorted(min(replied_ns) for replied_ns in answers if replied_ns)
    if (live := len(first_answers)) < quorum:
        return "unreachable"
    changes: list[Change] = []
    for index, column in enumerate(columns):
        for number, cast in enumerate(column):
            until_ns = cast.release_sent_ns or inf
            if cast.vote is Vote.GRANTED and until_ns > cast.replied_ns:
                changes += [
                    (cast.replied_ns, True, index, number),
                    (until_ns, False, index, number),
                ]
    return "split" if _can_nobody(changes, first_answers[quorum - 1], live, quorum) else "unproven"


def _can_nobody(changes: list[Change], enough_ns: int, live: int, quorum: int) -> bool:
    """Whether at `enough_ns` or later so many instances are held, for certain, that no attempt can
    reach a quorum."""
    # Which attempt holds each instance.
    held: dict[int, int] = {}
    # An end is exclusive. So it sorts before the begins of the same moment.
    changes.sort()
    # All changes before `enough_ns` fall into one group with those at `enough_ns`, so that the
    # first question is asked about the state at that moment. After that the question is asked once
    # per moment, never between two changes of the same moment. A split that is claimed between them
    # would be one that never existed.
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
    """A resource from the first start to the first grant. `first_grant_ns`: how long that took, 0
    if never; `attempts`: started until then, by all; `winners_attempt`: which of the winner's own
    it was, 0 if nobody won."""

    first_grant_ns: int
    attempts: int
    winners_attempt: int


def until_grant(attempts: Sequence[Attempt]) -> UntilGrant:
    """How one resource that was free at first was won; `attempts` must not be empty."""
    start_ns = min(attempt.started_ns for attempt in attempts)
    won = min(
        (attempt for attempt in attempts if attempt.is_won),
        key=lambda one: one.decided_ns,
        default=None,
    )
    if won is None:
        return UntilGrant(first_grant_ns=0, attempts=len(attempts), winners_attempt=0)
    before = [attempt for attempt in attempts if attempt.started_ns < won.decided_ns]
    return UntilGrant(
        first_grant_ns=won.decided_ns - start_ns,
        attempts=len(before),
        winners_attempt=sum(attempt.contender == won.contender for attempt in before),
    )


def calibration_row(
    instances: int, contenders: int, rounds: Sequence[Sequence[Attempt]]
) -> CalibrationRow:
    """One K of the calibration."""
    endings: Counter[str] = Counter(map(ending_of, rounds))
    row = CalibrationRow(
        contenders=contenders,
        rounds=len(rounds),
        endings=Endings(**endings),
        split_rate=wilson(0, 0),
        closed_form=0.0,
        probable_by_outcome=wilson(sum(map(_is_called_split, rounds)), len(rounds)),
        misses=(),
    )
    return _calibrated(row, instances)


def _calibrated(row: CalibrationRow, instances: int) -> CalibrationRow:
    """Return the row with the rate that its endings give, and how that misses the closed form."""
    endings = row.endings
    expected = closed_form(instances, row.contenders)
    measured = wilson(endings.split, row.rounds)
    unlike = row.rounds - endings.won - endings.split
    misses = [f"{unlike} rounds that nobody won were not found to be split votes"] if unlike else []
    if measured.rate is None:
        misses.append("the split-vote rate was not measured")
    elif abs(measured.rate - expected) > TOLERANCE:
        misses.append(
            f"the split-vote rate is {measured.rate:.3f}, expected {expected:.3f} ± {TOLERANCE}"
        )
    return replace(row, split_rate=measured, closed_form=expected, misses=tuple(misses))


def _is_called_split(round_: Iterable[Attempt]) -> bool:
    return any(attempt.outcome is Outcome.SPLIT_VOTE for attempt in round_)


class ContestFigures:
    """The trials of one contest so far. One that retries is followed until somebody wins."""

    def __init__(self, contest: Contest) -> None:
        self.contest = contest
        self.double_grants = self._called = 0
        self.endings: Counter[str] = Counter()
        self._courses: list[UntilGrant] = []
        self._attempts_ns: list[int] = []

    @property
    def trials(self) -> int:
        """Trials made."""
        return len(self._courses)

    @property
    def missing(self) -> int:
        """Trials still to do."""
        return self.contest.trials - self.trials

    def take(self, trials: Mapping[int, Sequence[Attempt]]) -> None:
        """Judge and count some trials."""
        for attempts in trials.values():
            self.double_grants += double_grants(attempts)
            for round_ in rounds_of(attempts):
                if len(round_) > 1:
                    self.endings[ending_of(round_)] += 1
                    self._called += _is_called_split(round_)
            self._attempts_ns += [attempt.decided_ns - attempt.started_ns for attempt in attempts]
            self._courses.append(until_grant(attempts))

    def contention_row(self, instances: int) -> ContentionRow:
        """The row of a contest without retries: how often nobody wins."""
        rounds = self.endings.total()
        row = ContentionRow(
            **asdict(self._row()),
            contention_rounds=rounds,
            endings=Endings(**self.endings),
            split_rate=wilson(0, 0),
            nobody_won_rate=wilson(0, 0),
            probable_by_outcome=wilson(self._called, rounds),
            closed_form=0.0,
        )
        return _counted(row, instances)

    def retry_row(self) -> RetryRow:
        """The row of a contest with retries: how long until somebody wins."""
        won = [course for course in self._courses if course.winners_attempt]
        return RetryRow(
            **asdict(self._row()),
            retry=self.contest.retry,
            granted=len(won),
            first_attempts_lost=sum(course.winners_attempt != 1 for course in self._courses),
            attempts_per_grant=sum(course.attempts for course in won) / len(won) if won else None,
            first_grant_s=_latency([course.first_grant_ns for course in won]),
            dead_time_s=_latency(
                [course.first_grant_ns for course in won if course.winners_attempt != 1]
            ),
        )

    def _row(self) -> ContestRow:
        contest = self.contest
        return ContestRow(
            contenders=contest.contenders,
            order=contest.order,  # type: ignore[arg-type]
            spread_s=contest.spread_ms / 1000,
            trials=self.trials,
            double_grants=self.double_grants,
            attempt_s=_latency(self._attempts_ns),
        )


def _latency(values_ns: Sequence[int]) -> Latency:
    return Latency.of(Histogram.of(np.array(values_ns, np.int64)))


def _counted(row: ContentionRow, instances: int) -> ContentionRow:
    """Return the row with the rates that its endings give."""
    endings = row.endings
    rounds = sum(astuple(endings))
    return replace(
        row,
        contention_rounds=rounds,
        split_rate=wilson(endings.split, rounds),
        nobody_won_rate=wilson(rounds - endings.won - endings.unreachable, rounds),
        closed_form=closed_form(instances, row.contenders),
    )


def earned(result: SplitVotesResult) -> SplitVotesResult:
    """Return `result` with the rates and the verdict that the endings of its rounds earn."""
    instances = result.conditions.instances
    losses = result.losses
    # Results of before 2026-11-27 name the losses only in their reasons.
    if losses is None:
        losses = result.verdict.reasons if result.verdict.word == NOT_KNOWN.text else ()
    calibration = tuple(_calibrated(row, instances) for row in result.calibration)
    contention = tuple(_counted(row, instances) for row in result.contention)
    verdict = judge_split_votes(
        calibration, contention, result.retries, losses, interrupted=result.interrupted
    )
    return replace(result, calibration=calibration, contention=contention, verdict=verdict)


def judge_split_votes(
    calibration: Sequence[CalibrationRow],
    contention: Sequence[ContentionRow],
    retries: Sequence[RetryRow],
    losses: Sequence[str] = (),
    *,
    interrupted: bool,
) -> Verdict:
    """Return the verdict: violated by two leases at once; not known where nobody contended, nobody
    was granted, or servers ended (`losses`)."""
    faults = sum(row.double_grants for row in (*contention, *retries))
    violated = (
        [f"{faults} leases were granted while another on the same resource was valid"]
        if faults
        else []
    )
    missed = [
        f"calibration, K={row.contenders}: {miss}" for row in calibration for miss in row.misses
    ]
    unknown = [*losses]
    for row in contention:
        name = f"contention, K={row.contenders}, {row.order}"
        if not row.spread_s and not row.contention_rounds:
            unknown.append(f"{name}: released together, and no attempts overlapped")
        if row.endings.unreachable * 2 > row.contention_rounds > 0:
            unknown.append(f"{name}: in most rounds fewer than a quorum answered")
    unknown += [
        f"retries, K={row.contenders}, {row.order}, {row.retry.policy}: nobody was granted a lease"
        for row in retries
        if not row.granted
    ]
    evidence = [
        Evidence("rounds calibrated", sum(row.rounds for row in calibration), LEAST_ROUNDS),
        Evidence.none_in("contention rounds", sum(row.contention_rounds for row in contention)),
    ]
    cut = ["interrupted: what is missing was not measured"] if interrupted else []
    reasons = {VIOLATED: violated, NOT_AS_EXPECTED: missed, NOT_KNOWN: unknown, INTERRUPTED: cut}
    return conclude(AS_EXPECTED, evidence, reasons)
