"""How often a row is played, and what its plays come to."""

from threading import Event
from types import SimpleNamespace
from typing import cast

import pytest

from bench.experiments.judge.library_stage import Stage
from bench.experiments.judge.party import NotApplicableError
from bench.experiments.judge.playing import Plays, judged
from bench.experiments.judge.result import JudgedRow, JudgedWord
from bench.experiments.judge.row import JudgeRow, RowFinding, UnmetError

STAGE = cast(
    "Stage", SimpleNamespace(clear=lambda: None, require_servers=lambda: None, course=["step"])
)
TRIES = 3


def of_plays(words: list[JudgedWord]) -> JudgedRow:
    """A row whose plays come to these words, all of which are needed."""
    script = iter(words)

    def ask(_stage: Stage, _row: JudgeRow[Stage]) -> RowFinding:
        word = next(script)
        if word == "not applicable":
            raise NotApplicableError
        if word == "not known":
            raise UnmetError
        return RowFinding("it broke" if word == "does not" else "")

    row: JudgeRow[Stage] = JudgeRow("?", "?", "?", lambda _stage: RowFinding())
    came = judged(STAGE, row, ask, Plays(held=3, repeats=5, tries=TRIES), Event())
    assert list(script) == []
    return came


@pytest.mark.parametrize(
    ("plays", "verdict", "wrong", "played"),
    [
        (["holds"] * 3, "holds", 0, 3),
        # a fault that comes by chance
        (["holds", "holds", "does not", "holds", "does not"], "does not", 2, 5),
        (["not known", "holds", "not known", "holds", "holds"], "holds", 0, 3),
        (["not known"] * TRIES, "not known", 0, 0),
        # plays that did not come about stand in the way of a good word
        (["holds", "not known", "not known", "not known"], "not known", 0, 1),
        (["not applicable"], "not applicable", 0, 0),
    ],
)
def test_what_holds_is_played_again_and_what_went_wrong_oftener(
    plays: list[JudgedWord], verdict: str, wrong: int, played: int
) -> None:
    came = of_plays(plays)
    assert (came.verdict, came.wrong, came.plays) == (verdict, wrong, played)


def test_the_course_of_a_fault_outlives_the_plays_that_held_after_it() -> None:
    came = of_plays(["does not", "holds", "holds", "holds", "holds"])
    assert (came.happened, came.course) == ("it broke", ("step",))
    assert of_plays(["holds"] * 3).course == ()
