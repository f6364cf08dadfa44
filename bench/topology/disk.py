"""The disk under a folder: *a folder → how long an fdatasync takes on its disk*. Source:
fdatasync(2)."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from bench.errors import EnvironmentNotReadyError
from bench.measure.server_facts import SyncLatency


def fdatasync_latency(folder: Path, *, writes: int = 200, budget_s: float = 0.9) -> SyncLatency:
    """Measure at most `writes` (>= 1) appends of 100 bytes in `folder`, for about `budget_s`.

    Raises EnvironmentNotReadyError if the folder is not writable.
    """
    taken_ns: list[int] = []
    try:
        with tempfile.TemporaryFile(prefix="lockbench-sync-", dir=folder, buffering=0) as file:
            end_ns = time.monotonic_ns()
            deadline_ns = end_ns + int(budget_s * 1e9)
            while len(taken_ns) < writes and end_ns <= deadline_ns:
                start_ns = time.monotonic_ns()
                file.write(b"x" * 100)
                os.fdatasync(file.fileno())
                end_ns = time.monotonic_ns()
                taken_ns.append(end_ns - start_ns)
    except OSError as error:
        raise EnvironmentNotReadyError(
            f"fdatasync cannot be measured in {folder} ({error.strerror}); choose a folder where "
            "you may write"
        ) from error
    taken_ns.sort()
    p50_s, p99_s = (taken_ns[-(-len(taken_ns) * percent // 100) - 1] / 1e9 for percent in (50, 99))
    return SyncLatency(
        len(taken_ns), p50_s, p99_s if len(taken_ns) >= 100 else None, taken_ns[-1] / 1e9
    )
