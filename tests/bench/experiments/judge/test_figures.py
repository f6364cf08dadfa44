"""The picture of a row that does not hold."""

from msgspec.structs import replace

from bench.experiments.judge.figures import MOST_MOVES, _figure, _holdings
from bench.experiments.judge.result import CourseStep, JudgedRow

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


def test_a_picture_begins_with_the_first_call_and_keeps_every_later_step() -> None:
    figure = _figure(ROW)
    assert figure is not None
    assert figure.rows[0] == [0.0, "client A", "acquire"]
    assert figure.rows[-1] == [21.0, "client A", "yes"]
    assert len(figure.rows) == 6


def test_a_text_of_a_lock_is_no_markup_in_a_picture() -> None:
    course = (*COURSE[:4], CourseStep(33.0, "", "<script>"))
    figure = _figure(replace(ROW, course=course))
    assert figure is not None
    assert "<b>" not in figure.svg
    assert "<script>" not in figure.svg


def test_two_who_have_the_lock_are_marked() -> None:
    spans = [(one.line, one.is_bad) for one in _holdings(COURSE[2:], ["A", "B"])]
    assert spans == [(0, True), (1, True)]


def test_a_lease_ends_with_its_keys() -> None:
    """The negative control: one after the other is no fault."""
    course = [*COURSE[2:4], CourseStep(35.0, "", "its keys have ended"), *COURSE[4:6]]
    assert [one.is_bad for one in _holdings(course, ["A", "B"])] == [False, False]


def test_a_course_without_a_call_or_too_long_for_a_picture_has_none() -> None:
    assert _figure(replace(ROW, course=COURSE[:2])) is None
    assert _figure(replace(ROW, course=COURSE * (MOST_MOVES // len(COURSE) + 1))) is None
