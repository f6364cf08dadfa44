"""Our counts are HdrHistogram's counts, whatever the values."""

from math import inf

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram

from bench.measure.histogram import DIGITS, HIGHEST_NS, Histogram, bucket_indices
from tests.doubles.records import MS


def hdr_of(values):
    histogram = HdrHistogram(1, HIGHEST_NS, DIGITS)
    for value in values:
        assert histogram.record_value(int(value))
    return histogram


def random_values(count: int, seed: int = 1) -> np.ndarray:
    generator = np.random.default_rng(seed)
    values = np.exp(generator.uniform(0, np.log(HIGHEST_NS), count)).astype(np.int64)
    return np.minimum(values, HIGHEST_NS)


EDGES = np.array(
    [
        0,
        1,
        2,
        1023,
        1024,
        2047,
        2048,
        2049,
        4095,
        4096,
        2**41 - 1,
        2**41,
        HIGHEST_NS - 1,
        HIGHEST_NS,
    ]
)


@pytest.fixture(scope="module")
def twenty_thousand():
    values = np.concatenate([random_values(20_000), EDGES])
    return values, hdr_of(values)


def test_counts_equal_hdrhistogram_on_20_000_random_values(twenty_thousand):
    values, hdr = twenty_thousand
    np.testing.assert_array_equal(Histogram.of(values).counts, np.ctypeslib.as_array(hdr.counts))


@pytest.mark.parametrize("percent", [0.1, 10, 50, 90, 99, 99.9])
def test_percentiles_equal_hdrhistogram(twenty_thousand, percent):
    values, hdr = twenty_thousand
    assert Histogram.of(values).percentile(percent) == hdr.get_value_at_percentile(percent)


def test_the_encoding_is_the_packages_own(twenty_thousand):
    values, hdr = twenty_thousand
    encoded = Histogram.of(values).encode()
    assert encoded == hdr.encode().decode("ascii")
    assert HdrHistogram.decode(encoded).get_total_count() == len(values)


def test_decoding_gives_the_counts_back_and_sum_and_maximum_to_three_digits(twenty_thousand):
    values, _ = twenty_thousand
    original = Histogram.of(values)
    decoded = Histogram.decode(original.encode())
    np.testing.assert_array_equal(decoded.counts, original.counts)
    assert decoded.count == len(values)
    assert decoded.max_ns == pytest.approx(original.max_ns, rel=1e-3)
    assert decoded.sum_ns == pytest.approx(original.sum_ns, rel=1e-3)
    assert decoded.encode() == original.encode()


def test_merging_parts_equals_counting_all_at_once():
    parts = [random_values(3_000, seed) for seed in range(5)]
    merged = Histogram.merged(Histogram.of(part) for part in parts)
    whole = Histogram.of(np.concatenate(parts))
    np.testing.assert_array_equal(merged.counts, whole.counts)
    assert (merged.count, merged.sum_ns, merged.max_ns) == (whole.count, whole.sum_ns, whole.max_ns)


@pytest.mark.parametrize(
    "count, percent, known",
    [
        (19, 50, False),
        (20, 50, True),
        (999, 99, False),
        (1000, 99, True),
        (9_999, 99.9, False),
        (10_000, 99.9, True),
        (99_999, 99.99, False),
        (100_000, 99.99, True),
        (50, 100, False),
    ],
)
def test_a_percentile_with_fewer_than_ten_samples_beyond_it_is_none(count, percent, known):
    value = Histogram.of(np.full(count, 5_000)).percentile(percent)
    assert value == (5_000 if known else None)


def test_a_value_above_one_hour_is_counted_and_its_maximum_kept():
    histogram = Histogram.of(np.array([2 * HIGHEST_NS, 2**62]))
    assert histogram.counts[bucket_indices(np.array([HIGHEST_NS]))[0]] == 2
    assert histogram.max_ns == 2**62
    assert Histogram.decode(histogram.encode()).count == 2


def test_a_negative_duration_is_refused():
    with pytest.raises(ValueError, match="a duration is -1 ns"):
        Histogram.of(np.array([5, -1]))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no histogram",
        "SElTVA==",
        HdrHistogram(1, 1000, 2).encode().decode(),
        Histogram().encode()[:-8],
    ],
)
def test_what_is_no_such_histogram_is_refused_by_a_value_error(text):
    with pytest.raises(ValueError, match="histogram"):
        Histogram.decode(text)


@pytest.mark.parametrize(
    "acquired, failed, percent, value",
    [
        # rank 990 is the last one that succeeded
        (990, 10, 99.0, MS),
        (989, 11, 99.0, inf),
        (989, 11, 50.0, MS),
        # five failures are an anecdote, too
        (995, 5, 99.9, None),
        (9_000, 1_000, 90.0, MS),
        (9_000, 1_001, 90.0, inf),
        (0, 10, 50.0, inf),
        (0, 9, 50.0, None),
        (20, 0, 50.0, MS),
        (19, 0, 50.0, None),
    ],
)
def test_a_percentile_over_endless_samples_is_infinite_from_ten_of_them_on(
    acquired, failed, percent, value
):
    histogram = Histogram.of(np.full(acquired, MS, np.int64))
    assert histogram.percentile(percent, failed) == value
