"""What adds up: *int64 nanoseconds → counts in HDR buckets → percentiles*; *sums of parts of a run → sums of all*.

Rules
- 1 ns to one hour at three significant digits; buckets, merging and the V2 encoding are those of Gil Tene's
  HdrHistogram, its `getCountsArrayIndex` computed for whole arrays. Count, sum and maximum are kept beside, exactly.
- A percentile that fewer than ten samples lie beyond is None: it would be an anecdote. One that ten samples or more
  never came to, as their operations failed, is infinite.
- Sums are ints only, so that a state can travel and is exact. Names of a section that begins empty are whole numbers
  (a margin, a caller); all other names are known beforehand, and a state with others is refused.
"""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Self

import numpy as np
from hdrh.histogram import HdrHistogram

from bench.measure.clocks import Integers

HIGHEST_NS = 3_600_000_000_000  # one hour; longer values are counted as this, their maximum stays exact
DIGITS = 3
SAMPLES_BEYOND = 10  # fewer samples than this beyond a percentile: None

_HALF_BITS = 10  # 2^11 sub-buckets resolve three digits; a bucket's upper half is new, its lower half the one before
_BUCKETS = 33 << _HALF_BITS  # HdrHistogram's counts_len for 1 ns … 1 hour


@dataclass(frozen=True, slots=True)
class Samples:
    """All that a histogram knows, exactly: how many samples in which buckets, their sum and maximum (ns)."""

    buckets: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    sum_ns: int = 0
    max_ns: int = 0


