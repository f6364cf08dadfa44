"""What `lockbench fsync` and `lockbench planner` say: *a result → tables, findings, advice*.

Rules: verdict, or advice, first; nothing is computed here; a latency of a load that was not sustained is not shown; a
rate that the generator limited is marked ≥; what was not measured is an en dash. Fits 100 columns.
"""

from collections.abc import Iterator, Sequence
from itertools import cycle

from bench.experiments.fsync.result import (
    AlwaysCost,
    DiskFigures,
    FsyncResult,
    FsyncRow,
    LossesSeen,
    Option,
    PlannerPage,
    Setup,
)  # fmt: skip
from bench.measure.expectation import ROW_WORDS
from bench.measure.statistics import Spread
from bench.report.figures import MISSING, count, counted, decimals, latency, milliseconds, percent
from bench.report.html.figure import Cell, Column, Data, Figure, Legend
from bench.report.html.plot import X_RANGE, Y_RANGE, Axes, Line, Mark, Spot, plot
from bench.report.html.scale import logarithmic, number_tick
from bench.report.sheet import GOOD, Case, Part, Sentence, Sheet, Suite, made, sheet_of

_MAXIMUM = ("N", "callers", "fsync", "policy", "acquires\n/s", "±", "p50\nms", "p99\nms", "fsyncs\n/s", "locks\n/fsync",
            "CPU µs\n/lock")  # fmt: skip
_OPEN = ("N", "callers", "fsync", "policy", "p50\nms", "p99\nms", "p99.9\nms", "max\nms", "kept")
_SPEED = ("N", "policy", "restart", "locks\n/s", "±", "p99\nms")
_LOSSES = ("lost,\nmedian", "\nmost", "window\ns", "double\ngrants", "blocked\ns")
_LEGEND = (
    ("callers", "connections per instance × callers that share one; each lock is two writes, SET and its release"),
    (
        "fsync",
        "the disk as it is, or so much added; R: AOF rewritten in the middle, R!: no-appendfsync-on-rewrite, too",
    ),
    (
        "columns",
        "±: half the range over repeats; ≥: limited by the load process; kept: granted ÷ offered",
    ),
    ("no latency", "queue: the rate was not sustained; late: the load process was late; –: too few samples"),
)
CARRY_OVER = (
    "absolute rates are this machine's, its disk's and this client's, and do not carry over; what does: the order of "
    "the policies, how the cost of always falls with callers, and the row whose latency is nearest to your own disk "
    "(lockbench doctor measures it)"
)
_OF_CRASHES = (
    "power cuts (none: kill −9), TTL {ttl_s:g} s; double grants: of clients that trust a restarted instance; a delayed "
    "restart waits out the longest TTL, so its price grows with yours"
)
_EVENTS = ("aof-fsync-always", "aof-write-pending-fsync", "fork")
_STYLE_OF = {"none": "c5", "no": "c4", "everysec": "c1", "always": "bad", "waitaof": "good"}
_STYLES = ("c1", "c2", "c4", "c3", "c5")
_REWRITTEN = {"off": "", "on": " R", "on-no-sync": " R!"}
MEMORY_S, VIRTUAL_S = 5e-6, 5e-4  # an fdatasync of a file in memory, and of a disk that is none of a cloud, takes less


def sheet(result: FsyncResult, place: str = "") -> Sheet:
    """Return the planner's page, then the figures it rests on; `result` is stored at `place` ("" = nowhere)."""
    page = result.planner
    own = [("advice", page.advice[0]), *_lines(result), *_planner_lines(page)]
    return sheet_of(
        result, place, kind="fsync", headline=_headline(page, len(result.rows)), conditions=_conditions(result),
        parts=(_options(page), *_parts(result)), lines=dict.fromkeys(own),
    )  # fmt: skip


