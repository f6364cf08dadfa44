"""What kind of result it is, and how each is told: *result → its sheet, its JUnit cases, its figures*.

Rules: a kind is recognised by its own word (`kind`), else by the sections only it has; one that nobody here knows is
told by its verdict and its tables. Each question tells its own result, in a module `words` with `sheet(result, place)`
and `suite(result)`, and, if it has pictures, one `figures` with `figures(result)`; only where they lie is known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, cast

from bench.measure import run_result
from bench.measure.result import Document
from bench.measure.section import builtins_of, typed
from bench.report import summary
from bench.report.junit import Case, Suite
from bench.report.sheet import BAD, DOUBTFUL, Part, Sheet, around

Result = Mapping[str, Any]
_SECTIONS = {"run": "latency_s", "split-votes": "calibration", "safety": "counts"}  # what only this kind has
_MOST_COLUMNS = 14
_FOLDERS = {
    "capacity": "capacity",
    "compare": "compare",
    "crash": "crash",
    "fsync": "fsync",
    "gate": "compare",
    "peers": "contest",
    "safety": "safety_matrix",
    "split-votes": "split_votes",
}
# Kinds whose results have a type: a module `result` with a `RESULT` in the question's folder.
TYPED = tuple(sorted({*_FOLDERS, "run"}))


def type_of(kind: str) -> type[Document]:
    """Return the type of the results of `kind`."""
    if (room := room_of(kind, "result")) is None:
        raise LookupError(f"results of {kind} have no type")
    return cast("type[Document]", room.RESULT)


def of_its_kind(result: Result | Document, name: str = "this result") -> Any:
    """Return the result called `name` as the type of its kind, if it has one. Raises UsageError if it is not whole."""
    if isinstance(result, Document) or (kind := kind_of(result)) not in TYPED:
        return result
    return typed(result, type_of(kind), name)


def kind_of(result: Result | Document) -> str:
    """The command that made `result`: run, safety, split-votes, fsync, crash, capacity, compare …"""
    if isinstance(result, Document):
        return str(getattr(result, "kind"))  # noqa: B009 - each type has its own Literal
    if isinstance(written := result.get("kind"), str):
        return written
    for kind, section in _SECTIONS.items():
        if section in result:
            return kind
    command = result.get("command") or []
    return str(command[1]) if len(command) > 1 else "result"


def told(result: Result | Document, place: str = "") -> Sheet:
    """Return what is said of `result`, stored at `place` ("" = nowhere)."""
    words = room_of(kind_of(result), "words")
    if words is None:
        return _plain(builtins_of(result), place)
    return cast("Sheet", words.sheet(of_its_kind(result), place))


def cases_of(result: Result | Document) -> Suite:
    """Return `result` as JUnit cases."""
    if (words := room_of(kind_of(result), "words")) is not None:
        return cast("Suite", words.suite(of_its_kind(result)))
    stored = builtins_of(result)
    case = Case(kind_of(result), str(stored["verdict"]["status"]), "; ".join(stored["verdict"]["reasons"]))
    return Suite(kind_of(result), str(stored["started_at"]), float(stored["duration_s"]), [case], {})


def room_of(kind: str, room: str) -> ModuleType | None:
    """Return the module `words` or `figures` of the question whose results are of `kind`; None if it has none."""
    if kind == "run":
        return {"words": summary, "result": run_result}.get(room)
    name = f"bench.experiments.{_FOLDERS.get(kind)}.{room}"
    return import_module(name) if kind in _FOLDERS and find_spec(name) else None


def _plain(result: Result, place: str) -> Sheet:
    """A result of an unknown kind: its verdict, its warnings, a table for each section that is a list of rows."""
    kind = kind_of(result)
    verdict: Mapping[str, Any] = result.get("verdict") or {"status": "unknown"}
    status = str(verdict.get("status"))
    about = f"seed {result.get('seed', 'unknown')} · started {result.get('started_at', 'unknown')}"
    headline = f"{kind}, {result.get('duration_s', 0):.0f} s"
    said = around((), verdict.get("reasons") or (), result.get("warnings") or (), place)
    style = BAD if status in ("fail", "violated") else DOUBTFUL
    return Sheet(str(verdict.get("word") or status.upper()), style, headline, about, tuple(_tables(result)), said)


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
