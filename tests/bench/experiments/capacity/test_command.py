"""`lockbench capacity`: what is wrong in its options is said before anything starts."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from bench.errors import UsageError
from bench.experiments.capacity.command import CapacityOptions, plan_of
from bench.experiments.capacity.judge import CapacityPlan
from bench.program import execute

SLO = ("acquire.p99 < 10ms",)


def planned(path: Path | None, **given: Any) -> CapacityPlan:
    """What these options ask for; those of the command by their field, those of the scenario by
    their key."""
    names = {field.name for field in fields(CapacityOptions)}
    own = {name: value for name, value in given.items() if name in names}
    keys = {name: value for name, value in given.items() if name not in names}
    return plan_of(path, CapacityOptions(**{"slo": SLO, **own}), keys)


def test_a_sweep_is_every_combination() -> None:
    plan = planned(None, sweeps=("instances=1,3", "fsync=none,always"))
    swept = [(point.scenario.instances, point.scenario.fsync) for point in plan.points]
    assert swept == [(1, "none"), (1, "always"), (3, "none"), (3, "always")]


def test_a_key_that_is_swept_twice_loses_no_value() -> None:
    plan = planned(None, sweeps=("instances=1,3", "instances=3,5"))
    assert [point.scenario.instances for point in plan.points] == [1, 3, 5]


@pytest.mark.parametrize(("quick", "minutes"), [(True, 2), (False, 6)])
def test_a_point_has_two_minutes_or_six(quick: bool, minutes: int) -> None:
    assert planned(None, quick=quick).budget_s == 60 * minutes


def test_callers_given_are_a_cap() -> None:
    assert planned(None, users="8").fixed_users
    assert not planned(None).fixed_users


@pytest.mark.parametrize(
    ("given", "lengths_ms"),
    [
        ({"quick": True}, (2_000, 500)),
        ({"quick": True, "duration": "5s"}, (5_000, 500)),
        ({}, (7_000, 2_000)),
    ],
)
def test_quick_shortens_the_probes_of_a_scenario_too_but_no_option(
    tmp_path: Path, given: dict[str, Any], lengths_ms: tuple[int, int]
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('duration = "7s"\n', encoding="utf-8")
    scenario = planned(file, **given).points[0].scenario
    assert (scenario.duration_ms, scenario.warmup_ms) == lengths_ms


def test_a_ready_scenario_is_found_by_its_name() -> None:
    plan = planned(Path("hot-key"), quick=True)
    assert (plan.points[0].scenario.skew.value, plan.fixed_users) == (0.9, True)


def test_arrivals_may_be_chosen_without_a_rate() -> None:
    scenario = planned(None, arrivals="fixed").points[0].scenario
    assert (scenario.arrivals, scenario.rate_per_s) == ("fixed", None)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"rate": "5"}, "--rate: capacity searches the rate"),
        ({"sweeps": ("instances",)}, "is not a sweep"),
        ({"sweeps": ("instnces=1,3",)}, "did you mean instances"),
        ({"sweeps": ("rate=1,3",)}, "a sweep over rate is not possible"),
        ({"sweeps": ("instances=1,none",)}, "'none' is not a whole number"),
        ({"slo": ("acquire.p98 < 10ms",)}, "there is no metric acquire.p98"),
        ({"slo": ("acquire.p99 < 10",)}, "the limit needs a unit"),
        ({"thresholds": ("rate >= 5/s",)}, "use --slo for the limits that must hold"),
        ({"think": "5ms"}, "think times are only possible without a rate"),
    ],
)
def test_wrong_options_are_refused_with_their_reason(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        planned(None, **given)


def test_a_budget_in_which_no_probe_ends_is_refused_and_the_least_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert execute(["capacity", "--slo", SLO[0], "--budget", "3s"]) == 2
    assert "--budget: 3s is too short for one probe. A probe takes 10s" in capsys.readouterr().err
    with pytest.raises(UsageError, match="One probe needs a budget of 14s"):
        planned(None, budget=13.9)
    assert planned(None, budget=14.0).budget_s == 14.0
    assert planned(None, budget=5.0, quick=True).budget_s == 5.0


@pytest.mark.parametrize("budget", ["0", "-1s", "soon", "5"])
def test_a_budget_is_a_time(budget: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["capacity", "--slo", SLO[0], "--budget", budget]) == 2
    assert "--budget" in capsys.readouterr().err


def test_an_slo_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["capacity"]) == 2
    assert "--slo" in capsys.readouterr().err
