"""This module measures the health of the load generator: *a check every 10 ms → the lateness of
greenlets and timers, CPU time, and the time in which this process did not run*.

All code of this module runs in the thread of the hub. While a process waits for its time slice, it
does not count as stopped, and its CPU time does not count.
"""

import time
from collections.abc import Callable
from pathlib import Path

import gevent
import numpy as np

from bench.errors import BenchError
from bench.measure.histogram import Histogram
from bench.workloads.gap_log import GapLog
from bench.workloads.waits import Waits
from lockcore.clock import NS_PER_MS, monotonic_ns

PROBE_NS = 10 * NS_PER_MS


class GeneratorProbe:
    """A greenlet that starts when the object is created and then checks the clocks every 10 ms. If
    the disk is full, the greenlet calls `broke`."""

    def __init__(
        self, workdir: Path, index: int, waits: Waits, broke: Callable[[BenchError], None]
    ) -> None:
        self._waits = waits
        self._broke = broke
        self._gaps = GapLog(workdir, index)
        self._lags_ns: list[int] = []
        self.lag = Histogram()
        self.lateness = Histogram()
        self._cpu_s = time.process_time()
        # The time at which the last check was due.
        self.looked_ns = 0
        self._task = gevent.spawn(self._run)

    def _run(self) -> None:
        """Sleep for 10 ms again and again, and store the lateness of each wake-up."""
        due_ns = monotonic_ns()
        while True:
            self.looked_ns = due_ns
            due_ns += PROBE_NS
            late_ns = self._waits.naps.wait_until(due_ns)
            self._look_for_gap(due_ns)
            # A stall counts once for every check that it has prevented.
            lags_ns = list(range(late_ns, -1, -PROBE_NS)) or [0]
            self._lags_ns += lags_ns
            due_ns += PROBE_NS * (len(lags_ns) - 1)

    def _look_for_gap(self, due_ns: int) -> None:
        """Store the time in which this process did not run."""
        turns = self._waits.turns
        waited_ns = turns.waited_ns if turns else 0
        idle = turns is not None and not turns.holding
        try:
            self._gaps.look(due_ns, monotonic_ns(), waited_ns, idle=idle)
        except BenchError as error:
            self._broke(error)

    def count(self) -> None:
        """Count the delays since the last call."""
        for histogram, times_ns in (
            (self.lag, self._lags_ns),
            (self.lateness, self._waits.late_ns),
        ):
            count(histogram, times_ns)

    def begin(self) -> None:
        """Start to count CPU time. CPU time before this call does not count."""
        self._cpu_s = time.process_time()

    @property
    def cpu_s(self) -> float:
        """The CPU time that the load has used so far (s)."""
        turns = self._waits.turns
        waited_s = turns.waited_cpu_ns / 1e9 if turns else 0.0
        return time.process_time() - self._cpu_s - waited_s

    def close(self) -> None:
        """Make one more check and then close the file. If the process has been stopped since the
        previous check, this last check notices the stop."""
        self._task.kill()
        self._look_for_gap(self.looked_ns + PROBE_NS)
        self._gaps.close()


def count(histogram: Histogram, times_ns: list[int]) -> None:
    """Add times (ns) to a histogram, and then empty the list of the times."""
    histogram.add(np.array(times_ns, np.int64))
    times_ns.clear()
