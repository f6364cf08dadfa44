"""What stands on a page: *a finding, its picture, its data*.

Rules: a title states what was found, with its figures; `about` says what is drawn and in which unit; the data of every
picture goes with it, in the units of result.json. Source: design of the report page (README of this folder).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Cell = float | int | str | bool | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column of data: its name in the files, its unit (s, per_s, count, ratio, us, text), its name on the page."""

    name: str
    unit: str
    label: str = ""


@dataclass(frozen=True, slots=True)
class Data:
    """The figures of a picture. `cursor`: the x of each row in the picture, for reading it with mouse or keys."""

    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Cell]]
    cursor: Sequence[float] = ()

    def to_json(self) -> dict[str, Any]:
        """As the page's script reads it."""
        columns = [{"name": c.name, "unit": c.unit, "label": c.label or c.name} for c in self.columns]
        return {
            "columns": columns,
            "rows": [list(row) for row in self.rows],
            "cursor": [round(x, 1) for x in self.cursor],
        }


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of a legend: the class it is drawn with, what it is, and whether that is an area, not a line."""

    style: str
    text: str
    area: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture with its finding. `name`: an identifier, also of its files; `wide`: takes the whole width.

    `extra`: what the page's script draws, where `svg` is empty; `notes`: lines below it.
    """

    name: str
    title: str
    about: str
    svg: str
    data: Data
    keys: tuple[Key, ...] = ()
    wide: bool = False
    notes: tuple[str, ...] = ()
    extra: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a title. `left`: the columns that hold words."""

    title: str
    about: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: frozenset[int] = frozenset({0})
    name: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: figures and tables under a heading."""

    heading: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    style: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page. `style`: good, warning or bad; `facts`: label, text, style; `repeat`: the command line.

    `source`: the file that holds its figures.
    """

    title: str
    verdict: str
    style: str
    headline: str
    conditions: str
    facts: tuple[tuple[str, str, str], ...]
    sections: tuple[Section, ...]
    repeat: str = ""
    source: str = "result.json"
