"""The boards without Grafana: *their committed JSON, a Prometheus, a range → every panel's answer*.

Rules: what Grafana would put in for a variable is put in here: the run's own id, everything else for the others, the
first choice of a list. Without a baseline nothing is compared: a run against itself would be 1.0 everywhere. An instant
panel is asked at the end of the run, all others over the whole of it.
Source: dashboards/boards; Grafana, "Global variables".
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from bench.experiments.observe.query import Answer, Prometheus, Series

BOARDS = ("run-overview", "quorum", "fsync", "generator")
MOST_POINTS = 240
_RATE_SCRAPES = 4  # Grafana's rule: $__rate_interval is at least four scrapes
_VARIABLE = re.compile(r"\$(\w+)")

Board = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Span:
    """Whose panels, and over what time (seconds since the epoch); `scrape_s`: how often Prometheus looked."""

    run: str
    start_s: float
    end_s: float
    scrape_s: float
    baseline: str = ""

    @property
    def step_s(self) -> float:
        """From point to point."""
        return float(max(1, math.ceil((self.end_s - self.start_s) / MOST_POINTS)))


def read_boards() -> list[Board]:
    """The committed boards, in the order they are read."""
    folder = resources.files("dashboards") / "boards"
    return [json.loads((folder / f"{name}.json").read_text("utf-8")) for name in BOARDS]


def resolve(expr: str, board: Board, span: Span) -> str:
    """`expr` with its variables replaced. Raises KeyError for a variable that the board does not have."""
    every = {variable["name"]: _first(variable) for variable in board["templating"]["list"]}
    rate_s = max(_RATE_SCRAPES * span.scrape_s, span.step_s + span.scrape_s)
    values = every | {
        "run": span.run,
        "baseline": span.baseline,
        "__rate_interval": f"{math.ceil(rate_s)}s",
        "__range": f"{math.ceil(span.end_s - span.start_s)}s",
    }
    return _VARIABLE.sub(lambda found: values[found.group(1)], expr)


def _first(variable: Mapping[str, Any]) -> str:
    """What a variable stands for when nobody has chosen."""
    query = variable.get("query")
    return query.split(",")[0] if variable["type"] == "custom" and isinstance(query, str) else ".*"


def ask_boards(prometheus: Prometheus, boards: Sequence[Board], span: Span) -> list[dict[str, Any]]:
    """Every panel of every board with its answers. Raises EnvironmentNotReadyError when Prometheus is gone."""
    return [
        {
            "uid": board["uid"],
            "title": board["title"],
            "description": board["description"],
            "annotations": list(_annotations(prometheus, board, span)),
            "panels": list(_panels(prometheus, board, span)),
        }
        for board in boards
    ]


def _panels(prometheus: Prometheus, board: Board, span: Span) -> Iterator[dict[str, Any]]:
    row = ""
    for panel in board["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
            continue
        yield {
            "id": panel["id"],
            "row": row,
            "title": panel["title"],
            "type": panel["type"],
            "unit": panel["fieldConfig"]["defaults"]["unit"],
            "description": panel["description"],
            "targets": [_target(prometheus, target, board, span) for target in panel["targets"]],
        }


def _target(prometheus: Prometheus, target: Mapping[str, Any], board: Board, span: Span) -> dict[str, Any]:
    query = resolve(target["expr"], board, span)
    if target.get("instant"):
        answer = prometheus.at(query, span.end_s)
    else:
        answer = prometheus.over(query, span.start_s, span.end_s, span.step_s)
    return {
        "expr": target["expr"],
        "query": query,
        "error": answer.error,
        "warnings": list(answer.warnings),
        "series": [_told(one, target.get("legendFormat", ""), span) for one in _ordered(answer)],
    }


def _ordered(answer: Answer) -> list[Series]:
    return sorted(answer.series, key=lambda one: [(key, _natural(text)) for key, text in sorted(one.labels.items())])


def _natural(text: str) -> tuple[float, str]:
    """Numbers by value (buckets, ports), words after them."""
    try:
        return (float(text), "")
    except ValueError:
        return (math.inf, text)


def _told(one: Series, legend: str, span: Span) -> dict[str, Any]:
    name = re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: one.labels.get(found.group(1), ""), legend)
    return {
        "name": "" if legend == "__auto" else name,
        "labels": dict(one.labels),
        "points": [[round(time - span.start_s, 3), value] for time, value in one.points],
    }


def _annotations(prometheus: Prometheus, board: Board, span: Span) -> Iterator[dict[str, Any]]:
    for annotation in board["annotations"]["list"]:
        query = resolve(annotation["expr"], board, span)
        answer = prometheus.over(query, span.start_s, span.end_s, span.step_s)
        for one in answer.series:
            title = _told(one, annotation["titleFormat"], span)["name"]
            for start_s, end_s in _stretches([time for time, _ in one.points], span.step_s):
                yield {
                    "name": annotation["name"],
                    "title": title,
                    "start_s": round(start_s - span.start_s, 3),
                    "end_s": round(end_s - span.start_s, 3),
                }


def _stretches(times: Sequence[float], step_s: float) -> Iterator[tuple[float, float]]:
    """Points that follow each other by one step belong together."""
    start_s = None
    for before, now in zip([None, *times], times, strict=False):
        if before is None or now - before > 1.5 * step_s:
            if start_s is not None and before is not None:
                yield start_s, before
            start_s = now
    if start_s is not None:
        yield start_s, times[-1]
