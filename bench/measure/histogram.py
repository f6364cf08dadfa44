"""Latencies counted in HDR buckets: *int64 nanoseconds → counts → percentiles, mean, maximum*.

Rules
- 1 ns to one hour at three significant digits; buckets, merging and the V2 encoding are those of Gil Tene's
  HdrHistogram, its `getCountsArrayIndex` computed for whole arrays. Count, sum and maximum are kept beside, exactly.
- A percentile that fewer than ten samples lie beyond is None: it would be an anecdote. One that ten samples or more
  never came to, as their operations failed, is infinite.
"""

import base64
import binascii
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Self

import numpy as np
from hdrh.histogram import HdrHistogram
from numpy.typing import NDArray

HIGHEST_NS = 3_600_000_000_000  # one hour; longer values are counted as this, their maximum stays exact
DIGITS = 3
SAMPLES_BEYOND = 10  # fewer samples than this beyond a percentile: None

_HALF_BITS = 10  # 2^11 sub-buckets resolve three digits; a bucket's upper half is new, its lower half the one before
_BUCKETS = 33 << _HALF_BITS  # HdrHistogram's counts_len for 1 ns … 1 hour

Values = NDArray[np.int64]


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
    def of(cls, values: Values) -> Self:
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

    def add(self, values: Values) -> None:
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

    def percentile(self, percent: float) -> int | None:
        """The value in ns that `percent` (0 < percent ≤ 100) of the samples do not exceed, to three digits.

        None when fewer than ten samples lie beyond it. Equal to HdrHistogram's, but never above the maximum.
        """
        value = self.percentile_with(0, percent)
        return None if value is None else int(value)

    def percentile_with(self, endless: int, percent: float) -> float | None:
        """As `percentile`, over these samples and `endless` more that are infinitely long.

        inf when the value is one of theirs, and they are at least ten.
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
        except (binascii.Error, zlib.error, ValueError) as error:
            raise ValueError(f"not an HDR histogram in V2 encoding: {error}") from error
        except Exception as error:  # the package's own errors share no base class but this
            raise ValueError(f"not an HDR histogram in V2 encoding: {type(error).__name__}") from error
        bounds = (hdr.lowest_trackable_value, hdr.highest_trackable_value, hdr.significant_figures)
        if bounds != (1, HIGHEST_NS, DIGITS):
            raise ValueError("an HDR histogram with other bounds than 1 ns … 1 hour, three digits")
        histogram = cls()
        histogram.counts[:] = np.ctypeslib.as_array(hdr.counts).astype(np.int64)
        filled = np.flatnonzero(histogram.counts)
        histogram.count = int(histogram.counts.sum())
        for bucket in filled.tolist():
            middle = (lowest_of_bucket(bucket) + highest_of_bucket(bucket)) // 2
            histogram.sum_ns += int(histogram.counts[bucket]) * middle
        histogram.max_ns = highest_of_bucket(int(filled[-1])) if len(filled) else 0
        return histogram


def bucket_indices(values: Values) -> NDArray[np.int64]:
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
