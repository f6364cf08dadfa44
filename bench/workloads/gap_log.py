"""This module logs the times in which a load process did not run: *a check of its clocks every 10
ms → gaps and pauses in a file*.

The thread of the hub makes all checks. measure/gaps.py defines gaps and pauses. Sources:
Documentation/scheduler/sched-stats.rst of Linux (the second number of schedstat), clock_gettime(2).
"""

import os
import time
from contextlib import suppress
from pathlib import Path

from bench.measure.gaps import AWAY, GAP_NS, GAPS, PAUSE_NS, PAUSED, ROW, UNTOLD_NS
from bench.measure.grown import Grown


class GapLog:
    """The file with the gaps and pauses of this process. `worker`: the number of this process."""

    def __init__(self, workdir: str | os.PathLike[str], worker: int) -> None:
        self._file = Grown(Path(workdir) / f"{GAPS}-{worker}-{os.getpid()}.bin")
        self._words = memoryview(b"").cast("q")
        self._word = 0
        self._waits: int | None = None
        with suppress(OSError):
            self._waits = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        self._least_ns = UNTOLD_NS if self._waits is None else GAP_NS
        self._looked_ns = time.monotonic_ns()
        self._ran_ns = time.thread_time_ns()
        self._waited_ns = self._waited()

    # A stopped process cannot notice its stop, so this method compares clocks afterwards. It takes
    # the time since the check was due and subtracts the CPU time that the process used. The process
    # did not run in the remaining time. The kernel counts how much of the remaining time the
    # process waited for a core. Only the rest is a gap. A late timer alone proves nothing, because
    # a busy core also makes timers late. The time never begins before the previous check, so no
    # time is counted twice.
    def look(self, due_ns: int, now_ns: int, waited_ns: int = 0, *, idle: bool = False) -> None:
        """Check for a gap or pause. The check was due at `due_ns`.

        `waited_ns`: how far (ns) the process's own time lags behind the monotonic clock. `idle`:
        true if this process makes no load, because another process has the time slice. Raises
        EnvironmentNotReadyError if the disk is full.
        """
        ran_ns = time.thread_time_ns()
        core_ns = self._waited()
        still_ns = now_ns - max(due_ns, self._looked_ns) - (ran_ns - self._ran_ns)
        queued_ns = core_ns - self._waited_ns
        begun_ns = self._looked_ns
        self._looked_ns = now_ns
        self._ran_ns = ran_ns
        self._waited_ns = core_ns
        if idle:
            return
        if still_ns - queued_ns >= self._least_ns:
            self._keep(begun_ns - waited_ns, now_ns - waited_ns, still_ns - queued_ns, AWAY)
        elif max(still_ns, queued_ns) >= PAUSE_NS:
            lost_ns = min(max(still_ns, queued_ns), now_ns - begun_ns)
            self._keep(begun_ns - waited_ns, now_ns - waited_ns, lost_ns, PAUSED)

    def close(self) -> None:
        """Close the log."""
        if self._waits is not None:
            os.close(self._waits)
            self._waits = None

    def _waited(self) -> int:
        """Return the total time (ns) for which this thread has waited for a core. The result is 0
        if the kernel does not count this time."""
        return 0 if self._waits is None else int(os.pread(self._waits, 100, 0).split()[1])

    def _keep(self, *row: int) -> None:
        at = self._word
        if at + ROW > len(self._words):
            self._words = self._file.chunk()
            at = 0
        for offset, value in enumerate(row):
            self._words[at + offset] = value
        self._word = at + ROW
