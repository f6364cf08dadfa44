"""Pictures of a capacity: *points of a result → what each rate did to the latency, how callers scale*.

Rules: the bracket, the knee and the SLO are those of the result; the law is drawn from its fitted figures, its band
from the corners of their intervals, which is wider than 95 %.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.experiments.capacity.result import CapacityPoint, CapacityResult, Probe, point_name
from bench.experiments.capacity.search import Seen
from bench.experiments.capacity.usl import Floats, Law, throughput
from bench.experiments.capacity.words import answer, rate_text
from bench.report.figures import count
from bench.report.html.figure import Column, Data, Figure, Legend
from bench.report.html.forest import RANGE, Bar, forest
from bench.report.html.plot import X_RANGE, Y_RANGE, Area, Axes, Band, Line, Mark, Spot, plot
from bench.report.html.scale import duration_tick, linear, logarithmic, number_tick

_STYLES = {Seen.HELD: "good", Seen.MISSED: "bad", Seen.CLEARLY_MISSED: "bad"}


def figures(result: CapacityResult) -> list[Figure]:
    """The figures of every point: its search, its callers; of several points their capacities beside each other."""
    points = result.points
    figures = [_sweep(points)] if len(points) > 1 else []
    for number, point in enumerate(points):
        figures += [figure for figure in (_search(point, result, number), _callers(point, number)) if figure]
    return figures


def _search(point: CapacityPoint, result: CapacityResult, number: int) -> Figure | None:
    probes = [probe for probe in point.probes if _latency(probe) is not None]
    if not probes:
        return None
    limits = [entry.limit for probe in probes for entry in probe.slo if entry.expression.startswith("acquire.")]
    seconds = [_latency(probe) or 0 for probe in probes]
    x, y = logarithmic([p.rate_per_s for p in probes], *X_RANGE), logarithmic([*seconds, *limits], *Y_RANGE)
    low, high = point.capacity.low, point.capacity.high
    marks: list[Mark] = [] if low is None else [Band(low, high or x.high, "capacity", "found")]
    marks += [Line([x.low, x.high], [limit, limit], "c2") for limit in sorted(set(limits))]
    marks += [
        Spot(probe.rate_per_s, at, _STYLES.get(probe.seen, "c5"), hollow=probe.seen is not Seen.HELD)
        for probe, at in zip(probes, seconds, strict=True)
    ]
    if point.knee:
        marks.append(Spot(point.knee.rate_per_s, y.low, "c4", "knee"))
    title = _sentence(point, result)
    about = (
        "Acquire p99 of each probe by the rate offered, both log scale; p90 or slowest where p99 has too few samples"
    )
    axes = Axes(x, y, "acquires offered per second (log scale)", "latency (log scale)", number_tick, duration_tick)
    columns = (
        Column("rate_per_s", "per_s"),
        Column("seen", "text"),
        Column("p99_s", "s"),
        Column("achieved_per_s", "per_s"),
    )
    rows = [[p.rate_per_s, p.seen.value, p.acquire_s.p99, p.achieved_per_s] for p in point.probes]
    seen = Legend("good", "held the SLO", area=True), Legend("bad", "missed it", area=True)
    keys = (*seen, Legend("c2", "the SLO's limit"))
    return Figure(
        f"search-{number}", title, about, plot(axes, marks, name=title, about=about), Data(columns, rows), keys
    )


def _latency(probe: Probe) -> float | None:
    return probe.acquire_s.p99 or probe.acquire_s.p90 or probe.acquire_s.max


def _sentence(point: CapacityPoint, result: CapacityResult) -> str:
    knee = f"; knee at {rate_text(point.knee.rate_per_s)}/s" if point.knee else ""
    return answer(point, result).partition("; next limit")[0] + knee


def _callers(point: CapacityPoint, number: int) -> Figure | None:
    entries = point.callers
    if len(entries) < 2:
        return None
    users, rates = [e.users for e in entries], [e.achieved_per_s or 0.0 for e in entries]
    x = logarithmic(users, *X_RANGE)
    law, most = point.law, max(rates)
    grid = np.logspace(np.log10(min(users)), np.log10(max(users)), 60)
    curves = _law_curves(law, grid) if law else None
    y = linear([most, *(curves[2] if curves else ())], *Y_RANGE)
    marks: list[Mark] = [Spot(n, rate, "c1") for n, rate in zip(users, rates, strict=True)]
    keys = [Legend("c1", "measured", area=True)]
    found = f"{count(most)} leases/s at most, with {users[rates.index(most)]} callers"
    title = f"{found}; {point.no_law or 'no law was fitted'}"
    if law and curves:
        low, fitted, high = curves
        band = Area([*grid.tolist(), grid[-1] * 1.001], low, high, "band")
        marks = [band, Line(grid.tolist(), fitted, "c4"), *marks]
        keys += [Legend("c4", "scalability law"), Legend("band", "the corners of its 95 % intervals", area=True)]
        peak = law.peak_callers
        around = f"{peak.value:.0f} callers ({peak.low:.0f}–{peak.high:.0f})"
        title = f"Throughput peaks at {around}, {count(law.peak_rate.value)}/s"
    about = "Leases per second by callers, closed loop; where more callers bring less, they wait for each other"
    axes = Axes(x, y, "callers (log scale)", "leases per second", number_tick, number_tick)
    columns = (Column("callers", "count"), Column("leases_per_s", "per_s"), Column("p50_s", "s"), Column("p99_s", "s"))
    rows = [[e.users, e.achieved_per_s, e.acquire_s.p50, e.acquire_s.p99] for e in entries]
    data = Data(columns, rows, [x(n) for n in users])
    return Figure(f"callers-{number}", title, about, plot(axes, marks, name=title, about=about), data, tuple(keys))


def _law_curves(law: Law, grid: Floats) -> tuple[list[float], list[float], list[float]]:
    """The law's lowest, fitted and highest rate at each number of callers."""
    one, wait, talk = law.rate_of_one, law.contention, law.coherency
    corners = (
        (one.low, wait.high, talk.high),
        (one.value, wait.value, talk.value),
        (one.high, wait.low, talk.low),
    )
    low, fitted, high = (throughput(grid, *corner).tolist() for corner in corners)
    return low, fitted, high


def _sweep(points: Sequence[CapacityPoint]) -> Figure:
    bars = []
    for point in points:
        low, high = point.capacity.low, point.capacity.high
        bars.append(Bar(point_name(point.variables), low, low, high, f"{count(low)}/s" if low else "none", "c1"))
    best = max((bar for bar in bars if bar.value), key=lambda bar: bar.value or 0, default=None)
    title = "No rate kept the SLO anywhere" if best is None else f"Most with {best.name}: {best.text}"
    about = "Largest rate that kept the SLO, with its bracket"
    rows = [[bar.name, bar.low, bar.high] for bar in bars]
    data = Data((Column("point", "text"), Column("low_per_s", "per_s"), Column("high_per_s", "per_s")), rows)
    x = linear([bar.high or bar.low or 1 for bar in bars], *RANGE, most=4)
    picture = forest(bars, x, number_tick, "leases per second", name=title, about=about)
    return Figure("sweep", title, about, picture, data)
