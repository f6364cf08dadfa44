"""Pause points: their share of the passes, repeatable, refused when unknown, nothing when
unused."""

import pytest

from bench.recipes import protocol
from bench.recipes.protocol import pass_by, reach_of
from bench.scenario import Pause

PASSES = 20_000


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    naps: list[float] = []
    monkeypatch.setattr(protocol.time, "sleep", naps.append)
    return naps


def passes(reach, point: str, naps: list[float]) -> list[int]:
    """In which of the passes somebody slept."""
    hit = []
    for number in range(PASSES):
        before = len(naps)
        reach(point)
        if len(naps) > before:
            hit.append(number)
    return hit


def test_without_a_pause_or_a_gate_a_point_is_an_empty_function() -> None:
    assert reach_of((), 1, 0) is pass_by


def test_a_pause_takes_its_share_of_the_passes_and_its_time(slept: list[float]) -> None:
    reach = reach_of((Pause("after-get", 100, 0.03),), 1, 0)
    share = len(passes(reach, "after-get", slept)) / PASSES
    assert 0.025 < share < 0.035
    assert set(slept) == {0.1}
    assert passes(reach, "before-release", slept) == []


def test_a_share_of_one_is_every_pass_and_two_pauses_of_a_point_add_up(slept: list[float]) -> None:
    reach = reach_of((Pause("after-get", 1, 1.0), Pause("after-get", 2, 1.0)), 1, 0)
    reach("after-get")
    assert slept == [0.001, 0.002]


def test_the_seed_and_the_process_decide_which_passes(slept: list[float]) -> None:
    def drawn(seed: int, process: int) -> list[int]:
        return passes(reach_of((Pause("after-get", 1, 0.03),), seed, process), "after-get", slept)

    assert drawn(1, 0) == drawn(1, 0)
    assert drawn(1, 0) != drawn(2, 0)
    assert drawn(1, 0) != drawn(1, 1)


def test_a_gate_is_told_of_every_pass_before_any_pause(slept: list[float]) -> None:
    told: list[tuple[str, int]] = []
    reach = reach_of(
        (Pause("after-get", 1, 1.0),), 1, 0, lambda point: told.append((point, len(slept)))
    )
    reach("after-get")
    reach("before-release")
    assert told == [("after-get", 0), ("before-release", 1)]
