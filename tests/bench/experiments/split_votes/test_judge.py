"""The chance of a split vote is exact, rounds are cut where they end, rows say what happened, and
what was not expected is named."""

from collections import Counter
from collections.abc import Sequence
from itertools import product
from math import sqrt
from statistics import NormalDist

import pytest
from msgspec.structs import replace

from bench.experiments.split_votes.judge import (
    calibration_row,
    closed_form,
    contention_row,
    double_grants,
    ending_of,
    judge_split_votes,
    retry_row,
    rounds_of,
)
from bench.experiments.split_votes.plan import Attempt, Contest, RetrySettings
from bench.experiments.split_votes.result import CalibrationRow, ContentionRow, Endings, RetryRow
from bench.measure.statistics import wilson
from lockcore import Outcome
from lockcore.facts.quorum import quorum_of

MS = 1_000_000
TTL_NS = 10_000 * MS


def lost(who: int, start: int, end: int, outcome: Outcome = Outcome.CONTENDED) -> Attempt:
    return Attempt(who, start, end, outcome)


def won(who: int, start: int, granted: int, until: int = TTL_NS) -> Attempt:
    return Attempt(who, start, granted, Outcome.ACQUIRED, until)


SPLIT = [lost(who, 0, 10 * MS) for who in range(3)]
WON = [won(0, 0, 10 * MS), lost(1, 0, 10 * MS), lost(2, 0, 10 * MS)]


# -- the chance ------------------------------------------------------------------------------------


def tables(instances: int, contenders: int) -> list[tuple[int, ...]]:
    """Every way N instances can fall to K contenders, as votes per contender."""
    ways = product(range(contenders), repeat=instances)
    return [tuple(Counter(way)[who] for who in range(contenders)) for way in ways]


@pytest.mark.parametrize("instances", range(1, 8))
@pytest.mark.parametrize("contenders", range(1, 6))
def test_the_closed_form_is_the_share_of_vote_tables_that_nobody_wins(
    instances: int, contenders: int
) -> None:
    every = tables(instances, contenders)
    nobody = sum(max(votes) < quorum_of(instances) for votes in every)
    assert closed_form(instances, contenders) == pytest.approx(nobody / len(every), abs=1e-12)


@pytest.mark.parametrize(
    ("successes", "trials"), [(0, 50), (1, 50), (25, 50), (50, 50), (718, 2000), (0, 1), (1, 1)]
)
def test_the_interval_is_wilsons(successes: int, trials: int) -> None:
    ours = wilson(successes, trials)
    z = NormalDist().inv_cdf(0.975)
    # where the score test is just about to reject (scipy takes 2 s to import)
    for end in (ours.low, ours.high):
        deviation = abs(successes / trials - end)
        assert deviation == pytest.approx(z * sqrt(end * (1 - end) / trials), abs=1e-6)
    assert ours.low < ours.high
    assert ours.rate == successes / trials
    assert 0 <= ours.low <= ours.rate <= ours.high <= 1


def test_nothing_tried_is_no_rate() -> None:
    assert (wilson(0, 0).rate, wilson(0, 0).low, wilson(0, 0).high) == (None, None, None)


# -- rounds ----------------------------------------------------------------------------------------


def sizes(*attempts: Attempt) -> list[int]:
    return [len(round_) for round_ in rounds_of(attempts)]


def test_overlapping_attempts_are_one_round_also_in_a_chain() -> None:
    assert sizes(lost(0, 0, 10), lost(1, 5, 15), lost(2, 12, 20)) == [3]
    in_another_order = [lost(2, 12, 20), lost(0, 0, 10), lost(1, 5, 15)]
    assert sizes(*in_another_order) == [3]


def test_attempts_that_do_not_overlap_are_rounds_of_their_own() -> None:
    assert sizes(lost(0, 0, 10), lost(1, 10, 20), lost(2, 25, 30)) == [1, 1, 1]


def test_what_starts_after_the_grant_belongs_to_no_round() -> None:
    assert sizes(won(0, 0, 10), lost(1, 5, 20), lost(2, 10, 30), lost(3, 49, 55)) == [2]


def test_a_round_that_a_quorum_did_not_answer_is_no_split_vote() -> None:
    unreachable = lost(1, 0, 10, Outcome.UNREACHABLE)
    assert ending_of([unreachable, unreachable]) == "unreachable"
    assert ending_of([unreachable, lost(0, 0, 10)]) == "nobody"
    assert ending_of([unreachable, won(0, 0, 10)]) == "won"


def test_leases_that_overlap_are_counted_and_those_that_touch_are_not() -> None:
    assert double_grants([won(0, 0, 10, until=50), won(1, 0, 49)]) == 1
    assert double_grants([won(0, 0, 10, until=50), won(1, 0, 50)]) == 0
    assert double_grants([won(0, 0, 10, until=90), won(1, 0, 20, until=30), won(2, 0, 80)]) == 2


# -- rows ------------------------------------------------------------------------------------------


def calibrated(nobody: int, winners: int) -> CalibrationRow:
    return calibration_row(3, 3, Endings(won=winners, nobody=nobody))


def test_three_of_three_split_as_often_as_the_closed_form_says() -> None:
    row = calibrated(222, 778)
    assert row.closed_form == pytest.approx(2 / 9)
    assert (row.split_rate.rate, row.rounds) == (0.222, 1000)
    assert row.misses == ()


