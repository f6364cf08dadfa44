"""The page of a result that is no run: *its sheet of tables, its figures → Page*.

Rules: the same words and tables as on the terminal; figures, where the kind has some, come first. Source:
bench.report.sheet.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from bench.report.html.figure import Figure, Page, Section, Table
from bench.report.sheet import STYLES, Part, Sheet

Result = Mapping[str, Any]


def sheet_page(sheet: Sheet, result: Result, kind: str, figures: Sequence[Figure] = ()) -> Page:
    """Return the page of `sheet`, told of `result`, with `figures`."""
    tables = tuple(Section(part.name, (), (_table(part, number),), "sheet") for number, part in enumerate(sheet.parts))
    pictures = (Section("In pictures", tuple(figures)),) if figures else ()
    started = str(result.get("started_at", ""))[:16].replace("T", " ")
    return Page(
        title=f"{sheet.verdict} · {kind} · {started}",
        verdict=sheet.verdict,
        style=STYLES.get(sheet.style, "warning"),
        headline=sheet.headline,
        conditions=sheet.conditions,
        facts=tuple((line.label, line.text, STYLES.get(sheet.style_of(line), "")) for line in sheet.lines),
        sections=(*pictures, *tables),
        repeat=shlex.join(str(word) for word in result.get("command") or ()),
    )


def _table(part: Part, number: int) -> Table:
    return Table("", part.about, part.plain_head, part.rows, left=part.left, name=f"part-{number}")
