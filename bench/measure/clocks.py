"""Times: *round trips to another host → bounds on our clock for each of its times*; *(resource,
time) → a key*.

- The other host reads its clock during a round trip, between our two readings. So its time lies
  between our two times (Cristian, "Probabilistic clock synchronization", 1989). This needs no
  assumption about delays: a slow message only makes the bound wider.
- Each round trip carries how much further NTP has moved our CLOCK_MONOTONIC from
  CLOCK_MONOTONIC_RAW than theirs (adjtimex(2)). Without NTP, two oscillators are left. They drift
  apart at a rate that the round trips bound (`DRIFT` at most), and by `WANDER` around that rate. So
  every round trip bounds every time, and the tightest bound counts.
- Nobody sees what NTP does between two round trips. It may slew each clock by 500 ppm, which makes
  `DRIFT` for both. So the uncertainty of a time grows by `DRIFT` with the distance to the nearest
  round trip.
- Two bounds that contradict each other show that a clock stepped. Between the last round trip
  before the step and the first one after it, nothing is known (`LOST_NS` in both directions). All
  other times keep their bounds.
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
# The longest time between readings of two clocks, one after the other.
READ_NS = 10_000
# How often the bounds of the rate and the bounds of the times narrow each other. More rounds gain
# nothing.
ROUNDS = 4
# The bounds must leave at least this share of the shortest round trip unknown. With less the rate
# was not steady.
LEAST = 0.9
# Wider than any useful bound.
LOST_NS = 3_600 * 10**9
CLOCK = "clock"
# Our time at the question, their time, our time at the answer, how much further NTP has moved our
# clock than theirs (ns).
_ROW = 4

Bounds = tuple[Integers, Integers]
# The worker and its pid.
Who = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Round trips without a contradiction, and the bounds on *our time − their time* at each of
    them, without what NTP did."""

    trips: Integers
    low: Integers
    high: Integers
    rate: float
    drift: float

    # The two clocks may drift by `DRIFT`, which is the worst case. The first and the last round
    # trip bound the real rate, and a better known rate makes all bounds narrower. Narrower bounds
    # bound the rate once more, so this is repeated. It stops where the drift no longer shrinks. It
    # also stops where the bounds become narrower than a round trip allows (`LEAST`): then the rate
    # was not steady, and these bounds are false. With false bounds the judge could report an
    # overlap that never was.
    @classmethod
    def of(cls, trips: Integers) -> Self:
        """A stretch with the smallest drift that its round trips allow."""
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
        """The bounds on *our time − their time* at each of their `times`."""
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
    """The clock of another host, from at least one round trip (rows of `_ROW`).

    `lost_ns`: the spans of their time in which the clock stepped, so that nothing is known.
    """

    def __init__(self, exchanges: Integers) -> None:
        rows = exchanges[np.argsort(exchanges[:, 0], kind="stable")]
        self.exchanges = len(rows)
        self.round_trip_ns = int((rows[:, 2] - rows[:, 0]).min())
        self._stretches = list(_stretches(rows))
        self.lost_ns = [_between(one, two) for one, two in pairwise(self._stretches)]

    @property
    def errors_ns(self) -> Integers:
        """ε at each round trip (ns): our time is known within ± ε."""
        return np.concatenate([(part.high - part.low + 1) // 2 for part in self._stretches])

    @property
    def grown_ns(self) -> int:
        """The largest ε between two round trips (ns)."""
        times = np.concatenate(
            [(part.trips[1:, 1] + part.trips[:-1, 1]) // 2 for part in self._stretches]
        )
        low, high = self.bounds(times)
        return int(max(self.errors_ns.max(), ((high - low + 1) // 2).max() if len(times) else 0))

    def bounds(self, times: Integers) -> Bounds:
        """What to add to each of their `times` to get its earliest and its latest time on our
        clock."""
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
        """Their `times` on our clock: most likely, earliest, latest. An operation has a row of
        times, 0: did not happen.

        The most likely times of a row are all moved by the same amount, so that the durations
        between them stay as measured.
        """
        low, high = self.bounds(times)
        happened = times != 0
        first = np.take_along_axis((low + high) // 2, happened.argmax(axis=1)[:, None], axis=1)
        moved = [np.where(happened, times + shift, 0) for shift in (first, low, high)]
        return tuple(moved)  # type: ignore[return-value]

    def ours(self, time_ns: int) -> int:
        """The most likely time on our clock."""
        low, high = self.bounds(np.array([time_ns]))
        return time_ns + int(low[0] + high[0]) // 2


def _stretches(rows: Integers) -> Iterator[_Stretch]:
    while len(rows):
        stop, start = _step(rows) or (len(rows) - 1, len(rows))
        yield _Stretch.of(rows[: stop + 1])
        rows = rows[start:]


def _between(one: _Stretch, two: _Stretch) -> tuple[int, int]:
    """The span of their time that the step between two stretches skipped, or showed twice."""
    last = one.trips[-1].tolist()
    first = two.trips[0].tolist()
    apart = 2 * (first[2] - last[0])
    return min(last[1], first[1] - apart), max(first[1], last[1] + apart)


def _columns(rows: Integers, drift: float = DRIFT) -> tuple[Integers, Integers, Integers]:
    """For each round trip: how far the clocks can have drifted apart since the first one, and the
    lower and the upper bound on *our time − their time* from this round trip alone. Without what
    NTP did, which may have moved the clocks during the round trip."""
    grown = np.ceil((rows[:, 0] - rows[0, 0]) * drift).astype(np.int64)
    loose = READ_NS + np.ceil((rows[:, 2] - rows[:, 0]) * 2 * DRIFT).astype(np.int64)
    return (
        grown,
        rows[:, 0] - rows[:, 1] - rows[:, 3] - loose,
        rows[:, 2] - rows[:, 1] - rows[:, 3] + loose,
    )


def _tightened(rows: Integers, rate: float, drift: float) -> Bounds:
    """The bounds at each round trip from all round trips together, if *our time − their time*
    grows by `rate` ± `drift`."""
    grown, low, high = _columns(rows, drift)
    trend = np.rint((rows[:, 0] - rows[0, 0]) * rate).astype(np.int64)
    return _highest(low - trend, grown) + trend, trend - _highest(trend - high, grown)


# Each round trip bounds every other one, because the clocks can drift apart only by a known amount
# in between. Comparing all pairs would take n² steps. With `grown` added, the bounds of all earlier
# round trips can be compared directly, so one running maximum forward serves them all. One
# backward, with `grown` subtracted, serves all later ones. This needs rows in the order of our
# time: `Clock` sorts them.
def _highest(low: Integers, grown: Integers) -> Integers:
    before = np.maximum.accumulate(low + grown)
    after = np.maximum.accumulate((low - grown)[::-1])[::-1]
    return np.maximum(before - grown, after + grown)


# The search for a step uses `DRIFT` and never a measured rate. A rate is known only within a
# stretch, and this search finds the stretches. The running maximum and minimum find the first
# contradiction without comparing all pairs. Only that one row is compared with all earlier rows,
# because the step lies after the last earlier row that contradicts it.
def _step(rows: Integers) -> tuple[int, int] | None:
    """The two round trips around the first step, None if no clock stepped.

    The second one is the first contradiction, and the first one is the last that it contradicts.
    All numbers are whole, so the result does not depend on rounding.
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
# be slow. Instead each resource owns a stretch of `span_ns` on one number line, so
# one sort or one searchsorted in NumPy serves all resources together. If a time lay outside the
# span, its key would fall into the stretch of a neighbour, and leases of different locks would be
# compared. `timelines` chooses the span from the first and the last time.
@dataclass(frozen=True, slots=True)
class Timeline:
    """Turns (resource, time) into int64 keys, so that one fast sort orders by both.

    Within a resource, keys differ exactly as times do. Every key of a resource is below every key
    of the next resource.
    """

    first_resource: int
    earliest_ns: int
    span_ns: int

    def keys(self, resources: Integers, times_ns: Integers) -> Integers:
        """The key of each (resource, time). Both must lie within the extent of the timeline."""
        return (resources - self.first_resource) * self.span_ns + (times_ns - self.earliest_ns)


def timelines(
    resources: Integers, extent_ns: tuple[int, int], key_limit: int = _KEY_LIMIT
) -> Iterator[tuple[Timeline, NDArray[np.bool_] | slice]]:
    """Yield timelines that cover all `resources`, each with a selection of its rows.

    `extent_ns`: the first and the last time of all future keys. There are several timelines if keys
    would exceed `key_limit`.
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
    """The file with the round trips to a worker's clock."""
    return workdir / f"{CLOCK}-{worker}-{pid}.bin"


def read_clocks(workdir: str | os.PathLike[str]) -> dict[Who, Clock]:
    """The clocks of workers on other hosts, by worker and pid."""
    round_trips = ((who, rows_of(path, _ROW)) for who, path in worker_files(workdir, CLOCK))
    return {who: Clock(rows) for who, rows in round_trips if len(rows)}


def worker_files(
    workdir: str | os.PathLike[str], kind: str, suffix: str = "bin"
) -> Iterator[tuple[Who, Path]]:
    """The files `kind-worker-pid…` of a run's folder, by name, each with its worker and pid."""
    for path in sorted(Path(workdir).glob(f"{kind}-*-*.{suffix}")):
        _, worker, pid = path.name.partition(".")[0].split("-")
        yield (int(worker), int(pid)), path


def rows_of(path: Path, width: int) -> Integers:
    """The int64 of a file in rows, without an incomplete row at its end."""
    raw = np.fromfile(path, "<i8")
    return raw[: len(raw) - len(raw) % width].reshape(-1, width)
