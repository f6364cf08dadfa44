"""A matrix on a machine too slow for it: a cell without a lock is left out and said, and the time is kept."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.experiments.fsync import experiment
from bench.experiments.fsync.command import fsync, fsync_plan_of
from bench.experiments.fsync.experiment import FIRST_VISITS, MOST_BARREN, FsyncMatrix
from bench.experiments.fsync.visit import NothingGrantedError
from bench.run.experiment import ExperimentOrder

PLAN = fsync_plan_of(dict(fsync.make_context("fsync", ["--quick"]).params))


class SlowMatrix:
    """The visits of a matrix on a clock of its own, each `slower` than planned; `barren` ones grant nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, slower: float = 1.0, barren: int = 0) -> None:
        self.now_s, self.slower, self.barren = 0.0, slower, barren
        self.pieces: list[Any] = []
        monkeypatch.setattr(experiment.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(
            experiment, "CellMeasurement", lambda plan, cell, *_: SimpleNamespace(measure=self.visit_of(cell))
        )
        serving = lambda cell, _keys: nullcontext(cell)  # noqa: E731
        servers: Any = SimpleNamespace(why_not=lambda _cell: None, serving=serving, warnings=())
        journal: Any = SimpleNamespace(pieces=self.pieces, add=self.pieces.append)
        order = ExperimentOrder(FsyncMatrix(PLAN), "abcd", (), Path())
        self.product = experiment._Visits(order, servers, journal, lambda _text: None)

    def visit_of(self, cell: Any) -> Any:
        def measure(repeat: int) -> Any:
            self.now_s += self.slower * PLAN.visit_s(cell)
            if self.barren:
                self.barren -= 1
                raise NothingGrantedError(f"{cell}: no lock was granted")
            return SimpleNamespace(repeat=repeat, cell=cell)

        return measure


def test_a_cell_that_grants_nothing_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = SlowMatrix(monkeypatch, slower=0.5, barren=2)
    matrix.product.measure()
    assert len(matrix.pieces) == len(PLAN.visits()) - 2
    assert any("in which no lock was granted" in told for told in matrix.product._limits())


def test_where_hardly_anything_is_granted_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = SlowMatrix(monkeypatch, barren=99)
    with pytest.raises(NothingGrantedError):
        matrix.product.measure()
    assert 99 - matrix.barren == MOST_BARREN + 1


@pytest.mark.parametrize("slower", [1.5, 4.0, 20.0])
def test_a_slow_machine_keeps_the_time_and_gives_up_repeats_first(
    slower: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = SlowMatrix(monkeypatch, slower=slower)
    matrix.product.measure()
    assert PLAN.budget_s is not None
    longest_s = slower * max(map(PLAN.visit_s, PLAN.cells))
    assert matrix.now_s <= FIRST_VISITS * PLAN.budget_s + longest_s
    assert 0 < len(matrix.pieces) < len(PLAN.visits())
    assert any("the time was up" in told for told in matrix.product._limits())
