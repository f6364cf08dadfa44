"""The page of a result that is no run: *its sheet of tables, its figures → Page*.

Rules: the same words and tables as on the terminal; figures, where the kind has some, come first. Source:
bench.report.sheet.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from bench.report.html.figure import Figure, Page, Section, Table
from bench.report.sheet import BAD, DOUBTFUL, GOOD, Part, Sheet

Result = Mapping[str, Any]
_STYLES = {GOOD: "good", DOUBTFUL: "warning", BAD: "bad"}


def sheet_page(sheet: Sheet, result: Result, kind: str, figures: Sequence[Figure] = ()) -> Page:
    """Return the page of `sheet`, told of `result`, with `figures`."""
    marks = {"because": _STYLES.get(sheet.style, ""), "warning": "warning"}
    tables = tuple(Section(part.name, (), (_table(part, number),), "sheet") for number, part in enumerate(sheet.parts))
    pictures = (Section("In pictures", tuple(figures)),) if figures else ()
    started = str(result.get("started_at", ""))[:16].replace("T", " ")
    return Page(
        title=f"{sheet.verdict} · {kind} · {started}",
        verdict=sheet.verdict,
        style=_STYLES.get(sheet.style, "warning"),
        headline=sheet.headline,
        conditions=sheet.conditions,
        facts=tuple((label, text, marks.get(label, "")) for label, text in sheet.lines),
        sections=(*pictures, *tables),
        repeat=shlex.join(str(word) for word in result.get("command") or ()),
    )


def _table(part: Part, number: int) -> Table:
    head = tuple(" ".join(cell.replace("-\n", "").split()) for cell in part.head)
    return Table("", part.about, head, part.rows, left=part.left, name=f"part-{number}")
