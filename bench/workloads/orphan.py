"""No process outlives the one that started it: *the parent's death → SIGTERM to this process, from the kernel*.

Rules: the signal is tied to the *thread* that made this process, and cleared by a fork, so each process asks for
itself; asking late is caught by comparing the parent. SIGTERM lets Locust give its locks back. Source: prctl(2).
"""

from __future__ import annotations

import ctypes
import os
import signal

PARENT_VARIABLE = "LOCKBENCH_PARENT"
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Have this process ended when its parent `parent_pid` ends; at once if it has."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGTERM)
