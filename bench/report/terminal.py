"""The summary on a screen: *Summary → lines of a terminal, verdict first*.

Rules: a run of five instances without trouble fits a screen of 80×24 with a prompt below it; colours say what needs
attention and are never the only sign. Source: rich.
"""

from __future__ import annotations

import io

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from bench.report.summary import TABLE_HEAD, Row, Summary

_LABEL_WIDTH = 11
_NOTES_FROM = 95  # columns; narrower terminals leave out what a row counts


def print_summary(summary: Summary, console: Console) -> None:
    """Print `summary` on `console`, at its width and with its colours."""
    console.print(_layout(summary, console.width), soft_wrap=False, highlight=False)


def summary_text(summary: Summary, width: int = 80) -> str:
    """Return the plain text that `print_summary` shows on a terminal of `width` columns, without trailing blanks."""
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, legacy_windows=False)
    print_summary(summary, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO above
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _layout(summary: Summary, width: int) -> Group:
    head = Text.assemble((f"{summary.verdict}   ", f"bold {summary.style}"), (summary.headline, "bold"))
    conditions = Text(summary.conditions, style="dim")
    return Group(head, conditions, _table(summary.rows, width), Text(), _facts(summary))


def _table(rows: tuple[Row, ...], width: int) -> Table:
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("ms", width=_LABEL_WIDTH - 1, no_wrap=True)
    for name in TABLE_HEAD:
        table.add_column(name, justify="right", width=10 if name == "count" else 7, no_wrap=True)
    if width >= _NOTES_FROM:
        table.add_column("", style="dim", no_wrap=True)
    for row in rows:
        notes = (f" {row.note}",) if width >= _NOTES_FROM else ()
        table.add_row(row.name, *row.cells, *notes, style="bold" if row.name == "acquire" else "")
    return table


def _facts(summary: Summary) -> Table:
    table = Table(box=None, show_header=False, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(width=_LABEL_WIDTH - 1, style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for line in summary.lines:
        table.add_row(line.label, Text(line.text, style=line.style))
    return table
