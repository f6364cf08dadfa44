"""What `lockbench capacity` says: the planning question answered in words, and nothing cut off."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bench.experiments.capacity.result import CapacityResult
from bench.experiments.capacity.words import answer, sheet, suite
from bench.report.sheet import print_sheet, sheet_markdown
from tests.doubles.capacity_points import capacity_result as result
from tests.doubles.capacity_points import point


def shown(document: CapacityResult, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    print_sheet(sheet(document, "results/x/result.json"), console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_planning_question_is_answered_in_words() -> None:
    assert answer(point(), result(point())) == (
        "N=5, fsync everysec, 1,000 keys, 5ms hold: 11,200–11,500 leases/s at acquire.p99 < 10ms; "
        "next limit: server CPU of one instance"
    )


def test_at_least_is_said_where_the_generator_was_the_limit() -> None:
    assert ": ≥ 11,200 leases/s at" in answer(point(capacity={"at_least": True}), result(point()))


def test_no_rate_is_said() -> None:
    assert ": no rate at" in answer(point(None, 0.7), result(point()))


@pytest.mark.parametrize("width", [80, 100])
def test_nothing_is_cut_off(width: int) -> None:
    text = shown(result(point()), width)
    assert "…" not in text
    for needed in ("95 % sure: 99.41 % to 99.58 %", "+124 % at 5,000/s", "no law fitted", "#2 127.0.0.1:40000", "97 %"):
        assert needed in " ".join(text.split())


def test_a_sweep_is_one_table_with_a_sentence_for_each_point() -> None:
    points = [point(variables={"instances": "1"}), point(None, 0.7, variables={"instances": "3"})]
    summary = sheet(result(*points))
    assert summary.parts[0].rows[0][:2] == ("1", "11,200–11,500")
    assert summary.parts[0].rows[1][:2] == ("3", "no rate")
    assert [line.label for line in summary.lines].count("instances=3") == 1
    assert "| 1 | 11,200–11,500 |" in sheet_markdown(summary)
    assert [case.name for case in suite(result(*points)).cases] == ["1", "3"]