def planner_sheet(result: FsyncResult) -> Sheet:
    """Return the planner's page alone, its advice first."""
    page = result.planner
    load = page.reference
    at = f"{load.shape} callers, {disk_name(load)} fsync" if load else ""
    conditions = f"{_server(result) or 'your servers'} · {at} · p99 from the intended start"
    lines = tuple(Sentence(*line) for line in _planner_lines(page))
    return Sheet("PLANNER", GOOD, page.advice[0], conditions, (_options(page),), lines)


def suite(result: FsyncResult) -> Suite:
    """The findings as test cases."""
    cases = [
        Case(f"{finding.name}: {finding.cell}", ROW_WORDS[finding.verdict].status, finding.text)
        for finding in result.findings
        if finding.verdict in ROW_WORDS  # not those that were not judged, and what is the server's fault
    ]
    return Suite("fsync", result.started_at, result.duration_s, cases, {"id": result.id})


def disk_name(setup: Setup) -> str:
    """The disk in a table: as it is, or with so much latency added."""
    return setup.disk.removesuffix(" disk")


def disk_text(disk: DiskFigures | None) -> str:
    """What the disk is like, and what that means."""
    if disk is None:
        return "not known: fdatasync can only be measured where the files of the servers lie"
    memory = "; this is memory, no disk" if disk.p50 < MEMORY_S else ""
    virtual = "; cloud volumes take 0.5–10 ms, which the added latencies imitate" if disk.p50 < VIRTUAL_S else ""
    return f"fdatasync p50 {latency(disk.p50)}, p99 {latency(disk.p99)}{memory}{virtual}"


def _server(result: FsyncResult) -> str:
    server = result.fleet.server
    return f"{server.name} {server.version}" if server else ""


def _headline(page: PlannerPage, rows: int) -> str:
    costs = page.always_costs
    if costs is None:
        return f"{rows} rows"
    least, most = costs.least, costs.most
    other = "" if least == most else f", {least.ratio:.1f}× at {least.shape}"
    return f"everysec ÷ always: {most.ratio:.1f}× at {most.shape} callers{other}"


def _conditions(result: FsyncResult) -> Sequence[str]:
    conditions = result.conditions
    return (
        _server(result) or f"{len(result.fleet.instances or ())} of your servers",
        f"{conditions.visits_done} of {conditions.visits_planned} visits in random order",
        f"{conditions.seconds:g} s per load",
        f"{conditions.usable_cores} cores shared by load and servers",
        *made(result),
    )


def _lines(result: FsyncResult) -> Iterator[tuple[str, str]]:
    for finding in result.findings:
        if finding.verdict == "as expected":
            yield "as expected", finding.text
    yield "disk", disk_text(result.planner.disk_fdatasync_s)
    yield "slow events", _events(result.rows)
    stalled = max(result.rows, key=lambda row: row.aof_delayed_fsync or 0, default=None)
    if stalled and stalled.aof_delayed_fsync:
        most = count(stalled.aof_delayed_fsync)
        yield "stalls", f"aof_delayed_fsync up to {most}: {_cell(stalled)}, {stalled.load}"
    yield from _LEGEND


def _cell(row: FsyncRow) -> str:
    return f"N={row.instances} {row.policy} {row.shape} {_disk(row)}"


def _disk(row: FsyncRow) -> str:
    return ("none" if row.policy == "none" else disk_name(row)) + _REWRITTEN[row.rewrite]


def _events(rows: Sequence[FsyncRow]) -> str:
    """The longest of each kind, and where."""
    if any(row.latency_events is None for row in rows):
        return "the servers do not watch (latency-monitor-threshold is 0, or LATENCY is not allowed)"
    found = []
    for name in _EVENTS:
        seen = [(row.latency_events[name].max_ms, _cell(row)) for row in rows if name in (row.latency_events or {})]  # type: ignore[index]
        if seen:
            most_ms, where = max(seen, key=lambda one: one[0])
            found.append(f"{name} up to {most_ms} ms ({where})")
    return "; ".join(found) or f"none of {', '.join(_EVENTS)} took 1 ms"


