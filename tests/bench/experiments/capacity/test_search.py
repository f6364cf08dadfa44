"""The search for the largest rate: it ends where the truth is, whatever the noise, and claims nothing unseen."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from bench.experiments.capacity.search import CONFIRMATIONS, MOST_PROBES, Bracket, Search, Seen, Step

Look = Callable[[float], Seen]


def found(look: Look, first: float = 500.0) -> tuple[Bracket, Search, list[float]]:
    """The bracket that a search over `look` ends with."""
    search, rates = Search(first), []
    while (rate := search.next_rate()) is not None:
        rates.append(rate)
        search.take(rate, look(rate))
    return search.bracket(), search, rates


def server(capacity: float) -> Look:
    """Fixed service times: what is offered beyond them is not completed."""
    return lambda rate: Seen.HELD if rate <= capacity else Seen.CLEARLY_MISSED if rate > capacity * 1.1 else Seen.MISSED


@pytest.mark.parametrize("seed", range(50))
def test_a_known_capacity_is_found_within_five_per_cent(seed: int) -> None:
    dice = random.Random(seed)
    capacity, first = dice.uniform(3, 200_000), dice.uniform(1, 5_000)
    bracket, search, rates = found(server(capacity), first)
    assert bracket.low is not None
    assert bracket.high is not None
    assert bracket.low <= capacity < bracket.high
    assert capacity * 0.95 <= bracket.low
    assert bracket.high <= capacity * 1.05
    assert bracket.confirmed == CONFIRMATIONS
    assert not bracket.at_least
    assert rates[-CONFIRMATIONS:] == [bracket.low] * CONFIRMATIONS
    assert search.probes <= 40


def simulated(capacity: float, dice: random.Random) -> Look:
    """One server with a queue: fixed service, fixed arrivals, and 3 probes in 100 hit by a pause of the machine."""

    def look(rate: float) -> Seen:
        operations, service_s = int(rate * 2.0) + 1, 1 / capacity
        free_s = 0.05 if dice.random() < 0.03 else 0.0
        late = 0
        for number in range(operations):
            due_s = number / rate
            free_s = max(due_s, free_s) + service_s
            late += free_s - due_s > 0.02
        done = sum(1 for _ in range(operations)) if free_s <= operations / rate + 0.2 else operations - late
        if late <= 0.01 * operations and free_s <= 1.01 * operations / rate + service_s:
            return Seen.HELD
        return Seen.CLEARLY_MISSED if done < 0.9 * operations else Seen.MISSED

    return look


@pytest.mark.parametrize("seed", range(30))
def test_a_simulated_server_that_is_sometimes_disturbed_is_found_within_five_per_cent(seed: int) -> None:
    dice = random.Random(seed)
    capacity = dice.uniform(100, 4_000)
    bracket, _, _ = found(simulated(capacity, dice), first=50.0)
    assert bracket.low == pytest.approx(capacity, rel=0.05)


@pytest.mark.parametrize("bad", [Seen.MISSED, Seen.SATURATED])
def test_one_bad_moment_ends_nothing(bad: Seen) -> None:
    moments = iter([Seen.HELD, bad, bad])
    bracket, _, _ = found(lambda rate: next(moments, None) or server(8_000)(rate))
    assert not bracket.at_least
    assert bracket.low == pytest.approx(8_000, rel=0.05)


def test_without_a_second_look_the_bad_moment_would_have_been_believed() -> None:
    bad = iter([Seen.HELD, Seen.CLEARLY_MISSED])
    bracket, _, _ = found(lambda rate: next(bad, None) or server(8_000)(rate))
    assert bracket.high is not None
    assert bracket.high <= 1_000


def test_a_saturated_generator_gives_at_least() -> None:
    bracket, _, _ = found(lambda rate: Seen.HELD if rate < 3_000 else Seen.SATURATED)
    assert bracket.at_least
    assert bracket.low == pytest.approx(3_000, rel=0.05)


def test_saturation_far_above_a_true_miss_does_not_matter() -> None:
    bracket, _, _ = found(lambda rate: Seen.SATURATED if rate > 6_000 else server(5_000)(rate))
    assert not bracket.at_least
    assert bracket.low == pytest.approx(5_000, rel=0.05)


def test_a_rate_that_cannot_be_confirmed_is_never_called_confirmed() -> None:
    times: dict[float, int] = {}

    def look(rate: float) -> Seen:
        times[rate] = times.get(rate, 0) + 1
        return Seen.HELD if rate <= 1_000 or (rate <= 2_000 and times[rate] == 1) else Seen.MISSED

    bracket, search, _ = found(look, first=500.0)
    assert bracket.low is not None
    assert bracket.low <= 1_000 or bracket.confirmed < CONFIRMATIONS
    assert search.probes <= MOST_PROBES


def test_a_first_rate_that_is_too_high_is_halved() -> None:
    bracket, search, rates = found(server(7), first=1_000.0)
    assert rates[:2] == [1_000.0, 500.0]
    assert bracket.low == pytest.approx(7, rel=0.05)
    assert search.step is Step.CONFIRMING


def test_nothing_held_is_no_capacity() -> None:
    bracket, _, _ = found(lambda _rate: Seen.CLEARLY_MISSED)
    assert bracket.low is None
    assert not bracket.at_least


@pytest.mark.parametrize("after", range(1, 12))
def test_in_a_hurry_no_new_rate_is_tried(after: int) -> None:
    search, look, tried = Search(500.0), server(8_000), dict[float, int]()
    while (rate := search.next_rate()) is not None:
        assert not search.hurried or rate in tried
        tried[rate] = tried.get(rate, 0) + 1
        search.take(rate, look(rate))
        search.hurried = search.hurried or search.probes >= after
    bracket = search.bracket()
    assert bracket.confirmed == CONFIRMATIONS
    assert search.probes <= max(after, 1) + 2 + CONFIRMATIONS
