"""What the cores are like while a contestant has its round: *processes and clocks of this machine →
how much of the cores something else took, and how fast they were*.

Rules
- Ours is this process and all that it started; everything else, and what the host took for other
  guests (steal), is elsewhere. These clocks count in ticks of 10 ms, so that a look of two seconds
  is exact to about 1 %.
- No counter of a guest tells how fast its cores are. So a fixed piece of work is done on one core
  after the other all along. It is timed by its thread's own CPU, in which waiting for a core does
  not count, and takes half a hundredth of the two cores. Source: Jain, Chiu and Hawe, DEC-TR-301
  (1984).
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from operator import sub
from statistics import mean, median
from typing import Self

import psutil

CORES = 2
# The steps of one piece of work take 0.1 ms.
STEPS = 1000
# the pause between two pieces
PAUSE_S = 0.03


@contextmanager
def two_cores() -> Iterator[int]:
    """This process and all it starts on two cores, as the published figures were measured.

    Yields how many it got.
    """
    before = os.sched_getaffinity(0)
    chosen = set(sorted(before)[:CORES])
    os.sched_setaffinity(0, chosen)
    try:
        yield len(chosen)
    finally:
        os.sched_setaffinity(0, before)


class Machine:
    """`with Machine() as machine: …`, then what the cores of this process were like meanwhile."""

    elsewhere_ratio: float
    """What was spent elsewhere, of our cores: 0 to 1."""
    piece_us: float | None
    """What the piece of work took, CPU: the mean over the cores of their medians.

    None: there was no time for it.
    """

    def __enter__(self) -> Self:
        self._begin = spent()
        self._over = threading.Event()
        self._took_us: dict[int, list[float]] = {
            core: [] for core in sorted(os.sched_getaffinity(0))
        }
        self._worker = threading.Thread(target=self._work, daemon=True)
        self._worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._worker.join()
        busy_s, ours_s, took_s = map(sub, spent(), self._begin)
        self.elsewhere_ratio = max(0.0, (busy_s - ours_s) / took_s / len(self._took_us))
        medians = [median(took_us) for took_us in self._took_us.values() if took_us]
        self.piece_us = mean(medians) if medians else None

    def _work(self) -> None:
        me = threading.get_native_id()
        while True:
            for core, took_us in self._took_us.items():
                if self._over.wait(PAUSE_S):
                    return
                try:
                    os.sched_setaffinity(me, {core})
                except OSError:
                    # This core was taken from us meanwhile.
                    return
                # The first piece only warms the cache, which other work may have left cold.
                piece()
                begun_ns = time.thread_time_ns()
                piece()
                took_us.append((time.thread_time_ns() - begun_ns) / 1000)


def piece() -> int:
    """The fixed piece of work: a few numbers in the nearest cache."""
    number = 1
    for _ in range(STEPS):
        number = (number * 1103515245 + 12345) & 0x7FFFFFFF
    return number


def spent() -> tuple[float, float, float]:
    """How long our cores were busy by now, how much of that was ours (both over all cores), and
    when that is (s)."""
    busy_s = 0.0
    cores = psutil.cpu_times(percpu=True)
    for number in os.sched_getaffinity(0):
        # All but idle (3) and iowait (4). Guests are already in user (0).
        busy_s += sum(cores[number][:3]) + sum(cores[number][5:8])
    ours_s = 0.0
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        try:
            # user and system, of the process and of its children that have ended
            ours_s += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            # This process has ended: its parent has its times from now on.
            continue
    return busy_s, ours_s, time.monotonic()
