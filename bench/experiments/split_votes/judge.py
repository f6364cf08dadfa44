"""Figures of split votes, row by row: *attempts by trial → counts, rates with intervals, times → the verdict*.

Rules: every trial is judged by trial.py and its attempts are forgotten. A rate's whole is the contention rounds,
those of two or more overlapping attempts; times to the first grant are of whole trials. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from msgspec.structs import asdict

from bench.experiments.split_votes.plan import Contest
from bench.experiments.split_votes.result import CalibrationRow, ContentionRow, ContestRow, Endings, RetryRow
from bench.experiments.split_votes.trial import (
    Attempt,
    Ending,
    UntilGrant,
    closed_form,
    double_grants,
    ending_of,
    rounds_of,
    until_grant,
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
from lockcore.model import Outcome

LEAST_ROUNDS = 1000  # of which a rate is off by 0.05 by chance less than 2 times in 1,000
TOLERANCE = 0.05  # between a calibrated rate and the closed form


def calibration_row(instances: int, contenders: int, rounds: Sequence[Sequence[Attempt]]) -> CalibrationRow:
    """One K of the calibration."""
    endings = Counter(ending_of(round_) for round_ in rounds)
    expected, measured = closed_form(instances, contenders), wilson(endings[Ending.SPLIT], len(rounds))
    unlike = len(rounds) - endings[Ending.WON] - endings[Ending.SPLIT]
    misses = [f"{unlike} rounds that nobody won were not found to be split votes"] if unlike else []
    if measured.rate is None:
        misses.append("the split-vote rate was not measured")
    elif abs(measured.rate - expected) > TOLERANCE:
        misses.append(f"the split-vote rate is {measured.rate:.3f}, expected {expected:.3f} ± {TOLERANCE}")
    return CalibrationRow(
        contenders=contenders,
        rounds=len(rounds),
        endings=_counted(endings),
        split_rate=measured,
        closed_form=expected,
        probable_by_outcome=wilson(sum(map(_is_called_split, rounds)), len(rounds)),
        as_expected=not misses,
        misses=tuple(misses),
    )


def _counted(endings: Counter[Ending]) -> Endings:
    return Endings(**{ending.value: endings[ending] for ending in Ending})


def _is_called_split(round_: Iterable[Attempt]) -> bool:
    return any(attempt.outcome is Outcome.SPLIT_VOTE for attempt in round_)


class ContestFigures:
    """The trials of one contest so far. One that retries is followed until somebody wins."""

    def __init__(self, contest: Contest) -> None:
        self.contest = contest
        self.double_grants = self._called = 0
        self._endings: Counter[Ending] = Counter()
        self._courses: list[UntilGrant] = []
        self._start_skews_ns: list[int] = []
        self._attempts_ns: list[int] = []

    @property
    def trials(self) -> int:
        """Trials made."""
        return len(self._courses)

    @property
    def missing(self) -> int:
        """Trials still to do."""
        return self.contest.trials - self.trials

    @property
    def unreachable(self) -> int:
        """Rounds in which fewer than a quorum answered."""
        return self._endings[Ending.UNREACHABLE]

    def take(self, trials: Mapping[int, Sequence[Attempt]]) -> None:
        """Judge and count some trials."""
        for attempts in trials.values():
            self.double_grants += double_grants(attempts)
            for round_ in rounds_of(attempts):
                if len(round_) > 1:
                    self._endings[ending_of(round_)] += 1
                    self._called += _is_called_split(round_)
            firsts: dict[int, int] = {}
            for attempt in attempts:
                firsts.setdefault(attempt.contender, attempt.started_ns)
                self._attempts_ns.append(attempt.decided_ns - attempt.started_ns)
            self._start_skews_ns.append(max(firsts.values()) - min(firsts.values()))
            self._courses.append(until_grant(attempts))

    def contention_row(self, instances: int) -> ContentionRow:
        """The row of a contest without retries: how often nobody wins."""
        rounds, endings = self._endings.total(), self._endings
        return ContentionRow(
            **asdict(self._row()),
            contention_rounds=rounds,
            endings=_counted(endings),
            split_rate=wilson(endings[Ending.SPLIT], rounds),
            nobody_won_rate=wilson(rounds - endings[Ending.WON] - endings[Ending.UNREACHABLE], rounds),
            probable_by_outcome=wilson(self._called, rounds),
            closed_form=closed_form(instances, self.contest.contenders),
            start_skew_s=_latency(self._start_skews_ns),
        )

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
            dead_time_s=_latency([course.first_grant_ns for course in won if course.winners_attempt != 1]),
        )

    def _row(self) -> ContestRow:
        contest = self.contest
        return ContestRow(
            contenders=contest.contenders,
            processes=contest.contenders,
            order=contest.order,  # type: ignore[arg-type]
            spread_s=contest.spread_ms / 1000,
            trials=self.trials,
            double_grants=self.double_grants,
            attempt_s=_latency(self._attempts_ns),
        )


def _latency(values_ns: Sequence[int]) -> Latency:
    return Latency.of(Histogram.of(np.array(values_ns, np.int64)))


# -- the verdict -----------------------------------------------------------------------------------------------------


def judge_split_votes(
    calibration: Sequence[CalibrationRow], contention: Sequence[ContentionRow], retries: Sequence[RetryRow], *,
    interrupted: bool,
) -> Verdict:  # fmt: skip
    """Return the verdict: violated by two leases at once; not known where nobody contended or nobody was granted."""
    faults = sum(row.double_grants for row in (*contention, *retries))
    violated = [f"{faults} leases were granted while another on the same resource was valid"] if faults else []
    missed = [f"calibration, K={row.contenders}: {miss}" for row in calibration for miss in row.misses]
    unknown = []
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
    found = {VIOLATED: violated, NOT_AS_EXPECTED: missed, NOT_KNOWN: unknown, INTERRUPTED: cut}
    return conclude(AS_EXPECTED, evidence, found)
