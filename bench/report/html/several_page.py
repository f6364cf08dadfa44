"""Several runs side by side: *results → one page, what differs between them first*.

Rules: figures stand beside each other, never a ratio: whether a difference is more than noise is for
`lockbench compare`, which pairs its runs. Scenario keys that differ are named, as they may be the cause.
Source: result.json of each run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.measure.over_time import OverTime
from bench.measure.run_result import RunResult
from bench.report.figures import MISSING, count, decimals, latency, percent
from bench.report.html.facts import scenario_facts
from bench.report.html.figure import Cell, Column, Data, Figure, Key, Page, Section, Table
from bench.report.html.plot import X_RANGE, Y_RANGE, Axes, Line, plot
from bench.report.html.run.course import course_of
from bench.report.html.run.latency import curve_axes, curve_lines, curve_of, curve_rows
from bench.report.html.scale import exact, linear, number_tick, percentiles
from bench.report.summary import sheet

STYLES = ("c1", "c2", "c4", "c5", "good", "c3", "bad")
MOST_CURVES = len(STYLES)
_RANK = ("violated", "fail", "invalid", "inconclusive", "pass")
_IGNORED = ("seed", "targets")

Show = Callable[[RunResult], str]
_ROWS: tuple[tuple[str, Show], ...] = (
    ("verdict", lambda r: sheet(r).verdict),
    ("leases/s", lambda r: count(r.rate.achieved_per_s)),
    ("offered/s", lambda r: count(r.rate.offered_per_s)),
    ("acquire p50", lambda r: latency(r.latency_s.acquire.p50)),
    ("acquire p90", lambda r: latency(r.latency_s.acquire.p90)),
    ("acquire p99", lambda r: latency(r.latency_s.acquire.p99)),
    ("acquire p99.9", lambda r: latency(r.latency_s.acquire.p999)),
    ("acquire max", lambda r: latency(r.latency_s.acquire.max)),
    ("release p99", lambda r: latency(r.latency_s.release.p99)),
    ("hand-off p50", lambda r: latency(r.latency_s.handoff.p50)),
    ("acquired", lambda r: percent(r.outcome_shares.acquired)),
    ("attempts per lease", lambda r: decimals(r.attempts.mean)),
    ("client CPU µs per lease", lambda r: count(r.cost.client_cpu_us_per_cycle)),
    ("server CPU µs per lease", lambda r: count(r.cost.server_cpu_us_per_cycle)),
    ("service faults", lambda r: count(r.safety.service_faults)),
    ("tested leases", lambda r: count(r.safety.tested_leases)),
)


def several_page(results: Sequence[RunResult], names: Sequence[str]) -> Page:
    """Return the page of runs that are called `names`, in their order."""
    worst = min((result.verdict.status for result in results), key=_RANK.index)
    style = {"pass": "good", "violated": "bad", "fail": "bad"}.get(worst, "warning")
    labels = [f"{chr(ord('A') + place % 26)}: {name}" for place, name in enumerate(names)]
    figures = [_curves(results[:MOST_CURVES], labels), _rates(results[:MOST_CURVES], labels)]
    facts = [
        ("shown", f"{label}, {sheet(r).verdict}: {sheet(r).conditions}", "")
        for label, r in zip(labels, results, strict=True)
    ]
    if len(results) > MOST_CURVES:
        facts.append(("note", f"the pictures show the first {MOST_CURVES} of {len(results)}", "warning"))
    facts.append(("note", "side by side only: whether a difference is more than noise, lockbench compare tells", ""))
    known = tuple(figure for figure in figures if figure)
    tables = (_table(results, labels), *_differences(results, labels))
    return Page(
        title=f"{len(results)} runs",
        verdict=f"{len(results)} RUNS",
        style=style,
        headline="; ".join(
            f"{label[0]} {sheet(r).verdict} {count(r.rate.achieved_per_s)} leases/s"
            for label, r in zip(labels, results, strict=True)
        ),
        conditions=f"from {results[0].started_at} to {results[-1].started_at}",
        facts=tuple(facts),
        sections=(Section("Side by side", (), tables), Section("In pictures", known)),
    )


def _table(results: Sequence[RunResult], labels: Sequence[str]) -> Table:
    rows = tuple((name, *(cell(result) for result in results)) for name, cell in _ROWS)
    return Table(
        "Figures",
        "of the measured window; – means too few samples, or not applicable",
        ("", *labels),
        rows,
        name="figures",
    )


def _differences(results: Sequence[RunResult], labels: Sequence[str]) -> list[Table]:
    """What was not the same: scenario keys, servers, machine."""
    facts = [
        {
            **{key: text for key, text in scenario_facts(result.scenario).items() if key not in _IGNORED},
            "server": ", ".join(sorted({str(instance.server) for instance in result.instances})),
            "machine": f"{result.environment.cpu_model}, {result.environment.usable_cores} cores",
            "commit": str(result.environment.git_commit)[:12],
        }
        for result in results
    ]
    keys = [key for key in facts[0] if len({fact.get(key) for fact in facts}) > 1]
    rows = tuple((key, *(fact.get(key, MISSING) for fact in facts)) for key in keys)
    about = "between their scenarios, servers and machines" if rows else "but the time they were run at"
    head = ("key", *labels) if rows else ()
    words = frozenset(range(len(labels) + 1))
    return [Table("What differs" if rows else "Nothing differs", about, head, rows, left=words, name="differences")]


def _curves(results: Sequence[RunResult], labels: Sequence[str]) -> Figure | None:
    shown = [
        (result, label, style, curve_of(result.histograms["acquire"], result.latency_s.acquire.max))
        for result, label, style in zip(results, labels, STYLES, strict=False)
        if result.latency_s.acquire.count
    ]
    if not shown:
        return None
    most = max(result.latency_s.acquire.count for result, *_ in shown)
    axes = curve_axes(percentiles(most, *X_RANGE), [y for *_, curve in shown for _, y in curve], *Y_RANGE)
    marks = [
        mark for result, _, style, curve in shown for mark in curve_lines(curve, result.latency_s.acquire.count, style)
    ]
    said = [f"{label[0]} {latency(result.latency_s.acquire.p99)}" for result, label, *_ in shown]
    title = f"Acquire p99: {', '.join(said)}"
    about = "Acquire latency by percentile, log scale; faint where fewer than ten samples lie beyond a point"
    columns = [Column("share", "text", "percentile"), *(Column(label, "s") for _, label, *_ in shown)]
    rows, cursor = curve_rows([curve for *_, curve in shown], axes.x)
    keys = tuple(Key(style, label) for _, label, style, _ in shown)
    picture = plot(axes, marks, name=title, about=about)
    return Figure("percentiles", title, about, picture, Data(tuple(columns), rows, cursor), keys)


def _rates(results: Sequence[RunResult], labels: Sequence[str]) -> Figure | None:
    shown = [
        (label, style, over, result)
        for result, label, style in zip(results, labels, STYLES, strict=False)
        if (over := course_of(result)) is not None
    ]
    if not shown:
        return None
    series = {label: _rate_points(over) for label, _, over, _ in shown}
    x = exact(
        min(p[0] for points in series.values() for p in points),
        max(p[0] for points in series.values() for p in points),
        *X_RANGE,
    )
    y = linear([rate for points in series.values() for _, rate in points], *Y_RANGE)
    axes = Axes(x, y, "s since each measured window began", "leases per second", lambda v: f"{v:g}", number_tick)
    lines = [
        Line([t for t, _ in series[label]], [rate for _, rate in series[label]], style) for label, style, *_ in shown
    ]
    said = [f"{label[0]} {count(result.rate.achieved_per_s)}/s" for label, _, _, result in shown]
    title, about = f"Leases granted: {', '.join(said)}", "Leases granted per second over time, warm-up included"
    rows: list[list[Cell]] = [[label, at, rate] for label, points in series.items() for at, rate in points]
    data = Data((Column("run", "text"), Column("at_s", "text", "at s"), Column("granted_per_s", "per_s")), rows)
    keys = tuple(Key(style, label) for label, style, *_ in shown)
    return Figure("rates", title, about, plot(axes, lines, name=title, about=about), data, keys)


def _rate_points(over: OverTime) -> list[tuple[float, float]]:
    """The rate in the middle of every slice."""
    width = over.slice_s
    return [(start + width / 2, granted / width) for start, granted in zip(over.start_s, over.granted, strict=True)]
