"""A scatter plot in characters: *marks with two values each → lines of text, both axes logarithmic*.

Rules: a value of 0 has a row of its own at the bottom, for "none" is not "few"; a mark whose place is taken moves to
the nearest free one, so that none is hidden. No arithmetic but the placing. Source: the rules of figures.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from bench.report.figures import count


@dataclass(frozen=True, slots=True)
class Point:
    """A mark of one character at `x` > 0, `y` ≥ 0."""

    mark: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class _Axis:
    """Whole decades around some values, on `cells` places."""

    low: int
    high: int
    cells: int

    def place(self, value: float) -> int:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return min(max(round(share * (self.cells - 1)), 0), self.cells - 1)


def scatter(points: Sequence[Point], x_name: str, y_name: str, width: int = 46, height: int = 10) -> list[str]:
    """Return the plot with its axes, `width` columns wide and `height` + 4 lines high."""
    across = _axis([point.x for point in points], width - 9)
    up = _axis([point.y for point in points if point.y > 0], height - 1)
    grid = [[" "] * across.cells for _ in range(height)]
    for point in points:
        row = grid[height - 1 - (0 if point.y <= 0 else 1 + up.place(point.y))]
        _put(row, across.place(point.x), point.mark)
    labels = {0: count(10.0**up.high), height - 2: count(10.0**up.low), height - 1: "0"}
    lines = [f"{labels.get(number, ''):>8}│{''.join(row)}" for number, row in enumerate(grid)]
    low, high = count(10.0**across.low), count(10.0**across.high)
    foot = f"{'':8}└{'─' * across.cells}"
    return [y_name, *lines, foot, f"{'':9}{low}{x_name:^{across.cells - len(low) - len(high)}}{high}"]


def _axis(values: Sequence[float], cells: int) -> _Axis:
    if not values:
        return _Axis(0, 1, cells)
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return _Axis(low, max(high, low + 1), cells)


def _put(row: list[str], column: int, mark: str) -> None:
    free = [place for place in range(len(row)) if row[place] == " "]
    if free:
        row[min(free, key=lambda place: (abs(place - column), place < column))] = mark
