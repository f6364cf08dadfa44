"""Pictures of a comparison: *metrics of a result → each change with its interval*.

Rules: change, interval and verdict are those of the result, in the words of the terminal. A metric without an interval
is a bare point. Source: bench.gates.paired; bench.report.comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.report.comparison import change_text, interval_text, word_of
from bench.report.html.figure import Column, Data, Figure, Key
from bench.report.html.forest import RANGE, Bar, forest
from bench.report.html.scale import exact

Result = Mapping[str, Any]
_STYLES = {"pass": "good", "better": "good", "fail": "bad", "worse": "bad"}


def comparison_figures(result: Result) -> list[Figure]:
    """One figure for each side that was held against the first."""
    sides = sorted({entry["side"] for entry in result["metrics"] if entry["role"] != "noise"})
    return [figure for side in sides if (figure := _side(result, side)) is not None]


def _side(result: Result, side: int) -> Figure | None:
    entries = [
        entry
        for entry in result["metrics"]
        if entry["side"] == side and entry["role"] != "noise" and entry["ratio"] is not None
    ]
    if not entries:
        return None
    bars = [_bar(entry) for entry in entries]
    known = [value for bar in bars for value in (bar.value, bar.low, bar.high) if value is not None]
    edge = max(0.02, *(abs(value) for value in known)) * 1.08
    x = exact(-edge, edge, *RANGE, most=4)
    first, second = result["sides"][0]["label"], result["sides"][side]["label"]
    judged = [entry for entry in entries if entry["role"] == "judged"] or entries
    said = ", ".join(f"{entry['metric']} {change_text(entry['ratio'])} ({word_of(entry)})" for entry in judged[:2])
    title = f"{second} against {first}: {said}"
    tolerance = result["tolerance_ratio"]
    allowed = f"; {tolerance * 100:g} % worse is allowed" if tolerance else ""
    about = f"Change of each figure with its interval{allowed}; one that crosses 0 may be chance"
    columns = (Column("metric", "text"), *(Column(name, "ratio") for name in ("ratio", "low", "high")))
    rows = [[entry["metric"], entry["ratio"], entry["low"], entry["high"]] for entry in entries]
    picture = forest(bars, x, _tick, "change", name=title, about=about, lines=[(0.0, "equal")])
    keys = (Key("good", "pass or better", True), Key("bad", "fail or worse", True), Key("c5", "neither is shown", True))
    return Figure(f"change-{side}", title, about, picture, Data(columns, rows), keys)


def _bar(entry: Mapping[str, Any]) -> Bar:
    low, high = (None if entry[name] is None else entry[name] - 1 for name in ("low", "high"))
    interval = f"  {interval_text(entry)}" if low is not None and high is not None else ""
    style = _STYLES.get(word_of(entry), "c5")
    return Bar(entry["metric"], entry["ratio"] - 1, low, high, change_text(entry["ratio"]) + interval, style)


def _tick(value: float) -> str:
    return f"{value * 100:+.3g} %" if abs(value) > 1e-9 else "0"
