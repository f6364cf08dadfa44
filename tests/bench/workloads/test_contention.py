"""Who wants what: shares of resources, lengths of holds, and that a seed repeats them."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from bench.errors import UsageError
from bench.scenario import Delay, Skew
from bench.workloads.demand import CALLERS_PER_WORKER, Contention

NONE = Delay()
MANY = 60_000


def contention(skew: Skew | None = None, resources: int = 100, hold: Delay = NONE, think: Delay = NONE, seed: int = 1):  # type: ignore[no-untyped-def]
    return Contention(skew or Skew(), resources, hold, think, seed)


def shares(skew: Skew, resources: int) -> np.ndarray:
    drawn = list(islice(contention(skew, resources).resources(0), MANY))
    return np.bincount(drawn, minlength=resources) / MANY


@pytest.mark.parametrize(
    ("skew", "exponent"), [(Skew(), 0), *((Skew("zipf", exponent), exponent) for exponent in (0.5, 1.0, 1.1, 2.0))]
)
def test_shares_follow_zipfs_law_and_are_all_alike_when_uniform(skew: Skew, exponent: float) -> None:
    weights = np.arange(1, 51) ** -float(exponent)
    assert shares(skew, 50) == pytest.approx(weights / weights.sum(), abs=0.01)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 1.0])
def test_the_hot_resource_gets_its_share_and_the_others_the_rest(share: float) -> None:
    found = shares(Skew("hot", share), 11)
    assert found[0] == pytest.approx(share, abs=0.01)
    assert found[1:] == pytest.approx(np.full(10, (1 - share) / 10), abs=0.01)


@pytest.mark.parametrize("skew", [Skew(), Skew("zipf", 1.1), Skew("hot", 0.9)])
def test_draws_are_plain_integers_within_the_resources(skew: Skew) -> None:
    drawn = list(islice(contention(skew, 7).resources(0), 5000))
    assert {type(index) for index in drawn} == {int}
    assert set(drawn) <= set(range(7))
    assert list(islice(contention(skew, 1).resources(3), 5)) == [0] * 5


def test_a_caller_repeats_its_choices_and_no_two_callers_share_them() -> None:
    one, again, other = (list(islice(contention().resources(caller), 200)) for caller in (4, 4, 5))
    assert one == again
    assert one != other
    assert one != list(islice(contention(seed=2).resources(4), 200))


def test_a_fixed_hold_is_exact() -> None:
    assert list(islice(contention(hold=Delay("fixed", 5.0)).holds_ns(0), 3)) == [5_000_000] * 3


def test_an_exponential_think_has_its_mean() -> None:
    drawn = list(islice(contention(think=Delay("exp", 2.0)).thinks_ns(0), MANY))
    assert np.mean(drawn) == pytest.approx(2_000_000, rel=0.02)
    assert np.std(drawn) == pytest.approx(2_000_000, rel=0.03)


def test_a_lognormal_hold_has_its_median_and_sigma() -> None:
    drawn = np.array(list(islice(contention(hold=Delay("lognormal", 5.0, 0.7)).holds_ns(0), MANY)))
    assert np.median(drawn) == pytest.approx(5_000_000, rel=0.02)
    assert np.log(drawn).std() == pytest.approx(0.7, rel=0.02)


def test_a_wild_tail_stays_within_an_integer() -> None:
    drawn = list(islice(contention(hold=Delay("lognormal", 1000.0, 10.0)).holds_ns(0), 20_000))
    assert min(drawn) >= 0
    assert max(drawn) <= 86_400 * 10**9


def test_hold_and_think_of_one_caller_are_independent_streams() -> None:
    both = contention(hold=Delay("exp", 5.0), think=Delay("exp", 5.0))
    assert list(islice(both.holds_ns(0), 50)) != list(islice(both.thinks_ns(0), 50))


@pytest.mark.parametrize("each", [(10, 10, 10), (3, 2, 2), (1, 1, 0), (7,)])
def test_under_own_no_two_callers_of_any_process_ever_want_the_same_resource(each: tuple[int, ...]) -> None:
    """`each`: the callers of every worker, as Locust deals them out, over no more resources than there are callers."""
    wanted = []
    for worker, callers in enumerate(each):
        own = Contention(Skew("own"), sum(each), NONE, NONE, 1, seat=(worker, len(each)))
        for number in range(callers):
            draws = own.resources(5 * CALLERS_PER_WORKER + number)  # Locust's own numbers of workers have gaps
            first = next(draws)
            assert [next(draws) for _ in range(5)] == [first] * 5
            wanted.append(first)
    assert sorted(wanted) == list(range(sum(each)))


def test_under_own_a_caller_for_whom_no_resource_is_left_is_refused() -> None:
    own = Contention(Skew("own"), 4, NONE, NONE, 1, seat=(1, 2))
    assert [next(own.resources(number)) for number in (0, 1)] == [1, 3]
    with pytest.raises(UsageError, match="more callers than the 4 resources"):
        own.resources(2)
