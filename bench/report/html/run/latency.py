"""Latency as curves: *HDR histograms of a result → its percentile curve, and one small curve per instance*.

Rules: a curve is solid as far as ten samples lie beyond a point, faint up to the slowest. Figures in words are those of
`latency_s` and `instances`. Source: Gil Tene's percentile plots (HdrHistogram).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np

from bench.measure.histogram import SAMPLES_BEYOND, Histogram, highest_of_bucket
from bench.measure.latency import Latency
from bench.measure.run_result import RunResult
from bench.report.figures import count, latency
from bench.report.html.figure import Column, Data, Figure, Key
from bench.report.html.plot import X_RANGE, Y_RANGE, Axes, Line, Mark, plot
from bench.report.html.scale import Scale, duration_tick, logarithmic, percentile_text, percentiles

Curve = list[tuple[float, float]]  # (1 ÷ (1 − share), seconds)
CURVES = (
    ("acquire", "c1", "acquire"), ("release", "c2", "release"), ("handoff", "c4", "hand-off"),
    ("acquire_failed", "bad", "failed acquire"), ("hold", "c5", "hold"),
)  # fmt: skip
_POINTS_PER_DECADE = 24


def percentile_figure(result: RunResult) -> Figure | None:
    """All latencies of a run as percentile curves; None when nothing was measured."""
    shown = [(name, style, text) for name, style, text in CURVES if _is_shown(result, name)]
    if not shown:
        return None
    curves = {name: curve_of(result.histograms[name], latency_of(result, name).max) for name, _, _ in shown}
    most = max(latency_of(result, name).count for name in curves)
    x = percentiles(most, *X_RANGE)
    axes = curve_axes(x, [y for curve in curves.values() for _, y in curve], *Y_RANGE)
    marks = [
        mark for name, style, _ in shown for mark in curve_lines(curves[name], latency_of(result, name).count, style)
    ]
    about = "Latency by percentile, log scale; faint where fewer than ten samples lie beyond a point"
    title = _finding(result)
    columns = (Column("share", "text", "percentile"), *(Column(f"{name}_s", "s", text) for name, _, text in shown))
    rows, cursor = curve_rows([curves[name] for name, _, _ in shown], x)
    keys = tuple(Key(style, f"{text} ({count(latency_of(result, name).count)})") for name, style, text in shown)
    picture = plot(axes, marks, name=title, about=about)
    return Figure("percentiles", title, about, picture, Data(columns, rows, cursor), keys)


def latency_of(result: RunResult, name: str) -> Latency:
    """Return one of the `LATENCIES`."""
    return cast("Latency", getattr(result.latency_s, name))


def _is_shown(result: RunResult, name: str) -> bool:
    if name == "hold" and not result.scenario.hold.ms:
        return False
    return bool(latency_of(result, name).count) and name in result.histograms


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


def curve_axes(x: Scale, seconds: Sequence[float], bottom_px: float, top_px: float) -> Axes:
    """The axes of percentile curves."""
    y = logarithmic(seconds, bottom_px, top_px)
    return Axes(x, y, "percentile", "latency (log scale)", percentile_text, duration_tick)


def curve_lines(curve: Curve, samples: int, style: str) -> Iterator[Mark]:
    """The line of a curve, and its faint end."""
    sure = [point for point in curve if samples / point[0] >= SAMPLES_BEYOND]
    faint = [*sure[-1:], *curve[len(sure) :]]
    for points, name in ((sure, style), (faint, f"{style} faint")):
        if len(points) > 1:
            yield Line([x for x, _ in points], [y for _, y in points], name)


def curve_rows(curves: Sequence[Curve], x: Scale) -> tuple[list[list[float | str | None]], list[float]]:
    """One row per point of the longest curve; the others by the nearest percentile at or before."""
    grid = max(curves, key=len)
    rows: list[list[float | str | None]] = []
    for value, _ in grid:
        cells = [next((y for at, y in reversed(curve) if at <= value * 1.0001), None) for curve in curves]
        ended = [curve[-1][0] < value * 0.9999 for curve in curves]
        share = f"{100 * (1 - 1 / value):.4f} %"
        rows.append([share, *(None if over else cell for cell, over in zip(cells, ended, strict=True))])
    return rows, [x(value) for value, _ in grid]
