"""The data points of an export: *instrument, attributes, value → a valid data point*.

The table of instruments decides whether a data point is valid.

Rules
- The table of instruments lists all allowed names and attributes. For some attributes, the table
  also lists all allowed values. Any other name, attribute or value is a bug, and the code raises an
  error. So a resource, a key or an owner token can never be exported.
- A value belongs to the first bucket whose upper bound is at least the value. OpenTelemetry and
  Prometheus use the same rule for buckets.
- Values are counted in fine buckets. The export has either a histogram with the bounds of the
  table, or an exponential histogram. Every edge of an exported bucket is also an edge of a fine
  bucket, so both histograms are exact.
- Sums are integers in the unit of the input, which is a nanosecond or one item. The export divides
  each sum by the factor `unit`, so that the sum is in seconds or items.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bench.measure.histogram import Histogram, highest_of_bucket, lowest_of_bucket
from bench.telemetry.table import BOUNDS, BY_NAME, Instrument, InstrumentKind

NS_PER_S = 1_000_000_000
# Exponential histograms have eight buckets between a power of two and the next power of two.
SCALE = 3
# The upper bounds of these buckets, as exponents of 2 in eighths, from 1 ns to 4.5 h.
_POWERS = range(-240, 113)
_EXPLICIT = {
    NS_PER_S: [round(bound * NS_PER_S) for bound in BOUNDS],
    1: [int(bound) for bound in BOUNDS],
}
_EXPONENTIAL = {unit: [int(2 ** (power / 8) * unit) for power in _POWERS] for unit in _EXPLICIT}
_EDGES = {
    unit: np.array(sorted(_EXPLICIT[unit] + _EXPONENTIAL[unit]), np.int64) for unit in _EXPLICIT
}


@dataclass(slots=True)
class Buckets:
    """A histogram of integers.

    `unit`: the factor from an exported value to an integer. If nanoseconds are exported as seconds,
    the factor is 1e9. If numbers of items are exported, the factor is 1.
    """

    unit: int = NS_PER_S
    counts: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(len(BOUNDS) + len(_POWERS) + 1, np.int64)
    )
    total: int = 0
    least: float = math.inf
    greatest: float = -math.inf

    def add(self, values: NDArray[np.int64], times: NDArray[np.int64] | int = 1) -> None:
        """Add an array of integers to the buckets.

        `times` (≥ 1): how many times each integer is added.
        """
        if not len(values):
            return
        np.add.at(self.counts, np.searchsorted(_EDGES[self.unit], values, side="left"), times)
        self.total += int((values * times).sum())
        self.least = min(self.least, int(values.min()))
        self.greatest = max(self.greatest, int(values.max()))

    @classmethod
    def of_histogram(cls, histogram: Histogram) -> Self:
        """Return the samples of an HDR histogram.

        The value of each sample becomes the middle of its HDR bucket. This value is exact to three
        digits.
        """
        buckets = cls()
        filled = np.flatnonzero(histogram.counts)
        middles = [
            (lowest_of_bucket(index) + highest_of_bucket(index)) // 2 for index in filled.tolist()
        ]
        buckets.add(np.array(middles, np.int64), histogram.counts[filled])
        return buckets

    @property
    def explicit(self) -> list[int]:
        """The number of values in each bucket of the table.

        One further number at the end counts the values above the last bound.
        """
        return self._within(_EXPLICIT[self.unit])

    @property
    def exponential(self) -> tuple[int, int, list[int]]:
        """The three parts of an exponential histogram.

        The parts are the number of zeros, the index of the first filled bucket, and a list of
        counts. The list has the count of each bucket from the first to the last filled bucket.
        """
        zeros, *counts = self._within(_EXPONENTIAL[self.unit])[:-1]
        filled = np.flatnonzero(counts)
        first, end = (filled[0], filled[-1] + 1) if len(filled) else (0, 0)
        return zeros, _POWERS.start + int(first), counts[first:end]

    def _within(self, edges: list[int]) -> list[int]:
        below = np.cumsum(self.counts)[
            [*np.searchsorted(_EDGES[self.unit], edges, side="left"), -1]
        ]
        return list(map(int, np.diff(below, prepend=0)))

    @property
    def count(self) -> int:
        """The number of values."""
        return int(self.counts.sum())

    @property
    def sum(self) -> float:
        """The sum of the values, in exported units."""
        return self.total / self.unit


def bucket_of(value: float) -> int:
    """Return the index of the bucket to which an exported value (seconds or items) belongs."""
    return int(np.searchsorted(BOUNDS, value, side="left"))


Attributes = tuple[tuple[str, str | int], ...]


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One sample in a histogram, together with the trace that belongs to the sample.

    `value`: the sample in exported units. `at_ns`: the time (ns) of the sample on the wall clock.
    """

    value: float
    at_ns: int
    trace_id: int
    span_id: int


