"""Whether this machine kept time: *a thread that sleeps and looks → how late it was woken, at worst*.

Rules: what is judged by a time that others had to keep rests on this; without it a late answer is not known, not bad.
"""

from __future__ import annotations

import threading
from typing import Self

from lockcore.clock import NS_PER_MS, NS_PER_S, monotonic_ns

_LOOK_S = 0.002


class Pace:
    """Entered, it watches until it is left. `worst_ms`: the worst lateness of a sleep so far."""

    def __init__(self) -> None:
        self.worst_ms = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lockbench-pace", daemon=True)

    def kept(self, allowed_ms: float) -> dict[str, bool]:
        """The precondition that nothing was late by more than `allowed_ms`."""
        return {f"the machine kept time to {allowed_ms:g} ms": self.worst_ms <= allowed_ms}

    def _watch(self) -> None:
        begun_ns = monotonic_ns()
        while not self._over.wait(_LOOK_S):
            now_ns = monotonic_ns()
            self.worst_ms = max(self.worst_ms, (now_ns - begun_ns - _LOOK_S * NS_PER_S) / NS_PER_MS)
            begun_ns = now_ns

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._over.set()
        self._thread.join()
