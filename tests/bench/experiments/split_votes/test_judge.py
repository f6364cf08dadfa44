"""Rows say what happened: rates of contention rounds, times of trials; and what was not expected is
named."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from bench.experiments.split_votes.judge import ContestFigures, calibration_row, judge_split_votes
from bench.experiments.split_votes.plan import Attempt, CastVote, Contest, RetrySettings
from bench.experiments.split_votes.result import CalibrationRow, ContentionRow, Endings, RetryRow
from lockcore import Outcome, Vote

MS = 1_000_000


def attempt(who: int, votes: str, start: int = 0, end: int = 10 * MS) -> Attempt:
    """`votes`: G or R. Times in ns."""
    cast = tuple(
        CastVote(Vote.GRANTED if vote == "G" else Vote.REFUSED, start, end) for vote in votes
    )
    outcome = Outcome.ACQUIRED if votes.count("G") >= 2 else Outcome.CONTENDED
    return Attempt(who, start, end, outcome, cast, 10**12 if outcome is Outcome.ACQUIRED else 0)


SPLIT = [attempt(0, "GRR"), attempt(1, "RGR"), attempt(2, "RRG")]
WON = [attempt(0, "GGR"), attempt(1, "RRR"), attempt(2, "RRG")]


def calibrated(split: int, won: int) -> CalibrationRow:
    return calibration_row(3, 3, [SPLIT] * split + [WON] * won)


def test_three_of_three_split_as_often_as_the_closed_form_says() -> None:
    row = calibrated(222, 778)
    assert row.closed_form == pytest.approx(2 / 9)
    assert (row.split_rate.rate, row.rounds) == (0.222, 1000)
    assert row.endings == Endings(won=778, split=222)
    assert row.probable_by_outcome.rate == 0
    assert row.misses == ()


@pytest.mark.parametrize("split", [165, 280])
def test_a_rate_beyond_the_tolerance_is_named_with_both_figures(split: int) -> None:
    row = calibrated(split, 1000 - split)
    assert f"the split-vote rate is 0.{split}, expected 0.222 ± 0.05" in row.misses


def test_a_round_nobody_won_that_is_not_proven_is_named() -> None:
    unproven = [attempt(0, "GRR"), attempt(1, "RRG"), attempt(2, "RRR")]
    row = calibration_row(3, 3, [SPLIT] * 222 + [WON] * 777 + [unproven])
    assert "1 rounds that nobody won were not found to be split votes" in row.misses


def test_no_rounds_are_no_success() -> None:
    assert "the split-vote rate was not measured" in calibration_row(3, 3, []).misses


def test_a_contention_rows_whole_is_the_rounds_that_overlap() -> None:
    figures = ContestFigures(Contest(3, "parallel", 0.5, 9))
    alone = [attempt(0, "RRR"), attempt(1, "RRR", 20 * MS, 30 * MS)]
    figures.take({1: SPLIT, 2: WON, 3: alone})
    row = figures.contention_row(3)
    assert (row.trials, row.contention_rounds, figures.missing) == (3, 2, 6)
    assert row.split_rate.rate == row.nobody_won_rate.rate == 0.5
    assert (row.contenders, row.order, row.spread_s, row.attempt_s.count) == (
        3,
        "parallel",
        0.0005,
        8,
    )


def test_a_retry_row_tells_how_long_nobody_had_it() -> None:
    figures = ContestFigures(Contest(3, "parallel", 0.0, 2, RetrySettings("fixed", 200.0)))
    again = [*SPLIT, attempt(1, "GGG", 30 * MS, 40 * MS)]
    figures.take({1: again, 2: WON})
    row = figures.retry_row()
    assert (row.granted, row.first_attempts_lost, figures.missing) == (2, 1, 0)
    assert row.attempts_per_grant == 3.5
    assert (row.first_grant_s.max, row.dead_time_s.max, row.dead_time_s.count) == (0.04, 0.04, 1)
    assert (row.retry.policy, row.retry.window_ms) == ("fixed", 200.0)


def test_a_trial_that_nobody_ever_won_is_lost_and_has_no_time() -> None:
    figures = ContestFigures(Contest(3, "parallel", 0.0, 1, RetrySettings("full-jitter", 5.0)))
    figures.take({1: SPLIT})
    row = figures.retry_row()
    assert (row.granted, row.first_attempts_lost, row.attempts_per_grant) == (0, 1, None)
    assert row.first_grant_s.count == 0


def contention(**changes: object) -> ContentionRow:
    figures = ContestFigures(Contest(3, "parallel", 0.0, 1))
    figures.take({1: SPLIT})
    return replace(figures.contention_row(3), **changes)


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
    nobody = ContestFigures(
        Contest(3, "random", 0.0, 1, RetrySettings("full-jitter", 5.0))
    ).retry_row()
    assert judged(contention(), retries=[nobody])[0] == "NOT KNOWN"


def test_where_a_server_ended_nothing_is_known_and_it_is_named() -> None:
    told = judge_split_votes(
        [calibrated(222, 778)], [contention()], [], ["instance #1 ended"], interrupted=False
    )
    assert (told.word, told.exit_code, told.reasons) == ("NOT KNOWN", 4, ("instance #1 ended",))


def test_a_measurement_that_is_empty_or_was_cut_short_is_never_as_expected() -> None:
    assert judge_split_votes([], [], [], interrupted=False).word == "NOT KNOWN"
    assert judged(contention(), interrupted=True)[:2] == ("INTERRUPTED", 130)
