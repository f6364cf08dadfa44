"""A gate at a recipe's pause points: *points to stop at → callers that stand there until they are let go*.

Rules: one gate for one client. It is what `RecipeSettings.gate` wants. Nobody waits for longer than `PATIENCE_S`: a
schedule that went wrong is an error, never a hang. Waits with `threading`, so it works under gevent, too.
Source: bench.recipes.pause.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

PATIENCE_S = 30.0


class Gate:
    """Stops whoever comes to one of the `closed` points."""

    def __init__(self, *closed: str) -> None:
        self._closed = set(closed)
        self._standing: Counter[str] = Counter()
        self._arrivals = self._passes = 0
        self._changed = threading.Condition()

    def __call__(self, point: str) -> None:
        """A caller comes to `point`; returns when it may go on. Raises TimeoutError."""
        with self._changed:
            if point not in self._closed:
                return
            self._standing[point] += 1
            self._arrivals += 1
            self._changed.notify_all()
            try:
                self._wait(lambda: point not in self._closed or self._passes > 0, f"nobody opened {point}")
                self._passes -= point in self._closed
            finally:
                self._standing[point] -= 1

    def open(self) -> None:
        """Let everybody go, from now on."""
        with self._changed:
            self._closed.clear()
            self._changed.notify_all()

    def let_one_pass(self) -> None:
        """Let one of those who stand here go on, and return when somebody stands here anew. Raises TimeoutError."""
        with self._changed:
            arrivals = self._arrivals
            self._passes += 1
            self._changed.notify_all()
            self._wait(lambda: self._arrivals > arrivals, "nobody came again")

    def until_standing(self, point: str) -> None:
        """Return when somebody stands at `point`. Raises TimeoutError."""
        with self._changed:
            self._wait(lambda: bool(self._standing[point]), f"nobody came to {point}")

    def until_standing_or(self, done: Callable[[], bool]) -> bool:
        """Return when somebody stands anywhere (True) or `done` (False); `tell` makes it look. Raises TimeoutError."""
        with self._changed:
            self._wait(lambda: self.is_used or done(), "neither a pause point nor the end was reached")
            return self.is_used

    @property
    def stops_nobody(self) -> bool:
        """Whether no point is closed, or no longer."""
        return not self._closed

    @property
    def is_used(self) -> bool:
        """Whether somebody stands here."""
        return any(self._standing.values())

    def tell(self) -> None:
        """Something has changed that `until_standing_or` waits for."""
        with self._changed:
            self._changed.notify_all()

    def _wait(self, reached: Callable[[], bool], otherwise: str) -> None:
        if not self._changed.wait_for(reached, PATIENCE_S):
            raise TimeoutError(f"{otherwise} within {PATIENCE_S:g} s")
