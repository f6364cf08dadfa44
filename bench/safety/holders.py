"""Who held what, and when: *records → the leases of the most wanted resources, a bounded number of them*.

Rules
- A lease is drawn as the oracle believes it, from its grant to its release or its end; the rule that finds service
  faults marks those that overlap.
- At most `MOST_RESOURCES`: first those where a violation was seen, then those with the most leases; over all of them at
  most `MOST_LEASES`: those around the first violations, else those in the middle of the run. `spans_us`: of which times
  all are there.
"""

from collections.abc import Collection

import numpy as np

from bench.measure.facts import Window
from bench.measure.outcomes import acquired
from bench.measure.record import Records
from bench.measure.run_result import Holder
from bench.measure.timeline import Integers, timelines
from bench.safety import rules

MOST_RESOURCES = 6
MOST_LEASES = 900
COLUMNS = ("granted_us", "end_us", "valid_until_us", "work_end_us", "caller", "fault")
_FOCUSES = 5  # violations whose surroundings are kept

Table = Integers  # all leases of a resource, by grant, with the `COLUMNS`


class Holders:
    """Collects the leases of the resources that matter, part by part. `window`: the measured time."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._held: list[tuple[int, Table]] = []

    def add(self, records: Records, violated: Collection[int] = ()) -> None:
        """Add all operations of some resources; `violated`: resources on which something was found."""
        resources, counts = np.unique(records["resource"][acquired(records)], return_counts=True)
        hottest = resources[np.argsort(-counts, kind="stable")][:MOST_RESOURCES].tolist()
        for resource in dict.fromkeys([*sorted(violated), *hottest]):
            chosen = records[records["resource"] == resource]
            if len(chosen):
                self._held.append((resource, self._table(chosen)))
        self._held.sort(key=lambda held: (len(_faults(held[1])), len(held[1])), reverse=True)
        del self._held[MOST_RESOURCES:]

    def section(self) -> tuple[Holder, ...]:
        """One entry per resource, the most troubled first; times in µs from the start of the measured window."""
        most = MOST_LEASES // max(len(self._held), 1)
        middle_us = (self._window.stop_ns - self._window.start_ns) // 2_000
        entries = []
        for resource, table in self._held:
            chosen = _chosen(table, most, middle_us)
            spans = tuple((int(table[a, 0]), int(table[a:b, 1].max())) for a, b in chosen)
            rows = tuple(tuple(row) for a, b in chosen for row in table[a:b].tolist())
            entries.append(Holder(resource=resource, leases=len(table), spans_us=spans, rows=rows))
        return tuple(entries)

    def _table(self, records: Records) -> Table:
        names = ("granted_ns", "valid_until_ns", "work_end_ns", "release_sent_ns")
        times = [records[name][records[name] > 0] for name in names]
        if not any(len(column) for column in times):
            return np.empty((0, len(COLUMNS)), np.int64)
        ((timeline, rows),) = timelines(records["resource"], times)
        leases = rules.order_leases(records[rows], timeline)
        earlier, later = rules.service_faults(leases)
        granted = records["granted_ns"][leases.row]
        end = np.where(leases.sent > 0, np.minimum(leases.valid_until, leases.sent), leases.valid_until)
        work_end = np.where(leases.work_end > 0, leases.work_end, end)  # else no work was recorded
        table = np.stack([granted, end, leases.valid_until, work_end], axis=1) - self._window.start_ns
        fault = np.isin(leases.row, np.concatenate([earlier, later])).astype(np.int64)
        return np.column_stack([table // 1_000, records["caller"][leases.row], fault])


def _faults(table: Table) -> Integers:
    """The leases that overlap an earlier one's validity or are overlapped."""
    return np.flatnonzero(table[:, -1])


def _chosen(table: Table, most: int, middle_us: int) -> list[tuple[int, int]]:
    """Ranges of rows to keep, at most about `most` rows, in order and apart from each other."""
    size = len(table)
    if size <= most:
        return [(0, size)] if size else []
    focuses = _faults(table)[:_FOCUSES].tolist() or [int(np.searchsorted(table[:, 0], middle_us))]
    half = most // (2 * len(focuses))
    ranges: list[tuple[int, int]] = []
    for focus in focuses:
        first, last = max(focus - half, 0), min(focus + half, size)
        if ranges and first <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], last)
        elif last > first:
            ranges.append((first, last))
    return ranges
