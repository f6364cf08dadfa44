"""What `lockbench fsync` and `lockbench planner` say: *a result → advice, pictures, tables,
findings*. A latency of a load that was not sustained is not shown; what was not measured, or has no
interval, is an en dash. Tables fit 80 columns."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from bench.errors import UsageError
from bench.experiments.durability.advice import (
    Tried,
    Way,
    choices,
    key_figures,
    place_text,
    tried_ways,
    wait_s,
    wait_text,
)
from bench.experiments.durability.loss_result import CrashResult, Restart
from bench.experiments.durability.planner import apart, judge_page, plan_page
from bench.experiments.durability.price_judge import rate_interval
from bench.experiments.durability.price_result import (
    AlwaysCost,
    CostRange,
    DiskFigures,
    FsyncResult,
    FsyncRow,
    LossesSeen,
    Option,
    PlannerPage,
    Setup,
)
from bench.measure.expectation import ROW_WORDS
from bench.measure.server_facts import servers_text
from bench.measure.statistics import Spread
from bench.measure.verdict import word_of
from bench.report.figures import MISSING, count, counted, latency, milliseconds, percent
from bench.report.html.plot import Bar, Column, Figure, Measure, Panel, forest, panels
from bench.report.html.run_page import Chapter, Page
from bench.report.html.scale import logarithmic, number_tick
from bench.report.junit import Case, Suite
from bench.report.kinds import newest_result
from bench.report.sheet import (
    NOT_MEASURED,
    TO_DO,
    Columns,
    KeyFigure,
    Part,
    Sentence,
    Sheet,
    made,
    sheet_of,
    table,
)

CARRY_OVER = (
    "absolute rates do not carry over to another machine, disk or client; the order of "
    "the policies does, and the row "
    "whose latency is nearest to that of your own disk (lockbench doctor measures it)"
)
TERMS = {
    "appendfsync": "when Redis syncs its append-only file to the disk: never "
    "by itself (no), once a "
    "second (everysec), "
    "before each reply (always); none: there is no such file",
    "granted twice": "a second client got a lock while the lease of the first was valid",
    "restart": "at once: the server starts again as soon as it has ended; delayed: only when the "
    "longest TTL is over",
    "clients abstain": "clients do not count the votes of a restarted server before "
    "the longest TTL is over",
    "disk": "raw: as it is; +2 ms: every fsync was made to take 2 ms longer, as cloud volumes do",
}
# An fdatasync of a file in memory takes less than this.
MEMORY_S = 5e-6


def beside(result: FsyncResult, folder: Path) -> FsyncResult:
    """Return it with the losses of the newest crash result right below `folder`, if it has none of
    its own. Where those are refused or are of another machine, a warning says so."""
    if result.planner.ttl_ms:
        return result
    try:
        crash = newest_result(folder, "crash", CrashResult)
        why = apart(result, crash) if crash else ""
    except UsageError as error:
        return _warned(result, str(error))
    if crash is None:
        return result
    if why:
        return _warned(result, f"the losses beside it are left out: {why}")
    return msgspec.structs.replace(result, planner=plan_page(result.rows, crash))


def _warned(result: FsyncResult, warning: str) -> FsyncResult:
    return msgspec.structs.replace(result, warnings=(*result.warnings, warning))


def sheet(result: FsyncResult, place: str = "") -> Sheet:
    """Return what a policy costs, then the planner's choices; `result` is stored at `place` ("" =
    nowhere)."""
    page = result.planner
    expected = [
        ("as expected", finding.text)
        for finding in result.findings
        if finding.verdict == "as expected"
    ]
    headline = (
        f"always costs {page.always_costs}"
        if page.always_costs
        else "what always costs is not known here"
    )
    return sheet_of(
        result,
        place,
        kind="fsync",
        headline=headline,
        conditions=_conditions(result),
        parts=(_prices(result), _options(page), _measured(result)),
        lines=dict.fromkeys([*_advice_lines(page), *_notes(page), *expected]),
        keys=_cost_keys(page),
    )


def planner_sheet(result: FsyncResult, sources: Sequence[str] = ()) -> Sheet:
    """Return the planner's page alone, its advice first.

    `sources`: which results it was made of.
    """
    page = result.planner
    verdict = judge_page(result.planner)
    word = word_of("planner", verdict)
    conditions = f"{_server(result) or 'your servers'} · p99 from the intended start"
    reasons = [Sentence("because", reason) for reason in verdict.reasons]
    lines = [*reasons, *_advice_lines(page), *_notes(page)]
    lines += [Sentence("made of", source) for source in sources]
    if result.conditions.scenario:
        lines.append(Sentence("scenario", result.conditions.scenario))
    parts = (_options(page), _prices(result))
    keys = tuple(KeyFigure(*figure) for figure in key_figures(page))
    once = tuple(dict.fromkeys(lines))
    return Sheet(word.text, word.colour, page.advice[0], conditions, parts, once, keys=keys)


def planner_page(result: FsyncResult, sources: Sequence[str] = (), repeat: str = "") -> Page:
    """Return the page of the planner: the answer, price against loss, what to do, the tables."""
    page_sheet = planner_sheet(result, sources)
    drawn = choice_figure(result.planner)
    pictures = (Chapter("Price against loss", (drawn,)),) if drawn else ()
    tables = (Chapter(part.name, (), (part,), "sheet") for part in page_sheet.parts)
    title = f"{page_sheet.verdict} · planner · {result.started_at[:16].replace('T', ' ')}"
    return Page(title, page_sheet, (*pictures, *tables), repeat)


def suite(result: FsyncResult) -> Suite:
    """The findings as test cases."""
    cases = [
        Case(f"{finding.name}: {finding.cell}", ROW_WORDS[finding.verdict].status, finding.text)
        for finding in result.findings
        # Findings that were not judged are left out.
        if finding.verdict in ROW_WORDS
    ]
    return Suite("fsync", result.started_at, result.duration_s, cases, {"id": result.id})


def disk_text(disk: DiskFigures | None) -> str:
    """What the disk is like, and what that means."""
    if disk is None:
        return "not known: fdatasync can only be measured where the files of the servers lie"
    like = "this is memory, no disk; " if disk.p50 < MEMORY_S else ""
    cloud = "cloud volumes take 0.5–10 ms, which the added latencies imitate"
    return f"fdatasync p50 {latency(disk.p50)}, p99 {latency(disk.p99)}; {like}{cloud}"


def _server(result: FsyncResult) -> str:
    server = result.fleet.server
    return f"{server.name} {server.version}" if server else ""


def _own_servers(result: FsyncResult) -> str:
    instances = result.fleet.instances or ()
    names = servers_text(instances)
    return f"{len(instances)} of your servers" + (f" ({names})" if names else "")


def _conditions(result: FsyncResult) -> Sequence[str]:
    conditions = result.conditions
    return (
        _server(result) or _own_servers(result),
        f"{conditions.visits_done} of {conditions.visits_planned} visits in random order",
        f"{conditions.seconds:g} s per load",
        *made(result, " shared by load and servers"),
    )


def _disk(row: FsyncRow) -> str:
    return "none" if row.policy == "none" else row.disk


def _hold(setup: Setup) -> str:
    return "–" if setup.hold == "0" else setup.hold.removeprefix("fixed:").replace("exp:", "≈")


def _ratio(cost: AlwaysCost) -> str:
    return f"{cost.ratio:.3g}×" if cost.is_known else MISSING


def _sure(cost: AlwaysCost) -> str:
    return cost.interval if cost.is_known else MISSING


def _way(option: Option) -> str:
    return _WAYS[option.restart, option.abstention] if option.restart else MISSING


def _of_crash(shown: Callable[[LossesSeen], str]) -> Callable[[Option], str]:
    """A column that shows an option's losses, where it was crashed."""
    return lambda option: shown(option.crash) if option.crash else MISSING


