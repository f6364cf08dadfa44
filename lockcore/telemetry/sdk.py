"""Changes the numbers inside OpenTelemetry's SDK.

This file has two tasks. It records many values at once, and it makes the SDK forget values after a
fork.

Rules: the SDK has no public functions for the two tasks, so this file uses private names of the
SDK. No other file uses private names of the SDK. Another SDK or a later version may lack these
names. If the SDK lacks these names, a histogram gets its values one by one, and a forked child
continues with the numbers of its parent. The public functions of this file run during a collection,
or while the process has only one thread.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from opentelemetry.metrics import Histogram, Instrument

# At most this number of values of one call is recorded one by one, which takes some 70 ms.
MOST_ONE_BY_ONE = 10_000

# The series for all values beyond the SDK's limit of series.
_OVERFLOW = {"otel.metric.overflow": True}


def drop_remembered(instrument: Instrument) -> None:
    """Make the SDK forget all values of this instrument.

    A forked child calls this function, because the values belong to the child's parent.
    """
    real = _real(instrument)
    consumer = getattr(real, "_measurement_consumer", None)
    for storage in dict(getattr(consumer, "_reader_storages", {})).values():
        getattr(storage, "_instrument_view_instrument_matches", {}).pop(real, None)


# `Histogram.record` costs 7 µs, and a process has millions of values between two collections. So
# only the first value is recorded with `Histogram.record`, which makes the series in every reader.
# The other values are added to the numbers of these series, which are private parts of the SDK. If
# these parts are missing, values are recorded one by one. Beyond a bound, each value gets its share
# of the bound.
def record_all(
    histogram: Histogram, counts: Mapping[float, int], total: float, attributes: dict[str, str]
) -> None:
    """Record values. `counts` contains a count ≥ 1 for each value, and each value is recorded as
    often as its count says.

    The recorded sum is `total`, even if the values add up to another number.
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
        # If a view makes another kind of series of the histogram, there is no sum.
        with suppress(AttributeError), one._lock:
            one._sum += total - sum(value * number for value, number in counts.items())


def _record_one_by_one(
    histogram: Histogram, counts: Mapping[float, int], attributes: dict[str, str]
) -> None:
    """Record values one by one.

    If there are more than `MOST_ONE_BY_ONE` values, this function reduces each count by the same
    factor. The reduced counts have the same distribution, but their sum is too low.
    """
    share = min(1.0, MOST_ONE_BY_ONE / max(1, sum(counts.values())))
    for value, number in counts.items():
        for _ in range(round(number * share)):
            histogram.record(value, attributes)


def _real(instrument: Any) -> Any:
    """The SDK's own instrument.

    If `instrument` was made before the provider was set, `instrument` is a proxy of the SDK's
    instrument.
    """
    return getattr(instrument, "_real_instrument", None) or instrument


def _series(histogram: Histogram, attributes: dict[str, str]) -> Iterator[Any]:
    """Yield the SDK's series for these attributes. Each reader and view has its own series."""
    real = _real(histogram)
    for storage in dict(real._measurement_consumer._reader_storages).values():
        for match in storage._instrument_view_instrument_matches.get(real, ()):
            keys = match._view._attribute_keys
            shown = {key: value for key, value in attributes.items() if keys is None or key in keys}
            series = list(match._attributes_aggregation.values())
            own = [one for one in series if one._attributes == shown]
            yield from own or [one for one in series if one._attributes == _OVERFLOW]


def _add(series: Any, counts: Mapping[float, int]) -> None:
    """Record values in `series`. `counts` contains a count for each value, and each value is
    recorded as often as its count says.

    If the series is not a histogram, record its values one by one.
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
