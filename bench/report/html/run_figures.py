"""The pictures of a run: *HDR histograms → percentile curves of the run and of each instance*.

A second conversion makes pictures over time: *the section `over_time` → pictures over time*.

Rules: the line of a percentile curve has two parts. The first part is solid, and the second part is
faint. The solid part ends at the last point for which at least ten samples are slower. The faint
part continues to the slowest sample. If a title shows latencies, these latencies come from the
fields `latency_s` and `reply_s` of the result. Each point in a picture over time is a number from
the result. If a slice has no samples, the line has a gap. Faults are bands. Source: Gil Tene's
percentile plots (HdrHistogram).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.measure.histogram import SAMPLES_BEYOND, Histogram, highest_of_bucket
from bench.measure.latency import AcquireOverTime, Latencies, Latency, OverTime
from bench.measure.run_result import InjectedFault, RunResult
from bench.measure.words import fields_in
from bench.report.figures import count, latency, percent
from bench.report.html.plot import Area, Band, Cell, Column, Figure, Line, Mark, plot
from bench.report.html.scale import (
    Scale,
    duration_tick,
    exact,
    latencies,
    linear,
    number_tick,
    percentiles,
)
from bench.report.summary import endings, margins

# The points of a curve. A point is a pair (1 ÷ (1 − share), seconds).
Curve = list[tuple[float, float]]
# The styles of the latencies that have a curve, in the order in which they are drawn.
_STYLES = ("c1", "bad", "c2", "c4", "c5", "c3", "good")
_POINTS_PER_DECADE = 24
MOST_INSTANCES = 9


@dataclass(frozen=True, slots=True)
class LatencyCurve:
    """One curve in a picture of percentiles.

    `column`: the column of the data table that has the data of the curve. The legend shows the
    label of this column.
    """

    column: Column
    style: str
    points: Curve


def percentile_figure(result: RunResult) -> Figure | None:
    """Return a picture with the percentile curves of all latencies of a run.

    Return None if no latency was measured.
    """
    curves = []
    for field, style in zip(fields_in(Latencies, "curve"), _STYLES, strict=False):
        name = field.name
        section: Latency = field.of(result.latency_s)
        if (
            section.count
            and name in result.histograms
            and (name != "hold" or result.scenario.hold.ms)
        ):
            points = curve_of(result.histograms[name], section.max)
            curves.append(LatencyCurve(Column(f"{name}_s", "s", field.label), style, points))
    acquire = result.latency_s.acquire
    title = "No lease was acquired"
    if acquire.count:
        named = (
            ("half took at most", acquire.p50),
            ("99 %", acquire.p99),
            ("the slowest", acquire.max),
        )
        title = (
            "The servers did not keep up with the load. Of the acquires, "
            if result.rate.sustained is False
            else "Of the acquires, "
        )
        title += ", ".join(f"{text} {latency(value)}" for text, value in named if value is not None)
    return curves_figure(title, "Latency", curves)


def instance_figures(result: RunResult) -> Iterator[Figure | None]:
    """Yield pictures of the reply times of the first MOST_INSTANCES instances.

    The axes of all yielded pictures have the same range.
    """
    shown: dict[str, tuple[str, LatencyCurve]] = {}
    for one in result.instances[:MOST_INSTANCES]:
        name = f"reply_{one.index}"
        reply = one.reply_s
        if (
            reply
            and name in result.histograms
            and (points := curve_of(result.histograms[name], reply.max))
        ):
            title = (
                f"#{one.index} {one.address}: reply p50 {latency(reply.p50)}, p99 "
                f"{latency(reply.p99)}"
            )
            shown[name] = title, LatencyCurve(Column("reply_s", "s", "reply"), "c1", points)
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
    """Return a picture of the `curves`, or None if there are no curves.

    `what`: the measured quantity. `beside`: the curves of other pictures. The axes of this picture
    also cover the curves in `beside`, so that readers can compare the pictures.
    """
    if not curves:
        return None
    x = percentiles(max(curve.points[-1][0] for curve in (*curves, *beside)))
    y = latencies(seconds for curve in (*curves, *beside) for _, seconds in curve.points)
    marks = [mark for curve in curves for mark in _lines(curve)]
    about = (
        f"{what} by percentile, log scale; a point is faint if fewer than ten samples are above it"
    )
    columns = (Column("share", "text", "percentile"), *(curve.column for curve in curves))
    # All curves show the same percentiles. If a curve has fewer samples, it ends earlier.
    ratios_to_seconds = [dict(curve.points) for curve in curves]
    grid = [*max(ratios_to_seconds, key=len)]
    rows = [
        [f"{100 * (1 - 1 / at):.4f} %", *(curve.get(at) for curve in ratios_to_seconds)]
        for at in grid
    ]
    return plot(name, title, about, x=x, y=y, marks=marks, columns=columns, rows=rows, xs=grid)


def curve_of(encoded: str, most_s: float | None) -> Curve:
    """Return the percentile curve of an encoded histogram.

    A histogram with more samples gives a curve with more points. The last point of the curve is the
    largest sample, `most_s`.
    """
    histogram = Histogram.decode(encoded)
    if not histogram.count:
        return []
    total = histogram.count
    sums = np.cumsum(histogram.counts)
    steps = int(np.log10(total) * _POINTS_PER_DECADE)
    grid = sorted({2.0, *(10 ** (step / _POINTS_PER_DECADE) for step in range(steps + 1))})
    slowest = most_s or histogram.max_ns / 1e9
    curve: Curve = []
    for value in [value for value in grid if value < total]:
        rank = max(int(total * (1 - 1 / value) + 0.5), 1)
        curve.append(
            (value, min(highest_of_bucket(int(np.searchsorted(sums, rank))) / 1e9, slowest))
        )
    return [*curve, (float(total), slowest)]


def _lines(curve: LatencyCurve) -> Iterator[Mark]:
    """Yield the solid line of a curve, and its faint end."""
    samples = curve.points[-1][0]
    sure = [point for point in curve.points if samples / point[0] >= SAMPLES_BEYOND]
    faint = [*sure[-1:], *curve.points[len(sure) :]]
    few = f"fewer than {SAMPLES_BEYOND} samples beyond"
    for points, style, key in (
        (sure, curve.style, curve.column.label),
        (faint, f"{curve.style} faint", few),
    ):
        yield Line([x for x, _ in points], [y for _, y in points], style, key)


# -- over time -------------------------------------------------------------------------------------

OUTCOMES = {
    "acquired": "good",
    "contended": "c3",
    "split_vote": "c4",
    "too_late": "c5",
    "unreachable": "bad",
}
_SHARES = Scale(0.0, 1.0, (0.0, 0.25, 0.5, 0.75, 1.0), "share", lambda share: f"{share * 100:g} %")


def course_of(result: RunResult) -> OverTime | None:
    """Return the figures over time, or None.

    Return None if the result is from an older version, or if the run ended when its window began.
    """
    over = result.over_time
    return over if over and over.start_s and over.slice_s else None


def slowest_of(result: RunResult) -> tuple[float, str] | None:
    """Return the time (s) of the slowest acquire, and a sentence about this acquire.

    Return None if the slowest acquire is unknown. The time is the middle of the slice in which the
    acquire was due.
    """
    over = course_of(result)
    whole = result.latency_s.acquire.max
    slices = zip(over.acquire.max_s, over.start_s, strict=True) if over else ()
    most = [(value, at) for value, at in slices if value is not None and at >= 0]
    if over is None or whole is None or not most:
        return None
    at = max(most)[1]
    faults = " and ".join(
        band.text for band in fault_bands(result) if band.start <= at <= band.stop
    )
    sentence = (
        f"The slowest acquire took {latency(whole)}; it was due {at:.1f} s after the start of the "
        "measured window"
    )
    return at + over.slice_s / 2, sentence + (f", during {faults}" if faults else "")


def course_figures(result: RunResult) -> list[Figure]:
    """Return the pictures over time. The list is empty if the result has no figures over time."""
    if (over := course_of(result)) is None:
        return []
    course = _CourseFigures(result, over)
    return [course.latency(), course.rate(), course.outcomes(), course.votes()]


class _CourseFigures:
    """The figures that show a run over time.

    All these figures have the same time axis and the same bands.
    """

    def __init__(self, result: RunResult, over: OverTime) -> None:
        self._result = result
        self._over = over
        starts = over.start_s
        width = over.slice_s
        self._edges = [*starts, starts[-1] + width]
        self._middles = [start + width / 2 for start in starts]
        warmup = [Band(starts[0], 0.0, "warm-up", "warm-up", "warmup")] if starts[0] < 0 else []
        self._bands = [*warmup, *fault_bands(result)]
        self._x = exact(
            self._edges[0],
            self._edges[-1],
            "seconds since the measured window began",
            "{:g}".format,
        )
        self._slice = f"slices of {duration_tick(width)}"

    def latency(self) -> Figure:
        """Return the picture of acquire percentiles in each slice."""
        columns = {
            Column(one.name, one.unit, one.label): one.of(self._over.acquire)
            for one in fields_in(AcquireOverTime)
        }
        lines = [
            Line(self._middles, [one or None for one in values], style, column.label)
            for (column, values), style in zip(
                columns.items(), ("c1", "c3", "c2", "c5"), strict=True
            )
        ]
        about = (
            f"Acquire latency from the intended start, {self._slice}; a percentile is shown "
            "only if at least ten samples are above it"
        )
        y = latencies(value for values in columns.values() for value in values if value)
        _, title = slowest_of(self._result) or (0.0, "No lease was acquired in the measured window")
        marks = lines[::-1]
        return self._figure("latency-over-time", title, about, y, marks=marks, columns=columns)

    def rate(self) -> Figure:
        """Return the picture of leases granted per second.

        In open loop, the picture also shows the offered rate and how many acquires per second were
        due.
        """
        rate = self._result.rate
        offered = self._result.rate.offered_per_s
        begun = [sum(numbers) for numbers in zip(*self._over.outcomes.values(), strict=True)]
        granted, due = (
            [number / self._over.slice_s for number in numbers]
            for numbers in (self._over.granted, begun)
        )
        marks = [Line(self._middles, granted, "c1", "leases granted")]
        if offered:
            marks.insert(0, Line(self._middles, due, "c3", "acquires due"))
            marks.insert(0, Line([0.0, self._edges[-1]], [offered] * 2, "c2", "offered"))
        held = (
            f"of {count(offered)}/s offered: {'sustained' if rate.sustained else 'not sustained'}"
        )
        title = f"{count(rate.achieved_per_s)} leases/s {held if offered else 'in closed loop'}"
        columns = {
            Column("granted", "count", "leases granted"): self._over.granted,
            Column("due", "count", "acquires due"): begun,
        }
        y = linear(
            (value for mark in marks for value in mark.ys if value), "per second", number_tick
        )
        about = f"Leases {'and acquires ' if offered else ''}per second, {self._slice}"
        return self._figure("rate", title, about, y, marks=marks, columns=columns)

    def outcomes(self) -> Figure:
        """Return the picture of the shares of the outcomes of acquires."""
        counts = self._over.outcomes
        shares = ", ".join(endings(self._result))
        title = (
            f"Acquires ended: {shares}" if shares else "No acquire was due in the measured window"
        )
        about = f"Share of the acquires due in each slice, by outcome, {self._slice}"
        columns = {
            Column(name, "count", name.replace("_", " ")): values for name, values in counts.items()
        }
        drawn = (
            column for column, values in columns.items() if column.name in OUTCOMES and any(values)
        )
        styles = {column: OUTCOMES[column.name] for column in drawn}
        return self._shares("outcomes", title, about, styles, columns)

    def votes(self) -> Figure:
        """Return a picture that shows the share of leases with each vote margin.

        The title of the picture also gives the number of split votes.
        """
        ordered = sorted(self._over.margin, key=int, reverse=True)
        split = self._result.split_votes
        shares = margins(self._result)
        rounds = f"{count(split.count)} split votes" + (
            f" ({percent(split.ratio)} of the rounds)" * bool(split.count)
        )
        title = (
            f"Vote margin {shares}; {rounds}" if shares else f"No lease's round closed; {rounds}"
        )
        about = (
            "Share of leases with each vote margin; the margin is the number of granted votes "
            f"minus the quorum when the round closed; {self._slice}"
        )
        columns = {
            Column(f"margin_{m}", "count", f"margin {m}"): self._over.margin[m] for m in ordered
        }
        good = ("good", "c1", "c3", "c4", *["c5"] * len(ordered))
        styles = {
            column: "bad" if int(margin) < 0 else style
            for column, margin, style in zip(columns, ordered, good, strict=False)
        }
        columns[Column("split_votes", "count", "split votes")] = self._over.split_votes
        return self._shares("votes", title, about, styles, columns)

    # -- how they are drawn ------------------------------------------------------------------------

    def _shares(
        self,
        name: str,
        title: str,
        about: str,
        styles: Mapping[Column, str],
        columns: Mapping[Column, Sequence[int]],
    ) -> Figure:
        """Return a picture of shares.

        The areas of all columns in `styles` are drawn on top of each other. The shares in a slice
        add up to 100 %, unless all values in this slice are 0.
        """
        sums = [
            sum(slice_) or 1 for slice_ in zip(*(columns[column] for column in styles), strict=True)
        ]
        low = [0.0] * len(sums)
        marks = list[Mark]()
        for column, style in styles.items():
            high = [
                base + value / whole
                for base, value, whole in zip(low, columns[column], sums, strict=True)
            ]
            marks.append(Area(self._edges, low, high, style, column.label))
            low = high
        return self._figure(name, title, about, _SHARES, marks=marks, columns=columns)

    def _figure(
        self,
        name: str,
        title: str,
        about: str,
        y: Scale,
        *,
        marks: Sequence[Mark],
        columns: Mapping[Column, Sequence[Cell]],
    ) -> Figure:
        """Return a picture over time. `columns`: the data. Each column has one value for each
        slice."""
        rows = [list(row) for row in zip(self._over.start_s, *columns.values(), strict=True)]
        named = (Column("start_s", "text", "at s"), *columns)
        bands = self._bands
        return plot(
            name,
            title,
            about,
            x=self._x,
            y=y,
            marks=[*bands, *marks],
            columns=named,
            rows=rows,
            xs=self._middles,
        )


def fault_bands(result: RunResult) -> list[Band]:
    """Return one band for each fault that began.

    If a fault has several targets, one band shows the fault for all targets. Times are in seconds
    of the measured window.
    """
    groups: dict[tuple[str, float, float | None], list[InjectedFault]] = {}
    for fault in result.faults:
        if fault.begun_s is not None:
            groups.setdefault((fault.kind, fault.at_s, fault.for_s), []).append(fault)
    return [_band(faults, result.duration_s) for faults in groups.values()]


def _band(faults: Sequence[InjectedFault], end_s: float) -> Band:
    """Return the band of one fault. `end_s`: the end of the measured window.

    If the fault was never undone, its band lasts to `end_s`.
    """
    targets = ", ".join(
        fault.target.replace("instance:", "#").replace(":", " ") for fault in faults
    )
    stops = (end_s if fault.ended_s is None else fault.ended_s for fault in faults)
    begun_s = min(fault.begun_s or 0.0 for fault in faults)
    return Band(begun_s, min(max(stops), end_s), f"{faults[0].kind} {targets}")
