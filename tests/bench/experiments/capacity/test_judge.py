"""What a capacity rests on: a search that ends where the truth is, and no word that its probes or loops contradict."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from bench.experiments.capacity.judge import (
    CONFIRMATIONS,
    MOST_PROBES,
    Look,
    Search,
    bracket_of,
    judge_capacity,
    outrun,
)
from bench.experiments.capacity.result import Capacity, CapacityPoint, Seen, Step
from tests.doubles.capacity_points import point as capacity_point

HELD, MISSED, FAR, SPOILT = Seen.HELD, Seen.MISSED, Seen.CLEARLY_MISSED, Seen.SATURATED
See = Callable[[float], Seen]


def found(see: See, first: float = 500.0) -> tuple[Search, list[Look]]:
    """A search that is over, and what its probes showed."""
    search, looks = Search(first), list[Look]()
    while (rate := search.next_rate()) is not None:
        looks.append((rate, see(rate)))
        search.take(*looks[-1])
    return search, looks


def server(capacity: float) -> See:
    """Fixed service times: what is offered beyond them is not completed."""
    return lambda rate: HELD if rate <= capacity else FAR if rate > capacity * 1.1 else MISSED


@pytest.mark.parametrize("seed", range(50))
def test_a_known_capacity_is_found_within_five_per_cent(seed: int) -> None:
    rng = random.Random(seed)
    capacity, first = rng.uniform(3, 200_000), rng.uniform(1, 5_000)
    search, looks = found(server(capacity), first)
    bracket, doubts = bracket_of(looks)
    assert (bracket.low, bracket.high, doubts) == (search.low, search.high, [])
    assert bracket.low is not None
    assert bracket.high is not None
    assert capacity * 0.95 <= bracket.low <= capacity < bracket.high <= capacity * 1.05
    assert (bracket.confirmed, bracket.at_least) == (CONFIRMATIONS, False)
    assert looks[-CONFIRMATIONS:] == [(bracket.low, HELD)] * CONFIRMATIONS
    assert search.probes == len(looks) <= MOST_PROBES


def simulated(capacity: float, rng: random.Random) -> See:
    """One server with a queue: fixed service, fixed arrivals, and 3 probes in 100 hit by a pause of the machine."""

    def look(rate: float) -> Seen:
        operations, service_s = int(rate * 2.0) + 1, 1 / capacity
        free_s = 0.05 if rng.random() < 0.03 else 0.0
        late = 0
        for number in range(operations):
            due_s = number / rate
            free_s = max(due_s, free_s) + service_s
            late += free_s - due_s > 0.02
        done = sum(1 for _ in range(operations)) if free_s <= operations / rate + 0.2 else operations - late
        if late <= 0.01 * operations and free_s <= 1.01 * operations / rate + service_s:
            return HELD
        return FAR if done < 0.9 * operations else MISSED

    return look


@pytest.mark.parametrize("seed", range(30))
def test_a_simulated_server_that_is_sometimes_disturbed_is_found_within_five_per_cent(seed: int) -> None:
    rng = random.Random(seed)
    capacity = rng.uniform(100, 4_000)
    assert found(simulated(capacity, rng), first=50.0)[0].low == pytest.approx(capacity, rel=0.05)


@pytest.mark.parametrize("bad", [MISSED, SPOILT])
def test_one_bad_moment_ends_nothing(bad: Seen) -> None:
    moments = iter([HELD, bad, bad])
    search, _ = found(lambda rate: next(moments, None) or server(8_000)(rate))
    assert search.low == pytest.approx(8_000, rel=0.05)


def test_without_a_second_look_the_bad_moment_would_have_been_believed() -> None:
    bad = iter([HELD, FAR])
    search, _ = found(lambda rate: next(bad, None) or server(8_000)(rate))
    assert search.high is not None
    assert search.high <= 1_000


def test_a_saturated_generator_gives_at_least_unless_a_true_miss_lies_below() -> None:
    bracket, _ = bracket_of(found(lambda rate: HELD if rate < 3_000 else SPOILT)[1])
    assert bracket.at_least
    assert bracket.low == pytest.approx(3_000, rel=0.05)
    bracket, _ = bracket_of(found(lambda rate: SPOILT if rate > 6_000 else server(5_000)(rate))[1])
    assert not bracket.at_least
    assert bracket.low == pytest.approx(5_000, rel=0.05)


def test_a_rate_that_cannot_be_confirmed_is_never_called_confirmed() -> None:
    times: dict[float, int] = {}

    def see(rate: float) -> Seen:
        times[rate] = times.get(rate, 0) + 1
        return HELD if rate <= 1_000 or (rate <= 2_000 and times[rate] == 1) else MISSED

    search, looks = found(see, first=500.0)
    bracket, _ = bracket_of(looks)
    assert bracket.low is not None
    assert bracket.low <= 1_000 or bracket.confirmed < CONFIRMATIONS
    assert search.probes <= MOST_PROBES


def test_a_first_rate_that_is_too_high_is_halved() -> None:
    search, looks = found(server(7), first=1_000.0)
    assert [rate for rate, _ in looks[:2]] == [1_000.0, 500.0]
    assert search.low == pytest.approx(7, rel=0.05)
    assert search.step is Step.CONFIRMING


def test_nothing_held_is_no_capacity() -> None:
    bracket, _ = bracket_of(found(lambda _rate: FAR)[1])
    assert (bracket.low, bracket.at_least) == (None, False)


@pytest.mark.parametrize("after", range(1, 12))
def test_in_a_hurry_no_new_rate_is_tried(after: int) -> None:
    search, see, looks = Search(500.0), server(8_000), list[Look]()
    while (rate := search.next_rate()) is not None:
        assert not search.hurried or rate in dict(looks)
        looks.append((rate, see(rate)))
        search.take(*looks[-1])
        search.hurried = search.hurried or search.probes >= after
    assert bracket_of(looks)[0].confirmed == CONFIRMATIONS
    assert search.probes <= max(after, 1) + 2 + CONFIRMATIONS


# -- what all probes come to -------------------------------------------------------------------------------------------

CLEAN: list[Look] = [(500.0, HELD), (2000.0, MISSED), (2000.0, MISSED), (1020.0, FAR), *[(1000.0, HELD)] * 4]


def bracket(low: float | None, high: float | None, held: int = 4, *, at_least: bool = False) -> Capacity:
    return Capacity(low=low, high=high, confirmed=max(held - 1, 0), at_least=at_least, held=held, probed=held)


FOUND = bracket(1000.0, 1020.0)


def test_a_bracket_that_every_probe_agrees_with_has_no_doubts() -> None:
    assert bracket_of(CLEAN) == (FOUND, [])
    assert bracket_of([]) == (bracket(None, None, 0), [])


@pytest.mark.parametrize(
    ("more", "low", "high", "reasons"),
    [
        ([(1000.0, MISSED), (1000.0, FAR)], 500.0, 1020.0, ["1,000/s held in 4 of 6 probes"]),
        ([(500.0, MISSED)], 500.0, 1020.0,
         ["500/s held in 1 of 2 probes, 1,000/s held in 4 of 4 probes"]),
        ([(1500.0, HELD)], 1000.0, 2000.0,
         ["1,020/s held in 0 of 1 probes, 1,500/s held in 1 of 1 probes"]),
    ],
)  # fmt: skip
def test_a_miss_at_or_below_what_held_is_a_contradiction_and_widens_the_bracket(
    more: list[Look], low: float, high: float, reasons: list[str]
) -> None:
    """ "3 of 3" after two misses is 4 of 6."""
    found, doubts = bracket_of([*CLEAN, *more])
    assert (found.low, found.high, doubts) == (low, high, reasons)


def test_above_what_held_and_missed_by_turns_nothing_is_known() -> None:
    assert bracket_of([*CLEAN, (2500.0, HELD)])[0].at_least


def test_what_the_generator_spoilt_says_nothing_of_the_servers() -> None:
    found, doubts = bracket_of([*CLEAN, (1000.0, SPOILT)])
    assert (found.low, found.high, found.held, found.probed, doubts) == (1000.0, 1020.0, 4, 5, [])


@pytest.mark.parametrize(
    "closed, contradicted",
    [
        ([(16, 17_536.0, True)], True),
        ([(16, 17_536.0, False)], False),  # the SLO was not kept
        ([(16, 1900.0, True)], False),  # callers that wait for each other make no queue
        ([], False),
    ],
)
def test_a_closed_loop_that_is_far_faster_within_the_slo_contradicts_the_bracket(
    closed: list[tuple[int, float, bool]], contradicted: bool
) -> None:
    assert bool(outrun(FOUND, closed)) == contradicted
    assert bool(outrun(bracket(979.0, None, at_least=True), closed)) == contradicted


def test_no_rate_holds_is_contradicted_by_any_closed_loop_that_kept_the_slo() -> None:
    assert outrun(bracket(None, 0.7, 0), [(16, 300.0, True)])


def point(status: str, held: int = 4) -> CapacityPoint:
    return capacity_point(1000.0, status=status, reasons=[f"it was {status}"], capacity={"held": held})


@pytest.mark.parametrize(
    "points, changes, word, code",
    [
        ([point("pass")], {}, "CONFIRMED", 0),
        ([], {}, "INCONCLUSIVE", 4),
        ([point("pass", held=3)], {}, "INCONCLUSIVE", 4),
        ([point("pass"), point("inconclusive")], {}, "INCONCLUSIVE", 4),
        ([point("fail"), point("inconclusive")], {}, "NOT KEPT", 1),
        ([point("fail"), point("violated")], {}, "VIOLATED", 5),
        ([point("pass")], {"stopped": "a server ended"}, "INCONCLUSIVE", 4),
        ([point("pass")], {"interrupted": True}, "INTERRUPTED", 130),
        ([point("violated")], {"interrupted": True}, "VIOLATED", 130),
    ],
)
def test_the_word_over_all_points(points: list[CapacityPoint], changes: dict[str, Any], word: str, code: int) -> None:
    verdict = judge_capacity(points, **changes)
    assert (verdict.word, verdict.exit_code) == (word, code)
