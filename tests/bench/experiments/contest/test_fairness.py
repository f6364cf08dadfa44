"""Jain's index: all the same is 1, one for all is 1/n, and nothing has none."""

from __future__ import annotations

import pytest

from bench.experiments.contest.fairness import jains_index


@pytest.mark.parametrize(
    ("leases", "index"), [([5, 5, 5, 5], 1.0), ([9, 0, 0, 0], 0.25), ([1, 3], 0.8), ([0, 0], None), ([], None)]
)
def test_jains_index(leases: list[int], index: float | None) -> None:
    assert jains_index(leases) == (None if index is None else pytest.approx(index))
