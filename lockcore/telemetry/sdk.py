"""What OpenTelemetry's SDK has no call for: *many values at once, or a fork → its own books*.

Rules: this is the only file that knows private names of the SDK. Where the names are missing
(another SDK, or a later one) a histogram gets its values one by one, and a forked child goes on
from its parent's numbers. Both functions are called where the SDK collects, or where a process has
one thread.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from opentelemetry.metrics import Histogram, Instrument

# So many values of one call are recorded one by one. They take some 70 ms.
MOST_ONE_BY_ONE = 10_000

# The series that takes everything beyond the SDK's limit of series.
_OVERFLOW = {"otel.metric.overflow": True}


def drop_remembered(instrument: Instrument) -> None:
    """Have the SDK begin anew with this instrument.

    A forked child has none of its parent's numbers.
    """
    real = _real(instrument)
    consumer = getattr(real, "_measurement_consumer", None)
    for storage in dict(getattr(consumer, "_reader_storages", {})).values():
        getattr(storage, "_instrument_view_instrument_matches", {}).pop(real, None)


# `Histogram.record` costs 7 µs, and a process makes millions of values between two collections. So
# only the first value is recorded, which makes the series in every reader. The rest is added to the
# numbers of these series, which are private parts of the SDK. Where they are missing, values are
# recorded one by one, and beyond a bound each gets its share.
def record_all(
    histogram: Histogram, counts: Mapping[float, int], total: float, attributes: dict[str, str]
) -> None:
    """Record each value of `counts` so many times (≥ 1).

    Their sum is `total`, whatever the values add up to.
    """
    if not counts:
        return
    first = next(iter(counts))
    histogram.record(first, attributes)
    rest = dict(counts)
    rest[first] -= 1
    try:
        series = list(_series(histogram, attributes))
    except AttributeError:
        _record_one_by_one(histogram, rest, attributes)
        return
    for one in series:
        _add(one, rest)
        # A view that makes no histogram of it has no sum.
        with suppress(AttributeError), one._lock:
            one._sum += total - sum(value * number for value, number in counts.items())


def _record_one_by_one(
    histogram: Histogram, counts: Mapping[float, int], attributes: dict[str, str]
) -> None:
    """Record values one by one.

    Beyond `MOST_ONE_BY_ONE` each value gets its share of that number. Then the form of the
    histogram is right, and its count is too low.
    """
    share = min(1.0, MOST_ONE_BY_ONE / max(1, sum(counts.values())))
    for value, number in counts.items():
        for _ in range(round(number * share)):
            histogram.record(value, attributes)


def _real(instrument: Any) -> Any:
    """The SDK's own instrument. The one we have may have been there before its provider."""
    return getattr(instrument, "_real_instrument", None) or instrument


def _series(histogram: Histogram, attributes: dict[str, str]) -> Iterator[Any]:
    """The series that the SDK counts into under these attributes, for each reader and view."""
    real = _real(histogram)
    for storage in dict(real._measurement_consumer._reader_storages).values():
        for match in storage._instrument_view_instrument_matches.get(real, ()):
            keys = match._view._attribute_keys
            shown = {key: value for key, value in attributes.items() if keys is None or key in keys}
            series = list(match._attributes_aggregation.values())
            own = [one for one in series if one._attributes == shown]
            yield from own or [one for one in series if one._attributes == _OVERFLOW]


def _add(series: Any, counts: Mapping[float, int]) -> None:
    """Count each value so many times, whatever kind of histogram the series belongs to.

    A series of anything else gets the values one by one.
    """
    for value, number in counts.items():
        if not number:
            continue
        once = SimpleNamespace(value=value)
        series.aggregate(once, False)
        if hasattr(series, "_boundaries"):
            with series._lock:
                series._value[bisect_left(series._boundaries, value)] += number - 1
        elif hasattr(series, "_mapping"):
            with series._lock:
                _add_to_exponential(series, value, number - 1)
        else:
            for _ in range(number - 1):
                series.aggregate(once, False)
        with suppress(AttributeError), series._lock:
            series._sum += value * (number - 1)


def _add_to_exponential(series: Any, value: float, more: int) -> None:
    buckets = series._value_positive
    index = series._mapping.map_to_index(value) - buckets.index_base
    buckets.increment_bucket(index if index >= 0 else index + len(buckets.counts), more)
    series._count += more
