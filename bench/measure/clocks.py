"""Another host's clock on ours: *round trips → between which of our times each of its times lies*.

Rules
- A round trip proves that what the other clock showed in its middle was shown between our two readings (Cristian's
  method): no assumption on delays, so a slow or lost message only makes the bound wider.
- Between two round trips the clocks may drift apart by `DRIFT` at most: twice the 500 ppm by which Linux lets NTP slew
  CLOCK_MONOTONIC, as both may be slewed. So every round trip bounds every time, and the tightest bound counts.
- Bounds that contradict each other show a step, or a drift beyond that: between the last round trip that cannot lie
  behind it and the first that cannot lie before it nothing is known (`LOST_NS` either way), elsewhere nothing changes.
Source: F. Cristian, "Probabilistic clock synchronization" (1989); adjtimex(2), ADJ_FREQUENCY and ADJ_OFFSET.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.measure.timeline import Integers

DRIFT = 1e-3
LOST_NS = 3_600 * 10**9  # wider than any bound that is of use
CLOCK = "clock"
_ROW = 3  # our time when asked, theirs, our time when answered (ns)

Records = NDArray[Any]
Bounds = tuple[Integers, Integers]


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Round trips without a contradiction, and between what ours − theirs lay in each."""

    trips: Integers
    low: Integers
    high: Integers

    @property
    def there(self) -> Integers:
        """Their times."""
        return np.asarray(self.trips[:, 1])

    def at(self, times: Integers) -> Bounds:
        """The bounds at each of their `times`."""
        after = np.searchsorted(self.there, times, "left").clip(0, len(self.there) - 1)
        before = (after - 1).clip(0)
        grown = [np.ceil(np.abs(times - self.there[near]) * DRIFT).astype(np.int64) for near in (before, after)]
        low = np.maximum(self.low[before] - grown[0], self.low[after] - grown[1])
        return low, np.minimum(self.high[before] + grown[0], self.high[after] + grown[1])


class Clock:
    """The clock of another host. `exchanges`: at least one row of our time, theirs, ours (ns).

    `lost_ns`: from when to when (their times) nothing is known, as it stepped in between.
    """

    def __init__(self, exchanges: Integers) -> None:
        rows = exchanges[np.argsort(exchanges[:, 0], kind="stable")]
        self.exchanges = len(rows)
        self.round_trip_ns = int((rows[:, 2] - rows[:, 0]).min())
        self._stretches = list(_stretches(rows))
        self.lost_ns = [_between(one, two) for one, two in pairwise(self._stretches)]

    @property
    def errors_ns(self) -> Integers:
        """ε at each round trip: our time is known within ± so many ns."""
        return np.concatenate([(part.high - part.low + 1) // 2 for part in self._stretches])

    @property
    def grown_ns(self) -> int:
        """ε at its largest between two round trips."""
        times = np.concatenate([(part.there[1:] + part.there[:-1]) // 2 for part in self._stretches])
        low, high = self.bounds(times)
        return int(max(self.errors_ns.max(), ((high - low + 1) // 2).max() if len(times) else 0))

    def bounds(self, times: Integers) -> Bounds:
        """What to add to each of their `times` for the earliest and the latest it can be on our clock."""
        low, high = (np.empty(times.shape, np.int64) for _ in range(2))
        for number, part in enumerate(self._stretches):
            inside = times >= part.there[0] if number else np.ones(times.shape, bool)
            low[inside], high[inside] = part.at(times[inside])
        for since, until in self.lost_ns:
            lost = (times > since) & (times < until)
            low[lost], high[lost] = low[lost] - LOST_NS, high[lost] + LOST_NS
        return low, high

    def place(self, times: Integers) -> tuple[Integers, Integers, Integers]:
        """Their `times` (a row of them per operation; 0: did not happen) on our clock: most likely, earliest, latest.

        Most likely: all of a row moved by the same amount, so that what lies between them stays as it was measured.
        """
        low, high = self.bounds(times)
        moved = (low + high) // 2
        first = np.take_along_axis(moved, (times != 0).argmax(axis=1)[:, None], axis=1)
        happened = times != 0
        return tuple(np.where(happened, times + shift, 0) for shift in (first, low, high))  # type: ignore[return-value]

    def ours(self, time_ns: int) -> int:
        """Our time, most likely."""
        low, high = self.bounds(np.array([time_ns]))
        return time_ns + int(low[0] + high[0]) // 2


def _stretches(rows: Integers) -> Iterator[_Stretch]:
    while len(rows):
        stop, start = _step(rows) or (len(rows) - 1, len(rows))
        low, high = _tightened(*_columns(rows[: stop + 1]))
        yield _Stretch(rows[: stop + 1], low, high)
        rows = rows[start:]


def _between(one: _Stretch, two: _Stretch) -> tuple[int, int]:
    """Their times that may have been shown between two stretches, or twice."""
    until, since, apart = int(one.there[-1]), int(two.there[0]), 2 * int(two.trips[0, 2] - one.trips[-1, 0])
    return min(until, since - apart), max(since, until + apart)


def _columns(rows: Integers) -> tuple[Integers, Integers, Integers]:
    """How far the clocks can have drifted apart since the first one; the bounds on ours − theirs by each alone."""
    grown = np.ceil((rows[:, 0] - rows[0, 0]) * DRIFT).astype(np.int64)
    return grown, rows[:, 0] - rows[:, 1], rows[:, 2] - rows[:, 1]


def _tightened(grown: Integers, low: Integers, high: Integers) -> Bounds:
    """The bounds at each round trip that all of them together give."""
    low = np.maximum(
        np.maximum.accumulate(low + grown) - grown,
        np.maximum.accumulate((low - grown)[::-1])[::-1] + grown,
    )
    high = np.minimum(
        np.minimum.accumulate(high - grown) + grown,
        np.minimum.accumulate((high + grown)[::-1])[::-1] - grown,
    )
    return low, high


def _step(rows: Integers) -> tuple[int, int] | None:
    """Between which two round trips the first step lies: the last that the first contradiction contradicts, and that
    one; None without a contradiction. Whole numbers: two bounds contradict each other or not, whoever asks."""
    grown, low, high = _columns(rows)
    latest_low, latest_high = np.maximum.accumulate(low + grown) - grown, np.minimum.accumulate(high - grown) + grown
    wrong = np.flatnonzero(latest_low > latest_high)
    if not len(wrong):
        return None
    start = int(wrong[0])
    apart = grown[start] - grown[:start]
    against = (low[:start] - apart > high[start]) | (high[:start] + apart < low[start])
    return int(np.flatnonzero(against)[-1]), start


# -- in the folder of a run --------------------------------------------------------------------------------------------


def clock_file(workdir: Path, worker: int, pid: int) -> Path:
    """Where the round trips to a worker's clock stand."""
    return workdir / f"{CLOCK}-{worker}-{pid}.bin"


def read_clocks(workdir: str | os.PathLike[str]) -> dict[tuple[int, int], Clock]:
    """The clocks that are not ours, by worker and pid."""
    found = {}
    for path in Path(workdir).glob(f"{CLOCK}-*-*.bin"):
        raw = np.fromfile(path, "<i8")
        rows = raw[: len(raw) - len(raw) % _ROW].reshape(-1, _ROW)
        if len(rows):
            _, worker, pid = path.stem.split("-")
            found[int(worker), int(pid)] = Clock(rows)
    return found
