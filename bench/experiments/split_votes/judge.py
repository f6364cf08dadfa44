"""Judges split votes. This module finds the rounds in the attempts of a trial, computes rows with
intervals, and returns the verdict. The functions are pure.

A contention round is a set of at least two overlapping attempts on a resource that has no valid
holder. If an attempt overlaps any attempt of the set, this attempt belongs to the set, too. The
first grant ends the round. An attempt that starts after the grant belongs to no round. Each rate is
a number of contention rounds, divided by the number of all contention rounds.
"""

from collections import Counter
from collections.abc import Sequence
from math import comb, inf
from typing import Any

import numpy as np
from msgspec.structs import replace

from bench.experiments.split_votes.plan import Attempt, Contest
from bench.experiments.split_votes.result import (
    CalibrationRow,
    ContentionRow,
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
from lockcore.bench import Outcome, quorum_of

# With this many rounds, chance alone moves a rate by 0.05 in fewer than 2 of 1,000 cases.
LEAST_ROUNDS = 1000
# The largest difference between a calibrated rate and the closed form.
TOLERANCE = 0.05
# All attempts of one trial.
Attempts = Sequence[Attempt]


def closed_form(instances: int, contenders: int) -> float:
    """Return the probability that no contender wins after a simultaneous start.

    The probability is 1 − K · P(Bin(N, 1/K) ≥ q). Each instance votes for each contender with
    probability 1/K, and at most one contender can get q votes. Both arguments are ≥ 1.
    """
    quorum = quorum_of(instances)
    enough = range(quorum, instances + 1)
    ways = sum(comb(instances, votes) * (contenders - 1) ** (instances - votes) for votes in enough)
    return float(1 - contenders * ways / contenders**instances)


def rounds_of(attempts: Attempts) -> list[list[Attempt]]:
    """Return the rounds of one trial in order.

    A round with at least two attempts is a contention round.
    """
    granted_ns = min((one.decided_ns for one in attempts if one.is_won), default=inf)
    rounds: list[list[Attempt]] = []
    over_ns = 0
    for attempt in sorted(attempts, key=lambda attempt: attempt.started_ns):
        if attempt.started_ns >= granted_ns:
            break
        if attempt.started_ns >= over_ns:
            rounds.append([])
        rounds[-1].append(attempt)
        over_ns = max(over_ns, attempt.decided_ns)
    return rounds


def ending_of(attempts: Attempts) -> str:
    """Return the ending of a round. The ending is the name of a field of Endings."""
    outcomes = {attempt.outcome for attempt in attempts}
    if Outcome.ACQUIRED in outcomes:
        return "won"
    return "unreachable" if outcomes == {Outcome.UNREACHABLE} else "nobody"


def double_grants(attempts: Attempts) -> int:
    """Return how many leases of a trial began while another lease was valid. If the lock is
    correct, this number is 0.
    """
    doubled = 0
    end_ns = 0
    for lease in sorted((one for one in attempts if one.is_won), key=lambda one: one.decided_ns):
        doubled += lease.decided_ns < end_ns
        end_ns = max(end_ns, lease.valid_until_ns)
    return doubled


def calibration_row(instances: int, contenders: int, endings: Endings) -> CalibrationRow:
    """Return the calibration row for K contenders.

    If the rate differs too much from the closed form, `misses` says so.
    """
    rounds = endings.won + endings.nobody
    expected = closed_form(instances, contenders)
    measured = wilson(endings.nobody, rounds)
    misses = []
    if measured.rate is None:
        misses.append("no split-vote rate was measured")
    elif abs(measured.rate - expected) > TOLERANCE:
        misses.append(
            f"the split-vote rate is {measured.rate:.3f}, but {expected:.3f} ± {TOLERANCE} "
            "was expected"
        )
    return CalibrationRow(
        contenders=contenders,
        rounds=rounds,
        endings=endings,
        split_rate=measured,
        closed_form=expected,
        misses=tuple(misses),
    )


def contention_row(instances: int, contest: Contest, trials: Sequence[Attempts]) -> ContentionRow:
    """Return the row of a contest without retries. The rate in the row is the share of rounds
    without a winner.
    """
    rounds = [round_ for attempts in trials for round_ in rounds_of(attempts) if len(round_) > 1]
    row = ContentionRow(
        **_common(contest, trials),
        contention_rounds=0,
        endings=Endings(**Counter(map(ending_of, rounds))),
        nobody_won_rate=wilson(0, 0),
        closed_form=0.0,
    )
    return _counted(row, instances)


def _counted(row: ContentionRow, instances: int) -> ContentionRow:
    """Compute the rate from the endings in `row`, and return the row with this rate."""
    endings = row.endings
    rounds = endings.won + endings.nobody + endings.unreachable
    return replace(
        row,
        contention_rounds=rounds,
        nobody_won_rate=wilson(endings.nobody, rounds),
        closed_form=closed_form(instances, row.contenders),
    )


def retry_row(contest: Contest, trials: Sequence[Attempts]) -> RetryRow:
    """Return the row of a contest with retries. The row contains the time from the first attempt to
    the first grant."""
    grants_ns = []
    dead_ns = []
    attempts_made = 0
    for attempts in trials:
        won = min(
            (one for one in attempts if one.is_won), key=lambda one: one.decided_ns, default=None
        )
        if won is None:
            continue
        before = [one for one in attempts if one.started_ns < won.decided_ns]
        attempts_made += len(before)
        grants_ns.append(won.decided_ns - min(one.started_ns for one in before))
        if sum(one.contender == won.contender for one in before) > 1:
            dead_ns.append(grants_ns[-1])
    granted = len(grants_ns)
    return RetryRow(
        **_common(contest, trials),
        retry=contest.retry,
        granted=granted,
        first_attempts_lost=len(trials) - granted + len(dead_ns),
        attempts_per_grant=attempts_made / granted if granted else None,
        first_grant_s=_latency(grants_ns),
        dead_time_s=_latency(dead_ns),
    )


def _common(contest: Contest, trials: Sequence[Attempts]) -> dict[str, Any]:
    """Return the values for the fields of a ContestRow."""
    return {
        "contenders": contest.contenders,
        "order": contest.order,
        "spread_s": contest.spread_ms / 1000,
        "trials": len(trials),
        "double_grants": sum(map(double_grants, trials)),
        "attempt_s": _latency(
            [one.decided_ns - one.started_ns for attempts in trials for one in attempts]
        ),
    }


def _latency(values_ns: Sequence[int]) -> Latency:
    return Latency.of(Histogram.of(np.array(values_ns, np.int64)))


def earned(result: SplitVotesResult) -> SplitVotesResult:
    """Compute the rates and the verdict again from the endings of the rounds, and return the new
    result.
    """
    instances = result.conditions.instances
    calibration = tuple(
        calibration_row(instances, row.contenders, row.endings) for row in result.calibration
    )
    contention = tuple(_counted(row, instances) for row in result.contention)
    verdict = judge_split_votes(
        calibration, contention, result.retries, result.losses, interrupted=result.interrupted
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
    """Return the verdict of a measurement.

    The verdict is "violated" if two leases were valid at once. The verdict is "not known" if
    servers ended (`losses`), or if a row is unusable. A contention row is unusable if all
    contenders started at once and no attempts overlapped. A contention row is also unusable if, in
    most of its rounds, fewer instances than a quorum answered. A retry row is unusable if no trial
    gave a lease.
    """
    faults = sum(row.double_grants for row in (*contention, *retries))
    violated = (
        [f"{faults} leases were granted while another lease on the same resource was valid"]
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
            unknown.append(
                f"{name}: all contenders started together, but none of their attempts overlapped"
            )
        if row.endings.unreachable * 2 > row.contention_rounds > 0:
            unknown.append(f"{name}: in most rounds, fewer instances than a quorum answered")
    unknown += [
        f"retries, K={row.contenders}, {row.order}, {row.retry.policy}: no caller got a lease"
        for row in retries
        if not row.granted
    ]
    evidence = [
        Evidence("rounds calibrated", sum(row.rounds for row in calibration), LEAST_ROUNDS),
        Evidence.none_in("contention rounds", sum(row.contention_rounds for row in contention)),
    ]
    cut = ["interrupted, so the missing parts were not measured"] if interrupted else []
    reasons = {VIOLATED: violated, NOT_AS_EXPECTED: missed, NOT_KNOWN: unknown, INTERRUPTED: cut}
    return conclude(AS_EXPECTED, evidence, reasons)
