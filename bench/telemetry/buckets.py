"""Counts by explicit buckets: *arrays of values → counts, sum, least and greatest*.

Rules
- A value belongs to the first bound that it does not exceed, as OpenTelemetry and Prometheus have it.
- Sums are kept in the integers that came in (nanoseconds, or things), so merging loses nothing; `unit` turns them into
  what is exported.

Source: OpenTelemetry's data model, "Histogram"; `table.BOUNDS`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bench.measure.histogram import Histogram, highest_of_bucket, lowest_of_bucket
from bench.telemetry.table import BOUNDS

NS_PER_S = 1_000_000_000
_EDGES = {
    NS_PER_S: np.array([round(bound * NS_PER_S) for bound in BOUNDS], np.int64),
    1: np.floor(np.array(BOUNDS)).astype(np.int64),
}


@dataclass(slots=True)
class Buckets:
    """A histogram of integers. `unit`: how many of them make one exported unit (1e9 for ns → s, 1 for things)."""

    unit: int = NS_PER_S
    counts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(BOUNDS) + 1, np.int64))
    total: int = 0
    least: int | None = None
    greatest: int | None = None

    def add(self, values: NDArray[np.int64], times: NDArray[np.int64] | None = None) -> None:
        """Count an array of integers, each once or as many `times` (≥ 1) as said."""
        if not len(values):
            return
        indices = np.searchsorted(_EDGES[self.unit], values, side="left")
        if times is None:
            self.counts += np.bincount(indices, minlength=len(self.counts))
            self.total += int(values.sum())
        else:
            np.add.at(self.counts, indices, times)
            self.total += int((values * times).sum())
        least, greatest = int(values.min()), int(values.max())
        self.least = least if self.least is None else min(self.least, least)
        self.greatest = greatest if self.greatest is None else max(self.greatest, greatest)

    def copy(self) -> Buckets:
        """The same values, apart from this one."""
        return Buckets(self.unit, self.counts.copy(), self.total, self.least, self.greatest)

    def merge(self, other: Buckets) -> None:
        """Add the values of another one of the same unit."""
        self.counts += other.counts
        self.total += other.total
        known = [one for one in (self.least, other.least) if one is not None]
        self.least = min(known, default=None)
        self.greatest = max([one for one in (self.greatest, other.greatest) if one is not None], default=None)

    @classmethod
    def of_histogram(cls, histogram: Histogram) -> Buckets:
        """The same samples as an HDR histogram's, each at the middle of its bucket there (three digits)."""
        buckets = cls()
        filled = np.flatnonzero(histogram.counts)
        middles = [(lowest_of_bucket(index) + highest_of_bucket(index)) // 2 for index in filled.tolist()]
        buckets.add(np.array(middles, np.int64), histogram.counts[filled])
        return buckets

    @property
    def count(self) -> int:
        """How many values."""
        return int(self.counts.sum())

    @property
    def sum(self) -> float:
        """Their sum in exported units."""
        return self.total / self.unit if self.unit != 1 else self.total


def bucket_of(value: float) -> int:
    """The index of the bucket that an exported value (seconds, things) belongs to."""
    return int(np.searchsorted(BOUNDS, value, side="left"))