@pytest.mark.parametrize("nobody", [165, 280])
def test_a_rate_beyond_the_tolerance_is_named_with_both_figures(nobody: int) -> None:
    row = calibrated(nobody, 1000 - nobody)
    assert f"the split-vote rate is 0.{nobody}, but 0.222 ± 0.05 was expected" in row.misses


def test_no_rounds_are_no_success() -> None:
    assert "no split-vote rate was measured" in calibrated(0, 0).misses


def test_a_contention_rows_whole_is_the_rounds_that_overlap() -> None:
    alone = [lost(0, 0, 10 * MS), lost(1, 20 * MS, 30 * MS)]
    row = contention_row(3, Contest(3, "parallel", 0.5, 9), [SPLIT, WON, alone])
    assert (row.trials, row.contention_rounds, row.endings) == (3, 2, Endings(won=1, nobody=1))
    assert row.nobody_won_rate.rate == 0.5
    assert (row.contenders, row.order, row.spread_s) == (3, "parallel", 0.0005)
    assert row.attempt_s.count == 8


def test_a_retry_row_tells_how_long_nobody_had_it() -> None:
    contest = Contest(3, "parallel", 0.0, 2, RetrySettings("fixed", 200.0))
    again = [*SPLIT, won(1, 30 * MS, 40 * MS)]
    row = retry_row(contest, [again, WON])
    assert (row.granted, row.first_attempts_lost) == (2, 1)
    assert row.attempts_per_grant == 3.5
    assert (row.first_grant_s.max, row.dead_time_s.max, row.dead_time_s.count) == (0.04, 0.04, 1)
    assert (row.retry.policy, row.retry.window_ms) == ("fixed", 200.0)


def test_attempts_after_the_first_grant_do_not_count_for_it() -> None:
    attempts = [
        lost(0, 100, 110),
        lost(1, 101, 111),
        lost(0, 120, 130),
        won(1, 125, 140),
        lost(2, 141, 150),
    ]
    row = retry_row(Contest(3, "parallel"), [attempts])
    assert (row.attempts_per_grant, row.first_attempts_lost) == (4, 1)
    assert row.first_grant_s.max == pytest.approx(40e-9, rel=0.01)


def test_a_trial_that_nobody_ever_won_is_lost_and_has_no_time() -> None:
    row = retry_row(Contest(3, "parallel", retry=RetrySettings("full-jitter", 5.0)), [SPLIT])
    assert (row.granted, row.first_attempts_lost, row.attempts_per_grant) == (0, 1, None)
    assert row.first_grant_s.count == 0


# -- the verdict -----------------------------------------------------------------------------------


def contention(**changes: object) -> ContentionRow:
    return replace(contention_row(3, Contest(3, "parallel", 0.0, 1), [SPLIT]), **changes)


def judged(
    *contended: ContentionRow,
    retries: Sequence[RetryRow] = (),
    split: int = 222,
    interrupted: bool = False,
) -> tuple[str | None, int | None, tuple[str, ...]]:
    calibration = [calibrated(split, 1000 - split)]
    verdict = judge_split_votes(calibration, contended, retries, interrupted=interrupted)
    return verdict.word, verdict.exit_code, verdict.reasons


def test_certain_bad_stands_before_what_did_not_show() -> None:
    assert judged(contention()) == ("AS EXPECTED", 0, ())
    word, code, reasons = judged(contention(), split=500)
    assert (word, code) == ("NOT AS EXPECTED", 4)
    assert reasons[0].startswith("calibration, K=3: the split-vote rate is 0.500")
    word, code, reasons = judged(contention(double_grants=2), split=500)
    assert (word, code) == ("VIOLATED", 5)
    assert reasons[0].startswith("2 leases were granted while another")


def test_where_nobody_contended_nothing_is_known() -> None:
    assert judged(contention(contention_rounds=0))[:2] == ("NOT KNOWN", 4)
    spread = contention(contention_rounds=0, spread_s=0.5)
    assert judged(spread)[:2] == ("NOT KNOWN", 4)
    assert judged(spread, contention())[0] == "AS EXPECTED"


def test_where_a_quorum_did_not_answer_or_nobody_was_granted_nothing_is_known() -> None:
    assert (
        judged(contention(endings=Endings(won=1, unreachable=1), contention_rounds=1))[0]
        == "NOT KNOWN"
    )
    nobody = retry_row(Contest(3, "random", retry=RetrySettings("full-jitter", 5.0)), [])
    assert judged(contention(), retries=[nobody])[0] == "NOT KNOWN"


def test_where_a_server_ended_nothing_is_known_and_it_is_named() -> None:
    verdict = judge_split_votes(
        [calibrated(222, 778)], [contention()], [], ["instance #1 ended"], interrupted=False
    )
    reasons = ("instance #1 ended",)
    assert (verdict.word, verdict.exit_code, verdict.reasons) == ("NOT KNOWN", 4, reasons)


def test_a_measurement_that_is_empty_or_was_cut_short_is_never_as_expected() -> None:
    assert judge_split_votes([], [], [], interrupted=False).word == "NOT KNOWN"
    assert judged(contention(), interrupted=True)[:2] == ("INTERRUPTED", 130)
