"""Latency as curves: *HDR histograms of a result → its percentile curves on the same axes, a small one per instance*.

Rules: a curve is solid as far as ten samples lie beyond a point, faint up to the slowest. Figures in words are those of
`latency_s`. Source: Gil Tene's percentile plots (HdrHistogram).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from bench.measure.histogram import SAMPLES_BEYOND, Histogram, highest_of_bucket
from bench.measure.latency import Latency
from bench.measure.run_result import RunResult
from bench.report.figures import count, latency
from bench.report.html.figure import Cell, Column, Data, Figure, Legend
from bench.report.html.plot import X_RANGE, Y_RANGE, Axes, Line, Mark, plot
from bench.report.html.scale import duration_tick, logarithmic, percentile_text, percentiles

Curve = list[tuple[float, float]]  # (1 ÷ (1 − share), seconds)
CURVES = (
    ("acquire", "c1", "acquire"), ("release", "c2", "release"), ("handoff", "c4", "hand-off"),
    ("acquire_failed", "bad", "failed acquire"), ("hold", "c5", "hold"),
)  # fmt: skip
_POINTS_PER_DECADE = 24
MOST_INSTANCES = 9


@dataclass(frozen=True, slots=True)
class LatencyCurve:
    """One line of a picture of percentiles: its column of data, its words in the legend, its style and samples."""

    column: Column
    text: str
    style: str
    samples: int
    points: Curve


def percentile_figure(result: RunResult) -> Figure | None:
    """All latencies of a run as percentile curves; None when nothing was measured."""
    curves = []
    for name, style, text in CURVES:
        section: Latency = getattr(result.latency_s, name)
        if section.count and name in result.histograms and (name != "hold" or result.scenario.hold.ms):
            points = curve_of(result.histograms[name], section.max)
            words = f"{text} ({count(section.count)})"
            curves.append(LatencyCurve(Column(f"{name}_s", "s", text), words, style, section.count, points))
    return curves_figure(_finding(result), "Latency", curves)


def instance_figures(result: RunResult) -> Iterator[Figure | None]:
    """The reply times of each instance, the first MOST_INSTANCES of them, all on the same axes."""
    shown: dict[str, tuple[str, LatencyCurve]] = {}
    for one in result.instances[:MOST_INSTANCES]:
        name, reply = f"reply_{one.index}", one.reply_s
        if reply and name in result.histograms and (points := curve_of(result.histograms[name], reply.max)):
            title = f"#{one.index} {one.address}: reply p50 {latency(reply.p50)}, p99 {latency(reply.p99)}"
            shown[name] = title, LatencyCurve(Column("reply_s", "s", "reply"), "reply", "c1", reply.count, points)
    beside = [curve for _, curve in shown.values()]
    for name, (title, curve) in shown.items():
        yield curves_figure(title, "Reply", [curve], name=name, beside=beside)


def curves_figure(
    title: str,
    what: str,
    curves: Sequence[LatencyCurve],
    *,
    name: str = "percentiles",
    beside: Sequence[LatencyCurve] = (),
) -> Figure | None:
    """The picture of `curves` of `what` on the same axes, which fit those `beside` it, too; None without any."""
    if not curves:
        return None
    x = percentiles(max(curve.samples for curve in (*curves, *beside)), *X_RANGE)
    y = logarithmic([seconds for curve in (*curves, *beside) for _, seconds in curve.points], *Y_RANGE)
    axes = Axes(x, y, "percentile", "latency (log scale)", percentile_text, duration_tick)
    marks = [mark for curve in curves for mark in _lines(curve)]
    about = f"{what} by percentile, log scale; faint where fewer than ten samples lie beyond a point"
    grid = [at for at, _ in max((curve.points for curve in curves), key=len)]
    columns = (Column("share", "text", "percentile"), *(curve.column for curve in curves))
    data = Data(columns, _rows([curve.points for curve in curves], grid), [x(at) for at in grid])
    keys = tuple(Legend(curve.style, curve.text) for curve in curves)
    return Figure(name, title, about, plot(axes, marks, name=title, about=about), data, keys)


def _finding(result: RunResult) -> str:
    acquire = result.latency_s.acquire
    parts = [
        f"{text} {latency(value)}"
        for value, text in ((acquire.p50, "half took at most"), (acquire.p99, "99 %"))
        if value is not None
    ]
    slowest = f"the slowest {latency(acquire.max)}"
    queue = "Latencies of a growing queue: " if result.rate.sustained is False else "Of the acquires, "
    return queue + ", ".join([*parts, slowest]) if acquire.count else "No lease was acquired"


def curve_of(encoded: str, most_s: float | None) -> Curve:
    """The percentile curve of an encoded histogram, ending at its largest sample `most_s`."""
    histogram = Histogram.decode(encoded)
    if not histogram.count:
        return []
    total, sums = histogram.count, np.cumsum(histogram.counts)
    steps = int(np.log10(total) * _POINTS_PER_DECADE)
    grid = sorted({2.0, *(10 ** (step / _POINTS_PER_DECADE) for step in range(steps + 1))})
    curve: Curve = []
    for value in [value for value in grid if value < total]:
        rank = max(int(total * (1 - 1 / value) + 0.5), 1)
        seconds = highest_of_bucket(int(np.searchsorted(sums, rank))) / 1e9
        curve.append((value, seconds if most_s is None else min(seconds, most_s)))
    return [*curve, (float(total), most_s or histogram.max_ns / 1e9)]


def _lines(curve: LatencyCurve) -> Iterator[Mark]:
    """The line of a curve, and its faint end."""
    sure = [point for point in curve.points if curve.samples / point[0] >= SAMPLES_BEYOND]
    faint = [*sure[-1:], *curve.points[len(sure) :]]
    for points, style in ((sure, curve.style), (faint, f"{curve.style} faint")):
        if len(points) > 1:
            yield Line([x for x, _ in points], [y for _, y in points], style)


def _rows(curves: Sequence[Curve], grid: Sequence[float]) -> list[list[Cell]]:
    """One row per point of the longest curve, `grid`; the others by the nearest percentile at or before."""
    rows: list[list[Cell]] = []
    for value in grid:
        cells = [next((y for at, y in reversed(curve) if at <= value * 1.0001), None) for curve in curves]
        ended = [curve[-1][0] < value * 0.9999 for curve in curves]
        known = (None if over else cell for cell, over in zip(cells, ended, strict=True))
        rows.append([f"{100 * (1 - 1 / value):.4f} %", *known])
    return rows
