"""What kind of result it is, and how each is told: *result.json → its words, on a terminal, as Markdown, as a page*.

Rules: a kind is recognised by its own word (`kind`), else by the sections only it has; one that nobody here knows is
told by its verdict and its tables. Source: the results of bench.experiments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from rich.console import Console

from bench.report.capacity import summarise_capacity
from bench.report.comparison import summarise_comparison
from bench.report.crash import crash_sheet
from bench.report.fsync import fsync_sheet
from bench.report.markdown import summary_markdown
from bench.report.peers import summarise_peers
from bench.report.planner import planner_sheet
from bench.report.sheet import BAD, DOUBTFUL, GOOD, Part, Sheet, print_sheet, sheet_markdown
from bench.report.summary import summarise
from bench.report.terminal import print_summary

Result = Mapping[str, Any]
_STYLES = {"pass": GOOD, "violated": BAD, "fail": BAD}
_SECTIONS = {"run": "latency_s", "split-votes": "calibration", "safety": "counts"}  # what only this kind has
_MOST_COLUMNS = 14


@dataclass(frozen=True, slots=True)
class Words:
    """A result in words: `tables` prints them on a console; `sheet` is None for a run, which has a page of its own."""

    tables: Callable[[Console], None]
    markdown: str
    sheet: Sheet | None


def kind_of(result: Result) -> str:
    """The command that made `result`: run, safety, split-votes, fsync, crash, capacity, compare …"""
    if isinstance(result.get("kind"), str):
        return str(result["kind"])
    for kind, section in _SECTIONS.items():
        if section in result:
            return kind
    command = result.get("command") or []
    return str(command[1]) if len(command) > 1 else "result"


def words_of(result: Result, place: str = "") -> Words:
    """Return what is said of `result`, stored at `place`."""
    kind = kind_of(result)
    if kind == "run":
        summary = summarise(result, place)
        return Words(partial(print_summary, summary), summary_markdown(summary), None)
    sheet = sheet_of(result, place)
    return Words(partial(print_sheet, sheet), sheet_markdown(sheet), sheet)


def sheet_of(result: Result, place: str = "") -> Sheet:
    """Return the sheet of a result that is no run."""
    known = _SHEETS.get(kind_of(result), _plain)
    return known(result, place)


def _safety(result: Result, place: str) -> Sheet:
    from bench.report.safety_matrix import HEAD, summarise_safety

    told = summarise_safety(result, place)
    parts = tuple(Part(name, about, HEAD, rows, frozenset(range(6))) for name, about, rows in told.parts)
    return Sheet(told.verdict, told.style, told.headline, told.conditions, parts, told.lines)


def _split_votes(result: Result, place: str) -> Sheet:
    from bench.report.split_votes import summarise_split_votes

    told = summarise_split_votes(result, place)
    parts = tuple(
        Part(part.name, part.about, part.head, part.rows, frozenset({1, 2} if "order" in part.head else {0}))
        for part in told.parts
    )
    return Sheet(told.verdict, told.style, told.headline, told.conditions, parts, told.lines)


def _fsync(result: Result, place: str) -> Sheet:
    """The figures of the policies, then the planner's page."""
    told, planned = fsync_sheet(result, place), planner_sheet(result)
    lines = (("advice", planned.headline), *dict.fromkeys((*told.lines, *planned.lines)))
    return replace(told, parts=(*planned.parts, *told.parts), lines=lines)


def _plain(result: Result, place: str) -> Sheet:
    """A result of an unknown kind: its verdict, its warnings, a table for each section that is a list of rows."""
    verdict = result.get("verdict") or {"status": "unknown", "reasons": []}
    status = str(verdict["status"])
    reasons = [("because", str(reason)) for reason in verdict["reasons"]]
    warnings = [("warning", str(warning)) for warning in result.get("warnings") or []]
    about = f"seed {result.get('seed', 'unknown')} · started {result.get('started_at', 'unknown')}"
    headline = f"{kind_of(result)}, {result.get('duration_s', 0):.0f} s"
    lines = (*reasons, *warnings, *([("result", place)] if place else []))
    return Sheet(status.upper(), _STYLES.get(status, DOUBTFUL), headline, about, tuple(_tables(result)), lines)


def _tables(result: Result) -> Iterator[Part]:
    for name, rows in result.items():
        if not isinstance(rows, list) or not rows or not all(isinstance(row, Mapping) for row in rows):
            continue
        flat = [dict(_flat(row)) for row in rows]
        head = list(dict.fromkeys(key for row in flat for key in row))[:_MOST_COLUMNS]
        cells = tuple(tuple(_cell(row.get(key)) for key in head) for row in flat)
        words = frozenset(n for n, key in enumerate(head) if any(isinstance(row.get(key), str) for row in flat))
        yield Part(name, f"{len(rows)} rows", tuple(key.replace("_", " ") for key in head), cells, words)


def _flat(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key} ")
        elif not isinstance(value, list):
            yield prefix + key, value


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


_SHEETS: Mapping[str, Callable[[Result, str], Sheet]] = {
    "safety": _safety,
    "split-votes": _split_votes,
    "capacity": summarise_capacity,
    "compare": summarise_comparison,
    "gate": summarise_comparison,
    "fsync": _fsync,
    "crash": crash_sheet,
    "peers": summarise_peers,
}
