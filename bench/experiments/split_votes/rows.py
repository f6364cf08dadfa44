"""Figures of split votes, row by row: *attempts by trial → counts, rates with intervals, times → the verdict*.

Rules: every trial is judged by judge.py and then forgotten; times are histograms. A rate's whole is
the contention rounds, those of two or more overlapping attempts; times to the first grant are of whole trials.
Source: judge.py; bench.measure.latency for a block of percentiles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bench.experiments.split_votes.judge import (
    Attempt,
    Ending,
    chance,
    closed_form,
    double_grants,
    ending_of,
    is_probable,
    outcome_says_split,
    rounds_of,
    until_grant,
)
from bench.experiments.split_votes.plan import Contest, RetrySettings
from bench.experiments.split_votes.result import (
    CalibrationRow,
    ContentionRow,
    Endings,
    ExpectedRate,
    RetryRow,
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
from lockcore import Outcome
from lockcore.clock import NS_PER_MS

LEAST_ROUNDS = 1000  # of which a rate is off by 0.05 by chance less than 2 times in 1,000
TOLERANCE = 0.05  # between a calibrated rate and the closed form


def calibration_row(
    instances: int, contenders: int, rounds: Sequence[Sequence[Attempt]], *, named: bool
) -> CalibrationRow:
    """One K of the calibration; `named`: the refusals told who holds the key."""
    endings = Counter(ending_of(round_) for round_ in rounds)
    expected, measured = closed_form(instances, contenders), wilson(endings[Ending.SPLIT], len(rounds))
    by_outcome = wilson(sum(map(_is_called_split, rounds)), len(rounds))
    by_outcome_expected = chance(instances, contenders, outcome_says_split)
    by_holders = wilson(sum(any(map(is_probable, round_)) for round_ in rounds), len(rounds))
    unlike = len(rounds) - endings[Ending.WON] - endings[Ending.SPLIT]
    misses = [
        *_miss("the split-vote rate", measured.rate, expected),
        *_miss("the rate of outcomes SPLIT_VOTE", by_outcome.rate, by_outcome_expected),
        *(_miss("the rate told by the refusals' holders", by_holders.rate, expected) if named else []),
        *([f"{unlike} rounds that nobody won were not found to be split votes"] if unlike else []),
    ]
    return CalibrationRow(
        contenders=contenders,
        rounds=len(rounds),
        endings=_counted(endings),
        split_rate=measured,
        closed_form=expected,
        probable_by_outcome=ExpectedRate(
            rate=by_outcome.rate, low=by_outcome.low, high=by_outcome.high, expected=by_outcome_expected
        ),
        probable_by_holders=by_holders if named else None,
        as_expected=not misses,
        misses=tuple(misses),
    )


def _counted(endings: Counter[Ending]) -> Endings:
    return Endings(**{ending.value: endings[ending] for ending in Ending})


def _is_called_split(round_: Iterable[Attempt]) -> bool:
    return any(attempt.outcome is Outcome.SPLIT_VOTE for attempt in round_)


def _miss(what: str, measured: float | None, expected: float) -> list[str]:
    if measured is None:
        return [f"{what} was not measured"]
    if abs(measured - expected) <= TOLERANCE:
        return []
    return [f"{what} is {measured:.3f}, expected {expected:.3f} ± {TOLERANCE}"]


class ContestFigures:
    """The trials of one contest, counted. One that retries is followed until somebody wins."""

    def __init__(self, contest: Contest) -> None:
        self.contest = contest
        self.trials = self.double_grants = 0
        self._called = 0
        self._granted = self._first_lost = self._rounds = self._attempts = self._winners_attempts = 0
        self._endings: Counter[Ending] = Counter()
        self._times: dict[str, Histogram] = {
            name: Histogram() for name in ("start_skew_s", "attempt_s", "first_grant_s", "dead_time_s")
        }

    @property
    def missing(self) -> int:
        """Trials still to do."""
        return self.contest.trials - self.trials

    @property
    def contention_rounds(self) -> int:
        """Rounds of two or more overlapping attempts."""
        return self._endings.total()

    @property
    def unreachable(self) -> int:
        """Rounds in which fewer than a quorum answered."""
        return self._endings[Ending.UNREACHABLE]

    @property
    def attempt_ms(self) -> float | None:
        """The median duration of an attempt."""
        median_ns = self._times["attempt_s"].percentile(50.0)
        return None if median_ns is None else median_ns / NS_PER_MS

    def take(self, trials: Mapping[int, Sequence[Attempt]]) -> None:
        """Judge and count some trials."""
        times: dict[str, list[int]] = {name: [] for name in self._times}
        for attempts in trials.values():
            self._judge(attempts)
            self._follow(attempts, times)
        for name, values in times.items():
            self._times[name].add(np.array(values, np.int64))

    def _judge(self, attempts: Sequence[Attempt]) -> None:
        self.trials += 1
        self.double_grants += double_grants(attempts)
        for round_ in rounds_of(attempts):
            if len(round_) > 1:
                self._endings[ending_of(round_, attempts)] += 1
                self._called += _is_called_split(round_)

    def _follow(self, attempts: Sequence[Attempt], times: dict[str, list[int]]) -> None:
        firsts: dict[int, int] = {}
        for attempt in attempts:
            firsts.setdefault(attempt.contender, attempt.started_ns)
            times["attempt_s"].append(attempt.decided_ns - attempt.started_ns)
        times["start_skew_s"].append(max(firsts.values()) - min(firsts.values()))
        course = until_grant(attempts)
        self._first_lost += course.winners_attempt != 1
        if course.first_grant_ns is not None:
            self._granted += 1
            self._rounds += course.rounds
            self._attempts += course.attempts
            self._winners_attempts += course.winners_attempt or 0
            times["first_grant_s"].append(course.first_grant_ns)
            if course.winners_attempt != 1:
                times["dead_time_s"].append(course.first_grant_ns)

    def contention_row(self, instances: int) -> ContentionRow:
        """The row of a contest without retries: how often nobody wins."""
        rounds, endings = self.contention_rounds, self._endings
        return ContentionRow(
            **self._conditions(),
            contention_rounds=rounds,
            endings=_counted(endings),
            split_rate=wilson(endings[Ending.SPLIT], rounds),
            nobody_won_rate=wilson(rounds - endings[Ending.WON] - endings[Ending.UNREACHABLE], rounds),
            probable_by_outcome=wilson(self._called, rounds),
            closed_form=closed_form(instances, self.contest.contenders),
            start_skew_s=Latency.of(self._times["start_skew_s"]),
        )

    def retry_row(self) -> RetryRow:
        """The row of a contest with retries: how long until somebody wins."""
        retry = self.contest.retry
        return RetryRow(
            **self._conditions(),
            retry=RetrySettings(retry.policy, retry.window_ms, retry.attempts, retry.retry_unreachable),
            granted=self._granted,
            first_attempts_lost=self._first_lost,
            rounds_per_grant=self._per_grant(self._rounds),
            winners_attempt=self._per_grant(self._winners_attempts),
            attempts_per_grant=self._per_grant(self._attempts),
            first_grant_s=Latency.of(self._times["first_grant_s"]),
            dead_time_s=Latency.of(self._times["dead_time_s"]),
        )

    def _per_grant(self, number: int) -> float | None:
        return number / self._granted if self._granted else None

    def _conditions(self) -> dict[str, Any]:
        contest = self.contest
        return {
            "contenders": contest.contenders,
            "processes": contest.contenders,
            "order": contest.order,
            "spread_s": contest.spread_ms / 1000,
            "trials": self.trials,
            "double_grants": self.double_grants,
            "attempt_s": Latency.of(self._times["attempt_s"]),
        }


# -- the verdict -----------------------------------------------------------------------------------------------------


def judge_split_votes(
    calibration: Sequence[CalibrationRow], contention: Sequence[ContentionRow], retries: Sequence[RetryRow], *,
    interrupted: bool,
) -> Verdict:  # fmt: skip
    """Return the verdict: violated by two leases at once; not known where nobody contended or nobody was granted."""
    faults = sum(row.double_grants for row in (*contention, *retries))
    violated = [f"{faults} leases were granted while another on the same resource was valid"] if faults else []
    missed = [f"calibration, K={row.contenders}: {miss}" for row in calibration for miss in row.misses]
    unknown = [
        f"contention, K={row.contenders}, {row.order}: released together, and no attempts overlapped"
        for row in contention
        if not row.spread_s and not row.contention_rounds
    ]
    unknown += [
        f"contention, K={row.contenders}, {row.order}: in most rounds fewer than a quorum answered"
        for row in contention
        if row.endings.unreachable * 2 > row.contention_rounds > 0
    ]
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
