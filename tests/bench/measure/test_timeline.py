"""Keys order resources and times at once, and never overflow."""

import numpy as np
import pytest

from bench.measure.clocks import timelines


@pytest.mark.parametrize("limit", [1, 50, 1_000, 1 << 62])
def test_ranges_cover_every_row_once_whatever_the_limit(limit):
    rng = np.random.default_rng(1)
    resources = rng.integers(-50, 50, 500)
    times = rng.integers(1, 40, 500)
    covered = np.zeros(500, np.int64)
    for line, rows in timelines(resources, (1, 40), limit):
        covered[rows] += 1
        keys = line.keys(resources[rows], times[rows])
        assert (np.argsort(keys, kind="stable") == np.lexsort((times[rows], resources[rows]))).all()
        assert len(np.unique(keys)) == len(
            {*zip(resources[rows].tolist(), times[rows].tolist(), strict=True)}
        )
    assert covered.tolist() == [1] * 500


def test_keys_of_extreme_resources_and_times_stay_within_int64():
    resources = np.array([0, 4 * 10**18, 4 * 10**18 + 1, 17])
    times = np.array([1, 2**61, 5, 2**60])
    for line, rows in timelines(resources, (1, 2**61)):
        exact = [
            (int(resource) - line.first_resource) * line.span_ns + int(time) - line.earliest_ns
            for resource, time in zip(resources[rows], times[rows], strict=True)
        ]
        assert line.keys(resources[rows], times[rows]).tolist() == exact
        assert max(exact) < 2**63
