"""Explicit and exponential buckets: every value in its bucket, sums exact, merging without loss."""

import math
from bisect import bisect_left
from collections import Counter

import numpy as np
import pytest

from bench.measure.histogram import Histogram
from bench.telemetry.points import NS_PER_S, SCALE, Buckets, bucket_of
from bench.telemetry.table import BOUNDS

RNG = np.random.default_rng(7)


def test_every_duration_is_counted_in_the_first_bucket_that_it_does_not_exceed() -> None:
    around = [round(bound * NS_PER_S) + step for bound in BOUNDS for step in (-1, 0, 1)]
    values = np.concatenate([around, RNG.integers(0, 200 * NS_PER_S, 5000)])
    buckets = Buckets()
    buckets.add(values.astype(np.int64))
    edges = [round(bound * NS_PER_S) for bound in BOUNDS]
    expected = np.bincount(
        [bisect_left(edges, value) for value in values.tolist()], minlength=len(BOUNDS) + 1
    )
    assert buckets.explicit == expected.tolist()
    assert buckets.count == len(values)
    assert buckets.total == int(values.sum())
    assert (buckets.least, buckets.greatest) == (int(values.min()), int(values.max()))


@pytest.mark.parametrize("number", range(-3, 40))
def test_things_are_counted_where_their_number_belongs(number: int) -> None:
    buckets = Buckets(1)
    buckets.add(np.array([number]))
    assert buckets.explicit.index(1) == bucket_of(number) == bisect_left(BOUNDS, number)
    assert buckets.sum == number


def test_an_hdr_histogram_keeps_its_count_and_nearly_its_sum() -> None:
    values = RNG.integers(1, 10**9, 2000)
    histogram = Histogram.of(values)
    buckets = Buckets.of_histogram(histogram)
    assert buckets.count == len(values)
    assert buckets.total == pytest.approx(int(values.sum()), rel=1e-3)


def _exponential(buckets: Buckets) -> tuple[int, dict[int, int]]:
    zeros, first, counts = buckets.exponential
    return zeros, {first + index: count for index, count in enumerate(counts) if count}


def test_every_duration_is_in_the_exponential_bucket_that_opentelemetry_says() -> None:
    values = RNG.integers(0, 200 * NS_PER_S, 5000) // 10 ** RNG.integers(0, 11, 5000)
    buckets = Buckets()
    buckets.add(values)
    numbers = [
        math.ceil(math.log2(value / NS_PER_S) * 2**SCALE) - 1 for value in values.tolist() if value
    ]
    zeros, counts = _exponential(buckets)
    assert zeros == int((values == 0).sum()) > 0
    assert counts == Counter(numbers)
    assert zeros + sum(counts.values()) == buckets.count == sum(buckets.explicit)


@pytest.mark.parametrize("number", [1, 2, 3, 4, 16, 1000])
def test_things_are_in_the_exponential_bucket_whose_upper_bound_they_do_not_exceed(
    number: int,
) -> None:
    buckets = Buckets(1)
    buckets.add(np.array([number, 0]))
    zeros, counts = _exponential(buckets)
    ((index, count),) = counts.items()
    assert (zeros, count) == (1, 1)
    assert 2 ** (index / 2**SCALE) < number <= 2 ** ((index + 1) / 2**SCALE)


def test_an_empty_histogram_has_no_bucket() -> None:
    assert Buckets().exponential[0] == 0
    assert Buckets().exponential[2] == []
    assert not any(Buckets().explicit)
