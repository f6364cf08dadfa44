"""A matrix that is measured in sittings: what is stored, what is kept to go on with, how long it
takes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from bench.experiments.durability import sitting
from bench.experiments.durability.answers import LOSSES
from bench.experiments.durability.loss_plan import CrashPlan, full_crashes
from bench.experiments.durability.loss_result import CrashResult
from bench.experiments.durability.sitting import Pace, sit
from bench.run.experiment import Done, Experiment, ExperimentOrder, Header
from bench.run.journal import Journal, is_unfinished

STORED = LOSSES.read_file(Path(__file__).parents[3] / "histories" / "results" / "crash.json")
PLAN = CrashPlan(tuple(full_crashes([1])[:1]), 2, 240, 1, quick=True)


class Letters:
    """A matrix whose pieces are letters. The user presses Ctrl-C at `!`."""

    def __init__(self, letters: str, journal: Journal[str]) -> None:
        self._letters = letters
        self.journal = journal

    def measure(self, _is_over: Callable[[], bool]) -> None:
        for letter in self._letters[len(self.journal.pieces) :]:
            if letter == "!":
                raise KeyboardInterrupt
            self.journal.add(letter)

    def result(self, header: Header) -> CrashResult:
        return structs.replace(
            STORED, interrupted=header["interrupted"], warnings=tuple(self.journal.pieces)
        )


def sat(folder: Path, letters: str) -> Done[CrashResult]:
    order: ExperimentOrder[Any] = ExperimentOrder(PLAN, "7f3a", ["lockbench"], folder)
    with Experiment(order) as experiment:
        return sit(experiment, order, {"plan": 1}, str, lambda journal: Letters(letters, journal))


def test_a_whole_matrix_is_stored_and_its_journal_removed(tmp_path: Path) -> None:
    done = sat(tmp_path, "abc")
    assert done.path is not None
    assert done.result.warnings[:3] == ("a", "b", "c")
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_matrix_that_was_cut_goes_on_where_it_stopped(tmp_path: Path) -> None:
    cut = sat(tmp_path, "a!")
    assert (cut.path, cut.result.interrupted, cut.exit_code) == (None, True, 130)
    assert is_unfinished(tmp_path)
    assert sat(tmp_path, "abc").result.warnings[:3] == ("a", "b", "c")


def test_what_was_cut_before_its_first_piece_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        sat(tmp_path, "!")
    assert not is_unfinished(tmp_path)


def test_the_time_left_is_that_of_the_plan_until_the_machine_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr(sitting.time, "monotonic", lambda: now_s)
    pace = Pace(100.0, lanes=2)
    assert pace.left == "about 0:50 left"
    pace.did(20.0)
    now_s = 40.0
    assert pace.left == "about 2:40 left", "twice as slow as planned, and nothing in parallel"
