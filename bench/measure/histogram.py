"""Defines histograms with HDR buckets, and sums of counts. Several processes can each compute the
histograms and sums for a part of a run. Another process can then merge these histograms and sums.

- A histogram covers 1 ns to one hour at three significant digits. The buckets, the rules for a
  merge and the V2 encoding are the same as in Gil Tene's HdrHistogram. HdrHistogram's function
  `getCountsArrayIndex` returns the bucket of one value. Here, `bucket_indices` returns the buckets
  of all values of an array. The count, the sum and the maximum are stored separately and are exact.
- A percentile is None if fewer than ten samples are beyond the percentile, because fewer samples
  prove nothing. The samples of failed operations are infinitely long. If at least ten operations
  failed, a percentile can be infinite.
- Most sections of sums have a fixed set of names. If a section has no names at first, it can get
  new names later. A name that is added later must be a whole number, such as the number of a
  caller.
"""

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Self

import numpy as np
from hdrh.histogram import HdrHistogram

from bench.measure.clocks import Integers

# One hour. A longer value counts as one hour, but the maximum stays exact.
HIGHEST_NS = 3_600_000_000_000
DIGITS = 3
# If fewer samples lie beyond a percentile, it is None.
SAMPLES_BEYOND = 10

# 2^11 sub-buckets resolve three digits. Only the upper half of a bucket has its own counts. The
# values of the lower half belong to the bucket before it.
_HALF_BITS = 10
# HdrHistogram's counts_len for 1 ns … 1 hour.
_BUCKETS = 33 << _HALF_BITS


