"""Was the machine ours: *the processors' times and those of our processes → what something else took of our cores*.

Rules: ours is this process and all that it started; everything else, and what the host took for other guests (steal),
is elsewhere. Both clocks count in ticks of 10 ms, so a look of two seconds is exact to about 1 %.
"""

import os
import time
from typing import NamedTuple, Self

import psutil


class Spent(NamedTuple):
    """At `at_s`: how long our cores were busy, and how much of that was ours (s, both over all cores)."""

    at_s: float
    busy_s: float
    ours_s: float


class Elsewhere:
    """`with Elsewhere() as machine: …`, then `machine.ratio`: the share of our cores that was spent elsewhere."""

    def __enter__(self) -> Self:
        self._begin = spent()
        return self

    def __exit__(self, *_: object) -> None:
        end, begin = spent(), self._begin
        taken_s = (end.busy_s - begin.busy_s) - (end.ours_s - begin.ours_s)
        self.ratio = max(0.0, taken_s / (end.at_s - begin.at_s) / len(os.sched_getaffinity(0)))


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
