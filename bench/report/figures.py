"""Converts numbers to short texts for human readers.

The short texts are used as the heads and cells of tables, and as parts of a line. Only this module
converts values to the units of the output. A missing value is printed as an en dash, never as a
zero. In a table, the unit is in the head of the column. In all other places, the unit follows the
number. Source: golang/perf, which also stores numbers in base units and converts them only for the
output.
"""

import textwrap
from collections.abc import Iterator
from enum import Enum
from itertools import groupby
from math import inf

from bench.measure.run_result import JudgedThreshold
from bench.measure.section import Section
from bench.measure.statistics import Interval, Spread
from bench.measure.words import Field, Unit, fields_in

MISSING = "–"
INFINITE = "∞"


def count(value: float | None) -> str:
    """Return a number with thousands separators. A fraction below 100 keeps one digit."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:,.1f}"


def decimals(value: float | None, digits: int = 2) -> str:
    """Return a number as text, with `digits` digits after the point."""
    return MISSING if value is None else f"{value:,.{digits}f}"


def counted(value: float, noun: str) -> str:
    """Return a number and a noun, such as `1 user` or `64 users`."""
    return f"{count(value)} {noun}{'' if value == 1 else 's'}"


def milliseconds(seconds: float | None) -> str:
    """Convert seconds to ms, and return the number with three significant digits, or ∞ for
    infinity.

    The text has no unit, because the unit is in the head of the table.
    """
    if seconds is None or seconds == inf:
        return MISSING if seconds is None else INFINITE
    return three_digits(seconds * 1000)


def three_digits(value: float) -> str:
    """Return a number with three significant digits. A number below 1 has two digits after the
    point."""
    if value < 9.995:
        return f"{value:,.2f}"
    return f"{value:,.1f}" if value < 99.95 else f"{value:,.0f}"


def latency(seconds: float | None) -> str:
    """Return a duration with its unit: µs below 0.1 ms, ms below 1 s, and s otherwise. Infinity is
    ∞."""
    if seconds is None or seconds == inf:
        return MISSING if seconds is None else INFINITE
    if seconds < 0.0001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{milliseconds(seconds)} ms" if seconds < 1 else f"{seconds:.2f} s"


def percent(ratio: float | None, digits: int = 1) -> str:
    """Return a share (0 to 1) in per cent.

    If a share is below 1, the text is never `100 %`. If a share is above 0, the text is never `0
    %`.
    """
    if ratio is None:
        return MISSING
    text = f"{ratio * 100:.{digits}f}"
    edge = 10**-digits
    if ratio < 1 and float(text) >= 100:
        text = f"> {100 - edge:.{digits}f}"
    elif ratio > 0 and float(text) == 0:
        text = f"< {edge:.{digits}f}"
    return f"{text} %"


def share(part: float, whole: float) -> str:
    """Return `part` ÷ `whole` in per cent, or an en dash if `whole` is 0."""
    return percent(part / whole) if whole else MISSING


def in_unit(value: float | None, unit: str) -> str:
    """Return a figure of a result as text, with its unit. `unit` is one of the units in `Unit`."""
    if value is None:
        return MISSING
    if unit == "s":
        return latency(value)
    if unit == "ratio":
        return percent(value, 2)
    if unit == "factor":
        return f"{value:.3g}"
    text = f"{value:.2f}" if value != int(value) and value < 10 else count(value)
    return text + {"us": " µs", "ms": " ms", "per_s": "/s"}.get(unit, "")


_HEAD_UNITS: dict[Unit, str] = {"s": "ms", "seconds": "s", "ms": "ms", "us": "µs", "per_s": "/s"}
# If a head has a word that is longer than this, its column becomes wider.
_HEAD_LETTERS = 7


def head_of(field: Field) -> str:
    """Return the head of a field's column. The head has the label and the unit of the field, in
    short lines."""
    text = f"{field.label} {_HEAD_UNITS.get(field.unit, '')}".strip()
    return textwrap.fill(text, _HEAD_LETTERS, break_long_words=False, break_on_hyphens=False)


def cell_of(field: Field, section: object) -> str:
    """Return the value of a field of `section` as text for a table cell.

    The head of the column shows the unit of the value.
    """
    value = field.of(section)
    if value is None:
        return MISSING
    if isinstance(value, Interval):
        return interval(value)
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, str) or field.unit == "text":
        return str(value)
    if isinstance(value, Spread):
        value = value.median
    if field.unit == "seconds":
        return decimals(value)
    if field.unit == "s":
        return milliseconds(value)
    if field.unit == "ratio":
        return percent(value, 2 if field.is_share else 0)
    if field.unit == "factor":
        return decimals(value, 3)
    return in_unit(round(value) if field.unit == "per_s" else value, "count")


def interval(value: Interval) -> str:
    """Return a text such as `0.381 .360–.402`, which shows a rate and the bounds of its
    interval."""
    if value.rate is None or value.low is None or value.high is None:
        return MISSING
    low, high = (f"{end:.3f}".removeprefix("0") for end in (value.low, value.high))
    return f"{value.rate:.3f} {low}–{high}"


def in_words(section: Section) -> Iterator[str]:
    """Yield the texts of a line about `section`. For example, `CPU 61 %` is the text of one field.

    All fields of one inner section are joined in one text, such as `reply p50 0.11 ms p99 0.90 ms`.
    A field that is unknown or 0 is left out.
    """
    fields = fields_in(type(section), "line")
    for _, together in groupby(fields, lambda field: field.path[:-1] or field.path):
        parts = list[str]()
        for field in together:
            if value := field.of(section):
                is_ratio = field.unit == "ratio"
                text = percent(value, 0) if is_ratio else in_unit(value, field.unit)
                label = field.own_label if parts else field.label
                parts.append(f"{label} {text}")
        if parts:
            yield " ".join(parts)


def threshold_text(entry: JudgedThreshold) -> str:
    """Return a text with the measured value, the limit and the margin.

    If this run cannot show whether the limit is met, the text also has the reason.
    """
    value, limit = (in_unit(one, entry.unit) for one in (entry.value, entry.limit))
    if entry.infinite and entry.reason:
        value = entry.reason
    parts = [f"measured {value}", f"limit {limit}"]
    if entry.margin is not None:
        margin = abs(entry.margin)
        sign = "+" if entry.margin else ""
        if entry.margin < 0:
            sign = "-"
        size = percent(margin / abs(entry.limit)) if entry.limit else in_unit(margin, entry.unit)
        parts.append(f"margin {sign}{size}")
    if entry.reason and entry.reason != value:
        parts.append(entry.reason)
    return " · ".join(parts)
