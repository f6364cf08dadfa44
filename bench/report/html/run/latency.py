"""Latency as curves: *HDR histograms of a result → its percentile curve, and a small one for each instance*.

Rules: a curve is solid as far as ten samples lie beyond a point, faint up to the slowest. Figures in words are those of
`latency_s` and `instances`. The instances have the same axes, so that what differs is seen; each says its state, errors
and faults in words. Source: Gil Tene's percentile plots (HdrHistogram); the result's histograms `reply_<index>`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from bench.measure.histogram import SAMPLES_BEYOND, Histogram, highest_of_bucket
from bench.measure.latency import Latency
from bench.measure.run_result import InstanceReport, RunResult
from bench.report.figures import count, counted, latency
from bench.report.html.figure import Cell, Column, Data, Figure, Legend
from bench.report.html.plot import SMALL, X_RANGE, Y_RANGE, Axes, Line, Mark, plot
from bench.report.html.scale import Scale, duration_tick, logarithmic, percentile_text, percentiles

Curve = list[tuple[float, float]]  # (1 ÷ (1 − share), seconds)
CURVES = (
    ("acquire", "c1", "acquire"), ("release", "c2", "release"), ("handoff", "c4", "hand-off"),
    ("acquire_failed", "bad", "failed acquire"), ("hold", "c5", "hold"),
)  # fmt: skip
_POINTS_PER_DECADE = 24
MOST_INSTANCES = 9  # with more, those with trouble come first


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
        if _is_shown(result, name):
            section = latency_of(result, name)
            points = curve_of(result.histograms[name], section.max)
            words = f"{text} ({count(section.count)})"
            curves.append(LatencyCurve(Column(f"{name}_s", "s", text), words, style, section.count, points))
    return curves_figure(_finding(result), "Latency", curves)


def curves_figure(title: str, what: str, curves: Sequence[LatencyCurve]) -> Figure | None:
    """The picture of `curves` of `what` on the same axes; None without any."""
    if not curves:
        return None
    x = percentiles(max(curve.samples for curve in curves), *X_RANGE)
    axes = curve_axes(x, [y for curve in curves for _, y in curve.points], *Y_RANGE)
    marks = [mark for curve in curves for mark in curve_lines(curve.points, curve.samples, curve.style)]
    about = f"{what} by percentile, log scale; faint where fewer than ten samples lie beyond a point"
    rows, cursor = _curve_rows([curve.points for curve in curves], x)
    data = Data((Column("share", "text", "percentile"), *(curve.column for curve in curves)), rows, cursor)
    keys = tuple(Legend(curve.style, curve.text) for curve in curves)
    return Figure("percentiles", title, about, plot(axes, marks, name=title, about=about), data, keys)


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


def _curve_rows(curves: Sequence[Curve], x: Scale) -> tuple[list[list[float | str | None]], list[float]]:
    """One row per point of the longest curve; the others by the nearest percentile at or before."""
    grid = max(curves, key=len)
    rows: list[list[float | str | None]] = []
    for value, _ in grid:
        cells = [next((y for at, y in reversed(curve) if at <= value * 1.0001), None) for curve in curves]
        ended = [curve[-1][0] < value * 0.9999 for curve in curves]
        share = f"{100 * (1 - 1 / value):.4f} %"
        rows.append([share, *(None if over else cell for cell, over in zip(cells, ended, strict=True))])
    return rows, [x(value) for value, _ in grid]


def instance_figures(result: RunResult) -> list[Figure]:
    """One small figure per instance; none when the result has no reply times."""
    ordered = sorted(result.instances, key=lambda instance: (instance.is_well, instance.index))
    chosen = sorted(ordered[:MOST_INSTANCES], key=lambda instance: instance.index)
    curves = {
        instance.index: curve_of(result.histograms[name], instance.reply_s.max if instance.reply_s else None)
        for instance in chosen
        if (name := f"reply_{instance.index}") in result.histograms
    }
    known = [seconds for curve in curves.values() for _, seconds in curve]
    if not known:
        return []
    most = max(instance.reply_s.count for instance in chosen if instance.reply_s)
    axes = curve_axes(percentiles(most, *SMALL.x_range), known, *SMALL.y_range)
    return [_figure(result, instance, curves.get(instance.index, []), axes) for instance in chosen]


def instances_finding(result: RunResult) -> str:
    """Who was fastest and slowest, in one line."""
    replies = [(one.reply_s.p99, one.index) for one in result.instances if one.reply_s and one.reply_s.p99]
    trouble = [f"#{one.index}" for one in result.instances if not one.is_well]
    said = f"; trouble on {', '.join(trouble)}" if trouble else "; all voted to the end without an error"
    if not replies:
        return f"{counted(len(result.instances), 'instance')}{said}"
    low, high = min(replies), max(replies)
    return f"Reply p99 from {latency(low[0])} (#{low[1]}) to {latency(high[0])} (#{high[1]}){said}"


def _figure(result: RunResult, instance: InstanceReport, curve: list[tuple[float, float]], axes: Axes) -> Figure:
    index, reply = instance.index, instance.reply_s
    samples = reply.count if reply else 0
    title = f"#{index} {instance.address}: {instance.state.replace('_', ' ')}"
    about = f"Reply time by percentile, log scale, {count(samples)} samples"
    marks = [*curve_lines(curve, samples, "c1" if instance.is_well else "bad")]
    share = Column("share", "text", "percentile")
    rows: list[list[Cell]] = [[f"{100 * (1 - 1 / value):.4f} %", seconds] for value, seconds in curve]
    data = Data((share, Column("reply_s", "s", "reply")), rows, [axes.x(value) for value, _ in curve])
    picture = plot(axes, marks, name=title, about=about, frame=SMALL)
    return Figure(f"instance-{index}", title, about, picture, data, notes=tuple(_notes(result, instance)))


def _notes(result: RunResult, instance: InstanceReport) -> list[str]:
    p50_s, p99_s = (reply.p50, reply.p99) if (reply := instance.reply_s) else (None, None)
    notes, cpu = [f"reply p50 {latency(p50_s)}, p99 {latency(p99_s)}"], instance.cpu_us_per_command
    notes.append(f"{count(instance.commands)} commands" + (f", CPU {cpu:.1f} µs each" if cpu is not None else ""))
    notes += [f"{number:,} × {kind.lower()}" for kind, number in instance.errors.items()]
    if instance.leaked_keys:
        notes.append(f"{count(instance.leaked_keys)} keys were left")
    wanted = f"instance:{instance.index}"
    for fault in result.faults:
        if fault.target == wanted and fault.begun_s is not None:
            until = f"{fault.ended_s:.1f}" if fault.ended_s is not None else "the end"
            notes.append(f"fault {fault.kind}, {fault.begun_s:.1f}–{until} s")
    return notes