# -- tables ------------------------------------------------------------------------------------------------------------


def _parts(result: FsyncResult) -> Iterator[Part]:
    left = frozenset({1, 2, 3})
    yield Part(
        "maximum", "closed loop", _MAXIMUM, tuple(_maximum(row) for row in result.rows if row.load == "max"), left
    )
    about = "open loop, Poisson arrivals at 80 % of the maximum, from the intended start"
    yield Part("latency", about, _OPEN, tuple(_open(row) for row in result.rows if row.load == "80%"), left)


def _names(row: FsyncRow) -> tuple[str, ...]:
    return str(row.instances), row.shape, _disk(row), row.policy


def _maximum(row: FsyncRow) -> tuple[str, ...]:
    return (
        *_names(row),
        _rate(row.acquired_per_s, bound=row.generator.bound),
        _deviation(row.acquired_per_s),
        milliseconds(row.acquire_s.p50),
        milliseconds(row.acquire_s.p99),
        _figure(row.fsyncs_per_s),
        _figure(row.locks_per_fsync),
        _figure(row.server_cpu_us_per_lock),
    )


def _rate(rate: Spread | None, *, bound: bool | None) -> str:
    return MISSING if rate is None else ("≥" if bound else "") + count(round(rate.median))


def _deviation(figure: Spread | None) -> str:
    """Half the range over the repeats, in per cent of the median; a dash when there was one repeat."""
    if figure is None or not figure.median or figure.high == figure.low:
        return MISSING
    return f"{(figure.high - figure.low) / 2 / figure.median * 100:.0f} %"


def _figure(figure: Spread | None) -> str:
    return MISSING if figure is None else count(round(figure.median, 1))


def _open(row: FsyncRow) -> tuple[str, ...]:
    kept, took = row.rate / row.offered_per_s.median if row.offered_per_s else 1.0, row.acquire_s
    instead = "" if row.sustained else "queue"
    instead = instead or ("late" if row.generator.reason else "")
    latencies = (instead or milliseconds(value_s) for value_s in (took.p50, took.p99, took.p999, took.max))
    return (*_names(row), *latencies, percent(min(kept, 1.0), 0))


# -- the planner's page ------------------------------------------------------------------------------------------------


def _planner_lines(page: PlannerPage) -> Iterator[tuple[str, str]]:
    yield from (("seen", text) for text in page.advice[1:])
    yield from (("warning", warning) for warning in page.warnings)
    yield "disk", disk_text(page.disk_fdatasync_s)
    yield "beware", CARRY_OVER
    if page.sources.crash:
        offered = page.crash_locks_per_s
        at = f", at {count(offered)} locks/s; at another rate L expect up to L × window" if offered else ""
        yield "lost", f"locks that somebody held and a crash forgot, of the worst power cut tried{at}"
        yield "crash", _OF_CRASHES.format(ttl_s=(page.ttl_ms or 0) / 1000)


def _options(page: PlannerPage) -> Part:
    rows = tuple((*_speed(option), *_lost(option.crash)) for option in page.options)
    about = "p99 at 80 %; lost per crash; grants in so many cuts"
    return Part("speed beside losses", about, (*_SPEED, *_LOSSES), rows, frozenset({1, 2}))


def _speed(option: Option) -> tuple[str, ...]:
    rate = option.acquired_per_s
    p99 = milliseconds(option.p99_s) if option.sustained else "queue" if option.sustained is False else MISSING
    speed = _rate(rate, bound=option.generator_bound)
    return str(option.instances), option.policy, option.restart or MISSING, speed, _deviation(rate), p99


def _lost(crash: LossesSeen | None) -> tuple[str, ...]:
    if crash is None:
        return (MISSING,) * len(_LOSSES)
    return (
        count(round(crash.lost_per_cut.median)),
        count(crash.lost_per_cut.max),
        decimals(crash.lost_window_max_s),
        f"{count(crash.double_grants)} in {count(crash.cuts)}",
        f"{crash.unavailable_s.max:.1f}",
    )


