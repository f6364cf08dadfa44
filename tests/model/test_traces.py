"""What lockcore does in the simulator is what the model says, and what it does with a planted fault
is not."""

from itertools import islice

import pytest

from lockcore.rounds import awaited, claims
from tests.model.checker import missing
from tests.model.traces import TraceStep, accepted, played

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
MANY = 10_000


def taken(count: int) -> list[list[TraceStep]]:
    return [trace for _, trace in islice(played(), count)]


def test_courses_of_lockcore_are_courses_of_the_model() -> None:
    found = accepted(taken(60))
    assert found.refused == (-1, -1)
    assert found.steps > 1000


@pytest.mark.parametrize("kind", ["set", "grant", "del"])
def test_a_course_with_one_step_changed_is_not(kind: str) -> None:
    """What an instance replied, or until when a lease was granted."""
    usual = taken(1)[0]
    number, step = next((number, step) for number, step in enumerate(usual) if step.do == kind)
    changed = step._replace(end=step.end + 1) if kind == "grant" else step._replace(ok=not step.ok)
    assert accepted([usual, [*usual[:number], changed, *usual[number + 1 :]]]).refused == (
        1,
        number,
    )


def test_a_grant_by_too_few_votes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control, planted into lockcore: a schedule soon shows a grant that the model does
    not take."""
    monkeypatch.setattr(awaited, "quorum_of", lambda instances: instances // 2)
    traces = taken(60)
    which, where = accepted(traces).refused
    assert traces[which][where].do == "grant"


def test_a_late_grant_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control, too: validity without room for drift."""
    monkeypatch.setattr(claims, "drift_ns", lambda ttl_ms, factor: 0)
    traces = taken(20)
    which, where = accepted(traces).refused
    assert traces[which][where].do in ("grant", "acquire")


@pytest.mark.slow
def test_ten_thousand_courses_are_courses_of_the_model() -> None:
    assert accepted(taken(MANY)).refused == (-1, -1)
