"""What stands on a page: *a sheet, and findings with their pictures and data*.

Rules: a title states what was found, with its figures; `about` says what is drawn and in which unit; the data of every
picture goes with it, in the units of result.json.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.report.sheet import Part, Sheet

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


@dataclass(frozen=True, slots=True)
class Legend:
    """One entry of a legend: a small drawing of what it names (SVG), and its name."""

    svg: str
    text: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture with its finding. `name`: an identifier, also of its files.

    `drawn`: what the page's script draws over the whole width, where `svg` is empty.
    """

    name: str
    title: str
    about: str
    svg: str
    data: Data
    keys: tuple[Legend, ...] = ()
    drawn: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Chapter:
    """A part of a page: figures and tables under a heading."""

    heading: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[Part, ...] = ()
    style: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page: what its title bar says, verdict and sentences of its sheet, chapters, how to repeat it.

    `opens`: where to look first, as a sentence and the part of the page that shows it.
    """

    title: str
    sheet: Sheet
    chapters: tuple[Chapter, ...]
    repeat: str = ""
    opens: tuple[str, str] | None = None
