"""This module draws random resources, times and arrivals for callers: *skew, hold, think, rate,
spacing and seed → endless sequences of random values*.

Rules
- NumPy draws numbers in chunks, and a C iterator returns each number in about 20 ns. The drawn
  numbers stay in arrays. Python objects would need four times as much space in the processor cache
  as these arrays.
- Every caller has its own random streams. A stream's seed consists of the scenario's seed, the
  number of the caller and the purpose of the stream. So every repeat of a run draws the same
  numbers, even if the callers run in another order.
- With the skews `zipf` and `hot`, resource 0 is the most frequent resource. With the skew `own`,
  each caller has its own resource. If there are P workers, caller i of worker p has the resource
  i·P + p. If the scenario has too few resources, the skew `own` raises an error.
- Each of the P workers computes the whole schedule and uses only every P-th start. No start belongs
  to two workers.

The skew `zipf` follows Zipf's law, P(k) ∝ 1/k^s, where k numbers the resources. The median and
sigma define the lognormal distribution.
"""

from array import array
from collections.abc import Callable, Iterator
from itertools import chain, count, repeat

import numpy as np

from bench.errors import UsageError
from bench.measure.record import CALLERS_PER_WORKER
from bench.scenario import Delay, Skew
from lockcore.clock import NS_PER_MS, NS_PER_S

# The number of a worker in the fleet, and how many workers there are.
Seat = tuple[int, int]
ALONE: Seat = (0, 1)
Sampler = Callable[[np.random.Generator, int], np.ndarray]
# In a run with readers and writers, this share of the operations belongs to readers.
READERS = 0.9
# No delay is longer than this. The limit is needed for heavy tails, because every delay must fit
# into an int64.
_LONGEST_NS = 86_400 * NS_PER_S


def resource_sampler(skew: Skew, resources: int) -> Sampler:
    """Return a function that draws arrays of resource indices (0 ≤ index < `resources`).

    Call this once per process.
    """
    if skew.kind == "zipf":
        weights = np.arange(1, resources + 1, dtype=np.float64) ** -skew.value
        shares = np.cumsum(weights / weights.sum())
        # Without this line, rounding could leave a number other than 1.
        shares[-1] = 1.0
        return lambda generator, size: np.searchsorted(shares, generator.random(size), side="right")
    if skew.kind == "hot":
        return lambda generator, size: np.where(
            generator.random(size) < skew.value, 0, generator.integers(1, max(resources, 2), size)
        )
    return lambda generator, size: generator.integers(0, resources, size)


def delay_sampler(delay: Delay) -> Sampler | None:
    """Return a function that draws times (whole ns).

    If the delay is zero, this function returns None.
    """
    scale_ns = delay.ms * NS_PER_MS
    if not scale_ns:
        return None
    if delay.kind == "exp":
        return lambda generator, size: generator.exponential(scale_ns, size).astype(np.int64)
    if delay.kind == "lognormal":
        median = float(np.log(scale_ns))
        return lambda generator, size: np.minimum(
            generator.lognormal(median, delay.sigma, size), _LONGEST_NS
        ).astype(np.int64)
    return lambda _generator, size: np.full(size, round(scale_ns), np.int64)


def _is_reader(generator: np.random.Generator, size: int) -> np.ndarray:
    return generator.random(size) < READERS


class Contention:
    """The random choices of all callers of one process."""

    def __init__(
        self,
        skew: Skew,
        resources: int,
        hold: Delay,
        think: Delay,
        seed: int,
        *,
        seat: Seat = ALONE,
    ) -> None:
        self._own = (seat, resources) if skew.kind == "own" else None
        self._resources = resource_sampler(skew, resources) if resources > 1 else None
        self._hold = delay_sampler(hold)
        self._think = delay_sampler(think)
        self._seed = seed

    def resources(self, caller: int) -> Iterator[int]:
        """Return an endless iterator over the indices of the resources that `caller` locks.

        Raises UsageError if there is no resource for this caller.
        """
        if self._own is not None:
            (part, parts), resources = self._own
            own = caller % CALLERS_PER_WORKER * parts + part
            if own >= resources:
                raise UsageError(
                    "with the skew own, each caller needs its own resource, but there are only "
                    f"{resources:,} resources; raise --resources"
                )
            return repeat(own)
        return self._draws(self._resources, caller, 1) if self._resources else repeat(0)

    def holds_ns(self, caller: int) -> Iterator[int] | None:
        """Return an endless iterator over the times (ns) for which `caller` holds its locks. If the
        scenario has no hold time, this method returns None."""
        return self._draws(self._hold, caller, 2) if self._hold else None

    def thinks_ns(self, caller: int) -> Iterator[int] | None:
        """Return an endless iterator over the times (ns) for which `caller` rests after its
        operations. If the scenario has no think time, this method returns None."""
        return self._draws(self._think, caller, 3) if self._think else None

    def readers(self, caller: int) -> Iterator[int]:
        """Return an endless iterator with a number for each operation of `caller`. The number is 1
        if the caller acts as a reader, and 0 if the caller acts as a writer."""
        return self._draws(_is_reader, caller, 4)

    def _draws(self, sampler: Sampler, caller: int, stream: int) -> Iterator[int]:
        generator = np.random.default_rng([self._seed, caller, stream])
        # The first chunks are small. So many callers need little memory if each caller makes few
        # operations.
        sizes = chain((16, 32, 64, 128, 256), repeat(512))
        return chain.from_iterable(
            array("q", sampler(generator, size).astype(np.int64).tobytes()) for size in sizes
        )


# So many arrivals of the whole schedule are drawn at once. The draw takes about 30 µs.
CHUNK = 1024


def offsets_ns(
    rate_per_s: float, spacing: str, seed: int, part: int = 0, parts: int = 1
) -> Iterator[int]:
    """Return an endless iterator over the start times of one worker (ns after the origin,
    ascending).

    There are `parts` workers, and `part` is the number of this worker. The worker gets every
    `parts`-th start of the whole schedule. `rate_per_s` > 0 is the rate of all workers together.
    `spacing` is `fixed` or `poisson`.
    """
    numbered = zip(count(0, CHUNK), _chunks(rate_per_s, spacing, seed), strict=False)
    return chain.from_iterable(
        times_ns[(part - first) % parts :: parts].tolist() for first, times_ns in numbered
    )


def due_between(rate_per_s: float, spacing: str, seed: int, from_ns: int, until_ns: int) -> int:
    """Return the number of starts of all workers that are due at or after `from_ns` and before
    `until_ns`."""
    due = 0
    for times_ns in _chunks(rate_per_s, spacing, seed):
        due += int(((times_ns >= from_ns) & (times_ns < until_ns)).sum())
        if times_ns[-1] >= until_ns:
            return due
    raise AssertionError("a schedule has no end")


def _chunks(rate_per_s: float, spacing: str, seed: int) -> Iterator[np.ndarray]:
    generator = np.random.default_rng([seed, 0x61727269])
    gap_ns = NS_PER_S / rate_per_s
    last_ns = 0.0
    for first in count(0, CHUNK):
        if spacing == "fixed":
            times_ns = np.arange(first, first + CHUNK) * gap_ns
        else:
            times_ns = last_ns + np.cumsum(generator.exponential(gap_ns, CHUNK))
        last_ns = float(times_ns[-1])
        yield np.rint(times_ns).astype(np.int64)
