"""What `lockbench fsync` and `lockbench planner` say: *a result → tables, findings, advice*. A latency of a load that
was not sustained is not shown; what was not measured, or has no interval, is an en dash. Tables fit 80 columns."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from bench.errors import UsageError
from bench.experiments.crash.result import CrashResult
from bench.experiments.fsync.judge import rate_interval
from bench.experiments.fsync.planner import apart, judge_page, plan_page
from bench.experiments.fsync.result import (
    AlwaysCost,
    CostRange,
    DiskFigures,
    FsyncResult,
    FsyncRow,
    Option,
    PlannerPage,
)  # fmt: skip
from bench.measure.expectation import ROW_WORDS
from bench.measure.run_result import servers_text
from bench.measure.statistics import Spread
from bench.measure.verdict import word_of
from bench.report.figures import MISSING, count, latency, milliseconds
from bench.report.html.plot import Bar, Column, Figure, forest
from bench.report.html.scale import logarithmic, number_tick
from bench.report.kinds import newest_result
from bench.report.sheet import Case, Columns, Part, Sentence, Sheet, Suite, made, sheet_of, table

CARRY_OVER = (
    "absolute rates do not carry over to another machine, disk or client; the order of the policies does, and the row "
    "whose latency is nearest to that of your own disk (lockbench doctor measures it)"
)
_REWRITTEN = {"off": "", "on": " R", "on-no-sync": " R!"}
MEMORY_S = 5e-6  # an fdatasync of a file in memory takes less


def beside(result: FsyncResult, folder: Path) -> FsyncResult:
    """Return it with the losses of the newest crash result right below `folder`, if it has none of its own. Where those
    are refused or are of another machine, a warning says so."""
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
    """Return the planner's page, then the figures it rests on; `result` is stored at `place` ("" = nowhere)."""
    page = result.planner
    expected = [("as expected", finding.text) for finding in result.findings if finding.verdict == "as expected"]
    own = [("advice", page.advice[0]), *_planner_lines(page), *expected]
    headline = f"always costs {page.always_costs}" if page.always_costs else "what always costs is not known here"
    return sheet_of(
        result, place, kind="fsync", headline=headline, conditions=_conditions(result),
        parts=(_options(page), _prices(result), _measured(result)), lines=dict.fromkeys(own),
    )  # fmt: skip


def planner_sheet(result: FsyncResult, sources: Sequence[str] = ()) -> Sheet:
    """Return the planner's page alone, its advice first. `sources`: which results it was made of."""
    page, verdict = result.planner, judge_page(result.planner)
    word = word_of("planner", verdict)
    conditions = f"{_server(result) or 'your servers'} · p99 from the intended start"
    lines = [*(("because", reason) for reason in verdict.reasons), *_planner_lines(page)]
    lines += [("made of", source) for source in sources]
    if result.conditions.scenario:
        lines.append(("of", result.conditions.scenario))
    parts = (_options(page), _prices(result))
    once = tuple(Sentence(*line) for line in dict.fromkeys(lines))
    return Sheet(word.text, word.colour, page.advice[0], conditions, parts, once)


