"""`make bench ARGS=--telemetry`: what `lockcore.otel` adds is measured in pairs, and has an interval."""

from math import inf
from typing import Self

import pytest

pytest.importorskip("opentelemetry.sdk")
from bench.errors import EnvironmentNotReadyError
from bench.experiments.contest import instrumented
from bench.experiments.contest.judge import judge_bars
from bench.experiments.contest.words import speed_sheet
from bench.topology.child import Child
from bench.topology.fleet import start_fleet

pytestmark = pytest.mark.integration


def test_a_forked_worker_is_measured_through_its_parents_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    said, children = list[str](), list[Child]()

    class Kept(Child):
        def __init__(self, name: str, command: list[str]) -> None:
            super().__init__(name, command)
            children.append(self)

    monkeypatch.setattr(instrumented, "Child", Kept)
    with start_fleet(3, "none") as fleet:
        free, with_sdk = instrumented._bars("asyncio forked", 2, fleet.urls, said.append)
    assert [child.process.returncode for child in children] == [0], "killed, it counts no child"
    assert said == ["what lockcore.otel adds: asyncio forked, 2 rounds"]
    assert (free.bar, with_sdk.bar) == (0.5, 1.0)
    for bar in (free, with_sdk):
        assert bar.name.startswith("asyncio forked, 64 callers, ")
        assert not bar.at_least
        assert (bar.low, bar.high) == (-inf, None), "two pairs give no interval of 95 %"


class Told:
    """A child that has taken its rounds."""

    def __init__(self, took: list[list[float]]) -> None:
        self.took = took

    def __call__(self, *_: object) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing runs."""

    def tell(self, _: object) -> None:
        """It knows."""

    def hear(self, *_: object) -> list[list[float]]:
        return self.took

    def finish(self, _: float) -> None:
        """It has ended."""


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """One shell, and cores that are always ours."""
    monkeypatch.setattr(instrumented, "SHELLS", {"gevent": 1})
    monkeypatch.setattr(instrumented, "BUSY_RATIO", inf)
    return monkeypatch


@pytest.mark.parametrize("low_us, high_us, word", [(0.2, 0.4, "reached"), (0.9, 2, "missed"), (0.2, 2, "not known")])
def test_a_bar_is_judged_by_its_interval(alone: pytest.MonkeyPatch, low_us: float, high_us: float, word: str) -> None:
    """Of 20 rounds whose difference is the one or the other, and twice that with an SDK."""
    took = [[5.0, 5.0 + added_us, 5.0 + 2 * added_us] for added_us in (low_us, high_us) * 10]
    alone.setattr(instrumented, "Child", Told(took))
    result = instrumented.measure_telemetry(1, lambda _: None)
    lines = speed_sheet(result, judge_bars(result.bars), "x").lines
    assert [line.label for line in lines[:2]] == [word, word]


def test_of_no_round_nothing_is_known(alone: pytest.MonkeyPatch) -> None:
    alone.setattr(instrumented, "Child", Told([]))
    with pytest.raises(EnvironmentNotReadyError, match="gevent got no round done"):
        instrumented.measure_telemetry(1, lambda _: None)
