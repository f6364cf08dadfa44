"""Who held what, and when: *records → the leases of the most wanted resources, a bounded number of them*.

A lease is drawn as the oracle believes it. At most `MOST_RESOURCES`: those where a violation was seen, by the time of
their first, then those with the most leases; over all of them at most `MOST_LEASES`: those around the first violations;
where there is none, around the first of another resource, else of the first fault, else of the slowest acquire.
"""

import math
from collections.abc import Collection, Iterable

import numpy as np

from bench.measure.clocks import Integers, timelines
from bench.measure.facts import Window
from bench.measure.outcomes import acquired
from bench.measure.record import Records
from bench.measure.run_result import Holder
from bench.safety import rules

MOST_RESOURCES = 6
MOST_LEASES = 900
COLUMNS = ("granted_us", "end_us", "valid_until_us", "work_end_us", "caller", "fault")
_FOCUSES = 5  # violations whose surroundings are kept

Table = Integers  # all leases of a resource, by grant, with the `COLUMNS`


class Holders:
    """Collects the leases of the resources that matter, part by part. `window`: the measured time; `faults_ns`: when
    faults began."""

    def __init__(self, window: Window, faults_ns: Iterable[int] = ()) -> None:
        self._window = window
        self._fault_ns = min(faults_ns, default=None)
        self._slowest = 0, (window.start_ns + window.stop_ns) // 2  # how long it took, when it was due
        self._held: list[tuple[int, Table]] = []

    def add(self, records: Records, violated: Collection[int] = ()) -> None:
        """Add all operations of some resources; `violated`: resources on which something was found."""
        resources, counts = np.unique(records["resource"][acquired(records)], return_counts=True)
        hottest = resources[np.argsort(-counts, kind="stable")][:MOST_RESOURCES].tolist()
        for resource in dict.fromkeys([*sorted(violated), *hottest]):
            chosen = records[records["resource"] == resource]
            if len(chosen):
                self._held.append((resource, self._table(chosen)))
        self._held.sort(key=lambda held: (_first_fault(held[1]), -len(held[1])))
        del self._held[MOST_RESOURCES:]
        due = records[acquired(records) & (records["intended_ns"] >= self._window.start_ns)]
        if len(due):
            took = due["granted_ns"] - due["intended_ns"]
            self._slowest = max(self._slowest, (int(took.max()), int(due["intended_ns"][took.argmax()])))

    def section(self) -> tuple[Holder, ...]:
        """One entry per resource, the most troubled first; times in µs from the start of the measured window."""
        most = MOST_LEASES // max(len(self._held), 1)
        at_ns = self._slowest[1] if self._fault_ns is None else self._fault_ns
        violated_us = min((_first_fault(table) for _, table in self._held), default=math.inf)
        focus_us = (at_ns - self._window.start_ns) // 1_000 if violated_us == math.inf else int(violated_us)
        entries = []
        for resource, table in self._held:
            chosen = _chosen(table, most, focus_us)
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
        leases = rules.order_leases(rules.Operations.of(records[rows]), timeline)
        earlier, later = rules.service_faults(leases)
        granted = records["granted_ns"][leases.row]
        end = np.where(leases.sent > 0, np.minimum(leases.valid_until, leases.sent), leases.valid_until)
        work_end = np.where(leases.work_end > 0, leases.work_end, end)  # else no work was recorded
        table = np.stack([granted, end, leases.valid_until, work_end], axis=1) - self._window.start_ns
        fault = np.isin(leases.row, np.concatenate([earlier, later])).astype(np.int64)
        return np.column_stack([table // 1_000, records["caller"][leases.row], fault])


def _first_fault(table: Table) -> float:
    """When the first lease that overlaps another was granted, in µs; infinite when there is none."""
    return min(map(float, table[table[:, -1] > 0, 0][:1]), default=math.inf)


def _chosen(table: Table, most: int, focus_us: int) -> list[tuple[int, int]]:
    """Ranges of rows to keep, at most about `most` rows, in order and apart from each other."""
    size = len(table)
    if size <= most:
        return [(0, size)] if size else []
    focuses = np.flatnonzero(table[:, -1])[:_FOCUSES].tolist() or [int(np.searchsorted(table[:, 0], focus_us))]
    half = most // (2 * len(focuses))
    ranges: list[tuple[int, int]] = []
    for focus in focuses:
        first, last = max(focus - half, 0), min(focus + half, size)
        if ranges and first <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], last)
        elif last > first:
            ranges.append((first, last))
    return ranges
