"""Whether this machine keeps time: *a block of work → the worst lateness of a short sleep beside
it*."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lockcore.clock import NS_PER_MS, NS_PER_S, monotonic_ns

LOOK_S = 0.002


class Pace:
    """`worst_ms`: by how much a sleep was late, at most, so far."""

    worst_ms = 0.0


@contextmanager
def kept() -> Iterator[Pace]:
    """A thread sleeps and looks until it is left."""
    pace = Pace()
    over = threading.Event()

    def watch() -> None:
        begun_ns = monotonic_ns()
        while not over.wait(LOOK_S):
            now_ns = monotonic_ns()
            pace.worst_ms = max(pace.worst_ms, (now_ns - begun_ns - LOOK_S * NS_PER_S) / NS_PER_MS)
            begun_ns = now_ns

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield pace
    finally:
        over.set()
        thread.join()
