"""Whether a process of this host still runs: *a pid → yes or no*.

Rules: one that has ended and that nobody has waited for yet does not run. Source: proc(5), state Z.
"""

from __future__ import annotations

import psutil


def is_alive(pid: int) -> bool:
    """Whether process `pid` runs (or sleeps, or is stopped)."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
