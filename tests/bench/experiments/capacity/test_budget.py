"""A capacity ends within its budget however slow the machine is, and says what it did not
measure."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.experiments.capacity import experiment
from bench.experiments.capacity.command import CapacityOptions, plan_of
from bench.experiments.capacity.experiment import Budget, run_capacity
from bench.experiments.capacity.result import CapacityResult
from bench.run import short
from bench.run.experiment import ExperimentOrder
from tests.bench.experiments.capacity.test_probe import run_of
from tests.bench.whole_run import run_of as whole

# than what a run is asked to last
SLOWER = 4.0


class SlowMachine:
    """Runs that take SLOWER times what they should, on a clock of their own, and end a second after
    they are asked to; every rate up to `most` holds."""

    def __init__(self, most: float) -> None:
        self.now_s = 0.0
        self.most = most

    def run_on(self, _servers: Any, order: Any, interrupts: Any, show: Any, **_more: Any) -> Any:
        scenario = order.scenario
        for _ in range(int(SLOWER * (scenario.warmup_ms + scenario.duration_ms) / 1000)):
            self.now_s += 1.0
            show(SimpleNamespace(phase="measuring"))
            if interrupts.count:
                self.now_s += 1.0
                break
        held = scenario.rate_per_s is None or scenario.rate_per_s <= self.most
        result = run_of(fast=10_000) if held else run_of(fast=5_000, slow=5_000)
        result["scenario"] |= {"users": scenario.users}
        result |= {
            "interrupted": interrupts.count > 0,
            "verdict": {"status": "pass", "reasons": []},
        }
        result["rate"] |= {"achieved_per_s": 5_000.0}
        return SimpleNamespace(result=whole(result))


@contextmanager
def no_servers(*_arguments: Any, **_options: Any) -> Iterator[Any]:
    yield SimpleNamespace(section=lambda: None, urls=[], warnings=list)


def measured(
    machine: SlowMachine, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> CapacityResult:
    show = options.pop("show", lambda _text: None)
    budget_s = options.pop("budget", None)
    usual = {"slo": ["acquire.p99 < 10ms"], "quick": True}
    plan = plan_of(None, CapacityOptions(**{**usual, **options}), {})
    # also one that the command refuses as too short
    plan = replace(plan, budget_s=budget_s or plan.budget_s)
    monkeypatch.setattr(short, "run_on", machine.run_on)
    monkeypatch.setattr(experiment, "open_servers", no_servers)
    monkeypatch.setattr(experiment, "_drain", lambda _urls: None)
    monkeypatch.setattr(experiment.time, "monotonic", lambda: machine.now_s)
    return run_capacity(ExperimentOrder(plan, "test", [], folder), show).result


@pytest.mark.parametrize("budget", [1.0, 30.0, 60.0, 120.0, 240.0])
@pytest.mark.parametrize("target", [None, 3_000.0])
def test_a_slow_machine_ends_in_time_and_says_what_was_not_measured(
    budget: float, target: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = SlowMachine(most=5_000)
    result = measured(machine, tmp_path, monkeypatch, budget=budget, target_rate=target)
    assert machine.now_s <= max(budget, 3.0)
    told = [*result.warnings, *result.verdict.reasons]
    headroom = result.points[0].headroom
    if headroom is not None and headroom.holds:
        assert result.verdict.word == "FOUND"
    elif result.verdict.word == "FOUND":
        assert (
            (result.points[0].capacity.low or 0) <= 5_000 <= (result.points[0].capacity.high or 0)
        )
    else:
        assert any("--budget" in reason for reason in result.verdict.reasons)
    assert len(told) == len(set(told))


def test_a_run_that_is_not_over_with_the_budget_is_cut_and_no_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = SlowMachine(most=5_000)
    # it was to be over in time, and is not
    monkeypatch.setattr(Budget, "lasts_s", lambda *_: 0.01)
    result = measured(machine, tmp_path, monkeypatch, budget=60.0)
    assert not result.interrupted
    assert machine.now_s <= 60.0
    assert "--budget" in "".join((*result.warnings, *result.verdict.reasons))


def test_with_time_enough_the_search_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = measured(
        SlowMachine(most=5_000), tmp_path, monkeypatch, budget=3600.0, target_rate=3_000.0
    )
    assert result.verdict.word == "FOUND"
    assert not any("--budget" in warning for warning in result.warnings)
    steps = [probe.step for probe in result.points[0].probes]
    assert steps[:3] == ["target"] * 3
    # spread over the whole search
    assert steps[3:9] == ["search"] * 4 + ["target", "search"]
    assert steps[-1] == "target"
    headroom = result.points[0].headroom
    assert headroom is not None
    assert headroom.acquire_s is not None
    assert headroom.ratio == pytest.approx(2 / 3, abs=0.2)


def test_what_is_shown_meanwhile_fits_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    sweep = ("instances=1,3",)
    measured(
        SlowMachine(most=5_000),
        tmp_path,
        monkeypatch,
        budget=3600.0,
        show=shown.append,
        sweeps=sweep,
    )
    pattern = r"point 2/2: probe 9 of about \d+ at [\d,]+/s, so far [\d,]+–[\d,]+/s, \d+:\d\d left"
    assert any(re.fullmatch(pattern, line) for line in shown)
    assert max(map(len, shown)) <= 80
