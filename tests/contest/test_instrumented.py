"""`make bench ARGS=--telemetry`: what `lockcore.otel` adds is measured in pairs, and has an
interval."""

from math import inf
from typing import Self

import pytest

pytest.importorskip("opentelemetry.sdk")
from bench.errors import EnvironmentNotReadyError
from bench.topology.child import Child
from bench.topology.fleet import start_fleet
from tests.contest import instrumented
from tests.contest.judge import judge_bars, side_of
from tests.contest.words import speed_sheet

pytestmark = pytest.mark.integration


def test_a_forked_worker_is_measured_through_its_parents_providers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    messages = list[str]()
    children = list[Child]()

    class RecordedChild(Child):
        def __init__(self, name: str, command: list[str]) -> None:
            super().__init__(name, command)
            children.append(self)

    monkeypatch.setattr(instrumented, "Child", RecordedChild)
    with start_fleet(3, "none") as fleet:
        free, with_sdk = instrumented._bars("asyncio forked", 2, fleet.urls, messages.append)
    assert [child.process.returncode for child in children] == [0], "killed, it counts no child"
    assert messages == ["what lockcore.otel adds: asyncio forked, 2 rounds"]
    assert (free.bar, with_sdk.bar) == (0.5, 1.0)
    for bar in (free, with_sdk):
        assert bar.name.startswith("asyncio forked, 64 callers, ")
        assert not bar.at_least
        assert (bar.low, bar.high) == (-inf, None), "two pairs give no interval of 95 %"


class FakeChild:
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


@pytest.mark.parametrize(
    "low_us, high_us, word", [(0.2, 0.4, "reached"), (0.9, 2, "missed"), (0.2, 2, "not known")]
)
def test_a_bar_is_judged_by_its_interval(
    alone: pytest.MonkeyPatch, low_us: float, high_us: float, word: str
) -> None:
    """Of 20 rounds whose difference is the one or the other, and twice that with an SDK."""
    took = [[5.0, 5.0 + added_us, 5.0 + 2 * added_us, 5.0] for added_us in (low_us, high_us) * 10]
    alone.setattr(instrumented, "Child", FakeChild(took))
    result = instrumented.measure_telemetry(1, lambda _: None)
    lines = speed_sheet(result, judge_bars(result.bars), "x").lines
    assert [line.label for line in lines[:2]] == [word, word]


def test_what_two_locks_differ_by_that_are_alike_is_not_measurable(
    alone: pytest.MonkeyPatch,
) -> None:
    """The control differs by −0.6 to 0.7 µs: 0.3 without an SDK may be nothing, 2 with one is
    something."""
    took = [[5.0, 5.3, 7.0, 5.0 + control_us] for control_us in (-0.6, 0.7) * 10]
    alone.setattr(instrumented, "Child", FakeChild(took))
    free, with_sdk = instrumented.measure_telemetry(1, lambda _: None).bars
    assert (free.measurable, with_sdk.measurable) == (False, True)
    assert free.null is not None
    assert (free.low, free.high) == (free.null.low, free.null.high), (
        "all that nothing was is possible"
    )
    assert (side_of(free), side_of(with_sdk)) == ("not known", "missed")
    result = instrumented.measure_telemetry(1, lambda _: None)
    first, second = (
        line.text for line in speed_sheet(result, judge_bars(result.bars), "x").lines[:2]
    )
    assert first.startswith("not measurable here (")
    assert second.startswith("2.00 (2.00 … 2.00)")
    assert all(
        f"nothing beside nothing: 0.05 ({free.low:.2f} … {free.high:.2f})" in text
        for text in (first, second)
    )


def test_of_no_round_nothing_is_known(alone: pytest.MonkeyPatch) -> None:
    alone.setattr(instrumented, "Child", FakeChild([]))
    with pytest.raises(EnvironmentNotReadyError, match="gevent got no round done"):
        instrumented.measure_telemetry(1, lambda _: None)
