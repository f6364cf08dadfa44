"""What a page is made of: *a sheet, figures, courses of events → Page*."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.report.html.plot import Figure
from bench.report.sheet import Part, Sheet


@dataclass(frozen=True, slots=True)
class Chapter:
    """A part of a page: figures and tables under a heading."""

    heading: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[Part, ...] = ()
    style: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """A whole page: what its title bar says, verdict and sentences of its sheet, chapters, how to
    repeat it; `opens`: where to look first, as a sentence and the part of the page that shows
    it."""

    title: str
    sheet: Sheet
    chapters: tuple[Chapter, ...]
    repeat: str = ""
    opens: tuple[str, str] | None = None


def sheet_page(
    title: str, sheet: Sheet, figures: Sequence[Figure], evidence: Sequence[Part], repeat: str
) -> Page:
    """Return the page of a sheet: its pictures first, then its tables, then courses of events."""
    pictures = (Chapter("In pictures", tuple(figures)),) if figures else ()
    courses = (Chapter("Step by step", (), tuple(evidence), "folded"),) if evidence else ()
    tables = (
        Chapter(part.name or part.plain_head[0], (), (part,), "sheet") for part in sheet.parts
    )
    return Page(title, sheet, (*pictures, *tables, *courses), repeat)