# a cell's row at its maximum, and its row in the open loop at 80 % of that
Measured = tuple[FsyncRow, FsyncRow | None]
_ROWS: Columns[Measured] = (
    ("N", lambda pair: str(pair[0].instances)),
    ("callers", lambda pair: count(pair[0].callers)),
    ("hold", lambda pair: _hold(pair[0])),
    ("disk", lambda pair: _disk(pair[0])),
    ("policy", lambda pair: pair[0].policy),
    ("locks/s", lambda pair: _rate(pair[0].acquired_per_s, bound=pair[0].generator.bound)),
    ("95 % sure", lambda pair: _interval(rate_interval(pair[0]), bound=pair[0].generator.bound)),
    ("p50\nms", lambda pair: _took(pair[1], "p50")),
    ("p99\nms", lambda pair: _took(pair[1], "p99")),
    ("locks\n/fsync", lambda pair: _per_fsync(pair[0].locks_per_fsync)),
)
_COSTS: Columns[AlwaysCost] = (
    ("N", lambda cost: str(cost.instances)),
    ("callers", lambda cost: count(cost.callers)),
    ("hold", _hold),
    ("disk", lambda cost: cost.disk),
    ("always costs", _ratio),
    ("95 % sure", _sure),
    ("pairs", lambda cost: str(cost.pairs)),
)
_WAYS = {
    ("at-once", False): "at once",
    ("at-once", True): "at once, clients abstain",
    ("delayed", False): "delayed",
}
_OPTIONS: Columns[Option] = (
    ("N", lambda one: str(one.instances)),
    ("policy", lambda one: one.policy),
    ("restart", _way),
    ("locks\n/s", lambda one: _rate(one.acquired_per_s, bound=one.generator_bound)),
    ("p99\nms", lambda one: milliseconds(one.p99_s)),
    ("locks\nlost", _of_crash(lambda losses: count(losses.lost_per_cut.max))),
    (
        "granted\ntwice",
        _of_crash(lambda losses: f"{losses.double_grants:,} of {losses.asked:,}"),
    ),
    ("cuts", _of_crash(lambda losses: count(losses.cuts))),
    ("no new\nlocks s", _of_crash(lambda losses: f"{losses.unavailable_s.max:.1f}")),
)


