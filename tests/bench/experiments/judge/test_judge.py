"""The word of a judged lock, and of each of its rows."""

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from bench.errors import UsageError
from bench.experiments.judge.holders import HeldSpan
from bench.experiments.judge.judge import (
    AT_ONCE,
    LEASES,
    judge_rows,
    word_of_row,
)
from bench.experiments.judge.needs import CONTENTION, INFORMATIVE, NEEDS, SAFETY
from bench.experiments.judge.result import CourseStep, JudgedRow, JudgedWord, RowFigure
from bench.experiments.judge.rows import ROWS
from bench.experiments.judge.words import ADVICE
from bench.measure.section import typed

CONTENDED = JudgedRow(
    group="mutual exclusion",
    topic=CONTENTION,
    question="two holders at once",
    is_safety=True,
    verdict="holds",
    happened="at most 1",
    plays=1,
    tested=100,
    figures=(RowFigure(LEASES, 100.0, ""),),
    holders=(HeldSpan(0, "", 1.0, 3.0),),
)
FEW = replace(CONTENDED, tested=99)
OTHER = replace(CONTENDED, topic="late-set", is_safety=False, tested=0)


TOPICS = {
    "told": "renewal",
    "not applicable": "one-stopped",
    "not known": "majority-down",
    "does not": "exception-in-body",
}


def row(verdict: JudgedWord, *, is_safety: bool = False) -> JudgedRow:
    """Return a row with this word and the counts that earn it. Each word has its own topic."""
    wrong = int(verdict == "does not")
    plays = int(verdict in ("holds", "does not", "told"))
    return replace(
        OTHER,
        topic="paused-in-acquire" if is_safety else TOPICS.get(verdict, OTHER.topic),
        verdict=verdict,
        is_safety=is_safety,
        happened=verdict,
        wrong=wrong,
        plays=plays,
    )


@pytest.mark.parametrize(
    ("rows", "word", "code"),
    [
        ([CONTENDED, OTHER], "HOLDS", 0),
        ([CONTENDED, row("told"), row("not applicable")], "HOLDS", 0),
        ([CONTENDED, row("does not", is_safety=True), row("does not")], "VIOLATED", 5),
        ([CONTENDED, row("does not"), row("not known")], "FAIL", 1),
        ([CONTENDED, row("not known")], "NOT KNOWN", 4),
        # negative controls: nothing good without the row of contention, or without any row
        ([OTHER], "NOT KNOWN", 4),
        ([], "NOT KNOWN", 4),
        ([FEW, OTHER], "NOT KNOWN", 4),
        # leases that another row says it tested
        ([FEW, replace(OTHER, tested=1_000)], "NOT KNOWN", 4),
        ([replace(CONTENDED, verdict="told")], "NOT KNOWN", 4),
    ],
)
def test_the_worst_row_decides(rows: list[JudgedRow], word: str, code: int) -> None:
    verdict = judge_rows(rows)
    assert (verdict.word, verdict.exit_code) == (word, code)


def test_an_interrupted_judgement_is_never_good() -> None:
    assert judge_rows([CONTENDED, OTHER], interrupted=True).word == "INTERRUPTED"


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        ([CONTENDED, OTHER], "HOLDS"),
        # negative controls: a row was cut away, or stands there twice in the place of another
        ([CONTENDED], "NOT KNOWN"),
        ([CONTENDED, CONTENDED], "NOT KNOWN"),
    ],
)
def test_a_judgement_whose_rows_were_cut_is_not_known(rows: list[JudgedRow], word: str) -> None:
    assert judge_rows(rows, [CONTENTION, "late-set"]).word == word


@pytest.mark.parametrize("word", ["holds", "does not", "told", "not applicable", "not known"])
def test_a_row_keeps_the_word_that_it_earns(word: JudgedWord) -> None:
    assert word_of_row(row(word)) == word


@pytest.mark.parametrize("word", ["holds", "told"])
def test_a_stored_row_that_was_never_played_is_not_known(word: JudgedWord) -> None:
    assert word_of_row(replace(row(word), plays=0)) == "not known"


@pytest.mark.parametrize("word", ["not applicable", "not known"])
def test_a_row_whose_last_play_said_nothing_keeps_its_word_in_a_report(word: JudgedWord) -> None:
    """The plays before may have held."""
    assert word_of_row(replace(row(word), plays=2)) == word


def test_a_stored_row_that_went_wrong_does_not_hold() -> None:
    assert word_of_row(replace(row("holds"), wrong=1)) == "does not"


