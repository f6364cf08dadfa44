"""The two cores during a turn: *how much of them something else took, how fast they were → a ratio, µs*.

Rules: ours is this process and all that it started; everything else, and what the host took for other guests (steal),
is elsewhere. Its clocks count in ticks of 10 ms, so that a look of two seconds is exact to about 1 %. How fast a core
is depends on its neighbours and its clock, and no counter of a guest tells: so a fixed piece of work is done on each of
them in turn, all along, and timed by its thread's own CPU, in which waiting for a core does not count. That takes half
a hundredth of the two cores.
"""

import os
import threading
import time
from statistics import mean, median
from typing import NamedTuple, Self

import psutil

STEPS = 1000  # of a piece: 0.1 ms
PAUSE_S = 0.03  # between two


class Machine:
    """`with Machine() as machine: …`, then what the cores of this process were like meanwhile."""

    elsewhere_ratio: float
    """What was spent elsewhere, of our cores: 0 to 1."""
    piece_us: float | None
    """What the piece of work took, CPU: the mean over the cores of their medians. None: there was no time for it."""

    def __enter__(self) -> Self:
        self._begin = spent()
        self._over = threading.Event()
        self._took_us: dict[int, list[float]] = {core: [] for core in sorted(os.sched_getaffinity(0))}
        self._worker = threading.Thread(target=self._work, daemon=True)
        self._worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._worker.join()
        end, begin = spent(), self._begin
        taken_s = (end.busy_s - begin.busy_s) - (end.ours_s - begin.ours_s)
        self.elsewhere_ratio = max(0.0, taken_s / (end.at_s - begin.at_s) / len(self._took_us))
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
                    return  # taken from us meanwhile
                piece()  # whoever ran here before has left it a cold cache
                begun_ns = time.thread_time_ns()
                piece()
                took_us.append((time.thread_time_ns() - begun_ns) / 1000)


def piece() -> int:
    """The fixed piece of work: a few numbers in the nearest cache."""
    number = 1
    for _ in range(STEPS):
        number = (number * 1103515245 + 12345) & 0x7FFFFFFF
    return number


class Spent(NamedTuple):
    """At `at_s`: how long our cores were busy, and how much of that was ours (s, both over all cores)."""

    at_s: float
    busy_s: float
    ours_s: float


def spent() -> Spent:
    """What has been spent by now."""
    busy_s, cores = 0.0, psutil.cpu_times(percpu=True)
    for number in os.sched_getaffinity(0):
        busy_s += sum(cores[number][:3]) + sum(cores[number][5:8])  # not idle, not waiting; guests are in user
    ours_s, own = 0.0, psutil.Process()
    for process in (own, *own.children(recursive=True)):
        try:
            ours_s += sum(process.cpu_times()[:4])  # with those of its children that have ended
        except psutil.NoSuchProcess:
            continue  # its parent's from now on
    return Spent(time.monotonic(), busy_s, ours_s)