# -- pictures ----------------------------------------------------------------------------------------------------------


def figures(result: FsyncResult) -> list[Figure]:
    """What each choice gives and loses, and what always costs by callers, as far as there are figures for them."""
    return [figure for figure in (_choices(result.planner), _costs(result.costs)) if figure]


def _choices(page: PlannerPage) -> Figure | None:
    known = [(one, one.acquired_per_s, one.crash) for one in page.options]
    points = [(one, rate.median, crash.lost_per_cut.max or 0.5) for one, rate, crash in known if rate and crash]
    if not points:
        return None
    about = (
        "Planner: most locks lost in one crash against the maximum rate, both log scale, by policy from few to many "
        "instances; 0.5 stands for none; rings: the load was the limit"
    )
    used = {one.policy for one, *_ in points}
    marks: list[Mark] = []
    for policy in sorted(used):
        of_it = sorted((one.instances, rate, lost) for one, rate, lost in points if one.policy == policy)
        marks.append(Line([rate for _, rate, _ in of_it], [lost for *_, lost in of_it], _STYLE_OF[policy]))
    marks += [Spot(rate, lost, _STYLE_OF[one.policy], hollow=bool(one.generator_bound)) for one, rate, lost in points]
    x = logarithmic([rate for _, rate, _ in points], *X_RANGE)
    y = logarithmic([0.5, 1.0, *(lost for *_, lost in points)], *Y_RANGE)
    names = "most locks per second (log scale)", "locks lost (log scale)"
    title = page.advice[0]
    picture = plot(Axes(x, y, *names, number_tick, number_tick), marks, name=title, about=about)
    columns = (("instances", "count"), ("policy", "text"), ("restart", "text"), ("acquired_per_s", "per_s"))
    rows: list[list[Cell]] = [[one.instances, one.policy, one.restart, rate, lost] for one, rate, lost in points]
    data = Data((*(Column(*column) for column in columns), Column("value", "count", names[1])), rows)
    keys = tuple(Legend(style, policy, area=True) for policy, style in _STYLE_OF.items() if policy in used)
    return Figure("planner-losses", title, about, picture, data, keys)


def _costs(costs: Sequence[AlwaysCost]) -> Figure | None:
    known = sorted((cost for cost in costs if cost.ratio), key=lambda cost: cost.callers)
    if not known:
        return None
    x = logarithmic([cost.callers for cost in known], *X_RANGE)
    y = logarithmic([1.0, *(cost.ratio for cost in known)], *Y_RANGE)
    groups: dict[str, list[AlwaysCost]] = {}
    for cost in known:
        groups.setdefault(f"N={cost.instances}, {disk_name(cost)} fsync", []).append(cost)
    marks: list[Mark] = [Line([x.low, x.high], [1.0, 1.0], "c5")]
    keys = []
    for (name, row), style in zip(groups.items(), cycle(_STYLES)):
        marks.append(Line([cost.callers for cost in row], [cost.ratio for cost in row], style))
        marks += [Spot(cost.callers, cost.ratio, style, hollow=cost.generator_bound) for cost in row]
        keys.append(Legend(style, name))
    ends = (pick(known, key=lambda cost: cost.ratio) for pick in (min, max))
    cheap, dear = (f"{cost.price} ({counted(cost.callers, 'caller')})" for cost in ends)
    title = f"always costs between {cheap} and {dear}"
    about = "Acquires/s with everysec ÷ with always, by callers, log scales; 1: no cost; rings: the load was the limit"
    axes = Axes(x, y, "callers (log scale)", "everysec ÷ always (log scale)", number_tick, number_tick)
    names = ("instances", "clients", "pipeline", "injected_ms", "callers", "ratio")
    data = Data(
        tuple(Column(name, "count") for name in names), [[getattr(cost, name) for name in names] for cost in known]
    )
    return Figure("costs", title, about, plot(axes, marks, name=title, about=about), data, tuple(keys))
