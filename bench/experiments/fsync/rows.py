"""What an fsync policy costs: *visits of cells → a row per cell and load, with spread; pairs of rows → a cost*.

Rules: pure. Histograms of repeats are merged, percentiles never averaged; a figure with a spread is the median over the
repeats with the lowest and highest beside it. What a server did is divided by the leases of the same time. fsyncs are
per instance. An open load is sustained unless it fell behind its schedule by more than 1 % and more than chance. A load
process that ran or waited for a core 0.9 of the time was the limit. Source: README, "Choosing an fsync policy".
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from bench.experiments.fsync.result import (
    POLICIES,
    AlwaysCost,
    DiskFigures,
    FsyncCell,
    FsyncRow,
    LoadName,
    LoadProcessFigures,
    LoadSeen,
    Spread,
    VisitSeen,
    WaitaofCounts,
)  # fmt: skip
from bench.measure.generator import BUSY_CORE, LATENESS_SHARE, LITTLE_TOLERANCE, LITTLE_USERS
from bench.measure.histogram import Histogram
from bench.measure.latency import Latency, SlowEvent
from bench.measure.run_result import SyncLatency

BEHIND_SHARE = 0.01
BEHIND_SIGMAS = 2.0  # of the number of arrivals, which is a Poisson count

Loads = Sequence[LoadSeen]


def rows_of(visits: Iterable[VisitSeen]) -> list[FsyncRow]:
    """One row per cell and load, in a fixed order."""
    cells: dict[FsyncCell, list[VisitSeen]] = {}
    for visit in visits:
        cells.setdefault(visit.cell, []).append(visit)
    return [
        _row(cell, name, [visit.loads[name] for visit in cells[cell]], [visit.disk for visit in cells[cell]])
        for cell in sorted(cells, key=_rank)
        for name in cells[cell][0].loads
    ]


def find_rows(rows: Iterable[FsyncRow], load: LoadName = "max", /, **wanted: object) -> list[FsyncRow]:
    """The rows of one load whose cells have these values, rewrites off unless asked for."""
    wanted = {"rewrite": "off", "load": load, **wanted}
    return [row for row in rows if all(getattr(row, name) == value for name, value in wanted.items())]


def like(row: FsyncRow, *names: str) -> dict[str, object]:
    """These of its values, and those of every comparison: N, clients, pipeline, added latency. For `find_rows`."""
    return {name: getattr(row, name) for name in ("instances", "clients", "pipeline", "injected_ms", *names)}


def always_costs(rows: Sequence[FsyncRow]) -> list[AlwaysCost]:
    """What always costs: the maximum under everysec ÷ that under it, per N, shape and added latency."""
    return [
        AlwaysCost(
            instances=slow.instances, clients=slow.clients, pipeline=slow.pipeline, injected_ms=slow.injected_ms,
            callers=slow.callers, ratio=fast.rate / slow.rate,
            generator_bound=fast.generator.bound or slow.generator.bound,
        )
        for slow in find_rows(rows, policy="always")
        for fast in find_rows(rows, policy="everysec", **like(slow))
        if slow.rate
    ]  # fmt: skip


def sustained(loads: Loads) -> bool | None:
    """Whether as many were granted as were due, but for 1 % or chance; None in closed loop."""
    dues = [load.due for load in loads if load.due is not None]
    if not dues:
        return None
    due, granted = sum(dues), sum(load.granted for load in loads)
    return due - granted <= max(BEHIND_SHARE * due, BEHIND_SIGMAS * math.sqrt(due))


def _rank(cell: FsyncCell) -> tuple[float, ...]:
    callers, rewrite = cell.clients * cell.pipeline, ("off", "on", "on-no-sync").index(cell.rewrite)
    return cell.instances, callers, cell.clients, cell.injected_ms, rewrite, POLICIES.index(cell.policy)


def _row(cell: FsyncCell, name: LoadName, loads: Loads, disks: Sequence[SyncLatency | None]) -> FsyncRow:
    histograms = [_histogram(load) for load in loads]
    merged = Histogram.merged(histograms)
    p99s_ns = [histogram.percentile(99) for histogram in histograms]
    acquired = _per(loads, lambda load: load.granted / load.seconds)
    assert acquired is not None
    return FsyncRow(
        **msgspec.structs.asdict(cell),
        callers=cell.clients * cell.pipeline,
        load=name,
        repeats=len(loads),
        offered_per_s=_per(loads, lambda load: load.rate_per_s),
        acquired_per_s=acquired,
        sustained=sustained(loads),
        acquire_s=Latency.of(merged),
        p99_s=Spread.of(_over(p99_ns, 1e9) for p99_ns in p99s_ns),
        fsyncs_per_s=_per(loads, lambda load: _over(load.fsyncs, load.elapsed_s * cell.instances)),
        locks_per_fsync=_per(loads, lambda load: _over(load.leases * cell.instances, load.fsyncs)),
        server_cpu_us_per_lock=_per(loads, lambda load: _over(load.server_cpu_s, load.leases, 1e6)),
        busiest_server_ratio=_per(loads, lambda load: load.busiest_server_ratio),
        aof_delayed_fsync=_sum(load.aof_delayed_fsync for load in loads),
        latency_events=_events(loads),
        rewrite_took_s=_per(loads, lambda load: load.rewrite.took_s if load.rewrite else None),
        rewrite_fsyncs_per_s=_per(loads, _rewrite_fsyncs_per_s),
        leases=sum(load.leases for load in loads),
        denied=dict(sum((Counter(load.denied) for load in loads), Counter())),
        release_failures=sum(load.release_failures for load in loads),
        waitaof=WaitaofCounts.sum_of(load.waitaof for load in loads if load.waitaof) if loads[0].waitaof else None,
        disk_fdatasync_s=disk_of(DiskFigures(p50=one.p50_s, p99=one.p99_s, max=one.max_s) for one in disks if one),
        generator=_generator(cell, loads, merged.percentile(99)),
        histogram=merged.encode(),
    )


def _histogram(load: LoadSeen) -> Histogram:
    histogram = Histogram.decode(load.histogram)
    histogram.max_ns, histogram.sum_ns = load.max_ns, load.sum_ns
    return histogram


def _per(loads: Loads, figure: Callable[[LoadSeen], float | None]) -> Spread | None:
    return Spread.of(map(figure, loads))


def _over(part: float | None, whole: float | None, factor: float = 1.0) -> float | None:
    return None if part is None or not whole else part * factor / whole


def _sum(values: Iterable[int | None]) -> int | None:
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def _events(loads: Loads) -> dict[str, SlowEvent] | None:
    """Per event: seconds in which it was noted, longest, over all repeats; None when the servers do not watch."""
    found: dict[str, list[SlowEvent]] = {}
    for load in loads:
        if load.latency_events is None:
            return None
        for name, event in load.latency_events.items():
            found.setdefault(name, []).append(event)
    return {
        name: SlowEvent(seconds=sum(one.seconds for one in events), max_ms=max(one.max_ms for one in events))
        for name, events in found.items()
    }


def _rewrite_fsyncs_per_s(load: LoadSeen) -> float | None:
    return _over(load.rewrite.fsyncs, load.rewrite.took_s) if load.rewrite else None


def disk_of(seen: Iterable[DiskFigures | None]) -> DiskFigures | None:
    """The medians of p50 and of p99, the largest; None where no disk is known."""
    disks = [disk for disk in seen if disk]
    p99s = [disk.p99 for disk in disks if disk.p99 is not None]
    if not disks:
        return None
    return DiskFigures(
        p50=statistics.median(disk.p50 for disk in disks),
        p99=statistics.median(p99s) if p99s else None,
        max=max(disk.max for disk in disks),
    )


def _generator(cell: FsyncCell, loads: Loads, p99_ns: int | None) -> LoadProcessFigures:
    wanted_ratio = statistics.median(load.cpu_ratio + load.cpu_wait_ratio for load in loads)
    littles = [load.littles_law_ratio for load in loads if load.littles_law_ratio is not None]
    late_ns = [load.lateness_p99_ns for load in loads if load.lateness_p99_ns is not None]
    little = statistics.median(littles) if len(littles) == len(loads) else None
    lateness_ns = statistics.median(late_ns) if late_ns else None
    reason = None
    if little is not None and cell.clients * cell.pipeline >= LITTLE_USERS and abs(little - 1) > LITTLE_TOLERANCE:
        reason = f"Little's ratio is {little:.2f}: not all callers were at work"
    if lateness_ns is not None and p99_ns is not None and lateness_ns > LATENESS_SHARE * p99_ns:
        reason = f"the timer was late by {lateness_ns / 1e6:.3g} ms (p99), over 10 % of the p99 shown"
    return LoadProcessFigures(
        cpu_ratio=max(load.cpu_ratio for load in loads),
        wanted_ratio=wanted_ratio,
        bound=wanted_ratio >= BUSY_CORE,
        littles_law_ratio=little,
        lateness_p99_s=_over(lateness_ns, 1e9),
        verdict="INVALID" if reason else "VALID",
        reason=reason,
    )
