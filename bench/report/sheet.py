"""A page of tables and sentences: *verdict, tables, labelled lines → a terminal or Markdown*.

Rules: verdict first; a cell never breaks its table; lines labelled "because" and "warning" want attention. Nothing is
computed here. Source: rich; GitHub's Markdown tables.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.measure.verdict import Kind

GOOD, DOUBTFUL, BAD = (kind.value for kind in (Kind.GOOD, Kind.UNKNOWN, Kind.BAD))
ROOMY = 100  # columns
_ATTENTION = {"because": DOUBTFUL, "warning": DOUBTFUL}


@dataclass(frozen=True, slots=True)
class Part:
    """One table: what it shows, its head (lines of a cell parted by newlines), its rows. `left`: columns of words."""

    name: str
    about: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: frozenset[int] = frozenset({0})


@dataclass(frozen=True, slots=True)
class Sheet:
    """A result in words. `verdict`: in capitals; `style`: GOOD, DOUBTFUL or BAD; `lines`: label and sentence."""

    verdict: str
    style: str
    headline: str
    conditions: str
    parts: tuple[Part, ...]
    lines: tuple[tuple[str, str], ...]


def print_sheet(sheet: Sheet, console: Console) -> None:
    """Print `sheet` on `console`: the verdict, what it rests on, then the tables."""
    console.print(Text.assemble((f"{sheet.verdict}   ", f"bold {sheet.style}"), (sheet.headline, "bold")))
    console.print(Text(sheet.conditions, style="dim"))
    facts = Table(box=None, show_header=False, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for label, text in sheet.lines:
        facts.add_row(label, Text(text, style=_ATTENTION.get(label, "")))
    console.print()
    console.print(facts)
    for part in sheet.parts:
        console.print(Text.assemble("\n", (part.name, "bold"), (f"   {part.about}" if part.about else "", "dim")))
        console.print(_table(part, gap=2 if console.width >= ROOMY else 1))


def sheet_markdown(sheet: Sheet) -> str:
    """Return `sheet` as a Markdown document."""
    lines = "\n".join(f"- **{label}**: {text}" for label, text in sheet.lines)
    parts = [f"## {sheet.verdict}: {sheet.headline}", sheet.conditions, lines]
    for part in sheet.parts:
        parts += [f"### {part.name}{f': {part.about}' if part.about else ''}", part_markdown(part)]
    return "\n\n".join(parts) + "\n"


def part_markdown(part: Part) -> str:
    """Return one table as Markdown."""
    head = [" ".join(cell.replace("-\n", "").split()) for cell in part.head]
    rule = ["---" if column in part.left else "--:" for column in range(len(head))]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (head, rule, *part.rows)
    )


def _table(part: Part, gap: int) -> Table:
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
    for column, head in enumerate(part.head):
        table.add_column(head, justify="left" if column in part.left else "right", no_wrap=True)
    for row in part.rows:
        table.add_row(*row)
    return table
