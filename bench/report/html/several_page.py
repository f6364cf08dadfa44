"""Several runs side by side: *results → one page, what differs between them first*.

Rules: figures stand beside each other, never a ratio: whether a difference is more than noise is for
`lockbench compare`, which pairs its runs. Scenario keys that differ are named, as they may be the cause.
Source: result.json of each run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.measure.run_result import RunResult
from bench.report.figures import MISSING, count, decimals, latency, percent
from bench.report.html.figure import Cell, Chapter, Column, Data, Figure, Legend, Page
from bench.report.html.plot import X_RANGE, Y_RANGE, Axes, Line, plot
from bench.report.html.run.course import course_of
from bench.report.html.run.latency import LatencyCurve, curve_of, curves_figure
from bench.report.html.run.page import scenario_facts
from bench.report.html.scale import exact, linear, number_tick
from bench.report.sheet import BAD, DOUBTFUL, GOOD, Part, Sentence, Sheet
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
    labels = [f"{chr(ord('A') + place % 26)}: {name}" for place, name in enumerate(names)]
    named = [*zip(labels, results, map(sheet, results), strict=True)]
    lines = [Sentence("shown", f"{label}, {told.verdict}: {told.conditions}") for label, _, told in named]
    if len(results) > MOST_CURVES:
        lines.append(Sentence("note", f"the pictures show the first {MOST_CURVES} of {len(results)}", DOUBTFUL))
    lines.append(
        Sentence("note", "side by side only: whether a difference is more than noise, lockbench compare tells")
    )
    heads = [f"{label[0]} {told.verdict} {count(r.rate.achieved_per_s)} leases/s" for label, r, told in named]
    told = Sheet(
        f"{len(results)} RUNS",
        {"pass": GOOD, "violated": BAD, "fail": BAD}.get(worst, DOUBTFUL),
        "; ".join(heads),
        f"from {results[0].started_at} to {results[-1].started_at}",
        (_figures(results, labels), _differences(results, labels)),
        tuple(lines),
    )
    pictures = (_curves(results[:MOST_CURVES], labels), _rates(results[:MOST_CURVES], labels))
    chapters = (
        Chapter("Side by side", (), told.parts, "several"),
        Chapter("In pictures", tuple(figure for figure in pictures if figure)),
    )
    return Page(f"{len(results)} runs", told, chapters)


def _figures(results: Sequence[RunResult], labels: Sequence[str]) -> Part:
    rows = tuple((name, *(cell(result) for result in results)) for name, cell in _ROWS)
    about = "of the measured window; – means too few samples, or not applicable"
    return Part("Figures", about, ("", *labels), rows)


def _differences(results: Sequence[RunResult], labels: Sequence[str]) -> Part:
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
    if not rows:
        return Part("Nothing differs", "but the time they were run at", (), ())
    words = frozenset(range(len(labels) + 1))
    return Part("What differs", "between their scenarios, servers and machines", ("key", *labels), rows, words)


def _curves(results: Sequence[RunResult], labels: Sequence[str]) -> Figure | None:
    curves, said = [], []
    for result, label, style in zip(results, labels, STYLES, strict=False):
        acquire = result.latency_s.acquire
        if acquire.count:
            points = curve_of(result.histograms["acquire"], acquire.max)
            curves.append(LatencyCurve(Column(label, "s"), label, style, acquire.count, points))
            said.append(f"{label[0]} {latency(acquire.p99)}")
    return curves_figure(f"Acquire p99: {', '.join(said)}", "Acquire latency", curves)


def _rates(results: Sequence[RunResult], labels: Sequence[str]) -> Figure | None:
    shown = [
        (label, style, over, result.rate.achieved_per_s)
        for result, label, style in zip(results, labels, STYLES, strict=False)
        if (over := course_of(result)) is not None
    ]
    if not shown:
        return None
    middles = [[start + over.slice_s / 2 for start in over.start_s] for _, _, over, _ in shown]
    rates = [[granted / over.slice_s for granted in over.granted] for _, _, over, _ in shown]
    x = exact(min(map(min, middles)), max(map(max, middles)), *X_RANGE)
    y = linear([rate for row in rates for rate in row], *Y_RANGE)
    axes = Axes(x, y, "s since each measured window began", "leases per second", lambda v: f"{v:g}", number_tick)
    drawn = [*zip(shown, middles, rates, strict=True)]
    lines = [Line(times, row, style) for (_, style, *_), times, row in drawn]
    title = f"Leases granted: {', '.join(f'{label[0]} {count(rate)}/s' for label, _, _, rate in shown)}"
    about = "Leases granted per second over time, warm-up included"
    rows: list[list[Cell]] = [
        [label, at, rate] for (label, *_), times, row in drawn for at, rate in zip(times, row, strict=True)
    ]
    data = Data((Column("run", "text"), Column("at_s", "text", "at s"), Column("granted_per_s", "per_s")), rows)
    keys = tuple(Legend(style, label) for label, style, *_ in shown)
    return Figure("rates", title, about, plot(axes, lines, name=title, about=about), data, keys)
