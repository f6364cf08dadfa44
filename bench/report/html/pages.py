"""Which page a result gets: *one or several results → Page*.

Rules: a run has its own page, several runs a page side by side, every other kind its sheet with its figures; results of
different kinds stand one after the other in a table. Source: bench.report.kinds.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.errors import UsageError
from bench.measure.result import Document
from bench.report.html.figure import Figure, Page, Section, Table
from bench.report.html.page import REPORT_NAME, write_page
from bench.report.html.run.page import run_page
from bench.report.html.several_page import several_page
from bench.report.kinds import kind_of, of_its_kind, room_of, told
from bench.report.sheet import STYLES, Part, Sheet

Result = Mapping[str, Any]


def page_of(result: Result | Document, place: str = "") -> Page:
    """Return the page of one result, stored at `place`."""
    kind = kind_of(result)
    if kind == "run":
        return run_page(of_its_kind(result), place)
    figures = room_of(kind, "figures")
    return sheet_page(told(result, place), result, kind, figures.figures(of_its_kind(result)) if figures else ())


def page_of_several(results: Sequence[Result], names: Sequence[str]) -> Page:
    """Return the page that shows several runs. Raises UsageError for results of other commands."""
    for result, name in zip(results, names, strict=True):
        if kind_of(result) != "run":
            raise UsageError(f"{name} is a result of lockbench {kind_of(result)}; only runs can stand side by side")
    return several_page([of_its_kind(result) for result in results], names)


def write_report(result: Result | Document, stored: Path) -> Path:
    """Write report.html beside the result stored at `stored` and return its path. Raises EnvironmentNotReadyError."""
    return write_page(page_of(result, str(stored)), stored.with_name(REPORT_NAME))


def sheet_page(sheet: Sheet, result: Result | Document, kind: str, figures: Sequence[Figure] = ()) -> Page:
    """Return the page of `sheet`, told of `result`, with `figures`."""
    tables = tuple(Section(part.name, (), (_table(part, number),), "sheet") for number, part in enumerate(sheet.parts))
    pictures = (Section("In pictures", tuple(figures)),) if figures else ()
    known = {"started_at": result.started_at, "command": result.command} if isinstance(result, Document) else result
    started = str(known.get("started_at", ""))[:16].replace("T", " ")
    return Page(
        title=f"{sheet.verdict} · {kind} · {started}",
        verdict=sheet.verdict,
        style=STYLES.get(sheet.style, "warning"),
        headline=sheet.headline,
        conditions=sheet.conditions,
        facts=tuple((line.label, line.text, STYLES.get(sheet.style_of(line), "")) for line in sheet.lines),
        sections=(*pictures, *tables),
        repeat=shlex.join(str(word) for word in known.get("command") or ()),
    )


def _table(part: Part, number: int) -> Table:
    return Table("", part.about, part.plain_head, part.rows, left=part.left, name=f"part-{number}")