def _prices(result: FsyncResult) -> Part:
    about = (
        "everysec's locks/s ÷ always's, in turns on the same servers; pairs: turns that were "
        "compared"
    )
    about += "; – : no interval, or the load process was the limit" * any(
        not cost.is_known for cost in result.costs
    )
    return table(
        "What always costs",
        about,
        _COSTS,
        result.costs,
        (2, 3),
        terms=_terms("disk", "appendfsync"),
    )


def _measured(result: FsyncResult) -> Part:
    opened = {str(row): row for row in result.rows if row.load == "80%"}
    pairs = [(row, opened.get(str(row))) for row in result.rows if row.load == "max"]
    shared = sorted({(row.callers, row.clients) for row, _ in pairs if row.pipeline > 1})
    about = "locks/s with all callers at work; p50 and p99 of an acquire at 80 % of that"
    about += "".join(
        f"; {callers} callers share {counted(clients, 'connection')}" for callers, clients in shared
    )
    about += (
        "; – : too few samples, or the load fell behind or started late; ≥: the load process "
        "was the limit"
    )
    return table("Measured", about, _ROWS, pairs, (2, 3, 4), terms=_terms("disk", "appendfsync"))


def _terms(*names: str) -> dict[str, str]:
    return {name: TERMS[name] for name in names}


def _took(opened: FsyncRow | None, figure: str) -> str:
    if opened is None or not opened.sustained or opened.generator.reason:
        return MISSING
    return milliseconds(getattr(opened.acquire_s, figure))


def _per_fsync(locks: Spread | None) -> str:
    return MISSING if locks is None else count(round(locks.median, 1))


def _rate(rate: Spread | None, *, bound: bool | None) -> str:
    if rate is None:
        return MISSING
    return ("≥" if bound else "") + count(round(rate.median))


def _interval(interval: tuple[float, float] | None, *, bound: bool | None) -> str:
    """Of what the servers do: a load process at its limit says nothing about that."""
    return (
        MISSING
        if interval is None or bound
        else f"{count(round(interval[0]))}–{count(round(interval[1]))}"
    )


def _advice_lines(page: PlannerPage) -> Iterator[Sentence]:
    """What to do, and what nothing is known of; doubts before them."""
    yield from (Sentence("warning", text) for text in page.warnings)
    advice = choices(page) or [("next", page.advice[0])]
    yield from (Sentence(label, text, "", TO_DO) for label, text in advice)
    yield from (Sentence("not measured", text, "", NOT_MEASURED) for text in page.unmeasured)


def _notes(page: PlannerPage) -> Iterator[Sentence]:
    yield Sentence("disk", disk_text(page.disk_fdatasync_s))
    yield Sentence("carries over", CARRY_OVER)
    if page.ttl_ms:
        at = (
            f", at {count(page.crash_locks_per_s)} locks/s; expect as many times more as "
            "your rate is higher"
        )
        yield Sentence(
            "locks lost",
            f"held by somebody and forgotten by a crash, the most of one power cut{at}",
        )


def _cost_keys(page: PlannerPage) -> Iterator[KeyFigure]:
    """Of `lockbench fsync`: the least and the most that always costs, and the disk."""
    if costs := page.always_costs:
        yield KeyFigure("least", costs.least.price, place_text(costs.least))
        yield KeyFigure("most", costs.most.price, place_text(costs.most))
    if disk := page.disk_fdatasync_s:
        yield KeyFigure(
            "fsync of this disk", f"p50 {latency(disk.p50)}", f"p99 {latency(disk.p99)}"
        )


def _options(page: PlannerPage) -> Part:
    load = page.reference
    at = f"speed: {load.load_text}, disk {load.disk}; " if load else ""
    about = f"{at}losses: the worst power cut (none: any end)"
    terms = _terms("appendfsync", "restart", "clients abstain", "granted twice")
    return table(
        "Price and loss of each choice", about, _OPTIONS, page.options, (1, 2), terms=terms
    )


