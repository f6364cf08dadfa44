"""A capacity ends within its budget however slow the machine is, and says what it did not measure."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.experiments.capacity import experiment
from bench.experiments.capacity.command import plan_of
from bench.experiments.capacity.experiment import Budget, run_capacity
from bench.experiments.capacity.result import CapacityResult
from bench.run.experiment import ExperimentOrder
from tests.bench.experiments.capacity.test_probe import run_of
from tests.bench.whole_run import run_of as whole

SLOWER = 4.0  # than what a run is asked to last


class SlowMachine:
    """Runs that take SLOWER times what they should, on a clock of their own; every rate up to `most` holds."""

    def __init__(self, most: float) -> None:
        self.now_s, self.most = 0.0, most

    def run_on(self, _servers: Any, order: Any, *_rest: Any) -> Any:
        scenario = order.scenario
        self.now_s += SLOWER * (scenario.warmup_ms + scenario.duration_ms) / 1000
        held = scenario.rate_per_s is None or scenario.rate_per_s <= self.most
        result = run_of(fast=10_000) if held else run_of(fast=5_000, slow=5_000)
        result["scenario"] |= {"users": scenario.users}
        result |= {"interrupted": False, "verdict": {"status": "pass", "reasons": []}}
        result["rate"] |= {"achieved_per_s": 2_000.0}
        return SimpleNamespace(result=whole(result))


@contextmanager
def no_servers(*_arguments: Any, **_options: Any) -> Iterator[Any]:
    yield SimpleNamespace(section=lambda: None, urls=[], warnings=list)


def measured(machine: SlowMachine, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> CapacityResult:
    values = {"slo": ["acquire.p99 < 10ms"], "quick": True, "sweeps": (), "callers": None, "target_rate": None}
    plan = plan_of(None, {**values, "budget": None, **options})
    for name, double in (("run_on", machine.run_on), ("open_servers", no_servers), ("_drain", lambda _urls: None)):
        monkeypatch.setattr(experiment, name, double)
    monkeypatch.setattr(
        experiment, "Budget", lambda wanted_s, callers: Budget(wanted_s, callers=callers, now_s=lambda: machine.now_s)
    )
    monkeypatch.setattr(experiment.time, "monotonic", lambda: machine.now_s)
    return run_capacity(ExperimentOrder(plan, "test", [], folder), lambda _text: None).result


@pytest.mark.parametrize("budget", [1.0, 30.0, 60.0, 120.0, 240.0])
def test_a_slow_machine_ends_in_time_and_says_what_was_not_measured(
    budget: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = SlowMachine(most=5_000)
    result = measured(machine, tmp_path, monkeypatch, budget=budget)
    assert machine.now_s <= budget + SLOWER * 4  # one run that was not known
    told = [*result.warnings, *result.verdict.reasons]
    assert any("--budget" in sentence for sentence in told)
    assert len(told) == len(set(told))
    if result.verdict.word == "CONFIRMED":
        assert result.points[0].capacity.held == result.points[0].capacity.probed >= 4
    else:
        assert any("--budget" in reason for reason in result.verdict.reasons)


def test_with_time_enough_the_search_ends_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = measured(SlowMachine(most=5_000), tmp_path, monkeypatch, budget=3600.0)
    assert result.verdict.word == "CONFIRMED"
    assert not any("--budget" in warning for warning in result.warnings)
