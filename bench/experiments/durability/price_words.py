"""Turns a result of `lockbench fsync` into texts. The texts show the price of `always`, the choices
of the planner and the measurements. If the servers fell behind a load, the table shows no latency
for this load. Tables fit 80 columns.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from bench.errors import UsageError
from bench.experiments.durability.loss_result import CrashResult
from bench.experiments.durability.planner import apart, plan_page
from bench.experiments.durability.planner_words import (
    advice_lines,
    options,
    prices,
    servers_of,
)
from bench.experiments.durability.policies import terms
from bench.experiments.durability.price_result import (
    AlwaysCost,
    CostRange,
    FsyncResult,
    FsyncRow,
    PlannerPage,
)
from bench.measure.expectation import ROW_WORDS
from bench.report.answer import Answer
from bench.report.figures import counted, latency, milliseconds
from bench.report.html.plot import Bar, Figure, data_of, forest
from bench.report.html.scale import logarithmic, number_tick
from bench.report.junit import Case, Suite, suite_of
from bench.report.sheet import Columns, KeyFigure, Part, Sheet, made, sheet_of, table_of


def beside(losses: Answer[CrashResult], result: FsyncResult, folder: Path) -> FsyncResult:
    """Read the newest crash result in `folder`. Return a copy of `result` that also contains the
    losses in this crash result. If `result` already has losses, return `result` unchanged. If the
    crash result cannot be read, or if the two results do not fit together, add a warning instead of
    the losses.
    """
    if result.planner.ttl_ms:
        return result
    try:
        crash = losses.newest(folder)
        why = apart(result, crash) if crash else ""
    except UsageError as error:
        return _warned(result, str(error))
    if why:
        return _warned(result, f"this page does not show the losses, because {why}")
    return replace(result, planner=plan_page(result.rows, crash))


def _warned(result: FsyncResult, warning: str) -> FsyncResult:
    return replace(result, warnings=(*result.warnings, warning))


def sheet(result: FsyncResult, place: str = "") -> Sheet:
    """Return the summary of `result`. The summary contains the price of `always` and the choices of
    the planner. `place` is the path of the stored result, or "" if the result is not stored.
    """
    page = result.planner
    expected = (
        ("as expected", finding.text)
        for finding in result.findings
        if finding.verdict == "as expected"
    )
    costs = f"the policy always costs {page.always_costs}"
    return sheet_of(
        result,
        place,
        headline=costs
        if page.always_costs
        else "the cost of the policy always is not known on this machine",
        conditions=_conditions(result),
        parts=(prices(result), options(page), _measured(result)),
        lines=(*advice_lines(page), *expected),
        keys=_keys(page),
    )


def _conditions(result: FsyncResult) -> Sequence[str]:
    conditions = result.conditions
    return (
        servers_of(result),
        f"{conditions.visits_done} of {conditions.visits_planned} visits, made in random order",
        f"{conditions.seconds:g} s per load",
        *made(result, " shared by load and servers"),
    )


def _keys(page: PlannerPage) -> Iterator[KeyFigure]:
    """Yield the known key figures. The key figures are the lowest price of `always`, the highest
    price of `always`, and the time for an fsync of the disk.
    """
    if costs := page.always_costs:
        yield KeyFigure("lowest price", costs.least.price, costs.least.place)
        yield KeyFigure("highest price", costs.most.price, costs.most.place)
    if disk := page.disk_fdatasync_s:
        bound = f"p99 {latency(disk.p99)}"
        yield KeyFigure("fsync of this disk", f"p50 {latency(disk.p50)}", bound)


def suite(result: FsyncResult) -> Suite:
    """Return one JUnit case per finding."""
    cases = [
        Case(f"{finding.name}: {finding.cell}", ROW_WORDS[finding.verdict].status, finding.text)
        for finding in result.findings
        # Findings that were not judged are left out.
        if finding.verdict in ROW_WORDS
    ]
    return suite_of(result, cases)


def _measured(result: FsyncResult) -> Part:
    """Return a table with the maximum rate of each cell, and with the latency at 80 % of this
    rate."""
    opened = {str(row): row for row in result.rows if row.load == "80%" and row.kept_up}
    rows = [row for row in result.rows if row.load == "max"]
    shared = sorted({(row.callers, row.clients) for row in rows if row.pipeline > 1})
    about = "locks/s with all callers at work; p50 and p99 of an acquire at 80 % of this rate"
    about += "".join(
        f"; {callers} callers share {counted(clients, 'connection')}" for callers, clients in shared
    )
    about += (
        "; – means that there are too few samples, or that the load fell behind or started "
        "late; ≥ means that the load process was at its limit"
    )

    def took(figure: str, row: FsyncRow) -> str:
        return milliseconds(
            getattr(opened[str(row)].acquire_s, figure) if str(row) in opened else None
        )

    columns: Columns[FsyncRow] = (
        "instances",
        "callers",
        "held",
        "file_disk",
        "policy",
        "rate_text",
        "interval",
        *((f"{figure}\nms", partial(took, figure)) for figure in ("p50", "p99")),
        "locks_per_fsync",
    )
    words = terms("disk", "appendfsync")
    return table_of(FsyncRow, "Measured", about, rows, columns, terms=words)


def figures(result: FsyncResult) -> list[Figure]:
    """Return a picture of all known prices of `always`, with one bar per cell."""
    costs = [cost for cost in result.costs if cost.is_known]
    if not costs:
        return []
    bars = [
        Bar(
            cost.place,
            cost.ratio,
            cost.low,
            cost.high,
            cost.price,
            *(("bad", "costs, 95 % sure") if (cost.low or 0) > 1 else ("c5", "may cost nothing")),
        )
        for cost in costs
    ]
    about = (
        "Each row shows acquires/s with everysec ÷ acquires/s with always and the 95 % "
        "interval, for one N, number of callers, hold time and disk"
    )
    ends = [1.0, *(end for cost in costs for end in (cost.low, cost.high) if end)]
    paths = ("instances", "callers", "held", "disk", "ratio", "low", "high")
    columns, rows = data_of(AlwaysCost, costs, paths)
    return [
        forest(
            "costs",
            f"the policy always costs {CostRange.of(costs)}",
            about,
            bars=bars,
            x=logarithmic(ends, "everysec ÷ always (log scale)", number_tick),
            columns=columns,
            rows=rows,
            lines=[(1.0, "no cost")],
        )
    ]
