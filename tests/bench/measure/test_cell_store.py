"""A matrix that was cut goes on: whole cells only, never those of another plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.measure.cell_store import FOLDER, CellStore, is_unfinished

PLAN = {"seed": 1, "cells": ["a", "b"], "seconds": (1.0, 2.0)}


def test_what_was_kept_is_there_at_the_next_start(tmp_path: Path) -> None:
    CellStore(tmp_path, PLAN).keep("0-a", {"rate": 1.5})
    again = CellStore(tmp_path, PLAN)
    assert again.cells() == {"0-a": {"rate": 1.5}}
    assert is_unfinished(tmp_path)


def test_another_plan_is_refused_by_what_differs(tmp_path: Path) -> None:
    CellStore(tmp_path, PLAN).keep("0-a", {})
    with pytest.raises(UsageError, match="seed: 1 then, 2 now"):
        CellStore(tmp_path, {**PLAN, "seed": 2})


def test_a_half_written_cell_is_none(tmp_path: Path) -> None:
    store = CellStore(tmp_path, PLAN)
    store.keep("0-a", {"rate": 1})
    (tmp_path / FOLDER / "0-b.json").write_text('{"rate": ', encoding="utf-8")
    (tmp_path / FOLDER / ".0-c.json.17").write_text("{}", encoding="utf-8")
    assert list(store.cells()) == ["0-a"]


def test_clearing_leaves_nothing(tmp_path: Path) -> None:
    store = CellStore(tmp_path, PLAN)
    store.keep("0-a", {})
    store.clear()
    assert list(tmp_path.iterdir()) == []


def test_a_finished_folder_is_not_unfinished(tmp_path: Path) -> None:
    CellStore(tmp_path, PLAN)
    (tmp_path / "result.json").write_text(json.dumps({}), encoding="utf-8")
    assert not is_unfinished(tmp_path)


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("in the way", encoding="utf-8")
    with pytest.raises(EnvironmentNotReadyError, match="cannot write to"):
        CellStore(tmp_path, PLAN)


def test_a_key_cannot_leave_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no key"):
        CellStore(tmp_path, PLAN).keep("../elsewhere", {})