def test_a_stored_row_that_can_be_wrong_does_not_only_tell() -> None:
    assert word_of_row(replace(row("told"), topic="late-set")) == "not known"


@pytest.mark.parametrize("word", ["holds", "told"])
def test_a_good_word_beside_the_course_of_a_fault_is_not_known(word: JudgedWord) -> None:
    course = (CourseStep(1.0, "A", "acquire"),)
    assert word_of_row(replace(row(word), course=course)) == "not known"


@pytest.mark.parametrize("word", ["holds", "does not"])
def test_a_row_that_went_wrong_more_often_than_it_was_played_is_not_known(word: JudgedWord) -> None:
    assert word_of_row(replace(row(word), wrong=2, plays=1)) == "not known"


@pytest.mark.parametrize(("tested", "word"), [(100, "holds"), (101, "not known")])
def test_no_more_leases_are_tested_than_there_were(tested: int, word: str) -> None:
    assert word_of_row(replace(CONTENDED, tested=tested)) == word


def test_the_safety_rows_are_those_of_the_rows_that_are_played() -> None:
    assert {one.name for one in ROWS if one.is_safety} == SAFETY


def test_the_needs_are_those_of_the_rows_that_are_played() -> None:
    assert {one.name for one in ROWS} == {*NEEDS, *INFORMATIVE}
    assert not {*NEEDS} & {*INFORMATIVE}
    three = [name for name, needs in NEEDS.items() if "three servers" in needs]
    assert three == [one.name for one in ROWS if one.least == 3]


def test_a_stored_fault_without_a_play_that_showed_it_is_not_known() -> None:
    assert word_of_row(replace(row("does not"), wrong=0)) == "not known"


@pytest.mark.parametrize(
    ("capacity", "shared", "together", "word"),
    [
        (1, False, 1, "holds"),
        (1, False, 2, "does not"),
        (3, False, 3, "holds"),
        (1, True, 4, "holds"),
    ],
)
def test_more_holders_than_the_lock_may_have_are_a_fault(
    capacity: int, shared: bool, together: int, word: str
) -> None:
    figures = (*CONTENDED.figures, RowFigure(AT_ONCE, float(together), ""))
    seen = replace(CONTENDED, figures=figures)
    assert word_of_row(seen, capacity, shared=shared) == word


READS = HeldSpan(0, "read", 1.0, 3.0)
WRITES = HeldSpan(1, "write", 2.0, 4.0)


@pytest.mark.parametrize(
    ("holders", "capacity", "shared", "word"),
    [
        ([READS, replace(READS, client=2)], 1, True, "holds"),
        ([READS, WRITES], 1, True, "does not"),
        ([WRITES, replace(WRITES, client=2)], 1, True, "does not"),
        # one after the other
        ([READS, replace(WRITES, from_ms=3.0)], 1, True, "holds"),
        ([READS, replace(READS, client=2)], 1, False, "does not"),
        ([READS, replace(READS, client=2)], 2, False, "holds"),
        # a good word without evidence
        ([], 1, True, "not known"),
        ([], 1, False, "not known"),
    ],
)
def test_the_holders_of_a_stored_row_are_judged_anew(
    holders: list[HeldSpan], capacity: int, shared: bool, word: str
) -> None:
    seen = replace(CONTENDED, holders=tuple(holders))
    assert word_of_row(seen, capacity, shared=shared) == word


def test_two_rows_of_one_topic_are_not_one_judgement() -> None:
    halves = [replace(CONTENDED, tested=60), replace(CONTENDED, tested=60)]
    assert judge_rows(halves).word == "NOT KNOWN"


def test_a_stored_row_with_half_a_surrogate_pair_is_refused() -> None:
    stored = {**to_builtins(CONTENDED), "verdict": "\ud800"}
    with pytest.raises(UsageError, match="is not a complete JudgedRow"):
        typed(stored, JudgedRow)


def test_each_row_that_can_go_wrong_has_advice() -> None:
    never_wrong = {"restart", "eviction", "same-caller", "several-names"}
    assert {one.name for one in ROWS} - {*ADVICE} == never_wrong


def test_the_advice_is_about_rows_that_are_there() -> None:
    names = {one.name for one in ROWS}
    assert set(ADVICE) <= names


def test_no_row_is_there_twice() -> None:
    names = [one.name for one in ROWS]
    assert len(names) == len(set(names))
