"""The choice of the leases that a report draws: *the operations of a run, in several parts → some
leases of a few resources*. The chosen leases are near the most important event of the run."""

import math
from collections.abc import Collection, Iterable

import numpy as np

from bench.measure.clocks import Integers, Timeline
from bench.measure.facts import Window
from bench.measure.outcomes import acquired
from bench.measure.record import Records
from bench.measure.run_result import Holder
from bench.safety.rules import Operations, order_leases, service_faults

MOST_RESOURCES = 6
MOST_LEASES = 900

# All leases of one resource, ordered by grant. The columns are granted_us, end_us, valid_until_us,
# work_end_us, caller, fault.
Table = Integers


class Holders:
    """A collector of the leases that a report draws.

    `window`: the measured time. `faults_ns`: the times at which faults began. `capacity`: how many
    callers may hold a resource at once.

    The collector takes at most `MOST_RESOURCES` resources. The collector first takes the resources
    with violations. If there is room for more resources, the collector takes the resources with the
    most leases. All drawings together show at most `MOST_LEASES` leases.

    Each resource has a drawing, which shows the leases of the resource around one moment.

    - If the resource has a violation, the drawing shows the first violation of the resource.
    - If only other resources have violations, the drawing shows the time of the first violation.
    - If the run has an injected fault but no violation, the drawing shows the start of the first
      fault.
    - If the run has neither a violation nor a fault, the drawing shows the slowest acquire.
    """

    def __init__(self, window: Window, faults_ns: Iterable[int] = (), capacity: int = 1) -> None:
        self._capacity = capacity
        self._window = window
        self._fault_ns = min(faults_ns, default=None)
        # How long the slowest acquire took, and when it was due.
        self._slowest = 0, (window.start_ns + window.stop_ns) // 2
        self._held: list[tuple[int, Table]] = []

    def add(self, records: Records, violated: Collection[int] = ()) -> None:
        """Add all operations of some resources. `violated`: the resources with violations."""
        resources, counts = np.unique(records.resource[acquired(records)], return_counts=True)
        hottest = resources[np.argsort(-counts, kind="stable")][:MOST_RESOURCES].tolist()
        for resource in dict.fromkeys([*sorted(violated), *hottest]):
            chosen = records[records.resource == resource]
            if len(chosen):
                self._held.append((resource, self._table(chosen)))
        self._held.sort(key=lambda held: (_first_fault(held[1]), -len(held[1])))
        del self._held[MOST_RESOURCES:]
        due = records[acquired(records) & (records.intended_ns >= self._window.start_ns)]
        if len(due):
            took = due.ended_ns - due.intended_ns
            self._slowest = max(
                self._slowest, (int(took.max()), int(due.intended_ns[took.argmax()]))
            )

    def section(self) -> tuple[Holder, ...]:
        """Return one entry per resource, with times in µs from the start of the measured window.

        The resources with service faults come first, sorted by the time of the first fault. Then
        the resources without service faults follow, sorted by the number of their leases. The
        resource with the most leases is the first resource without service faults.
        """
        most = MOST_LEASES // max(len(self._held), 1)
        at_ns = self._slowest[1] if self._fault_ns is None else self._fault_ns
        violated_us = min((_first_fault(table) for _, table in self._held), default=math.inf)
        elsewhere_us = (
            (at_ns - self._window.start_ns) // 1_000 if violated_us == math.inf else violated_us
        )
        entries = []
        for resource, table in self._held:
            own_us = _first_fault(table)
            middle = int(
                np.searchsorted(table[:, 0], elsewhere_us if own_us == math.inf else own_us)
            )
            first = max(min(middle - most // 2, len(table) - most), 0)
            shown_leases = table[first : first + most]
            spans = (
                ((int(shown_leases[0, 0]), int(shown_leases[:, 1].max())),)
                if len(shown_leases)
                else ()
            )
            rows = tuple(map(tuple, shown_leases.tolist()))
            entries.append(Holder(resource=resource, leases=len(table), spans_us=spans, rows=rows))
        return tuple(entries)

    def _table(self, records: Records) -> Table:
        # For one resource and no offset, the keys of the timeline are equal to the times.
        leases = order_leases(Operations.of(records), Timeline(int(records.resource[0]), 0, 0))
        work_end = leases.own("work_end_ns")
        # If no work was recorded, the end of the lease counts as the end of the work.
        work_end = np.where(work_end > 0, work_end, leases.end)
        times = np.stack(
            [leases.granted, leases.end, leases.own("valid_until_ns"), work_end], axis=1
        )
        fault = np.isin(leases.row, np.concatenate(service_faults(leases, self._capacity)))
        return np.column_stack(
            [(times - self._window.start_ns) // 1_000, leases.own("caller"), fault]
        )


def _first_fault(table: Table) -> float:
    """Return the grant time (µs) of the first lease that is part of a service fault. Return
    infinity if no lease is part of a service fault."""
    return min(map(float, table[table[:, -1] > 0, 0][:1]), default=math.inf)
