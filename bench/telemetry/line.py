"""A queue to somebody who may be slow, or gone: *items → batches handed over in a thread of its own; what was not*.

Rules
- `put` never waits. When the queue is full the oldest go; what is dropped, by overflow or by a failed hand-over, is
  counted.
- `close` waits so long and no longer; what is left then is counted as dropped.

Source: the project's rule that a collector never slows the load.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Line(Generic[T]):
    """`hand_over` takes a batch of up to `batch` items and returns whether it arrived; it may block."""

    def __init__(self, name: str, hand_over: Callable[[Sequence[T]], bool], *, room: int, batch: int) -> None:
        self._hand_over, self._room, self._batch = hand_over, room, batch
        self._queue: deque[T] = deque()
        self._changed = threading.Condition()
        self._closing = self._handing_over = False
        self.dropped = self.sent = self.failures = 0
        self._under_way = 0
        self._thread = threading.Thread(target=self._work, name=f"telemetry-{name}", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether a batch is being handed over, also one that `close` has given up."""
        with self._changed:
            return self._handing_over

    def put(self, items: Sequence[T]) -> None:
        """Queue `items`."""
        with self._changed:
            self._queue.extend(items)
            while len(self._queue) > self._room:
                self._queue.popleft()
                self.dropped += 1
            self._changed.notify()

    def close(self, within_s: float) -> None:
        """Hand over what is queued, for `within_s` at most."""
        deadline_s = time.monotonic() + within_s
        with self._changed:
            self._closing = True
            self._changed.notify()
            while (self._queue or self._under_way) and (left_s := deadline_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
            self.dropped += len(self._queue) + self._under_way
            self._queue.clear()
            self._room = self._under_way = 0

    def _work(self) -> None:
        while (items := self._next()) is not None:
            arrived = False
            try:
                arrived = self._hand_over(items)
            finally:
                self._note(arrived)

    def _next(self) -> Sequence[T] | None:
        with self._changed:
            while not self._queue:
                if self._closing:
                    return None
                self._changed.wait()
            items = [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]
            self._under_way, self._handing_over = len(items), True
            return items

    def _note(self, arrived: bool) -> None:
        with self._changed:
            under_way, self._under_way = self._under_way, 0  # 0 also when `close` has given it up
            self._handing_over = False
            self.failures += not arrived
            if arrived:
                self.sent += under_way
            else:
                self.dropped += under_way
            self._changed.notify_all()
