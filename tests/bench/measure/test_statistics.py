"""Statistics: equal to the textbook's, and honest about what few numbers can say."""

import random
from itertools import combinations, product
from math import comb, inf, isfinite

import numpy as np
import pytest

from bench.measure.statistics import (
    _depth,
    _rank_sum_shares,
    _signed_rank_shares,
    least_pairs,
    least_runs,
    paired_shift,
    trend_warning,
    unpaired_shift,
)


@pytest.mark.parametrize("pairs", [1, 2, 5, 9])
def test_the_signed_rank_distribution_is_that_of_all_sign_patterns(pairs: int) -> None:
    counted = np.zeros(pairs * (pairs + 1) // 2 + 1)
    for signs in product((0, 1), repeat=pairs):
        counted[sum(rank * sign for rank, sign in enumerate(signs, 1))] += 1
    assert _signed_rank_shares(pairs) == pytest.approx(counted / 2**pairs)


@pytest.mark.parametrize(("first", "second"), [(1, 1), (2, 5), (4, 4), (5, 3)])
def test_the_rank_sum_distribution_is_that_of_all_orders(first: int, second: int) -> None:
    counted = np.zeros(first * second + 1)
    for places in combinations(range(first + second), first):
        counted[sum(places) - first * (first - 1) // 2] += 1
    assert _rank_sum_shares(first, second) == pytest.approx(counted / comb(first + second, first))


@pytest.mark.parametrize(("pairs", "depth"), [(5, 0), (6, 1), (10, 9), (20, 53), (24, 82)])
def test_the_interval_is_as_deep_as_the_tables_say(pairs: int, depth: int) -> None:
    # one more than the critical value of the two-sided 5 %
    assert _depth(_signed_rank_shares(pairs), 0.95) == depth


def share_beyond(value: float, all_values: np.ndarray) -> float:
    """The two-sided p-value of `value` among all equally likely ones."""
    return 2 * min((all_values <= value).mean(), (all_values >= value).mean())


def wilcoxon(values: np.ndarray) -> float:
    """Its p-value, by trying all patterns of signs (scipy would take two seconds to import)."""
    ranks = np.argsort(np.argsort(np.abs(values))) + 1
    signs = (np.arange(1 << len(values))[:, None] >> np.arange(len(values))) & 1
    return share_beyond(ranks[values > 0].sum(), signs @ ranks)


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_holds_what_the_test_does_not_reject(seed: int) -> None:
    values = np.random.default_rng(seed).normal(0.1, 0.1, 14)
    found = paired_shift(list(values), 0.95)
    for end, inside in ((found.low, +1e-9), (found.high, -1e-9)):
        assert wilcoxon(values - end - inside) > 0.05
        assert wilcoxon(values - end + inside) <= 0.05


def test_one_wild_pair_does_not_move_the_estimate() -> None:
    calm = [0.1, 0.11, 0.09, 0.1, 0.12, 0.08, 0.1, 0.1]
    assert paired_shift([*calm, 5.0], 0.95).shift == pytest.approx(0.1, abs=0.02)


def test_too_few_pairs_have_no_interval_rather_than_a_narrow_one() -> None:
    found = paired_shift([0.1] * 5, 0.95)
    assert (found.low, found.high) == (-inf, inf)
    assert (least_pairs(0.95), least_pairs(0.98), least_pairs(0.99)) == (6, 7, 8)
    assert paired_shift([0.1] * least_pairs(0.99), 0.99).low == pytest.approx(0.1)
    for confidence in (0.95, 0.98, 0.995):
        runs = least_runs(confidence)
        assert isfinite(unpaired_shift([0.0] * runs, [0.1] * runs, confidence).low)
        assert not isfinite(unpaired_shift([0.0] * (runs - 1), [0.1] * (runs - 1), confidence).low)
    assert unpaired_shift([0.0], [0.1], 0.95).high == inf


# ---------------------------------------------------------------- trends


@pytest.mark.parametrize(
    "counts",
    [[500] * 10, [0] * 10, [1_000] * 9 + [100], [1_000 + tenth for tenth in range(10)]],
    ids=["constant", "nothing", "one bad tenth", "a change of 1 %"],
)
def test_what_is_no_trend_is_steady(counts: list[int]) -> None:
    assert list(trend_warning(counts)) == []


@pytest.mark.parametrize("step, text", [(-20, "-22%"), (20, "+18%")])
def test_a_rate_that_falls_or_rises_is_named_with_its_size(step: int, text: str) -> None:
    (said,) = trend_warning([900 + step * tenth for tenth in range(10)])
    assert f"it changed by {text} during the measured window" in said


def test_no_rate_falls_by_more_than_all_of_it() -> None:
    (said,) = trend_warning([1_250, 1_240, 1_230, 1_220, 351, 12, 5, 3, 2, 1])
    assert "by -100%" in said


def test_noise_without_trend_warns_in_at_most_one_of_twenty() -> None:
    rng = random.Random(3)
    warned = sum(
        bool(list(trend_warning([round(rng.gauss(1_000, 150)) for _ in range(10)])))
        for _ in range(1_000)
    )
    assert warned <= 60
