"""The parts of a page. This module makes a page from a sheet, pictures, and tables of events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.report.html.plot import Figure
from bench.report.sheet import Part, Sheet


@dataclass(frozen=True, slots=True)
class Chapter:
    """A part of a page, with pictures and tables under a heading."""

    heading: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[Part, ...] = ()
    style: str = ""

    def is_full(self) -> bool:
        """Return whether the chapter has any content."""
        return bool(self.figures or self.tables)


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page with its title, its sheet and its chapters.

    `title` is the text of the title bar. `sheet` has the verdict and the sentences that explain it.
    `repeat` is the command that produces the result again. `opens`: two texts about the moment that
    a reader should see first. The first text is a sentence about this moment. The second text is
    the name of the part that shows this moment.
    """

    title: str
    sheet: Sheet
    chapters: tuple[Chapter, ...]
    repeat: str = ""
    opens: tuple[str, str] | None = None


def sheet_page(
    title: str, sheet: Sheet, figures: Sequence[Figure], evidence: Sequence[Part], repeat: str
) -> Page:
    """Make a page from a sheet and its pictures.

    The first chapter has the first picture, which shows the answer. The next chapters have the
    other pictures, then the tables of the sheet, and then the tables of events.
    """
    chapters = [
        Chapter("The answer", tuple(figures[:1])),
        Chapter("More pictures", tuple(figures[1:])),
    ]
    chapters += [
        Chapter(part.name or part.plain_head[0], (), (part,), "sheet") for part in sheet.parts
    ]
    chapters.append(Chapter("Step by step", (), tuple(evidence), "folded"))
    return Page(title, sheet, tuple(filter(Chapter.is_full, chapters)), repeat)
