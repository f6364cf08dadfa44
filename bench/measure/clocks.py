"""Converts the times of other hosts to our clock, with bounds on the error. The module also
combines a resource and a time into one key.

- In a round trip, we read our clock, the other host reads its clock, and then we read our clock
  again. The other host reads its clock between our two readings, so our two readings are bounds on
  our time at that moment (Cristian, "Probabilistic clock synchronization", 1989). These bounds are
  correct for every network delay. A slow message only moves the bounds further apart.
- On each host, NTP changes CLOCK_MONOTONIC, but it does not change CLOCK_MONOTONIC_RAW
  (adjtimex(2)). NTP may change our clock more than the other host's clock. Each round trip records
  the difference between the changes of the two clocks, and this module subtracts this difference
  from the times. The subtraction leaves only the drift between the two oscillators. The round trips
  show the rate of this drift, which is at most `DRIFT`. At any moment, the drift may differ from
  the measured rate by up to `WANDER`. Therefore each round trip gives an upper and a lower bound
  for any time. This module uses the tightest bounds of all round trips.
- The round trips do not show what NTP does to a clock between two of them. NTP may slew each clock
  by 500 ppm. `DRIFT` is twice this rate, because two clocks are compared. Therefore the error of a
  time grows with its distance from the nearest round trip, at the rate `DRIFT`.
- If two bounds contradict each other, a clock has stepped. A step happens between two round trips.
  All times between these two round trips have an error of ± `LOST_NS`, which means that the times
  are unknown. The step does not change the bounds of any other time.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

_KEY_LIMIT = 1 << 62
DRIFT = 1e-3
# The drift between two crystals of ±25 ppm over all temperatures.
WANDER = 5e-5
# This process reads two clocks one after the other. This is the longest allowed time between the
# two readings.
READ_NS = 10_000
# The bounds on the rate narrow the bounds on the times, and these narrow the bounds on the rate.
# This is repeated this many times, because more repetitions gain nothing.
ROUNDS = 4
# The bounds must be at least as wide as this share of the shortest round trip. Narrower bounds show
# that the rate was not steady.
LEAST = 0.9
# This uncertainty is wider than any useful bound.
LOST_NS = 3_600 * 10**9
CLOCK = "clock"
# The columns (ns): our time when we asked, the other host's time, our time when the answer came,
# and how much further NTP has moved our clock than the other host's clock.
_ROW = 4

Bounds = tuple[Integers, Integers]
# The worker and its pid.
Who = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Consecutive round trips that do not contradict each other. Each round trip has bounds on *our
    time − their time*. The bounds do not include the changes that NTP makes."""

    trips: Integers
    low: Integers
    high: Integers
    rate: float
    drift: float

    # The two clocks may drift by `DRIFT`, which is the worst case. The first and the last round
    # trip give bounds on the real rate. Tighter bounds on the rate make all other bounds narrower.
    # Narrower bounds again tighten the bounds on the rate, so both steps are repeated. The loop
    # stops when the drift no longer shrinks. It also stops when the bounds become narrower than a
    # round trip allows (`LEAST`). Such bounds are false, because the rate was not steady. With
    # false bounds, the judge could report an overlap that never happened.
    @classmethod
    def of(cls, trips: Integers) -> Self:
        """Return a stretch that consists of the round trips `trips`. The bounds of the stretch
        assume the smallest drift that agrees with these round trips."""
        rate = 0.0
        drift = DRIFT
        low, high = _tightened(trips, rate, drift)
        apart = int(trips[-1, 0] - trips[0, 0])
        for _ in range(ROUNDS if apart else 0):
            least = (low[-1] - high[0]) / apart
            most = (high[-1] - low[0]) / apart
            steadier = (least + most) / 2, WANDER + (most - least) / 2
            bounds = _tightened(trips, *steadier)
            if (
                steadier[1] >= drift
                or (bounds[1] - bounds[0]).min() < LEAST * (trips[:, 2] - trips[:, 0]).min()
            ):
                break
            (rate, drift) = steadier
            (low, high) = bounds
        return cls(trips, low, high, rate, drift)

    def at(self, times: Integers) -> Bounds:
        """Return the bounds on *our time − their time* at each of the other host's `times`."""
        there = self.trips[:, 1]
        after = np.searchsorted(there, times, "left").clip(0, len(there) - 1)
        before = (after - 1).clip(0)
        since = [times - there[near] for near in (before, after)]
        moved = [np.rint(apart * self.rate).astype(np.int64) for apart in since]
        grown = [np.ceil(np.abs(apart) * self.drift).astype(np.int64) for apart in since]
        low = np.maximum(
            self.low[before] + moved[0] - grown[0], self.low[after] + moved[1] - grown[1]
        )
        high = np.minimum(
            self.high[before] + moved[0] + grown[0], self.high[after] + moved[1] + grown[1]
        )
        slewed = np.rint(np.interp(times, there, self.trips[:, 3])).astype(np.int64)
        unseen = np.ceil(np.minimum(*map(np.abs, since)) * DRIFT).astype(np.int64)
        return low + slewed - unseen, high + slewed + unseen


