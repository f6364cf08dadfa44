"""A line to somebody slow: `put` never waits, the oldest go first, every loss is counted."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from bench.telemetry.line import Line

LONG_S = 30.0


class Receiver:
    """Takes batches when it is let."""

    def __init__(self, answer: bool = True) -> None:
        self.answer = answer
        self.free, self.asked = threading.Event(), threading.Event()
        self.taken: list[int] = []

    def take(self, items: Sequence[int]) -> bool:
        self.asked.set()
        assert self.free.wait(LONG_S)
        self.taken += items if self.answer else []
        return self.answer


def test_what_is_put_arrives_in_order_and_batches() -> None:
    receiver = Receiver()
    receiver.free.set()
    line = Line("t", receiver.take, room=100, batch=3)
    line.put(range(7))
    line.close(LONG_S)
    assert receiver.taken == list(range(7))
    assert (line.sent, line.dropped, line.failures) == (7, 0, 0)


def test_a_slow_receiver_costs_the_oldest_and_they_are_counted() -> None:
    receiver = Receiver()
    line = Line("t", receiver.take, room=4, batch=1)
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
    line = Line("t", receiver.take, room=10, batch=2)
    line.put(range(5))
    assert receiver.asked.wait(LONG_S)
    line.close(0.01)
    assert (line.sent, line.dropped) == (0, 5)
    assert line.is_busy, "it was given up, not ended"
    receiver.free.set()
    line._thread.join(LONG_S)
    assert not line.is_busy
    assert (line.sent, line.dropped) == (0, 5)  # what arrives after all was counted as lost, once


def test_a_refused_batch_is_dropped_and_counted() -> None:
    receiver = Receiver(answer=False)
    receiver.free.set()
    line = Line("t", receiver.take, room=10, batch=10)
    line.put(range(3))
    line.close(LONG_S)
    assert (line.sent, line.dropped, line.failures) == (0, 3, 1)