def suite(result: FsyncResult) -> Suite:
    """The findings as test cases."""
    cases = [
        Case(f"{finding.name}: {finding.cell}", ROW_WORDS[finding.verdict].status, finding.text)
        for finding in result.findings
        if finding.verdict in ROW_WORDS  # not those that were not judged, and what is the server's fault
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
    return ("none" if row.policy == "none" else row.disk) + _REWRITTEN[row.rewrite]


Measured = tuple[FsyncRow, FsyncRow | None]  # of a cell its maximum, and the open loop at 80 % of that
_ROWS: Columns[Measured] = (
    ("N", lambda pair: str(pair[0].instances)),
    ("callers", lambda pair: pair[0].shape),
    ("fsync", lambda pair: _disk(pair[0])),
    ("policy", lambda pair: pair[0].policy),
    ("locks/s", lambda pair: _rate(pair[0].acquired_per_s, bound=pair[0].generator.bound)),
    ("95 % sure", lambda pair: _interval(rate_interval(pair[0]), bound=pair[0].generator.bound)),
    ("p50\nms", lambda pair: _took(pair[1], "p50")),
    ("p99\nms", lambda pair: _took(pair[1], "p99")),
    ("locks\n/fsync", lambda pair: _per_fsync(pair[0].locks_per_fsync)),
)
_COSTS: Columns[AlwaysCost] = (
    ("N", lambda cost: str(cost.instances)),
    ("callers", lambda cost: cost.shape),
    ("fsync", lambda cost: cost.disk),
    ("always costs", lambda cost: f"{cost.ratio:.3g}×" if cost.is_known else MISSING),
    ("95 % sure", lambda cost: cost.interval if cost.is_known else MISSING),
    ("pairs", lambda cost: str(cost.pairs)),
)
_OPTIONS: Columns[Option] = (
    ("N", lambda one: str(one.instances)),
    ("policy", lambda one: one.policy),
    ("restart", lambda one: one.restart or MISSING),
    ("locks/s", lambda one: _rate(one.acquired_per_s, bound=one.generator_bound)),
    ("95 % sure", lambda one: _interval(one.rate_interval, bound=one.generator_bound)),
    ("p99\nms", lambda one: milliseconds(one.p99_s) if one.sustained is not False else "queue"),
    ("lost,\nmost", lambda one: count(one.crash.lost_per_cut.max) if one.crash else MISSING),
    ("double\ngrants", lambda one: f"{one.crash.double_grants:,} in {one.crash.cuts:,}" if one.crash else MISSING),
    ("no lock\ns", lambda one: f"{one.crash.unavailable_s.max:.1f}" if one.crash else MISSING),
)


def _prices(result: FsyncResult) -> Part:
    return table("what always costs", "everysec's locks/s ÷ always's, turn by turn", _COSTS, result.costs, (1, 2))


def _measured(result: FsyncResult) -> Part:
    opened = {str(row): row for row in result.rows if row.load == "80%"}
    pairs = [(row, opened.get(str(row))) for row in result.rows if row.load == "max"]
    about = "locks/s in closed loop, latency at 80 % of it; R: while the AOF is rewritten, R!: and not synced"
    return table("measured", about, _ROWS, pairs, (1, 2, 3))


def _took(opened: FsyncRow | None, figure: str) -> str:
    if opened is None:
        return MISSING
    instead = "queue" if not opened.sustained else "late" if opened.generator.reason else ""
    return instead or milliseconds(getattr(opened.acquire_s, figure))


def _per_fsync(locks: Spread | None) -> str:
    return MISSING if locks is None else count(round(locks.median, 1))


def _rate(rate: Spread | None, *, bound: bool | None) -> str:
    return MISSING if rate is None else ("≥" if bound else "") + count(round(rate.median))


def _interval(interval: tuple[float, float] | None, *, bound: bool | None) -> str:
    """Of what the servers do: a load process at its limit says nothing about that."""
    return MISSING if interval is None or bound else f"{count(round(interval[0]))}–{count(round(interval[1]))}"


def _planner_lines(page: PlannerPage) -> Iterator[tuple[str, str]]:
    for label, texts in (("seen", page.advice[1:]), ("not known", page.unmeasured), ("warning", page.warnings)):
        yield from ((label, text) for text in texts)
    yield "disk", disk_text(page.disk_fdatasync_s)
    yield "beware", CARRY_OVER
    if page.ttl_ms:
        at = f", at {count(page.crash_locks_per_s)} locks/s; expect as many times more as your rate is higher"
        yield "lost", f"locks that somebody held and a crash forgot, of the worst power cut tried (none: any end){at}"
        yield "crash", f"a delayed restart waits out the TTL, here {page.ttl_ms / 1000:g} s: its price grows with yours"


def _options(page: PlannerPage) -> Part:
    load = page.reference
    at = f"{load.shape} callers, {load.disk}; " if load else ""
    return table("policies", f"{at}lost and no lock: per crash", _OPTIONS, page.options, (1, 2))


def figures(result: FsyncResult) -> list[Figure]:
    """What always costs, cell by cell, as far as it is known."""
    known = sorted((cost for cost in result.costs if cost.is_known), key=lambda cost: cost.ratio)
    if not known:
        return []
    bars = [
        Bar(
            f"N={cost.instances}, {cost.shape}, {cost.disk}", cost.ratio, cost.low, cost.high, cost.price,
            *(("bad", "costs, 95 % sure") if (cost.low or 0) > 1 else ("c5", "may cost nothing")),
        )
        for cost in result.costs if cost.is_known
    ]  # fmt: skip
    title = f"always costs {CostRange(least=known[0], most=known[-1])}"
    about = "Acquires/s with everysec ÷ with always, 95 % sure; by N, connections × callers of each, hold, fsync"
    ends = [1.0, *(end for cost in known for end in (cost.low, cost.high) if end)]
    x = logarithmic(ends, "everysec ÷ always (log scale)", number_tick)
    names = ("instances", "clients", "pipeline", "injected_ms", "callers", "ratio", "low", "high")
    columns, rows = (
        [Column(name, "count") for name in names],
        [[getattr(cost, name) for name in names] for cost in known],
    )
    return [forest("costs", title, about, bars=bars, x=x, columns=columns, rows=rows, lines=[(1.0, "no cost")])]