class Clock:
    """The clock of another host, measured with one or more round trips. Each round trip is a row of
    `_ROW` columns.

    `lost_ns` lists spans of the other host's time. In each of these spans, a clock stepped.
    Therefore our time is unknown in the whole span.
    """

    def __init__(self, exchanges: Integers) -> None:
        rows = exchanges[np.argsort(exchanges[:, 0], kind="stable")]
        self.exchanges = len(rows)
        self.round_trip_ns = int((rows[:, 2] - rows[:, 0]).min())
        self._stretches = list(_stretches(rows))
        self.lost_ns = [_between(one, two) for one, two in pairwise(self._stretches)]

    @property
    def errors_ns(self) -> Integers:
        """The error ε (ns) of our time at each round trip. The true time differs from the most
        likely time by at most ε."""
        return np.concatenate([(part.high - part.low + 1) // 2 for part in self._stretches])

    @property
    def grown_ns(self) -> int:
        """The largest error ε (ns). This error may occur at a round trip or between two round
        trips."""
        times = np.concatenate(
            [(part.trips[1:, 1] + part.trips[:-1, 1]) // 2 for part in self._stretches]
        )
        low, high = self.bounds(times)
        return int(max(self.errors_ns.max(), ((high - low + 1) // 2).max() if len(times) else 0))

    def bounds(self, times: Integers) -> Bounds:
        """Return the bounds on *our time − their time* at each of the other host's `times`. A time
        plus its lower bound is the earliest possible time on our clock. A time plus its upper bound
        is the latest possible time on our clock."""
        low, high = (np.empty(times.shape, np.int64) for _ in range(2))
        for number, part in enumerate(self._stretches):
            inside = times >= part.trips[0, 1] if number else np.ones(times.shape, bool)
            low[inside], high[inside] = part.at(times[inside])
        for since, until in self.lost_ns:
            lost = (times > since) & (times < until)
            low[lost] -= LOST_NS
            high[lost] += LOST_NS
        return low, high

    def place(self, times: Integers) -> tuple[Integers, Integers, Integers]:
        """Convert the other host's `times` to our clock. Return the most likely, the earliest and
        the latest time of each event.

        Each operation has a row of times. A time of 0 means that the event did not happen.

        To compute the most likely times, the function adds the same number to all times of a row.
        Therefore the durations between the times of a row do not change.
        """
        low, high = self.bounds(times)
        happened = times != 0
        first = np.take_along_axis((low + high) // 2, happened.argmax(axis=1)[:, None], axis=1)
        moved = [np.where(happened, times + shift, 0) for shift in (first, low, high)]
        return tuple(moved)  # type: ignore[return-value]

    def ours(self, time_ns: int) -> int:
        """Return the most likely time on our clock for the other host's `time_ns`."""
        low, high = self.bounds(np.array([time_ns]))
        return time_ns + int(low[0] + high[0]) // 2


def _stretches(rows: Integers) -> Iterator[_Stretch]:
    while len(rows):
        stop, start = _step(rows) or (len(rows) - 1, len(rows))
        yield _Stretch.of(rows[: stop + 1])
        rows = rows[start:]


def _between(one: _Stretch, two: _Stretch) -> tuple[int, int]:
    """Return a span of the other host's time. A clock stepped in this span, between the stretches
    `one` and `two`. In this span, our time is unknown."""
    last = one.trips[-1].tolist()
    first = two.trips[0].tolist()
    apart = 2 * (first[2] - last[0])
    return min(last[1], first[1] - apart), max(first[1], last[1] + apart)


def _columns(rows: Integers, drift: float = DRIFT) -> tuple[Integers, Integers, Integers]:
    """Return three arrays. Each array has one number for each round trip.

    The first array contains the largest possible drift (ns) between the two clocks since the first
    round trip. The second array contains the lower bounds on *our time − their time*. The third
    array contains the upper bounds. The bounds of each round trip are computed from this round trip
    alone. The function subtracts the recorded changes by NTP from both bounds. The bounds also
    allow for a change by NTP during the round trip.
    """
    grown = np.ceil((rows[:, 0] - rows[0, 0]) * drift).astype(np.int64)
    loose = READ_NS + np.ceil((rows[:, 2] - rows[:, 0]) * 2 * DRIFT).astype(np.int64)
    return (
        grown,
        rows[:, 0] - rows[:, 1] - rows[:, 3] - loose,
        rows[:, 2] - rows[:, 1] - rows[:, 3] + loose,
    )


def _tightened(rows: Integers, rate: float, drift: float) -> Bounds:
    """Return the tightest bounds on *our time − their time* at each round trip, computed from all
    round trips. The computation assumes that the difference grows at `rate` ± `drift`."""
    grown, low, high = _columns(rows, drift)
    trend = np.rint((rows[:, 0] - rows[0, 0]) * rate).astype(np.int64)
    return _highest(low - trend, grown) + trend, trend - _highest(trend - high, grown)


# Each round trip gives bounds for every other round trip, because the clocks can drift apart only
# by a known amount between two round trips. Comparing all pairs would take n² steps. After `grown`
# is added, the bounds of all earlier round trips can be compared directly, so one running maximum
# covers all of them. After `grown` is subtracted, one running maximum backward covers all later
# round trips. The rows must be in the order of our time. `Clock` sorts the rows in this order.
def _highest(low: Integers, grown: Integers) -> Integers:
    before = np.maximum.accumulate(low + grown)
    after = np.maximum.accumulate((low - grown)[::-1])[::-1]
    return np.maximum(before - grown, after + grown)


# The search for a step uses `DRIFT` and never a measured rate. A rate can be measured only within a
# stretch, and the stretches are not known before this search. The running maximum and minimum find
# the first contradiction without comparing all pairs. Then only the row with the contradiction is
# compared with all earlier rows. The step happened after the last earlier row that contradicts it.
def _step(rows: Integers) -> tuple[int, int] | None:
    """Return the row numbers of the two round trips around the first step, or None if no clock
    stepped.

    The first round trip that contradicts an earlier round trip is called *a*. It is the round trip
    after the step. The round trip before the step is the last earlier round trip that contradicts
    *a*. The code uses only whole numbers, so the result does not depend on rounding.
    """
    grown, low, high = _columns(rows)
    latest_low = np.maximum.accumulate(low + grown) - grown
    latest_high = np.minimum.accumulate(high - grown) + grown
    wrong = np.flatnonzero(latest_low > latest_high)
    if not len(wrong):
        return None
    start = int(wrong[0])
    apart = grown[start] - grown[:start]
    against = (low[:start] - apart > high[start]) | (high[:start] + apart < low[start])
    return int(np.flatnonzero(against)[-1]), start


# The rules of the judge compare leases within each resource. A Python loop over the resources would
# be slow. Instead, each resource has its own part of one number line, which is `span_ns` long. So
# one sort or one searchsorted in NumPy handles all resources together. A time outside the span
# would get a key in the part of another resource, and the judge would compare leases of different
# locks. `timelines` chooses a span that includes the first and the last time.
@dataclass(frozen=True, slots=True)
class Timeline:
    """Maps each pair (resource, time) to an int64 key. A sort of the keys is fast. It sorts the
    pairs by resource, and it sorts the pairs of each resource by time.

    For two keys of the same resource, the difference between the keys is the difference between the
    times. Every key of a resource is smaller than every key of the next resource.
    """

    first_resource: int
    earliest_ns: int
    span_ns: int

    def keys(self, resources: Integers, times_ns: Integers) -> Integers:
        """Return one key for each index i. The key combines `resources[i]` and `times_ns[i]`. The
        resources and times must lie within the limits of the timeline."""
        return (resources - self.first_resource) * self.span_ns + (times_ns - self.earliest_ns)


def timelines(
    resources: Integers, extent_ns: tuple[int, int], key_limit: int = _KEY_LIMIT
) -> Iterator[tuple[Timeline, NDArray[np.bool_] | slice]]:
    """Yield one or more timelines that together cover all `resources`. With each timeline, yield a
    mask or a slice that selects the rows of the timeline's resources.

    `extent_ns` consists of the earliest time and the latest time that the timelines must accept. If
    the keys of a single timeline would be larger than `key_limit`, the function yields several
    timelines.
    """
    if not len(resources):
        return
    earliest = extent_ns[0] - 1
    span = extent_ns[1] + 2 - earliest
    width = max(key_limit // span, 1)
    first = int(resources.min())
    last = int(resources.max())
    if last - first < width:
        yield Timeline(first, earliest, span), slice(None)
        return
    for rank in np.unique((resources - first) // width).tolist():
        start = first + rank * width
        yield Timeline(start, earliest, span), (resources >= start) & (resources < start + width)


def clock_file(workdir: Path, worker: int, pid: int) -> Path:
    """Return the path of the file with the round trips to a worker's clock."""
    return workdir / f"{CLOCK}-{worker}-{pid}.bin"


def read_clocks(workdir: str | os.PathLike[str]) -> dict[Who, Clock]:
    """Return the clocks of workers on other hosts, by worker and pid."""
    round_trips = ((who, rows_of(path, _ROW)) for who, path in worker_files(workdir, CLOCK))
    return {who: Clock(rows) for who, rows in round_trips if len(rows)}


def worker_files(
    workdir: str | os.PathLike[str], kind: str, suffix: str = "bin"
) -> Iterator[tuple[Who, Path]]:
    """Yield the files `kind-worker-pid…` of a run's folder in the order of their names. Each item
    has the worker and its pid, and the path of the file."""
    for path in sorted(Path(workdir).glob(f"{kind}-*-*.{suffix}")):
        _, worker, pid = path.name.partition(".")[0].split("-")
        yield (int(worker), int(pid)), path


def rows_of(path: Path, width: int) -> Integers:
    """Return the int64 numbers of a file as rows of `width`. An incomplete row at the end is left
    out."""
    raw = np.fromfile(path, "<i8")
    return raw[: len(raw) - len(raw) % width].reshape(-1, width)
