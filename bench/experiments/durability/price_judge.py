"""Judges the visits of `lockbench fsync`: *visits → a row per cell and load → the price of always →
judged findings*. All functions are pure.

- The judge merges the histograms of a cell's repeats, and never averages percentiles. To get a
  server's work per lease, the judge divides the work by the leases of the same period.
- The judge estimates the difference between two policies from pairs of visits (Hodges and Lehmann).
  The exact interval of this estimate needs at least six pairs, and the judge compares no rates
  without an interval. The visits of the policy `none` do not alternate with visits of other
  policies. So the judge has no pairs for the policy `none`, and does not compare this policy with
  other policies.
- The answer is "not known" if most maximum rates are only lower bounds (≥). The answer is also "not
  known" if most open loops had a queue or started late. The answer is also "not known" if more than
  a quarter of the visits is missing.
- On some disks a sync takes almost no time, so `always` cannot be clearly slower than the other
  policies. On such a disk, the judge does not decide whether `always` is the slowest policy.
- Each caller uses a resource of its own. So if an acquire is refused although no release has
  failed, the result is a violation.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from math import inf
from typing import Any

from msgspec.structs import asdict, replace

from bench.experiments.durability.policies import POLICIES
from bench.experiments.durability.price_plan import TAKING_TURNS
from bench.experiments.durability.price_result import (
    CONFIDENCE,
    AlwaysCost,
    DiskFigures,
    FsyncCell,
    FsyncFinding,
    FsyncRow,
    LoadName,
    LoadProcessFigures,
    LoadSeen,
    MatrixPlace,
    VisitRate,
    VisitSeen,
    Word,
    known_sum,
)
from bench.measure.expectation import conclude_rows
from bench.measure.histogram import Histogram
from bench.measure.latency import Latency
from bench.measure.statistics import Shift, Spread, paired_shift
from bench.measure.verdict import Evidence, Verdict
from bench.measure.workers import BUSY_CORE, LATENESS_SHARE, LITTLE_TOLERANCE, LITTLE_USERS
from bench.scenario.quantity import parse_delay

# Twice the standard deviation of interleaved pairs of the same code, which is 7.5 %.
NOISE = 0.15
# At least this share of the visits must be made. If fewer visits were made, about half of all pairs
# of policies would lack a visit (0.75² = 0.56).
MADE_SHARE = 0.75
# Two fsyncs must take at least this many cycles of the fastest policy. If they are faster, noise
# may hide the price of `always`.
CHEAP_SYNC = 1.0
BEHIND_SHARE = 0.01
# The grants may lag behind the arrivals by this many standard deviations. The standard deviation is
# that of the arrivals, which are a Poisson count.
BEHIND_SIGMAS = 2.0

Rows = Sequence[FsyncRow]
Loads = Sequence[LoadSeen]


def rows_of(visits: Iterable[VisitSeen]) -> list[FsyncRow]:
    """Return one row for each cell and each load, sorted by the settings of the cells."""
    cells: dict[FsyncCell, list[VisitSeen]] = {}
    for visit in visits:
        cells.setdefault(visit.cell, []).append(visit)
    return [
        _row(cell, name, [visit for visit in cells[cell] if name in visit.loads])
        for cell in sorted(cells, key=_rank)
        for name in cells[cell][0].loads
    ]


def _rank(cell: FsyncCell) -> tuple[float, ...]:
    shape = (
        cell.instances,
        cell.callers,
        cell.clients,
        parse_delay(cell.hold).ms,
        cell.injected_ms,
    )
    return *shape, POLICIES.index(cell.policy)


def find_rows(
    rows: Iterable[FsyncRow], load: LoadName = "max", /, **values: object
) -> list[FsyncRow]:
    """Return all rows that have this load and all of these `values`."""
    values = {"load": load, **values}
    return [
        row for row in rows if all(getattr(row, name) == value for name, value in values.items())
    ]


def like(row: FsyncRow) -> dict[str, Any]:
    """Return arguments for `find_rows`. With these arguments, `find_rows` finds all rows that can
    be compared with `row`. The arguments are the number of instances, the callers, the hold time
    and the added latency."""
    return {name: getattr(row, name) for name in MatrixPlace.__struct_fields__}


def sustained(loads: Loads) -> bool | None:
    """Return whether the servers granted locks as fast as the acquires arrived. The number of
    granted locks may be up to 1 % lower than the number of acquires that were due. A difference
    above 1 % is allowed only if the difference may be due to chance. Return None for closed
    loops."""
    dues = [load.due for load in loads if load.due is not None]
    if not dues:
        return None
    due = sum(dues)
    granted = sum(load.granted for load in loads)
    return due - granted <= max(BEHIND_SHARE * due, BEHIND_SIGMAS * math.sqrt(due))


def _row(cell: FsyncCell, name: LoadName, visits: Sequence[VisitSeen]) -> FsyncRow:
    loads = [visit.loads[name] for visit in visits]
    disks = [visit.disk for visit in visits]
    merged = Histogram.merged(map(_histogram, loads))
    rates = [load.granted / load.seconds for load in loads]
    return FsyncRow(
        **asdict(cell),
        load=name,
        offered_per_s=_per(loads, lambda load: load.rate_per_s),
        acquired_per_s=Spread.of(rates),
        sustained=sustained(loads),
        acquire_s=Latency.of(merged),
        fsyncs_per_s=_per(loads, lambda load: _over(load.fsyncs, load.elapsed_s * cell.instances)),
        locks_per_fsync=_per(loads, lambda load: _over(load.leases * cell.instances, load.fsyncs)),
        server_cpu_us_per_lock=_per(
            loads, lambda load: _over(load.server_cpu_s, load.leases / 1e6)
        ),
        aof_delayed_fsync=known_sum(load.aof_delayed_fsync for load in loads),
        leases=sum(load.leases for load in loads),
        denied=dict(sum((Counter(load.denied) for load in loads), Counter())),
        release_failures=sum(load.release_failures for load in loads),
        disk_fdatasync_s=disk_of(
            DiskFigures(p50=one.p50_s, p99=one.p99_s, max=one.max_s) for one in disks if one
        ),
        generator=_generator(cell, loads, merged.percentile(99)),
        visits=tuple(
            VisitRate(repeat=visit.repeat, acquired_per_s=rate)
            for visit, rate in zip(visits, rates, strict=True)
        ),
    )


def _histogram(load: LoadSeen) -> Histogram:
    histogram = Histogram.decode(load.histogram)
    histogram.max_ns = load.max_ns
    histogram.sum_ns = load.sum_ns
    return histogram


def _per(loads: Loads, figure: Callable[[LoadSeen], float | None]) -> Spread | None:
    """Return the spread of a figure over the repeats of a load. Return None if the figure is
    unknown for any repeat."""
    values = [value for value in map(figure, loads) if value is not None]
    return Spread.of(values) if values and len(values) == len(loads) else None


def _over(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def disk_of(figures: Iterable[DiskFigures | None]) -> DiskFigures | None:
    """Return the medians of p50 and p99, and the largest value. Return None if there are no figures
    of a disk. A p99 needs 100 writes, so the figures of a very slow disk have no p99. For such a
    disk, the function uses the largest value instead of the p99. So the median of the p99 values
    also includes the slowest disk."""
    disks = [disk for disk in figures if disk]
    if not disks:
        return None
    return DiskFigures(
        p50=statistics.median(disk.p50 for disk in disks),
        p99=statistics.median(disk.max if disk.p99 is None else disk.p99 for disk in disks),
        max=max(disk.max for disk in disks),
    )


def _generator(cell: FsyncCell, loads: Loads, p99_ns: float | None) -> LoadProcessFigures:
    """Return the figures of the load process. The figures show whether the load process was the
    limit, and why it did not deliver the planned load. The process was the limit if it ran or
    waited for a core during at least 0.9 of the time."""
    wanted_ratio = statistics.median(load.wanted_ratio for load in loads)
    little = _per(loads, lambda load: load.littles_law_ratio)
    late_ns = [load.lateness_p99_ns for load in loads if load.lateness_p99_ns is not None]
    lateness_ns = statistics.median(late_ns) if late_ns else 0
    reason = None
    if little and cell.callers >= LITTLE_USERS and abs(little.median - 1) > LITTLE_TOLERANCE:
        reason = f"Little's ratio is {little.median:.2f}, so some callers were not busy"
    if p99_ns is not None and lateness_ns > LATENESS_SHARE * p99_ns:
        reason = (
            f"the timer was late by {lateness_ns / 1e6:.3g} ms (p99), which is over 10 % of the "
            "p99 shown"
        )
    return LoadProcessFigures(
        wanted_ratio=wanted_ratio, bound=wanted_ratio >= BUSY_CORE, reason=reason
    )


def always_costs(rows: Rows) -> list[AlwaysCost]:
    """Return the prices of `always`. A price is the maximum rate under `everysec` divided by the
    maximum rate under `always`. There is one price for each number of instances, load and added
    latency."""
    costs = []
    for slow in find_rows(rows, policy="always"):
        for fast in find_rows(rows, policy="everysec", **like(slow)) if slow.rate else ():
            times = times_as_fast(fast, slow)
            low, high = times.ratios or (None, None)
            costs.append(
                AlwaysCost(
                    **like(slow),
                    ratio=math.exp(times.shift),
                    low=low,
                    high=high,
                    generator_bound=fast.generator.bound or slow.generator.bound,
                    pairs=times.count,
                )
            )
    return costs


def times_as_fast(fast: FsyncRow, slow: FsyncRow) -> Shift:
    """Return the logarithm of a ratio, and the interval of this logarithm. The ratio is the rate of
    `fast` divided by the rate of `slow`. The function compares pairs of consecutive visits. If
    there are no pairs, the function compares the medians, and the interval is infinite."""
    slow_per_s = {visit.repeat: visit.acquired_per_s for visit in slow.visits}
    pairs = [(visit.acquired_per_s, slow_per_s.get(visit.repeat)) for visit in fast.visits]
    if logs := [math.log(one / other) for one, other in pairs if one and other]:
        return paired_shift(logs, CONFIDENCE)
    ratio = fast.rate / slow.rate if slow.rate else inf
    return Shift(math.log(ratio) if ratio else -inf, -inf, inf, CONFIDENCE, 0)


def findings_of(rows: Rows) -> list[FsyncFinding]:
    """Return all findings about these rows. Most findings need the rows of two policies with the
    same load, the same disk and the same number of instances."""
    orders = list(_orders(rows))
    costs = list(_always_slowest(rows))
    # If noise hides the order of the policies, it also hides the price of a policy.
    if orders:
        costs = [
            replace(one, verdict="not known") if one.verdict == "not shown" else one
            for one in costs
        ]
    return [*orders, *costs, *_refusals(rows)]


def judge_fsync(
    findings: Sequence[FsyncFinding],
    rows: Rows,
    *,
    planned: int,
    done: int,
    interrupted: bool = False,
) -> Verdict:
    """Return the verdict on the whole measurement. `planned` is the number of planned visits, and
    `done` is the number of finished visits. The findings were computed from `rows`."""
    evidence = [
        _evidence(
            "maximum rates below the limit of the load process",
            [row for row in rows if row.load == "max"],
        ),
        _evidence(
            "open-loop measurements without late starts and without a queue",
            [row for row in rows if row.load != "max"],
        ),
        Evidence("visits made", done, math.ceil(planned * MADE_SHARE)),
    ]
    judged = [(finding.verdict, finding.text) for finding in findings]
    cut = f"interrupted after {done} of {planned} visits" if interrupted else ""
    return conclude_rows(judged, tested="findings as expected", also=evidence, interrupted=cut)


def _evidence(tested: str, rows: Rows) -> Evidence:
    """Return two numbers: how many rows count as evidence for the verdict, and how many rows must
    count. A row counts if the load process was not the limit, and if the load had no queue and no
    late start. At least half of all rows, and at least one row, must count."""
    limited = [row.generator.bound if row.load == "max" else row.sustained is False for row in rows]
    spoilt = sum(
        bool(row.generator.reason or limit) for row, limit in zip(rows, limited, strict=True)
    )
    return Evidence(tested, len(rows) - spoilt, max(1, math.ceil(len(rows) / 2)))


def _orders(rows: Rows) -> Iterator[FsyncFinding]:
    """Yield a finding for each pair of policies with impossible rates. The rates are impossible if
    the policy that syncs more often is faster than the other policy, and if the difference is
    larger than the expected noise. Impossible rates show that the noise of the machine is larger
    than the differences between the policies."""
    for less, more in combinations(TAKING_TURNS, 2):
        for dear in find_rows(rows, policy=more):
            for cheap in find_rows(rows, policy=less, **like(dear)):
                if times_as_fast(cheap, dear).high < math.log(1 - NOISE):
                    rates = f"{less} {cheap.rate:,.0f}/s, {more} {dear.rate:,.0f}/s"
                    text = (
                        f"{dear.place}: {rates}. This order of the policies is impossible, so "
                        "the noise of the machine is larger than the cost of the policies"
                    )
                    yield FsyncFinding("order", dear.place, text, "not known")


def _always_slowest(rows: Rows) -> Iterator[FsyncFinding]:
    for slow in find_rows(rows, policy="always", callers=1):
        others = [row for row in find_rows(rows, **like(slow)) if row.policy in TAKING_TURNS[:-1]]
        if not others:
            continue
        least = min(others, key=lambda row: row.rate)
        rates = (
            f"always reached {slow.rate:,.0f}/s, and the next slowest policy, {least.policy}, "
            f"reached {least.rate:,.0f}/s"
        )
        verdict, why = _slowest(slow, least, max(row.rate for row in others))
        yield FsyncFinding("always-slowest", slow.place, f"{slow.place}: {rates}{why}", verdict)


def _slowest(slow: FsyncRow, least: FsyncRow, fastest_per_s: float) -> tuple[Word, str]:
    """Judge whether the policy of `slow` is slower than the policy of `least`. The policy of
    `least` is the slowest of the other policies that alternate with the policy of `slow`. Return
    the verdict. If the verdict is "not judged", also return the reason."""
    times = times_as_fast(least, slow)
    disk = slow.disk_fdatasync_s
    if times.low > 0:
        limit = ", because the load process had reached its limit"
        return ("not judged", limit) if slow.generator.bound else ("as expected", "")
    if not slow.injected_ms and (disk is None or 2 * disk.p50 * fastest_per_s < CHEAP_SYNC):
        return "not judged", ", because an fsync on this disk costs almost nothing"
    return "not shown" if times.high < math.log(1 + NOISE) else "not known", ""


def _refusals(rows: Rows) -> Iterator[FsyncFinding]:
    refused = sum(row.refusals for row in rows)
    leases = sum(row.leases for row in rows)
    unexplained = any(row.refusals and not row.release_failures for row in rows)
    text = (
        f"{leases:,} leases were granted; {refused:,} acquires were refused although no other "
        "client wanted the lock"
    )
    yield FsyncFinding("no-refusal", "all", text, "violated" if unexplained else "as expected")


def warnings_of(rows: Rows, findings: Sequence[FsyncFinding]) -> Iterator[str]:
    """Yield warnings about failed operations and about findings that were not judged. The function
    yields no warnings about lower bounds, queues and late loads, because the rows have marks for
    these problems."""
    if denied := sum(sum(row.denied.values()) for row in rows):
        failed = sum(row.release_failures for row in rows)
        yield f"{denied:,} acquires were denied and {failed:,} releases failed"
    yield from (finding.text for finding in findings if finding.verdict == "not judged")
