"""Pictures of a comparison: *metrics of a result → each change with its interval*.

Rules: change, interval and verdict are those of the result, in the words of the terminal. A metric without an interval
is a bare point.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.experiments.compare.result import ComparisonResult, Judged
from bench.experiments.compare.words import change_text, interval_text, metric_text, word_of
from bench.report.html.figure import Column, Data, Figure, Legend
from bench.report.html.forest import RANGE, Bar, forest
from bench.report.html.scale import Label, Scale, exact, logarithmic

_MULTIPLE = 3.0
_STYLES = {"pass": "good", "better": "good", "fail": "bad", "worse": "bad"}


def figures(result: ComparisonResult) -> list[Figure]:
    """One figure for each side that was held against the first."""
    sides = sorted({entry.side for entry in result.metrics if entry.role != "noise"})
    return [figure for side in sides if (figure := _side(result, side)) is not None]


def _side(result: ComparisonResult, side: int) -> Figure | None:
    entries = [
        entry for entry in result.metrics if entry.side == side and entry.role != "noise" and entry.ratio is not None
    ]
    if not entries:
        return None
    known = [value for entry in entries for value in (entry.ratio, entry.low, entry.high) if value]
    x, tick, axis = _scale(known)
    first, second = result.sides[0].label, result.sides[side].label
    judged = [entry for entry in entries if entry.role == "judged"] or entries
    said = ", ".join(
        f"{metric_text(entry.metric)} {change_text(entry.ratio)} ({word_of(entry)})" for entry in judged[:2]
    )
    title = f"{second} against {first}: {said}"
    tolerance = result.tolerance_ratio
    allowed = f"; {tolerance * 100:g} % worse is allowed" if tolerance else ""
    about = f"Change of each figure with its interval{allowed}; one that crosses 0 may be chance"
    columns = (Column("metric", "text"), *(Column(name, "ratio") for name in ("ratio", "low", "high")))
    rows = [[entry.metric, entry.ratio, entry.low, entry.high] for entry in entries]
    bars = [_bar(entry) for entry in entries]
    picture = forest(bars, x, tick, axis, name=title, about=about, lines=[(1.0, "equal")])
    said_by = {"good": "pass or better", "bad": "fail or worse", "c5": "neither is shown"}
    keys = tuple(Legend(style, text, area=True) for style, text in said_by.items())
    return Figure(f"change-{side}", title, about, picture, Data(columns, rows), keys)


def _scale(ratios: Sequence[float]) -> tuple[Scale, Label, str]:
    """Of changes: linear around "equal" while they are small, logarithmic when something became a multiple."""
    if max(ratios) > _MULTIPLE or min(ratios) < 1 / _MULTIPLE:
        return logarithmic([*ratios, 1.0], *RANGE, most=4), _times, "second ÷ first (log scale)"
    edge = max(0.02, *(abs(ratio - 1) for ratio in ratios)) * 1.08
    return exact(1 - edge, 1 + edge, *RANGE, most=4), _change, "change"


def _bar(entry: Judged) -> Bar:
    whole = entry.low is not None and entry.high is not None
    text = change_text(entry.ratio) + (f"  {interval_text(entry)}" if whole else "")
    style = _STYLES.get(word_of(entry), "c5")
    return Bar(metric_text(entry.metric), entry.ratio, entry.low, entry.high, text, style)


def _change(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.3g} %" if abs(ratio - 1) > 1e-9 else "0"


def _times(ratio: float) -> str:
    return f"{ratio:g}×"
