"""Who held what, and when: *records → the leases of the most wanted resources, a bounded number of them*.

Rules
- A lease is drawn as the oracle believes it, from its grant to its release or its end; the rule that finds service
  faults marks those that overlap.
- At most `MOST_RESOURCES`: first those where a violation was seen, then those with the most leases. The share of time
  each was held, slice by slice, is of all its leases; one by one at most `MOST_LEASES` over all resources are kept:
  those around the first violations, else those in the middle of the run. `spans_us`: of which times all are there.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.measure.outcomes import acquired
from bench.measure.over_time import Slices
from bench.measure.record import Records
from bench.measure.run_result import Holder
from bench.measure.timeline import Integers, timelines
from bench.safety import rules

MOST_RESOURCES = 6
MOST_LEASES = 900
COLUMNS = ("granted_us", "end_us", "valid_until_us", "work_end_us", "caller", "fault")
_FOCUSES = 5  # violations whose surroundings are kept


@dataclass(frozen=True, slots=True)
class _Held:
    """All leases of a resource, by grant: `table` has the `COLUMNS`; `ratio`: share of each slice it was held."""

    resource: int
    table: Integers
    ratio: tuple[float, ...]

    @property
    def faults(self) -> Integers:
        """The leases that overlap an earlier one's validity or are overlapped."""
        return np.flatnonzero(self.table[:, -1])

    @property
    def rank(self) -> tuple[int, int]:
        """What is shown first: violations, then leases."""
        return (len(self.faults), len(self.table))


class Holders:
    """Collects the leases of the resources that matter, part by part. `slices`: of the run's `over_time`."""

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._held: list[_Held] = []

    def add(self, records: Records, violated: Collection[int] = ()) -> None:
        """Add all operations of some resources; `violated`: resources on which something was found."""
        resources, counts = np.unique(records["resource"][acquired(records)], return_counts=True)
        hottest = resources[np.argsort(-counts, kind="stable")][:MOST_RESOURCES].tolist()
        for resource in dict.fromkeys([*sorted(violated), *hottest]):
            chosen = records[records["resource"] == resource]
            if len(chosen):
                self._held.append(self._of(resource, chosen))
        self._held.sort(key=lambda held: held.rank, reverse=True)
        del self._held[MOST_RESOURCES:]

    def section(self) -> tuple[Holder, ...]:
        """One entry per resource, the most troubled first; times in µs from the start of the measured window."""
        most = MOST_LEASES // max(len(self._held), 1)
        entries = []
        for held in self._held:
            chosen = _chosen(held, most, self._slices.duration_ns // 2_000)
            entries.append(
                Holder(
                    resource=held.resource,
                    leases=len(held.table),
                    held_ratio=held.ratio,
                    spans_us=tuple((int(held.table[a, 0]), int(held.table[a:b, 1].max())) for a, b in chosen),
                    rows=tuple(tuple(row) for a, b in chosen for row in held.table[a:b].tolist()),
                )
            )
        return tuple(entries)

    def _of(self, resource: int, records: Records) -> _Held:
        names = ("granted_ns", "valid_until_ns", "work_end_ns", "release_sent_ns")
        times = [records[name][records[name] > 0] for name in names]
        if not any(len(column) for column in times):
            return _Held(resource, np.empty((0, len(COLUMNS)), np.int64), (0.0,) * self._slices.total)
        ((timeline, rows),) = timelines(records["resource"], times)
        leases = rules.order_leases(records[rows], timeline)
        earlier, later = rules.service_faults(leases)
        granted = records["granted_ns"][leases.row]
        end = np.where(leases.sent > 0, np.minimum(leases.valid_until, leases.sent), leases.valid_until)
        table = np.stack([granted, end, leases.valid_until, leases.work_end], axis=1) - self._slices.start_ns
        table[:, 3] = np.where(leases.work_end > 0, table[:, 3], table[:, 1])  # no work was recorded
        fault = np.isin(leases.row, np.concatenate([earlier, later])).astype(np.int64)
        table = np.column_stack([table // 1_000, records["caller"][leases.row], fault])
        return _Held(resource, table, _held_ratio(granted, end, self._slices.edges_ns()))


def _held_ratio(granted_ns: Integers, end_ns: Integers, edges_ns: Integers) -> tuple[float, ...]:
    """The sum of the leases' time in each slice ÷ its width; above 1 where they overlap."""
    if not len(granted_ns):
        return (0.0,) * (len(edges_ns) - 1)

    def passed(times: Integers) -> NDArray[np.float64]:  # the sum of (edge − time) over all times before each edge
        ordered = np.sort(times) - edges_ns[0]
        sums = np.concatenate([[0.0], np.cumsum(ordered, dtype=np.float64)])  # int64 is too small for a long run
        before = np.searchsorted(ordered, edges_ns - edges_ns[0])
        return np.asarray(before * (edges_ns - edges_ns[0]).astype(np.float64) - sums[before])

    held = np.diff(passed(granted_ns) - passed(end_ns))
    return tuple(float(ratio) for ratio in (held / np.maximum(np.diff(edges_ns), 1)).round(4))


def _chosen(held: _Held, most: int, middle_us: int) -> list[tuple[int, int]]:
    """Ranges of rows to keep, at most about `most` rows, in order and apart from each other."""
    size = len(held.table)
    if size <= most:
        return [(0, size)] if size else []
    focuses = held.faults[:_FOCUSES].tolist() or [int(np.searchsorted(held.table[:, 0], middle_us))]
    half = most // (2 * len(focuses))
    ranges: list[tuple[int, int]] = []
    for focus in focuses:
        first, last = max(focus - half, 0), min(focus + half, size)
        if ranges and first <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], last)
        elif last > first:
            ranges.append((first, last))
    return ranges
