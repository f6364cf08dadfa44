"""A plot in characters: none is not few, and no mark is hidden."""

from __future__ import annotations

from bench.experiments.fsync.scatter import Point, scatter


def body(lines: list[str]) -> list[str]:
    return [line.split("│", 1)[1] for line in lines if "│" in line]


def test_zero_has_a_row_of_its_own_at_the_bottom() -> None:
    rows = body(scatter([Point("a", 10, 0), Point("b", 10, 1), Point("c", 10, 100)], "x", "y"))
    assert "a" in rows[-1]
    assert "b" in rows[-2]
    assert "c" in rows[0]


def test_marks_on_one_place_stand_beside_each_other() -> None:
    rows = body(scatter([Point(mark, 10, 0) for mark in "abc"], "x", "y"))
    assert sorted(rows[-1].split()[0] if " " not in rows[-1].strip() else rows[-1].replace(" ", "")) == ["a", "b", "c"]


def test_further_right_is_more() -> None:
    row = body(scatter([Point("a", 10, 0), Point("b", 90, 0)], "x", "y"))[-1]
    assert row.index("a") < row.index("b")


def test_nothing_to_plot_is_an_empty_plot() -> None:
    assert all(not row.strip() for row in body(scatter([], "x", "y")))