_GROUPS: dict[tuple[Restart, bool], str] = {
    ("delayed", False): "Restart delayed past the longest TTL",
    ("at-once", True): "Restarted at once, clients abstain",
    ("at-once", False): "Restarted at once, clients trust it",
}


def choice_figure(page: PlannerPage) -> Figure | None:
    """Price against loss: of each way the share of locks granted twice, the wait after a crash, the
    speed."""
    shown = [
        one
        for one in page.options
        if one.instances == page.shown_instances and one.crash and one.restart
    ]
    if not shown:
        return None
    groups = []
    rows = []
    for key, heading in _GROUPS.items():
        named = []
        for one in shown:
            if one.crash and one.restart and (one.restart, one.abstention) == key:
                tried = Tried(Way(one.policy, *key), (one.crash,))
                named.append((one.policy, _choice_measures(page, one, tried)))
                speed = one.acquired_per_s.median if one.acquired_per_s else None
                measured = (
                    tried.double_grants,
                    tried.asked,
                    tried.cuts,
                    wait_s(page, tried),
                    speed,
                )
                rows.append([one.policy, *key, one.instances, *measured])
        if named:
            groups.append((heading, named))
    ways = tried_ways(page)
    safe = sum(tried.is_safe for tried in ways)
    title = (
        f"{safe} of {len(ways)} ways granted no lock twice: they cost waiting after a crash, "
        "or speed"
    )
    load = (
        f"speed with {page.reference.load_text}, disk {page.reference.disk}"
        if page.reference
        else "speed not known"
    )
    about = f"N={page.shown_instances}; after power cuts (none: any end); {load}"
    heads = [
        Panel("granted twice", "% of locks"),
        Panel("no new locks", "s, at most"),
        Panel("speed", "acquires/s"),
    ]
    names = (
        "policy",
        "restart",
        "abstention",
        "instances",
        "double_grants",
        "asked",
        "cuts",
        "unavailable_s",
        "per_s",
    )
    columns = [Column(name, "text") for name in names]
    return panels("choices", title, about, heads=heads, groups=groups, columns=columns, rows=rows)


def _choice_measures(page: PlannerPage, one: Option, tried: Tried) -> list[Measure]:
    """Of one N: the share of locks granted twice, the wait after a crash, the speed."""
    (losses,) = tried.losses
    speed = one.acquired_per_s
    twice = losses.double_grants / losses.asked if losses.asked else 0.0
    shown = Measure(twice, "none", "good", "no lock granted twice")
    if losses.double_grants:
        shown = Measure(twice, percent(twice, 0), "bad", "locks granted twice")
    waited = wait_text(page, tried, "TTL+").removesuffix(" s")
    median = speed.median if speed else None
    return [
        shown,
        Measure(wait_s(page, tried), waited, "c3", "time without new locks"),
        Measure(median, _rate(speed, bound=one.generator_bound), "c1", "speed"),
    ]


def figures(result: FsyncResult) -> list[Figure]:
    """What always costs, cell by cell, as far as it is known."""
    known_costs = sorted(
        (cost for cost in result.costs if cost.is_known), key=lambda cost: cost.ratio
    )
    if not known_costs:
        return []
    bars = [
        Bar(
            f"N={cost.instances}, {_short(cost)}",
            cost.ratio,
            cost.low,
            cost.high,
            cost.price,
            *(("bad", "costs, 95 % sure") if (cost.low or 0) > 1 else ("c5", "may cost nothing")),
        )
        for cost in result.costs
        if cost.is_known
    ]
    title = f"always costs {CostRange(least=known_costs[0], most=known_costs[-1])}"
    about = (
        "Acquires/s with everysec ÷ with always, 95 % sure; by N, callers and how long they "
        "hold, disk"
    )
    ends = [1.0, *(end for cost in known_costs for end in (cost.low, cost.high) if end)]
    x = logarithmic(ends, "everysec ÷ always (log scale)", number_tick)
    names = ("instances", "clients", "pipeline", "injected_ms", "callers", "ratio", "low", "high")
    columns = [Column(name, "count") for name in names]
    rows = [[getattr(cost, name) for name in names] for cost in known_costs]
    return [
        forest(
            "costs",
            title,
            about,
            bars=bars,
            x=x,
            columns=columns,
            rows=rows,
            lines=[(1.0, "no cost")],
        )
    ]


def _short(cost: AlwaysCost) -> str:
    hold = "" if cost.hold == "0" else f", {_hold(cost)}"
    return f"{counted(cost.callers, 'caller')}{hold}, {cost.disk}"
