"""What `lockbench safety` says: *its result → one table per part, on a terminal or as Markdown, verdict first*.

Rules: nothing is computed here but counts of rows; colours are never the only sign. Source: the rows of
bench.experiments.safety_matrix.experiment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bench.measure.expectation import ROW_WORDS
from bench.measure.verdict import word_of
from bench.report.junit import Case, Suite
from bench.report.sheet import Part, Sheet

Result = Mapping[str, Any]
Row = Mapping[str, Any]

_PARTS = {
    "schedule": "deterministic courses of events",
    "load": "short loads, every operation judged",
    "claim": "what is claimed of Redlock and persistence",
}
HEAD = ("recipe", "fault", "expected", "seen", "figure", "verdict")


@dataclass(frozen=True, slots=True)
class SafetySummary:
    """A result in words. `parts`: name, what it is, rows of six cells. `lines`: labelled sentences."""

    verdict: str
    style: str
    headline: str
    conditions: str
    parts: tuple[tuple[str, str, tuple[tuple[str, ...], ...]], ...]
    lines: tuple[tuple[str, str], ...]


def safety_sheet(result: Result, place: str = "") -> Sheet:
    """Return `result`, stored at `place`, as a sheet."""
    told = summarise_safety(result, place)
    parts = tuple(Part(name, about, HEAD, rows, frozenset(range(6))) for name, about, rows in told.parts)
    return Sheet(told.verdict, told.style, told.headline, told.conditions, parts, told.lines)


def summarise_safety(result: Result, place: str = "") -> SafetySummary:
    """Return the summary of `result`, stored at `place` ("" = nowhere)."""
    word = word_of("safety", result["verdict"])
    parts = []
    for name, about in _PARTS.items():
        rows = tuple(_cells(row) for row in result["rows"] if row["part"] == name)
        if rows:
            parts.append((name, about, rows))
    lines = tuple(_lines(result, place))
    return SafetySummary(word.text, word.colour, _headline(result), _conditions(result), tuple(parts), lines)


def figures_text(figures: Mapping[str, float | None]) -> str:
    """Figures in words: `chain 5, foreign deletes 1`."""
    return ", ".join(f"{name.replace('_', ' ')} {_number(value)}" for name, value in figures.items()) or "–"


def _number(value: float | None) -> str:
    if value is None:
        return "never"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _headline(result: Result) -> str:
    told = " · ".join(f"{count} {verdict}" for verdict, count in result["counts"].items())
    rows = len(result["rows"])
    cut = ", then interrupted" if result["interrupted"] else ""
    return f"{rows} {'row' if rows == 1 else 'rows'}{cut}: {told}"


def _conditions(result: Result) -> str:
    server, conditions = result["fleet"]["server"], result["conditions"]
    return " · ".join(
        (
            "quick" if conditions["quick"] else "full",
            f"{server['name']} {server['version']}, own servers on loopback",
            f"{conditions['usable_cores']} cores",
            f"seed {result['seed']}",
            f"{result['duration_s']:.0f} s",
        )
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (row["recipe"], row["fault"], row["expected"], row["seen"], _figure(row), row["verdict"])


def _figure(row: Row) -> str:
    """The figures; beside them the reason of a claim, elsewhere only where there is no figure."""
    if row["figures"] and not (row["part"] == "claim" and row["reason"]):
        return figures_text(row["figures"])
    return "; ".join(filter(None, (row["figures"] and figures_text(row["figures"]), row["reason"]))) or "–"


def _lines(result: Result, place: str) -> Iterator[tuple[str, str]]:
    for reason in result["verdict"]["reasons"]:
        yield "because", reason
    yield from {row["fault"]: row["about"] for row in result["rows"] if row["fault"] != "none"}.items()
    for warning in result["warnings"]:
        yield "warning", warning
    if place:
        yield "result", place


def safety_suite(result: Result) -> Suite:
    """The rows that were looked at, as JUnit cases; the others are counted in a property."""
    cases = [
        Case(" ".join((row["part"], row["recipe"], row["fault"])), ROW_WORDS[row["verdict"]].status, _case_text(row))
        for row in result["rows"]
        if row["verdict"] in ROW_WORDS
    ]
    unseen = {"rows not looked at": str(len(result["rows"]) - len(cases))}
    return Suite("safety", result["started_at"], result["duration_s"], cases, {"id": result["id"], **unseen})


def _case_text(row: Row) -> str:
    return f"expected {row['expected']}, seen {row['seen']}: {row['reason'] or figures_text(row['figures'])}"


def print_safety(summary: SafetySummary, console: Console) -> None:
    """Print `summary` on `console`."""
    console.print(Text.assemble((f"{summary.verdict}   ", f"bold {summary.style}"), (summary.headline, "bold")))
    console.print(Text(summary.conditions, style="dim"))
    for name, about, rows in summary.parts:
        console.print(Text.assemble("\n", (name, "bold"), (f"   {about}", "dim")))
        for line in _part_lines(rows):
            console.print(line)
    facts = Table(box=None, show_header=False, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for label, text in summary.lines:
        style = summary.style if label == "because" else "yellow" if label == "warning" else ""
        facts.add_row(label, Text(text, style=style))
    console.print()
    console.print(facts)


def _part_lines(rows: Sequence[tuple[str, ...]]) -> Iterator[Text | Padding]:
    """Two lines per row: its words in columns, its figure below."""
    shown = [(*row[:4], row[5]) for row in rows]
    head = (*HEAD[:4], HEAD[5])
    widths = [max(len(row[place]) for row in [head, *shown]) + 1 for place in range(4)]
    yield Text(_columns(head, widths), style="dim")
    for row, cells in zip(rows, shown, strict=True):
        word = ROW_WORDS.get(cells[-1])
        verdict = (cells[-1], "dim" if word is None else f"bold {word.colour}")
        yield Text.assemble(_columns((*cells[:-1], ""), widths), verdict)
        yield Padding(Text(row[4], style="dim"), (0, 0, 0, 2))


def _columns(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=False)) + cells[-1]


def safety_markdown(summary: SafetySummary) -> str:
    """Return `summary` as a Markdown document."""
    parts = [f"## {summary.verdict}: {summary.headline}", summary.conditions]
    for name, about, rows in summary.parts:
        table = [HEAD, tuple("---" for _ in HEAD), *rows]
        lines = ("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in table)
        parts += [f"### {name}: {about}", "\n".join(lines)]
    parts.append("\n".join(f"- **{label}**: {text}" for label, text in summary.lines))
    return "\n\n".join(parts) + "\n"
