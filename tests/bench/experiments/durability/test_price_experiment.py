"""A matrix on a machine too slow for it: a cell without a lock is left out and said."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.experiments.durability import price_experiment as experiment
from bench.experiments.durability.command import FsyncOptions, fsync_plan_of
from bench.experiments.durability.price_experiment import MOST_BARREN, NothingGrantedError
from bench.experiments.durability.price_plan import Block
from bench.experiments.durability.question import FSYNC
from bench.run.experiment import ExperimentOrder

PLAN = fsync_plan_of(FsyncOptions.of(FSYNC.command().make_context("fsync", ["--quick"]).params))


class SlowMatrix:
    """The visits of a matrix that take no time; `barren` blocks grant nothing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, barren: int = 0) -> None:
        self.barren = barren
        self.pieces: list[Any] = []
        monkeypatch.setattr(
            experiment, "measure_block", lambda plan, block, *_: self.visits_of(block)
        )
        serving = lambda cell, _keys: nullcontext(cell)  # noqa: E731
        servers: Any = SimpleNamespace(why_not=lambda _cell: None, serving=serving, warnings=())
        journal: Any = SimpleNamespace(pieces=self.pieces, add=self.pieces.append)
        order = ExperimentOrder(PLAN, "abcd", (), Path())
        self.product = experiment._Visits(order, servers, lambda _text: None, journal)

    def visits_of(self, block: Block) -> Any:
        if self.barren:
            self.barren -= 1
            raise NothingGrantedError(f"{block[0]}: no lock was granted")
        return [
            SimpleNamespace(repeat=turn, cell=cell)
            for turn in range(PLAN.repeats)
            for cell in block
        ]


def test_a_cell_that_grants_nothing_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = SlowMatrix(monkeypatch, barren=2)
    matrix.product.measure(lambda: False)
    made = PLAN.blocks()[2:]
    assert len(matrix.pieces) == PLAN.repeats * sum(map(len, made))
    assert any("because no lock was granted" in told for told in matrix.product._limits())


def test_where_hardly_anything_is_granted_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = SlowMatrix(monkeypatch, barren=99)
    with pytest.raises(NothingGrantedError):
        matrix.product.measure(lambda: False)
    assert 99 - matrix.barren == MOST_BARREN + 1


def test_a_block_that_was_cut_is_made_again_and_nothing_counted_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matrix = SlowMatrix(monkeypatch)
    first = next(cell for block in PLAN.blocks() for cell in block)
    matrix.pieces.append(SimpleNamespace(repeat=0, cell=first))
    matrix.product.measure(lambda: False)
    assert len(matrix.pieces) == len({(piece.repeat, piece.cell) for piece in matrix.pieces})
    assert len(matrix.pieces) == PLAN.repeats * sum(map(len, PLAN.blocks()))
