"""Whether a place of a semaphore was given away: when a client asked, and when it got in."""

from types import SimpleNamespace
from typing import cast

import pytest

from bench.experiments.judge import schedules
from bench.experiments.judge.library_stage import Stage
from bench.experiments.judge.party import Party, Said
from bench.experiments.judge.row import OutlivedError, UnmetError
from bench.experiments.judge.schedules import Successors, _enters, _successors, _taken

MS = 1_000_000


def asking(answer: Said, granted_ms: int) -> Party:
    """A client that gets this answer, and is granted at this time."""
    operation = SimpleNamespace(granted_ns=granted_ms * MS)
    return cast(
        "Party",
        SimpleNamespace(
            begin_acquire=lambda: None, acquired=lambda: answer, operations=[operation]
        ),
    )


def holding(until_ms: int) -> Party:
    """A client whose place ends at this time."""
    return cast("Party", SimpleNamespace(until_ns=until_ms * MS))


@pytest.mark.parametrize(
    ("ok", "granted_ms", "until_ms", "enters"),
    [
        (True, 900, 1000, True),
        (True, 1000, 1000, False),
        (True, 501, 500, False),
        # a refusal is an answer, however short the rest of the place was
        (False, 0, 400, False),
    ],
)
def test_a_client_enters_if_it_is_granted_before_the_end_of_a_place(
    ok: bool, granted_ms: int, until_ms: int, enters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules, "monotonic_ns", lambda: 0)
    assert _enters(asking(Said(ok), granted_ms), holding(until_ms)) is enters


def test_a_late_grant_shows_nothing_if_the_place_was_about_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedules, "monotonic_ns", lambda: 0)
    with pytest.raises(OutlivedError):
        _enters(asking(Said(ok=True), 600), holding(499))


def test_a_place_whose_end_is_not_known_shows_nothing() -> None:
    stage = cast("Stage", SimpleNamespace(place_ms=None))
    successors = Successors([holding(1000)], [], asking(Said(ok=True), 1))
    with pytest.raises(UnmetError, match="the judge knows how long a place in the semaphore lasts"):
        _taken(stage, successors, "a fault")


def test_all_successors_are_started_before_the_first_is_granted() -> None:
    steps: list[str] = []

    def acquire(_ttl_ms: int) -> Said:
        steps.append("acquire")
        return Said(ok=True)

    def party() -> Party:
        steps.append("start")
        return cast("Party", SimpleNamespace(acquire=acquire))

    stage = cast("Stage", SimpleNamespace(capacity=2, party=party, keys=list))
    assert len(_successors(stage).holders) == 2
    assert steps == ["start"] * 3 + ["acquire"] * 2
