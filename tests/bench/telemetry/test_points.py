"""Explicit buckets: every value in its bucket, sums exact, merging without loss."""

from bisect import bisect_left

import numpy as np
import pytest

from bench.measure.histogram import Histogram
from bench.telemetry.points import NS_PER_S, Buckets, bucket_of
from bench.telemetry.table import BOUNDS

RNG = np.random.default_rng(7)


def test_every_duration_is_counted_in_the_first_bucket_that_it_does_not_exceed() -> None:
    around = [round(bound * NS_PER_S) + step for bound in BOUNDS for step in (-1, 0, 1)]
    values = np.concatenate([around, RNG.integers(0, 200 * NS_PER_S, 5000)])
    buckets = Buckets()
    buckets.add(values.astype(np.int64))
    edges = [round(bound * NS_PER_S) for bound in BOUNDS]
    expected = np.bincount([bisect_left(edges, value) for value in values.tolist()], minlength=len(BOUNDS) + 1)
    assert buckets.counts.tolist() == expected.tolist()
    assert buckets.count == len(values)
    assert buckets.total == int(values.sum())
    assert (buckets.least, buckets.greatest) == (int(values.min()), int(values.max()))


@pytest.mark.parametrize("number", range(-3, 40))
def test_things_are_counted_where_their_number_belongs(number: int) -> None:
    buckets = Buckets(1)
    buckets.add(np.array([number]))
    assert int(buckets.counts.argmax()) == bucket_of(number) == bisect_left(BOUNDS, number)
    assert buckets.sum == number


def test_an_hdr_histogram_keeps_its_count_and_nearly_its_sum() -> None:
    values = RNG.integers(1, 10**9, 2000)
    histogram = Histogram.of(values)
    buckets = Buckets.of_histogram(histogram)
    assert buckets.count == len(values)
    assert buckets.total == pytest.approx(int(values.sum()), rel=1e-3)
