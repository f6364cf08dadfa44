"""Towards a collector: `put` never waits, and every loss is counted."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from bench.telemetry.otlp import SendQueue

LONG_S = 30.0


class Receiver:
    """Takes batches when it is let."""

    def __init__(self) -> None:
        self.free, self.asked = threading.Event(), threading.Event()
        self.taken: list[int] = []

    def take(self, items: Sequence[int]) -> bool:
        self.asked.set()
        assert self.free.wait(LONG_S)
        self.taken += items
        return True


def test_a_slow_receiver_costs_the_oldest_and_they_are_counted() -> None:
    receiver = Receiver()
    line = SendQueue("t", receiver.take, room=4, batch=1)
    line.put([0])
    assert receiver.asked.wait(LONG_S)  # holds 0
    line.put(range(1, 11))
    assert line.dropped == 6
    receiver.free.set()
    line.close(LONG_S)
    assert receiver.taken == [0, 7, 8, 9, 10]
    assert line.sent + line.dropped == 11


def test_closing_gives_up_in_time_and_counts_what_is_left() -> None:
    receiver = Receiver()
    line = SendQueue("t", receiver.take, room=10, batch=2)
    line.put(range(5))
    assert receiver.asked.wait(LONG_S)
    line.close(0.01)
    assert (line.sent, line.dropped) == (0, 5)
    assert line.is_busy, "it was given up, not ended"
    receiver.free.set()
    line._thread.join(LONG_S)
    assert not line.is_busy
    assert (line.sent, line.dropped) == (0, 5)  # what arrives after all was counted as lost, once
