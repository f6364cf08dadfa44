"""One row per cell and load: *visits → merged histograms, medians with their spread, who was the limit*.

Rules: pure. Histograms of repeats are merged, percentiles never averaged; a figure with a spread is the median over the
visits with the lowest and highest beside it. What a server did is divided by the leases of the same time. An open load
is sustained unless it fell behind its schedule by more than 1 % and more than chance. A load process that ran or waited
for a core 0.9 of the time was the limit.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from bench.experiments.fsync.result import (
    POLICIES,
    DiskFigures,
    FsyncCell,
    FsyncRow,
    LoadName,
    LoadProcessFigures,
    LoadSeen,
    VisitRate,
    VisitSeen,
    WaitaofCounts,
    known_sum,
)  # fmt: skip
from bench.measure.generator import BUSY_CORE, LATENESS_SHARE, LITTLE_TOLERANCE, LITTLE_USERS
from bench.measure.histogram import Histogram
from bench.measure.latency import Latency, SlowEvent
from bench.measure.statistics import Spread
from bench.scenario.quantity import parse_delay

BEHIND_SHARE = 0.01
BEHIND_SIGMAS = 2.0  # of the number of arrivals, which is a Poisson count
Loads = Sequence[LoadSeen]


def rows_of(visits: Iterable[VisitSeen]) -> list[FsyncRow]:
    """One row per cell and load, in a fixed order."""
    cells: dict[FsyncCell, list[VisitSeen]] = {}
    for visit in visits:
        cells.setdefault(visit.cell, []).append(visit)
    return [
        _row(cell, name, [visit for visit in cells[cell] if name in visit.loads])
        for cell in sorted(cells, key=_rank)
        for name in cells[cell][0].loads
    ]


def find_rows(rows: Iterable[FsyncRow], load: LoadName = "max", /, **wanted: object) -> list[FsyncRow]:
    """The rows of one load whose cells have these values, rewrites off unless asked for."""
    wanted = {"rewrite": "off", "load": load, **wanted}
    return [row for row in rows if all(getattr(row, name) == value for name, value in wanted.items())]


def like(row: FsyncRow, *names: str) -> dict[str, object]:
    """These of its values, and those of every comparison (N, callers, hold, added latency), for `find_rows`."""
    return {name: getattr(row, name) for name in ("instances", "clients", "pipeline", "hold", "injected_ms", *names)}


def sustained(loads: Loads) -> bool | None:
    """Whether as many were granted as were due, but for 1 % or chance; None in closed loop."""
    dues = [load.due for load in loads if load.due is not None]
    if not dues:
        return None
    due, granted = sum(dues), sum(load.granted for load in loads)
    return due - granted <= max(BEHIND_SHARE * due, BEHIND_SIGMAS * math.sqrt(due))


def _rank(cell: FsyncCell) -> tuple[float, ...]:
    callers, rewrite = cell.clients * cell.pipeline, ("off", "on", "on-no-sync").index(cell.rewrite)
    return (
        cell.instances,
        callers,
        cell.clients,
        parse_delay(cell.hold).ms,
        cell.injected_ms,
        rewrite,
        POLICIES.index(cell.policy),
    )


def _row(cell: FsyncCell, name: LoadName, visits: Sequence[VisitSeen]) -> FsyncRow:
    loads, disks = [visit.loads[name] for visit in visits], [visit.disk for visit in visits]
    merged = Histogram.merged([_histogram(load) for load in loads])
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
        fsyncs_per_s=_per(loads, lambda load: _over(load.fsyncs, load.elapsed_s * cell.instances)),
        locks_per_fsync=_per(loads, lambda load: _over(load.leases * cell.instances, load.fsyncs)),
        server_cpu_us_per_lock=_per(loads, lambda load: _over(load.server_cpu_s, load.leases, 1e6)),
        aof_delayed_fsync=known_sum(load.aof_delayed_fsync for load in loads),
        latency_events=_events(loads),
        rewrite_fsyncs_per_s=_per(
            loads, lambda load: _over(load.rewrite.fsyncs, load.rewrite.took_s) if load.rewrite else None
        ),
        leases=sum(load.leases for load in loads),
        denied=dict(sum((Counter(load.denied) for load in loads), Counter())),
        release_failures=sum(load.release_failures for load in loads),
        waitaof=WaitaofCounts.sum_of(load.waitaof for load in loads if load.waitaof) if loads[0].waitaof else None,
        disk_fdatasync_s=disk_of(DiskFigures(p50=one.p50_s, p99=one.p99_s, max=one.max_s) for one in disks if one),
        generator=_generator(cell, loads, merged.percentile(99)),
        histogram=merged.encode(),
        visits=tuple(
            VisitRate(repeat=visit.repeat, acquired_per_s=load.granted / load.seconds)
            for visit, load in zip(visits, loads, strict=True)
        ),
    )


def _histogram(load: LoadSeen) -> Histogram:
    histogram = Histogram.decode(load.histogram)
    histogram.max_ns, histogram.sum_ns = load.max_ns, load.sum_ns
    return histogram


def _per(loads: Loads, figure: Callable[[LoadSeen], float | None]) -> Spread | None:
    """The figure over the repeats; None unless it is known of all."""
    known = [value for value in map(figure, loads) if value is not None]
    return Spread.of(known) if known and len(known) == len(loads) else None


def _over(part: float | None, whole: float | None, factor: float = 1.0) -> float | None:
    return None if part is None or not whole else part * factor / whole


def _events(loads: Loads) -> dict[str, SlowEvent] | None:
    """Per event: seconds in which it was noted, longest, over all repeats; None when the servers do not watch."""
    found: dict[str, SlowEvent] = {}
    for load in loads:
        if load.latency_events is None:
            return None
        for name, event in load.latency_events.items():
            before = found.get(name, SlowEvent(seconds=0, max_ms=0))
            found[name] = SlowEvent(seconds=before.seconds + event.seconds, max_ms=max(before.max_ms, event.max_ms))
    return found


def disk_of(seen: Iterable[DiskFigures | None]) -> DiskFigures | None:
    """The medians of p50 and of p99, the largest; None where no disk is known. A disk that is too slow for a p99 (100
    writes) counts with its largest, else the slowest would be left out."""
    disks = [disk for disk in seen if disk]
    if not disks:
        return None
    return DiskFigures(
        p50=statistics.median(disk.p50 for disk in disks),
        p99=statistics.median(disk.max if disk.p99 is None else disk.p99 for disk in disks),
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
        wanted_ratio=wanted_ratio,
        bound=wanted_ratio >= BUSY_CORE,
        verdict="INVALID" if reason else "VALID",
        reason=reason,
    )
