"""The picture of a row that does not hold."""

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from bench.experiments.judge.figures import MOST_MOVES, _figure, _holdings, figures
from bench.experiments.judge.result import CourseStep, JudgedRow, JudgeResult, RowFigure
from bench.measure.result import read_result
from bench.measure.section import typed

COURSE = (
    CourseStep(10.0, "A", "lock(urls)"),
    CourseStep(20.0, "B", "lock(urls)"),
    CourseStep(30.0, "A", "acquire"),
    CourseStep(31.0, "A", "→ yes"),
    CourseStep(40.0, "B", "acquire"),
    CourseStep(41.0, "B", "→ yes"),
    CourseStep(50.0, "A", "release"),
    CourseStep(51.0, "A", "→ yes"),
)
ROW = JudgedRow(
    group="mutual exclusion",
    topic="body-without-lock",
    question="the body runs without the lock",
    is_safety=True,
    verdict="does not",
    happened="the body <b>runs</b>",
    wrong=1,
    plays=1,
    course=COURSE,
)
RESULT = replace(
    typed(
        read_result(Path(__file__).parents[3] / "histories" / "results" / "judge.json"), JudgeResult
    ),
    ttl_ms=1996,
)


def later(steps: Sequence[CourseStep], ms: float) -> list[CourseStep]:
    return [replace(step, after_ms=step.after_ms + ms) for step in steps]


def spans_of(
    course: Sequence[CourseStep], result: JudgeResult, row: JudgedRow = ROW
) -> list[tuple[str, bool]]:
    """The holder of each lease, and whether the lease is marked."""
    return [("ABC"[one.line], one.is_bad) for one in _holdings(row, result, course, "ABC")]


def test_a_picture_begins_with_the_first_call_and_keeps_every_later_step() -> None:
    figure = _figure(ROW, RESULT)
    assert figure is not None
    assert figure.rows[0] == [0.0, "client A", "acquire"]
    assert figure.rows[-1] == [21.0, "client A", "yes"]
    assert len(figure.rows) == 6


def test_a_text_of_a_lock_is_no_markup_in_a_picture() -> None:
    course = (*COURSE[:4], CourseStep(33.0, "", "<script>"))
    figure = _figure(replace(ROW, course=course), RESULT)
    assert figure is not None
    assert "<b>" not in figure.svg
    assert "<script>" not in figure.svg


def test_two_who_have_the_lock_are_marked() -> None:
    assert spans_of(COURSE[2:], RESULT) == [("A", True), ("B", True)]


def test_a_lease_ends_with_its_keys() -> None:
    """The negative control: one after the other is no fault."""
    course = [*COURSE[2:4], CourseStep(35.0, "", "its keys have ended"), *COURSE[4:6]]
    assert spans_of(course, RESULT) == [("A", False), ("B", False)]


def test_holders_of_a_semaphore_are_marked_only_if_they_are_too_many() -> None:
    two = replace(RESULT, capacity=2)
    third = (CourseStep(43.0, "C", "acquire"), CourseStep(44.0, "C", "→ yes"))
    assert spans_of(COURSE[2:6], two) == [("A", False), ("B", False)]
    assert spans_of((*COURSE[2:6], *third), two) == [("A", True), ("B", True), ("C", True)]
    # A released its lease before C was granted.
    assert spans_of((*COURSE[2:], *later(third, 20)), two) == [
        ("A", False),
        ("B", False),
        ("C", False),
    ]


def test_the_pictures_of_a_result_know_its_capacity() -> None:
    result = replace(RESULT, rows=(ROW,))
    (one,) = figures(result)
    assert one.svg.count('class="area bad"') == 2
    (two,) = figures(replace(result, capacity=2))
    assert 'class="area bad"' not in two.svg
    assert two.svg.count('class="area good"') == 2


def test_a_client_that_holds_the_lock_twice_is_one_holder() -> None:
    again = later(COURSE[2:4], 5)
    assert spans_of((*COURSE[2:4], *again), RESULT) == [("A", False), ("A", False)]


def test_readers_are_marked_only_beside_a_writer() -> None:
    shared = replace(RESULT, shared=True)
    readers = (
        CourseStep(30.0, "A", "acquire (read)"),
        CourseStep(30.0, "A", "→ yes"),
        CourseStep(31.0, "B", "acquire (read)"),
        CourseStep(31.0, "B", "→ yes"),
    )
    writer = (CourseStep(32.0, "C", "acquire (write)"), CourseStep(32.0, "C", "→ yes"))
    assert spans_of(readers, shared) == [("A", False), ("B", False)]
    assert spans_of((*readers, *writer), shared) == [("A", True), ("B", True), ("C", True)]
    # A course of another row does not name the sides.
    assert spans_of(COURSE[2:6], shared) == [("A", True), ("B", True)]


def test_a_lease_ends_with_its_time_to_live() -> None:
    after = (*COURSE[2:4], *later(COURSE[4:6], 2000))
    assert spans_of(after, RESULT) == [("A", False), ("B", False)]
    # The negative control: a lease without an end, or with a longer one.
    assert spans_of(after, replace(RESULT, ttl_ms=None)) == [("A", True), ("B", True)]
    assert spans_of(after, replace(RESULT, ttl_ms=3000)) == [("A", True), ("B", True)]


def test_the_client_of_a_lock_that_renews_has_its_lease_until_its_release() -> None:
    after = (*COURSE[2:4], *later(COURSE[4:6], 2000))
    renewing = replace(ROW, topic="renewal", figures=(RowFigure("renewal every", 0.6, "s"),))
    result = replace(RESULT, rows=(*RESULT.rows, renewing))
    assert spans_of(after, result) == [("A", True), ("B", True)]


def test_no_lease_is_marked_in_a_row_that_is_not_about_safety() -> None:
    """The holder of a takeover has several locks, and each of the other clients gets one."""
    row = replace(ROW, is_safety=False)
    assert spans_of(COURSE[2:], RESULT, row) == [("A", False), ("B", False)]


def test_a_course_without_a_call_or_too_long_for_a_picture_has_none() -> None:
    assert _figure(replace(ROW, course=COURSE[:2]), RESULT) is None
    assert _figure(replace(ROW, course=COURSE * (MOST_MOVES // len(COURSE) + 1)), RESULT) is None
