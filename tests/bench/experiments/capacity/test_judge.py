"""No word about a capacity that its own probes, or its own closed loops, contradict."""

from __future__ import annotations

from typing import Any

import pytest

from bench.experiments.capacity.judge import Look, agreed, judge_capacity, outrun, tallies
from bench.experiments.capacity.result import CapacityPoint
from bench.experiments.capacity.search import Bracket, Seen
from tests.doubles.capacity_points import point as capacity_point

HELD, MISSED, SPOILT = Seen.HELD, Seen.MISSED, Seen.SATURATED
FOUND = Bracket(1000.0, 1020.0, 3, at_least=False)
CLEAN: list[Look] = [(500.0, HELD), (2000.0, MISSED), (2000.0, MISSED), (1020.0, MISSED), *[(1000.0, HELD)] * 4]


def test_a_bracket_that_every_probe_agrees_with_is_left_as_it_is() -> None:
    assert agreed(FOUND, CLEAN) == (FOUND, [])


def test_three_of_three_after_two_misses_is_four_of_six_and_widens_the_bracket() -> None:
    bracket, reasons = agreed(FOUND, [*CLEAN, (1000.0, MISSED), (1000.0, MISSED)])
    assert bracket.low == 500.0
    assert reasons == ["1,000/s held in 4 of 6 probes"]


def test_a_miss_far_below_what_held_and_a_hold_above_what_missed_are_contradictions() -> None:
    bracket, reasons = agreed(FOUND, [*CLEAN, (500.0, MISSED)])
    assert bracket.low is not None
    assert bracket.low <= 500.0
    assert reasons == ["500/s held in 1 of 2 probes, below 1,000/s which held"]
    bracket, reasons = agreed(FOUND, [*CLEAN, (1500.0, HELD)])
    assert (bracket.low, bracket.high) == (1000.0, 2000.0)
    assert reasons == ["1,500/s held in 1 of 1 probes, above 1,020/s which did not"]
    assert agreed(FOUND, [*CLEAN, (2500.0, HELD)])[0].at_least


def test_what_the_generator_spoilt_says_nothing_of_the_servers() -> None:
    looks = [*CLEAN, (1000.0, SPOILT)]
    assert agreed(FOUND, looks) == (FOUND, [])
    assert tallies(looks)[1000.0] == {HELD: 4, SPOILT: 1}


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
    assert bool(outrun(Bracket(979.0, None, 3, at_least=True), closed)) == contradicted


def test_no_rate_holds_is_contradicted_by_any_closed_loop_that_kept_the_slo() -> None:
    assert outrun(Bracket(None, 0.7, 0, at_least=False), [(16, 300.0, True)])


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
