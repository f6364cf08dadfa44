"""A matrix on a machine too slow for it: a cell without a lock is left out and said, and the time is kept."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.experiments.fsync import experiment
from bench.experiments.fsync.command import fsync, fsync_plan_of
from bench.experiments.fsync.experiment import FIRST_VISITS, MOST_BARREN, FsyncMatrix
from bench.experiments.fsync.plan import PASSES, Block
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
            experiment, "BlockMeasurement", lambda plan, block, *_: SimpleNamespace(measure=self.visits_of(block))
        )
        serving = lambda cell, _keys: nullcontext(cell)  # noqa: E731
        servers: Any = SimpleNamespace(why_not=lambda _cell: None, serving=serving, warnings=())
        journal: Any = SimpleNamespace(pieces=self.pieces, add=self.pieces.append)
        order = ExperimentOrder(FsyncMatrix(PLAN), "abcd", (), Path())
        self.product = experiment._Visits(order, servers, journal, lambda _text: None)

    def visits_of(self, block: Block) -> Any:
        def measure(repeat: int) -> Any:
            self.now_s += self.slower * PLAN.block_s(block)
            if self.barren:
                self.barren -= 1
                raise NothingGrantedError(f"{block[0]}: no lock was granted")
            turns = range(PASSES * repeat, PASSES * (repeat + 1))
            return [SimpleNamespace(repeat=turn, cell=cell) for turn in turns for cell in block]

        return measure


def test_a_cell_that_grants_nothing_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = SlowMatrix(monkeypatch, slower=0.5, barren=2)
    matrix.product.measure()
    made = [block for _, block in PLAN.blocks()][2:]
    assert len(matrix.pieces) == PASSES * sum(map(len, made))
    assert any("in which no lock was granted" in told for told in matrix.product._limits())


def test_where_hardly_anything_is_granted_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = SlowMatrix(monkeypatch, barren=99)
    with pytest.raises(NothingGrantedError):
        matrix.product.measure()
    assert 99 - matrix.barren == MOST_BARREN + 1


def test_a_block_that_was_cut_is_made_again_and_nothing_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = SlowMatrix(monkeypatch, slower=0.5)
    first = next(cell for _, block in PLAN.blocks() for cell in block)
    matrix.pieces.append(SimpleNamespace(repeat=0, cell=first))
    matrix.product.measure()
    assert len(matrix.pieces) == len({(piece.repeat, piece.cell) for piece in matrix.pieces})
    assert len(matrix.pieces) == PASSES * sum(len(block) for _, block in PLAN.blocks())


@pytest.mark.parametrize("slower", [1.8, 4.0, 20.0])
def test_a_slow_machine_keeps_the_time_and_gives_up_repeats_first(
    slower: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = SlowMatrix(monkeypatch, slower=slower)
    matrix.product.measure()
    assert PLAN.budget_s is not None
    longest_s = slower * max(PLAN.block_s(block) for _, block in PLAN.blocks())
    assert matrix.now_s <= FIRST_VISITS * PLAN.budget_s + longest_s
    assert 0 < len(matrix.pieces) < PASSES * sum(len(block) for _, block in PLAN.blocks())
    assert any("the time was up" in told for told in matrix.product._limits())
