"""Handing out the schedule: *one worker's arrivals → the next free caller, at its time*.

Rules: there is no dispatcher. A free caller takes the next arrival and waits until it is due; an arrival that no
caller was free for is taken late. Three ways to start: on time; *queued* (taken after it was due, or due while this
process was running other callers): load, and paid for in the latency; *late* (the timer fired more than 1 ms late):
the generator's own fault. Source: the schedule of arrivals.py, the timer of alarm.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.workloads.alarm import CANCELLED, Alarm
from lockcore.clock import NS_PER_MS, monotonic_ns

LATE_NS = NS_PER_MS


class Pacer:
    """The arrivals of one worker from `origin_ns` (monotonic) on.

    `measure_ns`, `end_ns`: when measuring starts and the schedule ends, in ns after the origin; `end_ns` None = never.
    `started`, `queued`: starts so far. `late`, `lateness_ns`: late starts while measuring, and what the timer added to
    each start that waited for it.
    """

    def __init__(
        self, alarm: Alarm, offsets_ns: Iterator[int], origin_ns: int, measure_ns: int = 0, end_ns: int | None = None
    ) -> None:
        self._alarm = alarm
        self._offsets = offsets_ns
        self._origin_ns = origin_ns
        self._measure_ns = origin_ns + measure_ns
        self._end_ns = None if end_ns is None else origin_ns + end_ns
        self._over = False
        self.started = self.queued = self.late = 0
        self.lateness_ns: list[int] = []

    def take(self) -> int:
        """Wait for the next arrival and return when it was due (ns); 0 when there is none any more or the wait was
        cancelled."""
        due_ns = self._next()
        if not due_ns:
            return 0
        if due_ns <= monotonic_ns():
            self.queued += 1
        else:
            lateness_ns = self._alarm.wait_until(due_ns)
            if lateness_ns == CANCELLED:
                return 0
            if due_ns >= self._measure_ns:
                self.late += lateness_ns > LATE_NS
                self.lateness_ns.append(lateness_ns)
        self.started += 1
        return due_ns

    def scheduled(self, until_ns: int) -> int:
        """How many starts were due by `until_ns`, started or not. Ends the schedule: nothing is handed out after."""
        overdue = 0
        while (due_ns := self._next()) and due_ns <= until_ns:
            overdue += 1
        self._over = True
        return self.started + overdue

    def _next(self) -> int:
        if self._over:
            return 0
        due_ns = self._origin_ns + next(self._offsets)
        if self._end_ns is not None and due_ns >= self._end_ns:
            self._over = True
            return 0
        return due_ns