class Histogram:
    """A histogram of nanosecond values."""

    __slots__ = ("count", "counts", "max_ns", "sum_ns")

    def __init__(self) -> None:
        self.counts = np.zeros(_BUCKETS, np.int64)
        self.count = 0
        self.sum_ns = 0
        self.max_ns = 0

    @classmethod
    def of(cls, values: Integers) -> Self:
        """Return a histogram of `values` (ns, ≥ 0). Raises ValueError if a value is negative."""
        histogram = cls()
        histogram.add(values)
        return histogram

    @classmethod
    def merged(cls, histograms: Iterable["Histogram"]) -> Self:
        """Return a new histogram with the samples of all `histograms`."""
        total = cls()
        for histogram in histograms:
            total.merge(histogram)
        return total

    def add(self, values: Integers) -> None:
        """Count an array of values (ns).

        Raises ValueError if a value is negative, because a duration cannot be negative.
        """
        if not len(values):
            return
        if int(values.min()) < 0:
            raise ValueError(
                f"a duration is {int(values.min())} ns, so two times are in the wrong order"
            )
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

    # The rank is rounded as in HdrHistogram, so this class and the package return the same
    # percentile. The check for ten samples beyond the percentile uses whole numbers, because a
    # float such as 99.9 / 100 is not exact. If exactly ten samples lie beyond the percentile, a
    # float's rounding error could turn a number into None.
    def percentile(self, percent: float, endless: int = 0) -> float | None:
        """Return a percentile in ns. `percent` per cent (0 < `percent` ≤ 100) of the samples are as
        long as the percentile or shorter.

        The percentile has three significant digits. The result is None if fewer than ten samples
        lie beyond the percentile. `endless` is a number of additional samples that are infinitely
        long. If `endless` is at least ten and the percentile is one of these samples, the result is
        inf.
        """
        count = self.count + endless
        # This division rounds up.
        not_beyond = -(-count * round(percent * 1000) // 100_000)
        rank = max(int(percent * count / 100 + 0.5), 1)
        if rank > self.count and endless >= SAMPLES_BEYOND:
            return inf
        if count - not_beyond < SAMPLES_BEYOND:
            return None
        bucket = int(np.searchsorted(np.cumsum(self.counts), rank))
        return min(highest_of_bucket(bucket), self.max_ns)

    def beyond(self, value_ns: float) -> int:
        """Return how many samples are certainly longer than `value_ns`. The histogram stores each
        sample with three significant digits. Therefore the result may leave out samples that are
        only slightly longer."""
        if value_ns < 0:
            return self.count
        bucket = int(bucket_indices(np.array([int(min(value_ns, HIGHEST_NS))]))[0])
        return int(self.counts[bucket + 1 :].sum())

    def encode(self) -> str:
        """Return HdrHistogram's V2 compressed encoding in base64."""
        hdr = HdrHistogram(1, HIGHEST_NS, DIGITS)
        np.ctypeslib.as_array(hdr.counts)[:] = self.counts
        hdr.total_count = self.count
        hdr.max_value = min(self.max_ns, HIGHEST_NS)
        return str(hdr.encode().decode("ascii"))

    @classmethod
    def decode(cls, text: str, sum_ns: int | None = None, max_ns: int | None = None) -> Self:
        """Return the histogram that `encode` has turned into the text `text`.

        The counts of the result are exact. If `sum_ns` or `max_ns` is None, the sum or the maximum
        is computed from the buckets and has only three digits. Raises ValueError if the text is not
        an encoded histogram or has other bounds.
        """
        try:
            base64.b64decode(text, validate=True)
            hdr = HdrHistogram.decode(text)
        except Exception as error:
            # The exceptions of the package have no common base class except Exception.
            raise ValueError(
                f"not an HDR histogram in V2 encoding: {error or type(error).__name__}"
            ) from error
        bounds = (hdr.lowest_trackable_value, hdr.highest_trackable_value, hdr.significant_figures)
        if bounds != (1, HIGHEST_NS, DIGITS):
            raise ValueError(
                "the histogram must cover 1 ns to 1 hour with three significant digits"
            )
        histogram = cls()
        histogram.counts[:] = np.ctypeslib.as_array(hdr.counts).astype(np.int64)
        filled = np.flatnonzero(histogram.counts).tolist()
        middles = {
            bucket: (lowest_of_bucket(bucket) + highest_of_bucket(bucket)) // 2 for bucket in filled
        }
        histogram.count = int(histogram.counts.sum())
        histogram.sum_ns = (
            sum(int(histogram.counts[at]) * middles[at] for at in filled)
            if sum_ns is None
            else sum_ns
        )
        histogram.max_ns = (
            max(map(highest_of_bucket, filled), default=0) if max_ns is None else max_ns
        )
        return histogram


# HdrHistogram computes this index in Python, for one value at a time. This function uses NumPy and
# computes a whole column at once. frexp gives the number of bits of each value. If a value has more
# bits than the sub-buckets resolve, it is shifted right until it fits. The size of the shift
# selects its bucket. `lowest_of_bucket` and `highest_of_bucket` are the inverse, so all three
# functions must change together.
def bucket_indices(values: Integers) -> Integers:
    """Return the index of the HdrHistogram bucket for each value (ns, ≥ 0). A value above one hour
    gets the bucket of one hour."""
    clipped = np.minimum(values, HIGHEST_NS)
    # The conversion is exact, because one hour needs 42 bits and a double has 53.
    _, bits = np.frexp(clipped.astype(np.float64))
    bucket = np.maximum(bits.astype(np.int64) - (_HALF_BITS + 1), 0)
    return (bucket << _HALF_BITS) + (clipped >> bucket)


def lowest_of_bucket(index: int) -> int:
    """Return the smallest value (ns) that is counted at `index`."""
    bucket = max((index >> _HALF_BITS) - 1, 0)
    return (index - (bucket << _HALF_BITS)) << bucket


def highest_of_bucket(index: int) -> int:
    """Return the largest value (ns) that is counted at `index`."""
    return lowest_of_bucket(index + 1) - 1


@dataclass(frozen=True, slots=True)
class SumsState:
    """The whole state of one `Sums` object. The method `merge` of another `Sums` object adds this
    state to that object.

    For each histogram, `histograms` contains the encoded text, the exact sum (ns) and the exact
    maximum (ns).
    """

    numbers: dict[str, dict[str, int]]
    histograms: dict[str, tuple[str, int, int]]
    longest_ns: int


class Sums:
    """The sums of a run. `numbers[section][name]` is a sum. `histograms` maps names to histograms.
    `longest_ns` is the longest wait."""

    def __init__(
        self, sections: Mapping[str, Iterable[object]], histograms: Iterable[str] = ()
    ) -> None:
        self.numbers = {
            section: dict.fromkeys(map(str, names), 0) for section, names in sections.items()
        }
        self.histograms = {name: Histogram() for name in histograms}
        self.longest_ns = 0
        self._free = [name for name, numbers in self.numbers.items() if not numbers]

    def add(self, section: str, counts: Mapping[str, int] | Mapping[int, int]) -> None:
        """Add `counts` to a section. Each key of `counts` is the name of a sum, and its value is
        added to this sum."""
        numbers = self.numbers[section]
        for name, number in counts.items():
            numbers[str(name)] = numbers.get(str(name), 0) + number

    @property
    def state(self) -> SumsState:
        """The sums and histograms of this object, in a form that can be sent to another process.
        Another `Sums` object can add this state with its method `merge`."""
        histograms = {
            name: (one.encode(), one.sum_ns, one.max_ns) for name, one in self.histograms.items()
        }
        return SumsState(self.numbers, histograms, self.longest_ns)

    def merge(self, state: SumsState) -> None:
        """Add the state of another `Sums`.

        Raises ValueError if the state has other sections or names, or if a histogram in it is
        damaged.
        """
        if (
            state.numbers.keys() != self.numbers.keys()
            or state.histograms.keys() != self.histograms.keys()
        ):
            raise ValueError("the partial result comes from another lockbench version")
        for section, counts in state.numbers.items():
            whole = all(name.removeprefix("-").isdecimal() for name in counts)
            if counts.keys() != self.numbers[section].keys() and not (
                section in self._free and whole
            ):
                raise ValueError(
                    f"the partial result comes from another lockbench version: section {section} "
                    "differs"
                )
            self.add(section, counts)
        for name, (text, sum_ns, max_ns) in state.histograms.items():
            if min(sum_ns, max_ns) < 0:
                raise ValueError(
                    f"the partial result is damaged: histogram {name} has a negative value"
                )
            self.histograms[name].merge(Histogram.decode(text, sum_ns, max_ns))
        self.longest_ns = max(self.longest_ns, state.longest_ns)
