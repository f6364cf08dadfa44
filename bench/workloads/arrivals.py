"""When operations shall start: *rate, spacing, seed → an endless schedule, one worker's share, its next free caller*.

Rules
- The schedule is a function of its arguments: every worker computes the whole of it and takes its own stride, so the
  shares are disjoint, together complete, and the sum of any number of workers is the very same process.
- `fixed` spaces operations evenly; `poisson` draws exponential gaps, which is what many independent callers look
  like.
- Made beforehand in chunks with numpy.
- There is no dispatcher. A free caller takes the next arrival and waits until it is due. Three ways to start: on time;
  *queued* (taken after it was due, or due while this process was running other callers): load, and paid for in the
  latency; *late* (the timer fired more than 1 ms late): the generator's own fault.

Source: open-loop load (wrk2, vegeta): arrivals must not depend on replies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, count

import numpy as np

from lockcore.clock import NS_PER_MS, NS_PER_S, monotonic_ns

LATE_NS = NS_PER_MS
CHUNK = 1024  # arrivals of the whole schedule drawn at a time: about 30 µs


def offsets_ns(rate_per_s: float, spacing: str, seed: int, part: int = 0, parts: int = 1) -> Iterator[int]:
    """Yield, without end, the start times (ns after the origin, ascending) that worker `part` of `parts` has to keep.

    `rate_per_s` > 0 is that of all workers together; `spacing` is `fixed` or `poisson`; 0 ≤ `part` < `parts`.
    Arrival i of the whole schedule belongs to worker i mod `parts`.
    """
    if not 0 <= part < parts:
        raise ValueError(f"part {part} is not one of {parts}")
    return chain.from_iterable(_share(_chunks(rate_per_s, spacing, seed), part, parts))


def due_between(rate_per_s: float, spacing: str, seed: int, from_ns: int, until_ns: int) -> int:
    """Return how many starts of the whole schedule are due from `from_ns` on and before `until_ns` (after the origin).

    It depends on nobody who has to keep them: a worker that is gone leaves its share due.
    """
    due = 0
    for times_ns in _chunks(rate_per_s, spacing, seed):
        due += int(((times_ns >= from_ns) & (times_ns < until_ns)).sum())
        if times_ns[-1] >= until_ns:
            return due
    raise AssertionError("a schedule has no end")


class Pacer:
    """The arrivals of one worker from `origin_ns` (monotonic) on, handed out to its callers.

    `wait_until` parks the caller until a time and returns how late the timer was (ns), below 0 when it was called off.
    `measure_ns`, `end_ns`: when measuring starts and the schedule ends, in ns after the origin; `end_ns` None = never.
    `started`, `queued`: starts so far. `late`, `lateness_ns`: late starts while measuring, and what the timer added to
    each start that waited for it.
    """

    def __init__(
        self,
        wait_until: Callable[[int], int],
        schedule_ns: Iterator[int],
        origin_ns: int,
        measure_ns: int = 0,
        end_ns: int | None = None,
    ) -> None:
        self._wait_until, self._schedule_ns, self._origin_ns = wait_until, schedule_ns, origin_ns
        self._measure_ns = origin_ns + measure_ns
        self._end_ns = None if end_ns is None else origin_ns + end_ns
        self._over = False
        self.started = self.queued = self.late = 0
        self.lateness_ns: list[int] = []

    def take(self) -> int:
        """Wait for the next arrival and return when it was due (ns); 0 when there is none any more or the wait was
        cancelled."""
        due_ns = self._next()
        if not due_ns:
            return 0
        if due_ns <= monotonic_ns():
            self.queued += 1
        else:
            lateness_ns = self._wait_until(due_ns)
            if lateness_ns < 0:
                return 0
            if due_ns >= self._measure_ns:
                self.late += lateness_ns > LATE_NS
                self.lateness_ns.append(lateness_ns)
        self.started += 1
        return due_ns

    def scheduled(self, until_ns: int) -> int:
        """How many starts were due by `until_ns`, started or not. Ends the schedule: nothing is handed out after."""
        overdue = 0
        while (due_ns := self._next()) and due_ns <= until_ns:
            overdue += 1
        self._over = True
        return self.started + overdue

    def _next(self) -> int:
        if self._over:
            return 0
        due_ns = self._origin_ns + next(self._schedule_ns)
        if self._end_ns is not None and due_ns >= self._end_ns:
            self._over = True
            return 0
        return due_ns


def _chunks(rate_per_s: float, spacing: str, seed: int) -> Iterator[np.ndarray]:
    if spacing not in ("fixed", "poisson"):
        raise ValueError(f"arrivals are fixed or poisson, not {spacing!r}")
    return _fixed(rate_per_s) if spacing == "fixed" else _poisson(rate_per_s, seed)


def _fixed(rate_per_s: float) -> Iterator[np.ndarray]:
    gap_ns = NS_PER_S / rate_per_s
    for first in count(0, CHUNK):
        yield np.rint(np.arange(first, first + CHUNK) * gap_ns).astype(np.int64)


def _poisson(rate_per_s: float, seed: int) -> Iterator[np.ndarray]:
    generator = np.random.default_rng([seed, 0x61727269])
    mean_ns, last_ns = NS_PER_S / rate_per_s, 0.0
    while True:
        times_ns = last_ns + np.cumsum(generator.exponential(mean_ns, CHUNK))
        last_ns = float(times_ns[-1])
        yield np.rint(times_ns).astype(np.int64)


def _share(chunks: Iterator[np.ndarray], part: int, parts: int) -> Iterator[list[int]]:
    first = part  # index of our next arrival within the coming chunk
    for times_ns in chunks:
        mine = times_ns[first::parts]
        first = (first - len(times_ns)) % parts
        yield mine.tolist()