@dataclass(frozen=True, slots=True)
class DataPoint:
    """One exported value. A counter or a histogram covers the time since the run began."""

    instrument: Instrument
    attributes: Attributes
    value: float | Buckets
    exemplars: tuple[Exemplar, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All data points that describe a run at one moment. Times are on the wall clock (ns).

    `common`: the attributes that every point has.
    """

    began_ns: int
    taken_ns: int
    common: Attributes
    points: Sequence[DataPoint]


def point(name: str, value: float | Buckets, /, **attributes: str | int) -> DataPoint:
    """Return a data point of the instrument `name`.

    If the value has buckets, the data point gets a copy of the buckets. In the names of the keyword
    arguments, `_` stands for the `.` in the name of an attribute. Raises KeyError or ValueError for
    a name or a value that is not in the table.
    """
    instrument = BY_NAME[name]
    attributes_by_label = {attribute.label: attribute for attribute in instrument.attributes}
    for label, text in attributes.items():
        if attributes_by_label[label].values and text not in attributes_by_label[label].values:
            raise ValueError(f"{name} has no attribute {label}={text!r} in the instrument table")
    if isinstance(value, Buckets) != (instrument.kind is InstrumentKind.HISTOGRAM):
        raise ValueError(f"{name} is a {instrument.kind.value}, not {type(value).__name__}")
    if isinstance(value, Buckets):
        value = replace(value, counts=value.counts.copy())
    return DataPoint(
        instrument,
        tuple(
            sorted((attributes_by_label[label].name, text) for label, text in attributes.items())
        ),
        value,
    )


class Totals:
    """The counts since the run began, which become points of counters and histograms."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, Attributes], float] = {}
        self._buckets: dict[tuple[str, Attributes], Buckets] = {}

    def count(
        self, name: str, values: NDArray[np.int64] | float, /, **attributes: str | int
    ) -> None:
        """If `values` is a number, add it to a counter.

        If it is an array, add its integers to a histogram. If the only value is 0 or an empty
        array, the instrument still gets a data point.
        """
        key = name, tuple(attributes.items())
        if isinstance(values, np.ndarray):
            unit = NS_PER_S if BY_NAME[name].unit == "s" else 1
            self._buckets.setdefault(key, Buckets(unit)).add(values)
        else:
            self._numbers[key] = self._numbers.get(key, 0) + values

    def points(self) -> Iterator[DataPoint]:
        """Yield all points."""
        counted: dict[tuple[str, Attributes], float | Buckets] = {**self._buckets, **self._numbers}
        for (name, attributes), value in counted.items():
            yield point(name, value, **dict(attributes))


def by_name(points: Sequence[DataPoint]) -> Mapping[Instrument, list[DataPoint]]:
    """Return the points of each instrument. The instruments are in the order of their first
    points."""
    groups: dict[Instrument, list[DataPoint]] = {}
    for one in points:
        groups.setdefault(one.instrument, []).append(one)
    return groups
