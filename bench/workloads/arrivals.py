"""When operations shall start: *rate, spacing, seed → an endless schedule, or one worker's exact share of it*. Pure.

Rules
- The schedule is a function of its arguments: every worker computes the whole of it and takes its own stride, so the
  shares are disjoint, together complete, and the sum of any number of workers is the very same process.
- `fixed` spaces operations evenly; `poisson` draws exponential gaps, which is what many independent callers look
  like.
- Made beforehand in chunks with numpy; nothing here waits and nothing knows how late anybody is.

Source: open-loop load (wrk2, vegeta): arrivals must not depend on replies.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, count

import numpy as np

from lockcore.clock import NS_PER_S

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
