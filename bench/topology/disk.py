"""A disk: *a folder → how long an append takes to be durable there*. Source: fdatasync(2)."""

import os
import tempfile
import time
from pathlib import Path

from bench.errors import EnvironmentNotReadyError
from bench.measure.run_result import SyncLatency

_RECORD = b"x" * 100
_FEWEST_FOR_P99 = 100


def fdatasync_latency(folder: Path, *, writes: int = 200, budget_s: float = 0.9) -> SyncLatency:
    """Measure at most `writes` (>= 1) appends of 100 bytes in `folder`, for about `budget_s`. Raises
    EnvironmentNotReadyError when it cannot be written."""
    taken_ns: list[int] = []
    try:
        with tempfile.TemporaryFile(prefix="lockbench-sync-", dir=folder, buffering=0) as file:
            deadline_ns = time.monotonic_ns() + int(budget_s * 1e9)
            for _ in range(writes):
                start_ns = time.monotonic_ns()
                file.write(_RECORD)
                os.fdatasync(file.fileno())
                end_ns = time.monotonic_ns()
                taken_ns.append(end_ns - start_ns)
                if end_ns > deadline_ns:
                    break
    except OSError as error:
        raise EnvironmentNotReadyError(
            f"fdatasync cannot be measured in {folder}: {error.strerror}; choose a folder that can be written"
        ) from error
    taken_ns.sort()
    count = len(taken_ns)
    p99_s = _nearest_rank(taken_ns, 99) / 1e9 if count >= _FEWEST_FOR_P99 else None
    return SyncLatency(count, _nearest_rank(taken_ns, 50) / 1e9, p99_s, taken_ns[-1] / 1e9)


def _nearest_rank(ordered: list[int], percent: int) -> int:
    return ordered[-(-len(ordered) * percent // 100) - 1]
