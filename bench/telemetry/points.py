"""One value on its way out: *instrument, attributes, value → a data point that the table allows*.

Rules: a name, an attribute or a value of a closed set that is not in the table is a bug and raises; so nothing that
names a resource, a key or an owner token can leave. Source: `table.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.telemetry.buckets import Buckets
from bench.telemetry.table import BY_NAME, Instrument, Kind

Attributes = tuple[tuple[str, str | int], ...]


@dataclass(frozen=True, slots=True)
class Exemplar:
    """One sample of a histogram that has a trace: `value` in exported units, `at_ns` on the wall clock."""

    value: float
    at_ns: int
    trace_id: int
    span_id: int


@dataclass(frozen=True, slots=True)
class Point:
    """A value as of now: of a counter or histogram since the run began."""

    instrument: Instrument
    attributes: Attributes
    value: float | Buckets
    exemplars: tuple[Exemplar, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All points of one moment. Times on the wall clock (ns); `common` goes to each point."""

    began_ns: int
    taken_ns: int
    common: Attributes
    points: Sequence[Point]


class Sink(Protocol):
    """Where snapshots go. Never blocks for long, never raises."""

    def offer(self, snapshot: Snapshot) -> None:
        """Take what is so now."""


def point(name: str, value: float | Buckets, /, **attributes: str | int) -> Point:
    """A point of the instrument `name`; attributes are given with `_` for `.` in their names. Buckets are copied.

    Raises ValueError for what is not in the table.
    """
    instrument = BY_NAME.get(name)
    if instrument is None:
        raise ValueError(f"{name} is not in the instrument table")
    known = {attribute.label: attribute for attribute in instrument.attributes}
    pairs: list[tuple[str, str | int]] = []
    for label, text in attributes.items():
        attribute = known.get(label)
        if attribute is None or (attribute.values and text not in attribute.values):
            raise ValueError(f"{name} has no attribute {label}={text!r} in the instrument table")
        pairs.append((attribute.name, text))
    if isinstance(value, Buckets) != (instrument.kind is Kind.HISTOGRAM):
        raise ValueError(f"{name} is a {instrument.kind.value}, not {type(value).__name__}")
    return Point(instrument, tuple(sorted(pairs)), value.copy() if isinstance(value, Buckets) else value)


def by_name(points: Sequence[Point]) -> Mapping[Instrument, list[Point]]:
    """The points of each instrument, in the order of their first."""
    groups: dict[Instrument, list[Point]] = {}
    for one in points:
        groups.setdefault(one.instrument, []).append(one)
    return groups
