"""Many values recorded at once are what they would be one by one, for each kind of reader and
view."""

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.metrics import Histogram as AnyHistogram
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, InMemoryMetricReader
from opentelemetry.sdk.metrics.view import (
    DropAggregation,
    ExplicitBucketHistogramAggregation,
    ExponentialBucketHistogramAggregation,
    SumAggregation,
    View,
)

from lockcore.otel import BOUNDS
from lockcore.telemetry.sdk import MOST_ONE_BY_ONE, record_all

COUNTS = {1.4e-5: 3, 0.002: 1, 0.0301: 20_000, 7.0: 2, 140.0: 1}
TOTAL = sum(value * number for value, number in COUNTS.items())
ATTRIBUTES = {"redlock.outcome": "acquired", "redlock.resource.class": "stock"}
VIEWS = {
    "none": [],
    "explicit": [
        View(instrument_name="x", aggregation=ExplicitBucketHistogramAggregation((0.001, 1.0)))
    ],
    "exponential": [View(instrument_name="x", aggregation=ExponentialBucketHistogramAggregation())],
    "fewer attributes": [View(instrument_name="x", attribute_keys={"redlock.outcome"})],
    "two": [View(instrument_name="x"), View(instrument_name="x", name="y", attribute_keys=set())],
    "sum": [View(instrument_name="x", aggregation=SumAggregation())],
    "dropped": [View(instrument_name="x", aggregation=DropAggregation())],
}
TEMPORALITIES = AggregationTemporality.CUMULATIVE, AggregationTemporality.DELTA


class Recorded:
    """A histogram with one reader of each temporality."""

    def __init__(self, views: Sequence[View]) -> None:
        self.readers = [
            InMemoryMetricReader(preferred_temporality={Histogram: one}) for one in TEMPORALITIES
        ]
        provider = MeterProvider(metric_readers=self.readers, views=views)
        self.histogram = provider.get_meter("m").create_histogram(
            "x", explicit_bucket_boundaries_advisory=BOUNDS
        )

    def points(self) -> list[tuple[Any, ...]]:
        """Everything that a reader gets, but for what is only guessed: the smallest, the largest,
        and the sum's end."""
        found = list[tuple[Any, ...]]()
        for reader in self.readers:
            data = reader.get_metrics_data()
            for metric in data.resource_metrics[0].scope_metrics[0].metrics if data else ():
                for point in metric.data.data_points:
                    form = getattr(point, "bucket_counts", None) or str(
                        getattr(point, "positive", None)
                    )
                    total = point.sum if hasattr(point, "sum") else point.value
                    number = getattr(point, "count", None)
                    found.append(
                        (metric.name, dict(point.attributes), number, form, pytest.approx(total))
                    )
        return found


def record_one_by_one(
    histogram: AnyHistogram, counts: dict[float, int], attributes: dict[str, str]
) -> None:
    for value, number in counts.items():
        for _ in range(number):
            histogram.record(value, attributes)


@pytest.mark.parametrize("view", VIEWS)
def test_at_once_is_the_same_as_one_by_one(view: str) -> None:
    at_once = Recorded(VIEWS[view])
    single = Recorded(VIEWS[view])
    # the second time the series is there
    for counts in (COUNTS, {0.5: 7}):
        record_all(
            at_once.histogram,
            counts,
            sum(value * number for value, number in counts.items()),
            ATTRIBUTES,
        )
        record_one_by_one(single.histogram, counts, ATTRIBUTES)
        points = at_once.points()
        assert points == single.points()
        assert bool(points) == (view != "dropped")


def test_the_sum_is_what_is_said_and_not_what_the_values_add_up_to() -> None:
    recorded = Recorded([])
    record_all(recorded.histogram, {0.01: 10}, 0.123, ATTRIBUTES)
    assert [total for *_, total in recorded.points()] == [0.123, 0.123]


def test_beyond_the_sdks_limit_all_is_in_the_series_that_takes_the_rest() -> None:
    recorded = (
        Recorded([View(instrument_name="x", aggregation_cardinality_limit=1)])
        if _limits()
        else None
    )
    if recorded is None:
        pytest.skip("this SDK has no limit that a view can set")
    for name in ("a", "b", "c"):
        record_all(recorded.histogram, {0.01: 10}, 0.1, {"redlock.resource.class": name})
    counts = [number for _, _, number, *_ in recorded.points()]
    assert sorted(counts) == [10, 10, 20, 20]


def _limits() -> bool:
    try:
        View(instrument_name="x", aggregation_cardinality_limit=1)
    except TypeError:
        return False
    return True


class ForeignHistogram:
    """A histogram of another SDK, which has no private names that we know."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def record(self, value: float, attributes: dict[str, str]) -> None:
        assert attributes == ATTRIBUTES
        self.values.append(value)


def test_another_sdk_gets_the_values_one_by_one() -> None:
    foreign: Any = ForeignHistogram()
    record_all(foreign, {0.01: 3, 0.02: 1}, 0.05, ATTRIBUTES)
    assert foreign.values == [0.01, 0.01, 0.01, 0.02]


def test_another_sdk_gets_a_bounded_number_of_values_in_their_shares() -> None:
    foreign: Any = ForeignHistogram()
    record_all(foreign, {0.01: 3_000_000, 0.02: 1_000_000}, 1.0, ATTRIBUTES)
    assert len(foreign.values) == pytest.approx(MOST_ONE_BY_ONE, abs=2)
    assert foreign.values.count(0.01) == pytest.approx(3 * foreign.values.count(0.02), rel=0.01)


def test_of_nothing_nothing_is_recorded() -> None:
    recorded = Recorded([])
    record_all(recorded.histogram, {}, 0.0, ATTRIBUTES)
    assert recorded.points() == []
