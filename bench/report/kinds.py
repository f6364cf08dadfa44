"""What kind of result it is, and how each is told: *result.json → its words, on a terminal, as Markdown, as a page*.

Rules: a kind is recognised by its own word (`kind`), else by the sections only it has; one that nobody here knows is
told by its verdict and its tables. Each question tells its own result; only where it does is known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, cast

from rich.console import Console

from bench.report.markdown import summary_markdown
from bench.report.sheet import BAD, DOUBTFUL, GOOD, Part, Sheet, print_sheet, sheet_markdown
from bench.report.summary import summarise
from bench.report.terminal import print_summary

Result = Mapping[str, Any]
_STYLES = {"pass": GOOD, "violated": BAD, "fail": BAD}
_SECTIONS = {"run": "latency_s", "split-votes": "calibration", "safety": "counts"}  # what only this kind has
_MOST_COLUMNS = 14
SHEETS = {
    "capacity": "bench.experiments.capacity.words:summarise_capacity",
    "compare": "bench.experiments.compare.words:summarise_comparison",
    "crash": "bench.experiments.crash.words:crash_sheet",
    "fsync": "bench.experiments.fsync.words:fsync_and_planner_sheet",
    "gate": "bench.experiments.compare.words:summarise_comparison",
    "peers": "bench.experiments.contest.words:summarise_peers",
    "safety": "bench.experiments.safety_matrix.words:safety_sheet",
    "split-votes": "bench.experiments.split_votes.words:split_votes_sheet",
}


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
    known = found_for(kind_of(result), SHEETS)
    return _plain(result, place) if known is None else cast("Sheet", known(result, place))


def found_for(kind: str, places: Mapping[str, str]) -> Callable[..., Any] | None:
    """Return what `places` names for `kind` as `module:function`, imported now; None if it names nothing."""
    if kind not in places:
        return None
    module, _, name = places[kind].partition(":")
    return cast("Callable[..., Any]", getattr(import_module(module), name))


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
