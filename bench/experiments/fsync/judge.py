"""What the rows show: *a row per cell and load → what always costs, in pairs → findings, each judged*.

    order            a policy that does more is not certainly faster than one that does less: that would be noise
    always-slowest   with one caller `always` grants fewer locks than `no` and everysec
    rewrite-no-sync  under no-appendfsync-on-rewrite even `always` hardly syncs while a rewrite runs
    waitaof-counts   WAITAOF's counts were checked; a vote without a confirmed fsync is none
    waitaof-truth    what WAITAOF confirmed was on the disk, by the shim's ledger; else a fault of the server, not ours
    no-refusal       nobody contends, so nothing may be refused

Rules: pure.
- What two policies differ by is the Hodges-Lehmann estimate of their visits' pairs, with its exact interval (95 %,
  Wilcoxon's signed ranks), so six pairs at least. Two rates are never compared without it, so `none` is compared with
  none: it takes no turns with the others, and the machine may have been another one when it was measured.
- Only what the matrix holds is judged, and nothing is known where most figures are bounds (≥), of a queue or of a late
  load, or a quarter of the visits was left out. On a disk that syncs for nearly nothing `always` cannot be slower, so
  that is not judged there. A refusal without a holder is a violation, unless a release failed before it.

Source: Redis's aof.c: one fdatasync per event loop turn under `always`, before the replies.
"""

import math
from collections.abc import Iterator, Sequence
from math import inf, isfinite
from typing import NamedTuple

import msgspec

from bench.experiments.fsync.plan import TAKING_TURNS
from bench.experiments.fsync.result import (
    AlwaysCost,
    FsyncFinding,
    FsyncRow,
    WaitaofCounts,
    Word,
)  # fmt: skip
from bench.experiments.fsync.rows import find_rows, like
from bench.measure.expectation import conclude_rows
from bench.measure.statistics import paired_shift
from bench.measure.verdict import Evidence, Verdict

NOISE = 0.15  # twice the deviation of interleaved pairs of the same code (7.5 %)
MADE_SHARE = 0.75  # of the visits: with fewer, half of all pairs of policies lack one (0.75² = 0.56)
CONFIDENCE = 0.95
CHEAP_SYNC = 1.0  # two fsyncs ÷ a whole cycle of the fastest: below, noise may hide what always costs
SYNCED_SHARE = 0.5

Rows = Sequence[FsyncRow]


def always_costs(rows: Sequence[FsyncRow]) -> list[AlwaysCost]:
    """What always costs: the maximum under everysec ÷ that under it, per N, shape and added latency."""
    found = []
    for slow in find_rows(rows, policy="always"):
        for fast in find_rows(rows, policy="everysec", **like(slow)) if slow.rate else ():
            times = times_as_fast(fast, slow)
            low, high = (times.low, times.high) if isfinite(times.high) else (None, None)
            found.append(
                AlwaysCost(
                    instances=slow.instances,
                    clients=slow.clients,
                    pipeline=slow.pipeline,
                    hold=slow.hold,
                    injected_ms=slow.injected_ms,
                    callers=slow.callers,
                    ratio=times.ratio,
                    low=low,
                    high=high,
                    generator_bound=fast.generator.bound or slow.generator.bound,
                    pairs=times.pairs,
                )
            )
    return found


class Times(NamedTuple):
    """One rate ÷ another, with its 95 % interval, 0 … inf where there are too few pairs for one."""

    ratio: float
    low: float
    high: float
    pairs: int


def times_as_fast(fast: FsyncRow, slow: FsyncRow) -> Times:
    """How many times as many locks `fast` granted as `slow`: of the visits both made in a row, else of the medians."""
    slow_per_s = {visit.repeat: visit.acquired_per_s for visit in slow.visits}
    pairs = [(visit.acquired_per_s, slow_per_s.get(visit.repeat)) for visit in fast.visits]
    logs = [math.log(one / other) for one, other in pairs if one and other]
    if not logs:
        return Times(fast.rate / slow.rate if slow.rate else inf, 0.0, inf, 0)
    shift = paired_shift(logs, CONFIDENCE)
    return Times(math.exp(shift.shift), math.exp(shift.low), math.exp(shift.high), len(logs))


def rate_interval(row: FsyncRow) -> tuple[float, float] | None:
    """The 95 % interval of its acquires/s over the visits; None with too few of them."""
    logs = [math.log(visit.acquired_per_s) for visit in row.visits if visit.acquired_per_s]
    shift = paired_shift(logs, CONFIDENCE) if logs else None
    return (math.exp(shift.low), math.exp(shift.high)) if shift and isfinite(shift.high) else None


# -- findings ----------------------------------------------------------------------------------------------------------


def findings_of(rows: Rows) -> list[FsyncFinding]:
    """Every finding that the rows can say something about."""
    orders = list(_orders(rows))
    costs = list(_always_slowest(rows))
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
        if times_as_fast(cheap, dear).high >= 1 - NOISE:
            continue
        where = f"N={dear.instances} {dear.shape}, {dear.disk}"
        text = (
            f"{where}: {cheap.policy} {cheap.rate:,.0f}/s, {dear.policy} {dear.rate:,.0f}/s: an order that cannot be, "
            "so the machine's noise is larger than what the policies cost"
        )
        yield _found("order", where, text, "not known")


def _comparable(rows: Rows) -> Iterator[tuple[FsyncRow, FsyncRow]]:
    """Pairs of one cell that took turns, the policy that does less first."""
    for dear in find_rows(rows):
        for policy in TAKING_TURNS[: TAKING_TURNS.index(dear.policy)] if dear.policy in TAKING_TURNS else ():
            yield from ((cheap, dear) for cheap in find_rows(rows, policy=policy, **like(dear)))


def _always_slowest(rows: Rows) -> Iterator[FsyncFinding]:
    for slow in find_rows(rows, policy="always", callers=1):
        same = [find_rows(rows, policy=policy, **like(slow)) for policy in ("no", "everysec")]
        others = [row for found in same for row in found]
        if not others:
            continue
        fastest, least = max(row.rate for row in others), min(others, key=lambda row: row.rate)
        where = f"N={slow.instances}, 1 caller, {slow.disk}"
        text = f"{where}: always {slow.rate:,.0f}/s, {least.policy} {least.rate:,.0f}/s (the next slowest)"
        times = times_as_fast(least, slow)
        verdict: Word = "as expected" if times.low > 1 else "not shown" if times.high < 1 + NOISE else "not known"
        if verdict == "as expected" and slow.generator.bound:
            verdict, text = "not judged", f"{text}: the load process was the limit"
        if verdict != "as expected" and _syncs_for_nothing(slow, fastest):
            verdict, text = "not judged", f"{text}: this disk syncs for nearly nothing"
        yield _found("always-slowest", where, text, verdict)


def _syncs_for_nothing(row: FsyncRow, fastest_per_s: float) -> bool:
    disk = row.disk_fdatasync_s
    return not row.injected_ms and (disk is None or 2 * disk.p50 * fastest_per_s < CHEAP_SYNC)


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
