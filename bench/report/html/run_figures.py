"""The pictures of a run: *HDR histograms → percentile curves, a small one per instance; `over_time` → courses*.

Rules: a curve is solid as far as ten samples lie beyond a point, faint up to the slowest; figures in words are those of
`latency_s`. Every point over time is a figure of the result; a slice without samples is a gap; faults are bands.
Source: Gil Tene's percentile plots (HdrHistogram).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.measure.histogram import SAMPLES_BEYOND, Histogram, highest_of_bucket
from bench.measure.latency import Latency, OverTime
from bench.measure.run_result import RunResult, fields_of
from bench.report.figures import MISSING, count, latency, percent, share
from bench.report.html.plot import X_RANGE, Y_RANGE, Area, Axes, Band, Cell, Column, Data, Figure, Line, Mark, plot
from bench.report.html.scale import (
    Label,
    Scale,
    duration_tick,
    exact,
    linear,
    logarithmic,
    number_tick,
    percentile_text,
    percentiles,
    ratio_tick,
)

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
    return plot(name, title, about, axes=axes, marks=marks, data=data)


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
    few = f"fewer than {SAMPLES_BEYOND} samples beyond"
    for points, style, key in ((sure, curve.style, curve.text), (faint, f"{curve.style} faint", few)):
        yield Line([x for x, _ in points], [y for _, y in points], style, key)


def _rows(curves: Sequence[Curve], grid: Sequence[float]) -> list[list[Cell]]:
    """One row per point of the longest curve, `grid`; all are drawn at the same percentiles, up to their ends."""
    known = [dict(curve) for curve in curves]
    return [[f"{100 * (1 - 1 / value):.4f} %", *(curve.get(value) for curve in known)] for value in grid]


# -- over time ---------------------------------------------------------------------------------------------------------

OUTCOMES = {
    "acquired": "good", "contended": "c3", "split_vote": "c4", "too_late": "c5", "unreachable": "bad",
}  # fmt: skip
TIME = "s since the measured window began"


def course_of(result: RunResult) -> OverTime | None:
    """What there is over time: nothing in results of old, nor in a run cut off as its window began."""
    over = result.over_time
    return over if over and over.start_s and over.slice_s else None


def slowest_of(result: RunResult) -> tuple[float, str] | None:
    """When the slice begins in which the slowest acquire was due, and that in a sentence; None when none is known."""
    over, whole = course_of(result), result.latency_s.acquire.max
    slices = zip(over.acquire.max_s, over.start_s, strict=True) if over else ()
    most = [(value, at) for value, at in slices if value is not None and at >= 0]
    if over is None or whole is None or not most:
        return None
    at = max(most)[1]
    bands = fault_bands(result, over.start_s[-1] + over.slice_s)
    faults = " and ".join(band.text for band in bands if band.start <= at <= band.stop)
    during = f", during {faults}" if faults else ""
    return at, f"The slowest acquire took {latency(whole)}; it was due {at:.1f} s into the run{during}"


def course_figures(result: RunResult, mark: tuple[float, str] | None = None) -> list[Figure]:
    """The figures over time, with a `mark` at a time and its name; none for a result that has no course."""
    if (over := course_of(result)) is None:
        return []
    course = _CourseFigures(result, over, mark)
    return [course.latency(), course.rate(), course.outcomes(), course.votes()]


class _CourseFigures:
    """What all figures of a run over time share."""

    def __init__(self, result: RunResult, over: OverTime, mark: tuple[float, str] | None) -> None:
        self._result, self._over, self._marks = result, over, [mark] if mark else []
        self._starts, self._width = over.start_s, over.slice_s
        self._end = self._starts[-1] + self._width
        self._edges = [*self._starts, self._end]
        self._middles = [start + self._width / 2 for start in self._starts]
        warmup = [Band(self._starts[0], 0.0, "warm-up", "warm-up", "warmup")] if self._starts[0] < 0 else []
        self._bands = [*warmup, *fault_bands(result, self._end)]
        self._x = exact(self._edges[0], self._end, *X_RANGE)
        self._slice = f"slices of {duration_tick(self._width)}"

    def latency(self) -> Figure:
        """Percentiles of acquire, slice by slice."""
        acquire = self._over.acquire
        series = (
            ("max", "slowest", "c5", acquire.max_s), ("p99", "p99", "c2", acquire.p99_s),
            ("p90", "p90", "c3", acquire.p90_s), ("p50", "p50", "c1", acquire.p50_s),
        )  # fmt: skip
        lines = [Line(self._middles, [one or None for one in values], style, text) for _, text, style, values in series]
        about = f"Acquire latency from the intended start, {self._slice}; a percentile needs ten samples beyond it"
        y = logarithmic([value for *_, values in series for value in values if value], *Y_RANGE)
        axes = self._axes(y, "latency (log scale)", duration_tick)
        columns = {Column(f"{name}_s", "s", name): values for name, *_, values in reversed(series)}
        _, title = slowest_of(self._result) or (0.0, "No lease was acquired in the measured window")
        return self._figure("latency-over-time", title, about, axes=axes, marks=lines, columns=columns)

    def rate(self) -> Figure:
        """Leases granted per second; in open loop beside what was offered and what was due."""
        rate, offered = self._result.rate, self._result.rate.offered_per_s
        begun = [sum(numbers) for numbers in zip(*self._over.outcomes.values(), strict=True)]
        granted = [number / self._width for number in self._over.granted]
        marks: list[Mark] = [Line(self._middles, granted, "c1", "leases granted")]
        title, highest = f"{count(rate.achieved_per_s)} leases/s in closed loop", granted
        if offered:
            due = [number / self._width for number in begun]
            ends = [0.0, self._end]
            marks = [Line(ends, [offered] * 2, "c2", "offered"), Line(self._middles, due, "c3", "acquires due"), *marks]
            highest = [*granted, *due, offered]
            held = "sustained" if rate.sustained else "not sustained"
            title = f"{count(rate.achieved_per_s)} leases/s of {count(offered)}/s offered: {held}"
        columns = {
            Column("granted", "count", "leases granted"): self._over.granted,
            Column("due", "count", "acquires due"): begun,
        }
        axes = self._axes(linear(highest, *Y_RANGE), "per second", number_tick)
        about = f"Leases {'and acquires ' if offered else ''}per second, {self._slice}"
        return self._figure("rate", title, about, axes=axes, marks=marks, columns=columns)

    def outcomes(self) -> Figure:
        """How acquires ended, as shares."""
        shares, counts = fields_of(self._result.outcome_shares), self._over.outcomes
        said = ", ".join(f"{name.replace('_', ' ')} {percent(ratio)}" for name, ratio in shares.items() if ratio)
        title = f"Acquires ended: {said}" if said else "No acquire was due in the measured window"
        about = f"Share of the acquires due in each slice, by outcome, {self._slice}"
        drawn = ((name, style) for name, style in OUTCOMES.items() if any(counts.get(name, ())))
        parts = [(name.replace("_", " "), style, counts[name]) for name, style in drawn]
        columns = {Column(name, "count", name.replace("_", " ")): values for name, values in counts.items()}
        return self._shares("outcomes", title, about, parts, columns)

    def votes(self) -> Figure:
        """Vote margins as shares, and split votes."""
        margins = dict(sorted(self._over.margin.items(), key=lambda item: -int(item[0])))
        whole, split = self._result.votes.margin, self._result.split_votes
        total = sum(whole.values())
        said = ", ".join(f"{margin} in {share(whole[margin], total)}" for margin in sorted(whole, key=int)[::-1])
        ratio = percent(split.ratio) if split.ratio else MISSING
        rounds = f"{count(split.count)} split votes" + (f" ({ratio} of the rounds)" if split.count else "")
        title = f"Vote margin {said}; {rounds}" if said else f"No lease's round closed; {rounds}"
        styles = [("good", "c1", "c3", "c4", "c5")[min(place, 4)] for place in range(len(margins))]
        styles = ["bad" if int(margin) < 0 else style for margin, style in zip(margins, styles, strict=True)]
        about = f"Share of leases by granted votes beyond the quorum when the round closed, {self._slice}"
        columns = {Column(f"margin_{m}", "count", f"margin {m}"): values for m, values in margins.items()}
        columns[Column("split_votes", "count", "split votes")] = self._over.split_votes
        named = [f"margin {margin}" for margin in margins]
        return self._shares("votes", title, about, [*zip(named, styles, margins.values(), strict=True)], columns)

    # -- how they are drawn -------------------------------------------------------------------------------------------

    def _axes(self, y: Scale, y_name: str, y_label: Label) -> Axes:
        return Axes(self._x, y, TIME, y_name, lambda value: f"{value:g}", y_label)

    def _shares(
        self, name: str, title: str, about: str, parts: Sequence[tuple[str, str, Sequence[int]]],
        columns: Mapping[Column, Sequence[Cell]],
    ) -> Figure:  # fmt: skip
        """A figure of shares: `parts` (text, style, counts) stacked; they fill every slice that has any."""
        sums = [sum(column) or 1 for column in zip(*(counts for *_, counts in parts), strict=True)]
        low, marks = [0.0] * len(sums), list[Mark]()
        for text, style, counts in parts:
            high = [base + value / whole for base, value, whole in zip(low, counts, sums, strict=True)]
            marks.append(Area(self._edges, low, high, style, text))
            low = high
        axes = self._axes(Scale(0.0, 1.0, *Y_RANGE, (0.0, 0.25, 0.5, 0.75, 1.0)), "share", ratio_tick)
        return self._figure(name, title, about, axes=axes, marks=marks, columns=columns)

    def _figure(
        self, name: str, title: str, about: str, *, axes: Axes, marks: Sequence[Mark],
        columns: Mapping[Column, Sequence[Cell]],
    ) -> Figure:  # fmt: skip
        """A figure over time; `columns`: its data, slice by slice."""
        rows = [list(row) for row in zip(self._starts, *columns.values(), strict=True)]
        data = Data((Column("start_s", "text", "at s"), *columns), rows, [self._x(at) for at in self._middles])
        upright = [Line([at, at], [axes.y.low, axes.y.high], "first", text) for at, text in self._marks]
        return plot(name, title, about, axes=axes, marks=[*self._bands, *marks, *upright], data=data)


def fault_bands(result: RunResult, end_s: float) -> list[Band]:
    """One band for each group of faults, in seconds of the measured window; `end_s`: where one without an end stops."""
    groups: dict[tuple[str, float, float], list[str]] = {}
    for fault in result.faults:
        if fault.begun_s is not None:
            stop = end_s if fault.ended_s is None else fault.ended_s
            apart_s = 0.3  # faults of one kind that began and ended closer are one band
            same = (
                one
                for one in groups
                if one[0] == fault.kind and max(abs(one[1] - fault.begun_s), abs(one[2] - stop)) < apart_s
            )
            noun, _, index = fault.target.partition(":")
            target = f"#{index}" if noun == "instance" else f"{noun} {index}".strip()
            groups.setdefault(next(same, (fault.kind, fault.begun_s, stop)), []).append(target)
    return [Band(start, min(stop, end_s), f"{kind} {', '.join(on)}") for (kind, start, stop), on in groups.items()]
