"""What the visits show: *visits of cells → a row per cell and load, with spread → findings, each judged*.

    order            a policy that does more is not faster than one that does less: an order that cannot be is noise
    always-slowest   with one caller `always` grants fewer locks than every other policy
    group-commit     what `always` costs against `everysec` moves by more than 5 between one caller and a thousand
    rewrite-no-sync  under no-appendfsync-on-rewrite even `always` hardly syncs while a rewrite runs
    waitaof-counts   WAITAOF's counts were checked; a vote without a confirmed fsync is none
    waitaof-truth    what WAITAOF confirmed was on the disk, by the shim's ledger; else a fault of the server, not ours
    no-refusal       nobody contends, so nothing may be refused

Rules: pure.
- Histograms of repeats are merged, percentiles never averaged; a figure with a spread is the median over the repeats
  with the lowest and highest beside it. What a server did is divided by the leases of the same time. An open load is
  sustained unless it fell behind its schedule by more than 1 % and more than chance. A load process that ran or waited
  for a core 0.9 of the time was the limit.
- Only what the matrix holds is judged, and nothing is known where most figures are bounds (≥), of a queue or of a late
  load, or a quarter of the visits was left out. On a disk that syncs for nearly nothing `always` cannot be slower, so
  that is not judged there. A refusal without a holder is a violation, unless a release failed before it.

Source: Redis's aof.c: one fdatasync per event loop turn under `always`, before the replies.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from bench.experiments.fsync.result import (
    POLICIES,
    AlwaysCost,
    DiskFigures,
    FsyncCell,
    FsyncFinding,
    FsyncRow,
    LoadName,
    LoadProcessFigures,
    LoadSeen,
    VisitSeen,
    WaitaofCounts,
    Word,
    known_sum,
)
from bench.measure.expectation import conclude_rows
from bench.measure.generator import BUSY_CORE, LATENESS_SHARE, LITTLE_TOLERANCE, LITTLE_USERS
from bench.measure.histogram import Histogram
from bench.measure.latency import Latency, SlowEvent
from bench.measure.run_result import SyncLatency
from bench.measure.statistics import Spread
from bench.measure.verdict import Evidence, Verdict

BEHIND_SHARE = 0.01
BEHIND_SIGMAS = 2.0  # of the number of arrivals, which is a Poisson count

Loads = Sequence[LoadSeen]
NOISE = 0.15  # twice the deviation of interleaved pairs of the same code (7.5 %)
MADE_SHARE = 0.75  # of the visits: with fewer, half of all pairs of policies lack one (0.75² = 0.56)
MOVES = 5.0
MANY_CALLERS, SLOW_FSYNC_MS = 1000, 2.0
CHEAP_SYNC = 1.0  # two fsyncs ÷ a whole cycle of the fastest: below, noise may hide what always costs
SYNCED_SHARE = 0.5

Rows = Sequence[FsyncRow]


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
        wanted_ratio=wanted_ratio,
        bound=wanted_ratio >= BUSY_CORE,
        verdict="INVALID" if reason else "VALID",
        reason=reason,
    )


# -- findings ----------------------------------------------------------------------------------------------------------


def findings_of(rows: Rows) -> list[FsyncFinding]:
    """Every finding that the rows can say something about."""
    orders = list(_orders(rows))
    costs = [*_always_slowest(rows), *_group_commit(rows)]
    if orders:  # then noise hides what a policy costs, too
        costs = [
            msgspec.structs.replace(one, verdict="not known") if one.verdict == "not shown" else one for one in costs
        ]
    return [*orders, *costs, *_rewrites(rows), *_waitaof(rows), *_refusals(rows)]


def judge_fsync(
    findings: Sequence[FsyncFinding], rows: Rows, *, planned: int, done: int, interrupted: bool = False
) -> Verdict:
    """The section `verdict`. `planned`, `done`: visits; `rows`: what the findings are of."""
    maxima = [row for row in rows if row.load == "max"]
    loads = [row for row in rows if row.load != "max"]
    evidence = [
        _evidence("maxima that are no bound", maxima),
        _evidence("loads that were neither late nor a queue", loads),
        Evidence("visits made", done, math.ceil(planned * MADE_SHARE)),
    ]
    told = [(finding.verdict, finding.text) for finding in findings]
    cut = f"interrupted after {done} of {planned} visits" if interrupted else ""
    return conclude_rows(told, tested="findings as expected", also=evidence, interrupted=cut)


def _evidence(tested: str, rows: Rows) -> Evidence:
    """How many of these rows hold a figure of the servers; half of them must."""
    return Evidence(tested, sum(map(_is_figure, rows)), max(1, math.ceil(len(rows) / 2)))


def _is_figure(row: FsyncRow) -> bool:
    """Whether what is shown of it is what the servers did, and not what limited or delayed the load."""
    limited = row.load == "max" and row.generator.bound
    return not (row.generator.reason or row.sustained is False or limited)


def _found(name: str, cell: str, text: str, verdict: Word) -> FsyncFinding:
    return FsyncFinding(name=name, cell=cell, text=text, verdict=verdict)


def _orders(rows: Rows) -> Iterator[FsyncFinding]:
    """Policies that do more must not be faster than those that do less, by more than noise: else noise was measured."""
    for cheap, dear in _comparable(rows):
        if cheap.rate >= (1 - NOISE) * dear.rate:
            continue
        where = f"N={dear.instances} {dear.shape}, {dear.disk}"
        text = (
            f"{where}: {cheap.policy} {cheap.rate:,.0f}/s, {dear.policy} {dear.rate:,.0f}/s: an order that cannot be, "
            "so the machine's noise is larger than what the policies cost"
        )
        yield _found("order", where, text, "not known")


def _comparable(rows: Rows) -> Iterator[tuple[FsyncRow, FsyncRow]]:
    """Pairs of one cell, the policy that does less first. Without persistence there is no disk to be slow."""
    for dear in find_rows(rows):
        less = () if dear.policy == "waitaof" else POLICIES[: POLICIES.index(dear.policy)]
        for policy in less:
            disk = {"injected_ms": 0.0} if policy == "none" else {}
            yield from ((cheap, dear) for cheap in find_rows(rows, policy=policy, **{**like(dear), **disk}))


def _always_slowest(rows: Rows) -> Iterator[FsyncFinding]:
    for slow in find_rows(rows, policy="always", callers=1):
        same = [find_rows(rows, policy=policy, **like(slow)) for policy in ("no", "everysec")]
        others = [row for found in same for row in found]
        others += find_rows(rows, policy="none", instances=slow.instances, callers=1)
        if not others:
            continue
        fastest, least = max(row.rate for row in others), min(others, key=lambda row: row.rate)
        where = f"N={slow.instances}, 1 caller, {slow.disk}"
        text = f"{where}: always {slow.rate:,.0f}/s, {least.policy} {least.rate:,.0f}/s (the next slowest)"
        verdict: Word = "as expected" if slow.rate < least.rate else "not shown"
        if verdict == "as expected" and slow.generator.bound:
            verdict, text = "not judged", f"{text}: the load process was the limit"
        if verdict == "not shown" and _syncs_for_nothing(slow, fastest):
            verdict, text = "not judged", f"{text}: this disk syncs for nearly nothing"
        yield _found("always-slowest", where, text, verdict)


def _syncs_for_nothing(row: FsyncRow, fastest_per_s: float) -> bool:
    disk = row.disk_fdatasync_s
    return not row.injected_ms and (disk is None or 2 * disk.p50 * fastest_per_s < CHEAP_SYNC)


def _group_commit(rows: Rows) -> Iterator[FsyncFinding]:
    costs = always_costs(rows)
    for few in (cost for cost in costs if cost.callers == 1 and cost.injected_ms >= SLOW_FSYNC_MS):
        same = [one for one in costs if (one.instances, one.injected_ms) == (few.instances, few.injected_ms)]
        many = max(same, key=lambda cost: cost.callers)
        if many.callers < MANY_CALLERS:
            continue
        moved = few.ratio / many.ratio
        where = f"N={few.instances}, {few.disk}"
        text = (
            f"{where}: everysec ÷ always is {few.ratio:.1f} with 1 caller, {many.ratio:.1f} with {many.shape}: it "
            f"moves by {moved:.1f}×"
        )
        verdict: Word = "as expected" if moved > MOVES else "not shown"
        if verdict == "as expected" and many.generator_bound:
            verdict, text = "not judged", f"{text}, at least: the load process was the limit"
        yield _found("group-commit", where, text, verdict)


def _rewrites(rows: Rows) -> Iterator[FsyncFinding]:
    for without in find_rows(rows, rewrite="on-no-sync", policy="always"):
        for synced in find_rows(rows, rewrite="on", **like(without, "policy")):
            if without.rewrite_fsyncs_per_s is None or synced.rewrite_fsyncs_per_s is None:
                continue
            few, many = without.rewrite_fsyncs_per_s.median, synced.rewrite_fsyncs_per_s.median
            where = f"N={synced.instances} always {synced.shape}, {synced.disk}"
            text = (
                f"{where}: {many:,.0f} fsyncs/s while the AOF is rewritten, {few:,.0f}/s under "
                "no-appendfsync-on-rewrite yes: what is acknowledged then is not on the disk"
            )
            verdict: Word = "as expected" if few < SYNCED_SHARE * many else "not shown"
            yield _found("rewrite-no-sync", where, text, verdict)


def _waitaof(rows: Rows) -> Iterator[FsyncFinding]:
    seen = [row.waitaof for row in rows if row.waitaof]
    if not seen:
        return
    sums = WaitaofCounts.sum_of(seen)
    asked, confirmed, unconfirmed, probes, untrue = msgspec.structs.astuple(sums)
    text = f"WAITAOF: {asked:,} replies, {confirmed:,} with the local fsync, {unconfirmed:,} without: not votes"
    verdict: Word = "as expected" if confirmed and asked == confirmed + unconfirmed else "not shown"
    yield _found("waitaof-counts", "all", text, verdict)
    if probes:
        text = f"WAITAOF under everysec: {probes} locks confirmed one by one, on the disk {probes - untrue}"
        if untrue:
            text += "; this server confirms too early, so its rate here buys nothing (redis/redis#13793)"
        verdict = "server fault" if untrue else "as expected"
        yield _found("waitaof-truth", "all", text, verdict)


def _refusals(rows: Rows) -> Iterator[FsyncFinding]:
    refused, leases = sum(row.refusals for row in rows), sum(row.leases for row in rows)
    unexplained = any(row.refusals and not row.release_failures for row in rows)
    text = f"{leases:,} leases, {refused:,} refused though nobody else wanted them"
    verdict: Word = "violated" if unexplained else "as expected"
    yield _found("no-refusal", "all", text, verdict)