class Histogram:
    """Counts of nanosecond values."""

    __slots__ = ("count", "counts", "max_ns", "sum_ns")

    def __init__(self) -> None:
        self.counts = np.zeros(_BUCKETS, np.int64)
        self.count = 0
        self.sum_ns = 0
        self.max_ns = 0

    @classmethod
    def of(cls, values: Integers) -> Self:
        """A histogram of `values` (ns, ≥ 0). Raises ValueError as `add` does."""
        histogram = cls()
        histogram.add(values)
        return histogram

    @classmethod
    def merged(cls, histograms: Iterable["Histogram"]) -> Self:
        """A new histogram with the samples of all."""
        total = cls()
        for histogram in histograms:
            total.merge(histogram)
        return total

    def add(self, values: Integers) -> None:
        """Count an array of values (ns). Raises ValueError when one is negative: an interval cannot be."""
        if not len(values):
            return
        if int(values.min()) < 0:
            raise ValueError(f"a duration of {int(values.min())} ns was measured: times are out of order")
        self.counts += np.bincount(bucket_indices(values), minlength=_BUCKETS)
        self.count += len(values)
        self.sum_ns += int(values.sum())
        self.max_ns = max(self.max_ns, int(values.max()))

    def merge(self, other: "Histogram") -> None:
        """Add the samples of `other`."""
        self.counts += other.counts
        self.count += other.count
        self.sum_ns += other.sum_ns
        self.max_ns = max(self.max_ns, other.max_ns)

    @property
    def samples(self) -> Samples:
        """What `merge_samples` adds to another one: nothing is lost, unlike in `encode`."""
        filled = np.flatnonzero(self.counts)
        return Samples(tuple(filled.tolist()), tuple(self.counts[filled].tolist()), self.sum_ns, self.max_ns)

    def merge_samples(self, samples: Samples) -> None:
        """Add what another one knew. Raises ValueError when it cannot have been one."""
        buckets, counts = np.array(samples.buckets, np.int64), np.array(samples.counts, np.int64)
        if len(buckets) != len(counts) or min([*samples.buckets, *samples.counts, samples.sum_ns, samples.max_ns]) < 0:
            raise ValueError("not the samples of a histogram")
        if len(buckets) and int(buckets.max()) >= _BUCKETS:
            raise ValueError(f"a histogram has {_BUCKETS} buckets, and no number {int(buckets.max())}")
        np.add.at(self.counts, buckets, counts)
        self.count += int(counts.sum())
        self.sum_ns += samples.sum_ns
        self.max_ns = max(self.max_ns, samples.max_ns)

    @property
    def mean_ns(self) -> float | None:
        """The mean in ns, exact; None without samples."""
        return self.sum_ns / self.count if self.count else None

    def percentile(self, percent: float, endless: int = 0) -> float | None:
        """The value in ns that `percent` (0 < percent ≤ 100) of the samples do not exceed, to three digits.

        None when fewer than ten samples lie beyond it. Equal to HdrHistogram's, but never above the maximum. With
        `endless` more samples that are infinitely long: inf when it is one of theirs, and they are at least ten.
        """
        count = self.count + endless
        not_beyond = -(-count * round(percent * 1000) // 100_000)  # rounded up
        rank = max(int(percent * count / 100 + 0.5), 1)
        if rank > self.count and endless >= SAMPLES_BEYOND:
            return inf
        if count - not_beyond < SAMPLES_BEYOND:
            return None
        bucket = int(np.searchsorted(np.cumsum(self.counts), rank))
        return min(highest_of_bucket(bucket), self.max_ns)

    def encode(self) -> str:
        """HdrHistogram's V2 compressed encoding in base64."""
        hdr = HdrHistogram(1, HIGHEST_NS, DIGITS)
        np.ctypeslib.as_array(hdr.counts)[:] = self.counts
        hdr.total_count = self.count
        hdr.max_value = min(self.max_ns, HIGHEST_NS)
        return str(hdr.encode().decode("ascii"))

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read `encode`'s text. Counts are exact; sum and maximum are known to three digits only.

        Raises ValueError when the text is no such histogram or has other bounds.
        """
        try:
            base64.b64decode(text, validate=True)
            hdr = HdrHistogram.decode(text)
        except Exception as error:  # the package's own errors share no base class but this
            raise ValueError(f"not an HDR histogram in V2 encoding: {error or type(error).__name__}") from error
        bounds = (hdr.lowest_trackable_value, hdr.highest_trackable_value, hdr.significant_figures)
        if bounds != (1, HIGHEST_NS, DIGITS):
            raise ValueError("an HDR histogram with other bounds than 1 ns … 1 hour, three digits")
        histogram = cls()
        histogram.counts[:] = np.ctypeslib.as_array(hdr.counts).astype(np.int64)
        filled = np.flatnonzero(histogram.counts)
        histogram.count = int(histogram.counts.sum())
        for bucket, count in zip(filled.tolist(), histogram.counts[filled].tolist(), strict=True):
            histogram.sum_ns += count * ((lowest_of_bucket(bucket) + highest_of_bucket(bucket)) // 2)
        histogram.max_ns = highest_of_bucket(int(filled[-1])) if len(filled) else 0
        return histogram


def bucket_indices(values: Integers) -> Integers:
    """HdrHistogram's index into its counts for every value (ns, ≥ 0); values above one hour get its bucket."""
    clipped = np.minimum(values, HIGHEST_NS)
    _, bits = np.frexp(clipped.astype(np.float64))  # exact: one hour needs 42 bits, a double has 53
    bucket = np.maximum(bits.astype(np.int64) - (_HALF_BITS + 1), 0)
    return (bucket << _HALF_BITS) + (clipped >> bucket)


def lowest_of_bucket(index: int) -> int:
    """The smallest value (ns) that is counted at `index`."""
    bucket = max((index >> _HALF_BITS) - 1, 0)
    return (index - (bucket << _HALF_BITS)) << bucket


def highest_of_bucket(index: int) -> int:
    """The largest value (ns) that is counted at `index`."""
    return lowest_of_bucket(index + 1) - 1


@dataclass(frozen=True, slots=True)
class SumsState:
    """All of a `Sums`, to be added to another."""

    numbers: dict[str, dict[str, int]]
    rows: dict[str, tuple[int, ...]]
    histograms: dict[str, Samples]
    longest_ns: int


class Sums:
    """Numbers by section and name, rows of `slices` figures by name and key, histograms by name, the longest wait."""

    def __init__(
        self, sections: Mapping[str, Iterable[object]], histograms: Iterable[str] = (), slices: int = 0
    ) -> None:
        self.numbers = {section: dict.fromkeys(map(str, names), 0) for section, names in sections.items()}
        self.rows: dict[str, Integers] = {}
        self.histograms = {name: Histogram() for name in histograms}
        self.longest_ns = 0
        self._free, self._slices = [name for name, numbers in self.numbers.items() if not numbers], slices

    def add(self, section: str, counts: Mapping[str, int] | Mapping[int, int]) -> None:
        """Add numbers by name."""
        numbers = self.numbers[section]
        for name, number in counts.items():
            numbers[str(name)] = numbers.get(str(name), 0) + number

    def add_row(self, name: str, slices: Integers, weights: Integers | None = None) -> None:
        """Count in a row the `slices` that something fell in, each as often as its weight, or once."""
        self.rows[name] = self.rows.get(name, 0) + np.bincount(slices, weights, self._slices).astype(np.int64)

    def row(self, name: str) -> tuple[int, ...]:
        """The figures of a row."""
        return tuple(self.rows[name].tolist()) if name in self.rows else (0,) * self._slices

    def keyed(self, name: str) -> dict[str, tuple[int, ...]]:
        """The rows called `name` and a number, by that number, ascending."""
        found = (row.removeprefix(f"{name} ") for row in self.rows if row.startswith(f"{name} "))
        return {key: self.row(f"{name} {key}") for key in sorted(found, key=int)}

    @property
    def state(self) -> SumsState:
        """What `merge` adds."""
        samples = {name: histogram.samples for name, histogram in self.histograms.items()}
        return SumsState(self.numbers, {name: self.row(name) for name in self.rows}, samples, self.longest_ns)

    def merge(self, state: SumsState) -> None:
        """Add what another one has added up. Raises ValueError when it is not one of the same form."""
        if state.numbers.keys() != self.numbers.keys() or state.histograms.keys() != self.histograms.keys():
            raise ValueError("not a fold of this lockbench")
        for section, counts in state.numbers.items():
            if counts.keys() != self.numbers[section].keys() and not (section in self._free and _are_whole(counts)):
                raise ValueError(f"not a fold of this lockbench, by its {section}")
        keys = [name.partition(" ")[2] for name in state.rows if " " in name]
        if any(len(row) != self._slices for row in state.rows.values()) or not _are_whole(keys):
            raise ValueError("a fold of other slices")
        for section, counts in state.numbers.items():
            self.add(section, counts)
        for name, row in state.rows.items():
            self.rows[name] = self.rows.get(name, 0) + np.array(row, np.int64)
        for name, samples in state.histograms.items():
            self.histograms[name].merge_samples(samples)
        self.longest_ns = max(self.longest_ns, state.longest_ns)


def _are_whole(names: Iterable[str]) -> bool:
    return all(name.removeprefix("-").isdecimal() for name in names)
