"""What a cut experiment goes on from."""

import json
import re
import resource
from pathlib import Path

import pytest

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.measure.section import Section
from bench.run.journal import JOURNAL_NAME, open_journal, read_journal

PLAN = {"seed": 1, "cells": ["a", "b"]}


class Piece(Section, frozen=True, kw_only=True):
    cut: int


def pieces(*cuts: int) -> list[Piece]:
    return [Piece(cut=cut) for cut in cuts]


def kept(folder: Path) -> list[object]:
    return [json.loads(line) for line in read_journal(folder)[1]]


def begun(folder: Path, *cuts: int) -> None:
    with open_journal(folder, PLAN, Piece) as journal:
        for piece in pieces(*cuts):
            journal.add(piece)


def test_what_was_added_is_there_when_it_goes_on_and_before_it_is_closed(tmp_path: Path) -> None:
    begun(tmp_path, 1, 2)
    with open_journal(tmp_path, PLAN, Piece) as journal:
        assert journal.pieces == pieces(1, 2)
        journal.add(Piece(cut=3))
        assert kept(tmp_path) == [{"cut": 1}, {"cut": 2}, {"cut": 3}]


def test_one_that_holds_nothing_is_not_left_behind(tmp_path: Path) -> None:
    begun(tmp_path)
    assert not (tmp_path / JOURNAL_NAME).exists()


@pytest.mark.parametrize("cut_short", ['{"cut": 2', '{"cut": 2}', "\x00\x00\x00"])
def test_a_line_cut_short_is_dropped_and_written_over(tmp_path: Path, cut_short: str) -> None:
    begun(tmp_path, 1)
    with (tmp_path / JOURNAL_NAME).open("a") as file:
        file.write(cut_short)
    with open_journal(tmp_path, PLAN, Piece) as journal:
        assert journal.pieces == pieces(1)
        journal.add(Piece(cut=2))
    assert kept(tmp_path) == [{"cut": 1}, {"cut": 2}]


def test_a_broken_line_within_it_costs_nothing_that_stands_behind(tmp_path: Path) -> None:
    begun(tmp_path, 1, 2)
    path = tmp_path / JOURNAL_NAME
    path.write_text(path.read_text("utf-8").replace('{"cut": 1}', '{"cut'), "utf-8")
    before = path.read_bytes()
    refused = pytest.raises(UsageError, match="^line 2 of .* is not a part of this experiment")
    with refused, open_journal(tmp_path, PLAN, Piece):
        pass
    assert path.read_bytes() == before


def test_another_plan_is_refused_and_what_differs_is_named(tmp_path: Path) -> None:
    begun(tmp_path, 1)
    with (
        pytest.raises(UsageError, match=r"seed 1 there, 2 here"),
        open_journal(tmp_path, {**PLAN, "seed": 2}, Piece),
    ):
        pass


@pytest.mark.parametrize(
    "other, told",
    [
        ({**PLAN, "cells": ["c"] * 1000, "seed": 2}, "(cells, seed 1 there, 2 here)"),
        ({"experiment": "crash", "crashes": ["c"] * 1000}, "(experiment fsync there, crash here)"),
    ],
)
def test_what_differs_is_told_shortly(tmp_path: Path, other: dict[str, object], told: str) -> None:
    plan = {**PLAN, "experiment": "fsync"}
    with open_journal(tmp_path, plan, Piece) as journal:
        journal.add(Piece(cut=1))
    with (
        pytest.raises(UsageError, match=re.escape(told)),
        open_journal(tmp_path, {**plan, **other}, Piece),
    ):
        pass


@pytest.mark.parametrize("content", [None, "", "no journal\n", '{"cut": 1}\n', "[1]\n"])
def test_a_folder_without_a_journal_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / JOURNAL_NAME).write_text(content)
    with pytest.raises(UsageError):
        read_journal(tmp_path)


@pytest.mark.parametrize("line", ['{"cut": "x"}', '{"cat": 1}', '{"cut": null}', '{"cut": 10}'])
def test_a_piece_that_none_can_be_made_of_is_named_and_nothing_is_touched(
    tmp_path: Path, line: str
) -> None:
    def few(piece: Piece) -> None:
        if piece.cut > 9:
            raise ValueError

    begun(tmp_path, 1)
    path = tmp_path / JOURNAL_NAME
    path.write_text(path.read_text("utf-8") + f'{line}\n{{"cut": 3}}\n{{"cu', "utf-8")
    before = path.read_bytes()
    refused = pytest.raises(UsageError, match="^line 3 of .* is not a part of this experiment")
    with refused, open_journal(tmp_path, PLAN, Piece, few):
        pass
    assert path.read_bytes() == before


def test_a_full_disk_is_named_and_the_cut_line_dropped(tmp_path: Path) -> None:
    begun(tmp_path, 1)
    path = tmp_path / JOURNAL_NAME
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    refused = pytest.raises(EnvironmentNotReadyError, match=f"cannot write {path}")
    try:
        with refused, open_journal(tmp_path, PLAN, Piece) as journal:
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 4, usual[1]))
            journal.add(Piece(cut=2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert kept(tmp_path) == [{"cut": 1}]


def test_only_one_works_on_a_journal_at_a_time(tmp_path: Path) -> None:
    with open_journal(tmp_path, PLAN, Piece) as journal:
        journal.add(Piece(cut=1))
        refused = pytest.raises(EnvironmentNotReadyError, match="another lockbench works in")
        with refused, open_journal(tmp_path, PLAN, Piece):
            pass
        journal.add(Piece(cut=2))
    with open_journal(tmp_path, PLAN, Piece) as journal:
        assert journal.pieces == pieces(1, 2)
