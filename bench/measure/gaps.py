"""Finds gaps and pauses. In a gap or a pause, a load process did not run. This module also finds
the acquires that were affected by a gap or a pause.

Rules
- A process is away if it does not run and does not wait for a core. For example, the process is
  away if someone stops it, or if its machine is frozen or throttled. A busy machine causes no gaps,
  because a process that only waits for a core is not away. Such a wait is scheduler lag, which can
  lead to the verdict LATE.
- A gap is a span of time in which a process was away. The process checks its clocks regularly, and
  the gap begins at the last check before the process stops. The lost time of a gap is the time in
  which the process did not run.
- A run is INVALID if one process was away for more than `MOST_SHARE` of the measured window. The
  rates and latencies of such a run depend on how long the process was away, so they do not describe
  the lock. If every process was away for at most `MOST_SHARE` of the window, the run is not INVALID
  because of gaps. In this case, the rates exclude the lost time.
- An acquire touches a gap if the acquire and the gap overlap. After a gap, the load process first
  starts the operations that were due in the gap. These operations delay other operations. Therefore
  an acquire also touches the gap if it was due in the time after the gap. This time is as long as
  the gap. The duration of an acquire that touches a gap does not describe the lock. A gap of one
  process can touch the acquires of all processes, because the stopped process may have held the
  lock.
- Some kernels do not count how long a process waits for a core (no /proc/<pid>/schedstat). On such
  a kernel, lockbench cannot distinguish a wait for a core from a stop. Therefore lockbench counts a
  span of time as a gap only if the span is at least as long as `UNTOLD_NS`.
- A pause is a time of at least `PAUSE_NS` in which a process had work but did not run. During a
  pause, the process is away, or it waits for a core. A busy machine has many pauses, but they never
  make a run INVALID. Pauses show how much latency the machine added. The result has separate
  histograms for acquires that touched a pause. The longest pause that an acquire touched decides
  which of these histograms counts the acquire. `lockbench capacity` reads these histograms.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from bench.measure.clocks import Clock, Who, rows_of, worker_files
from bench.measure.facts import Window
from bench.measure.histogram import HIGHEST_NS, Histogram
from bench.measure.outcomes import acquired
from bench.measure.record import NEVER_NS, Records
from bench.measure.run_result import GeneratorHealth, LoadGap, Measured
from lockcore.clock import NS_PER_MS as MS
from lockcore.clock import NS_PER_S

GAPS = "gaps"
# The process checks its clocks every 10 ms. In a gap, at least four checks are missing.
GAP_NS = 40_000_000
UNTOLD_NS = 100_000_000
# A run is INVALID if one process was away for more than this share of the window.
MOST_SHARE = 0.05
PAUSE_NS = 2_000_000
# The classes of pauses. Each number is the duration (ms) of the shortest pause in its class.
PAUSES_MS = (2, 4, 8, 16, 32)
# The kinds of rows in a file of gaps.
AWAY = 1
PAUSED = 2
# A row has four columns: begun, ended, lost, kind. A row with the kind 0 is empty.
ROW = 4


class Gap(NamedTuple):
    """One gap or pause. `lost_ns` is how long the process did not run between `begun_ns` and
    `ended_ns`."""

    worker: int
    pid: int
    begun_ns: int
    ended_ns: int
    lost_ns: int


def read_gaps(
    workdir: str | os.PathLike[str], clocks: Mapping[Who, Clock] | None = None
) -> list[Gap]:
    """Return the gaps of all load processes, sorted by their begin. All returned times are times on
    our clock."""
    return _read(workdir, clocks, (AWAY,))


def read_pauses(
    workdir: str | os.PathLike[str], clocks: Mapping[Who, Clock] | None = None
) -> list[Gap]:
    """Return the pauses of all load processes, in the same form as `read_gaps`. The gaps are
    included, because every gap is also a pause."""
    return _read(workdir, clocks, (AWAY, PAUSED))


def _read(
    workdir: str | os.PathLike[str], clocks: Mapping[Who, Clock] | None, kinds: Sequence[int]
) -> list[Gap]:
    gaps = []
    for who, path in worker_files(workdir, GAPS):
        clock = (clocks or {}).get(who)
        for begun, ended, lost_ns, kind in rows_of(path, ROW).tolist():
            if kind in kinds and 0 < begun < ended < NEVER_NS and 0 < lost_ns <= ended - begun:
                begun_ns = begun if clock is None else clock.ours(begun)
                ended_ns = ended if clock is None else clock.ours(ended)
                gaps.append(Gap(who[0], who[1], begun_ns, ended_ns, lost_ns))
    return sorted(gaps, key=lambda gap: gap.begun_ns)


def lost_in(gaps: Sequence[Gap], window: Window) -> dict[Who, int]:
    """For each process, return how long (ns) the process was away in the window. A process without
    a gap in the window is not in the result."""
    lost: dict[Who, int] = {}
    for gap in gaps:
        inside_ns = min(gap.ended_ns, window.stop_ns) - max(gap.begun_ns, window.start_ns)
        if inside_ns > 0:
            who = gap.worker, gap.pid
            lost[who] = lost.get(who, 0) + min(gap.lost_ns, inside_ns)
    return lost


def touched(records: Records, gaps: Sequence[Gap]) -> NDArray[np.bool_]:
    """Return a mask of the acquires that touch a gap."""
    touches = np.zeros(len(records), bool)
    for gap in gaps:
        until_ns = gap.ended_ns + (gap.ended_ns - gap.begun_ns)
        touches |= (records.ended_ns >= gap.begun_ns) & (records.intended_ns <= until_ns)
    return touches


# The loop goes from short to long pauses, and a later class overwrites an earlier class. So each
# acquire gets the class of the longest pause that it touches. For each acquire, one search finds
# the first span that ends at or after the beginning of the acquire. One search is enough only
# because `_joined` leaves no overlap, so beginnings and ends are both in order. If spans
# overlapped, acquires would get wrong classes without any error.
def pause_histograms(records: Records, pauses: Sequence[Gap]) -> dict[str, Histogram]:
    """Return a histogram for each class of pauses. The histogram of a class has the durations of
    all acquires that belong to this class.

    An acquire belongs to the class of the longest pause that it touches. For example, the class
    `paused_8` has the pauses from 8 ms to less than 16 ms. The duration of a failed acquire is
    counted as `HIGHEST_NS`.

    An acquire touches a pause if the two overlap. An acquire also touches a pause if the acquire
    was due after the end of the pause and at most `lost_ns` later.
    """
    classes = np.zeros(len(records), np.int64)
    for least_ms in PAUSES_MS:
        spans = _joined(
            [
                (gap.begun_ns, gap.ended_ns + gap.lost_ns)
                for gap in pauses
                if gap.lost_ns >= least_ms * MS
            ]
        )
        next_one = np.searchsorted(spans[:, 1], records.intended_ns)
        begins_ns = np.append(spans[:, 0], NEVER_NS)[next_one]
        classes[begins_ns <= records.ended_ns] = least_ms
    took_ns = np.where(acquired(records), records.ended_ns - records.intended_ns, HIGHEST_NS)
    by_class = {f"paused_{least_ms}": took_ns[classes == least_ms] for least_ms in PAUSES_MS}
    return {name: Histogram.of(values) for name, values in by_class.items() if len(values)}


def _joined(spans: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """Sort the spans, and join all spans that overlap. Each row of the result has the beginning and
    the end of a span."""
    rows: list[list[int]] = []
    for begun_ns, until_ns in sorted(spans):
        if rows and begun_ns <= rows[-1][1]:
            rows[-1][1] = max(rows[-1][1], until_ns)
        else:
            rows.append([begun_ns, until_ns])
    return np.array(rows, np.int64).reshape(-1, 2)


# A result lists at most this many gaps.
MOST_GAPS = 50


def with_gaps(
    values: Measured, gaps: Sequence[Gap], window: Window, away: Mapping[str, int], processes: int
) -> Measured:
    """Return the sections of a run, corrected for its gaps.

    `away` has two counts. `operations` is the number of acquires that touched a gap. `failures` is
    the number of acquires that touched a gap and failed.
    """
    lost = lost_in(gaps, window)
    if not lost or window.span_ns <= 0:
        return values
    who, most_ns = max(lost.items(), key=lambda one: one[1])
    longest = sorted(sorted(gaps, key=lambda gap: -gap.lost_ns)[:MOST_GAPS])
    rows = tuple(
        LoadGap(
            worker=gap.worker,
            pid=gap.pid,
            at_s=(gap.begun_ns - window.start_ns) / NS_PER_S,
            for_s=(gap.ended_ns - gap.begun_ns) / NS_PER_S,
            lost_s=gap.lost_ns / NS_PER_S,
        )
        for gap in sorted(longest, key=lambda gap: gap.begun_ns)
    )
    generator = structs.replace(
        values.generator,
        gap_s=most_ns / NS_PER_S,
        gap_operations=away.get("operations", 0),
        gap_failures=away.get("failures", 0),
        gaps=rows,
    )
    if most_ns > MOST_SHARE * window.span_ns:
        reason = (
            f"load process {who[0]} (pid {who[1]}) did not run for {most_ns / NS_PER_S:.2f} s of "
            f"{window.duration_s:.2f} s (stopped, throttled or frozen); at most {MOST_SHARE:.0%} "
            "is allowed"
        )
        return structs.replace(
            values, generator=structs.replace(generator, verdict="INVALID", reason=reason)
        )
    present = 1 - sum(lost.values()) / (max(processes, 1) * window.span_ns)
    rate = structs.replace(
        values.rate,
        achieved_per_s=_over(values.rate.achieved_per_s, present),
        completed_per_s=_over(values.rate.completed_per_s, present),
    )
    return structs.replace(values, generator=generator, rate=rate)


def _over(rate: float | None, present: float) -> float | None:
    return None if rate is None else rate / present


def gap_warnings(generator: GeneratorHealth) -> Iterator[str]:
    """Yield a warning if the run has gaps and the verdict on the load generator is not INVALID."""
    if generator.gap_s and generator.verdict != "INVALID":
        yield (
            f"a load process did not run for {generator.gap_s:.2f} s of the window (stopped, "
            f"throttled or frozen). The rates exclude this time. {generator.gap_operations:,} "
            f"acquires were affected ({generator.gap_failures:,} failed), and no limit fails "
            "because of these acquires"
        )
