"""The stress rows of the safety matrix: their loads, and what each comes to."""

from pathlib import Path
from typing import Any

import pytest

from bench.experiments.safety_matrix.loads import (
    FULL_MS,
    PAUSES,
    QUICK_MS,
    ROWS,
    UNSTABLE,
    Disturbance,
    judge_load,
    scenario_of,
)
from bench.measure.expectation import AS_EXPECTED, NOT_KNOWN, NOT_SHOWN, VIOLATED
from bench.recipes.registry import find_recipe
from bench.run.experiment import Done
from bench.topology.faults.kinds import read_faults
from tests.doubles.attributes import attributes


def finished(verdict: str = "SAFE", *, skipped: str | None = None, **counts: int) -> Done[Any]:
    names = ("service_faults", "client_overstays", "foreign_deletes", "granted_invalid")
    counts = {"tested_leases": 150, **counts}
    safety: dict[str, Any] = {"verdict": verdict, "reason": None, **dict.fromkeys(names, 0), **counts}
    faults = [{"kind": "stop", "skipped": skipped}]
    result = attributes({"safety": safety, "faults": faults, "totals": {"acquired": 100}})
    return Done(result, Path("here"), 0)


@pytest.mark.parametrize(
    "ended, disturbance, safe, verdict",
    [
        (finished("VIOLATED", service_faults=3), PAUSES, False, AS_EXPECTED),
        (finished("SAFE"), PAUSES, False, NOT_KNOWN),  # nobody overslept
        (finished("SAFE", client_overstays=3), PAUSES, False, NOT_SHOWN),
        (finished("VIOLATED", granted_invalid=2, tested_leases=23), PAUSES, False, NOT_KNOWN),
        (finished("SAFE", client_overstays=2), PAUSES, True, AS_EXPECTED),
        (finished("SAFE"), PAUSES, True, NOT_KNOWN),  # nobody overslept: nothing was tried
        (finished("SAFE"), UNSTABLE, True, AS_EXPECTED),
        (finished("UNKNOWN", client_overstays=2), PAUSES, True, NOT_KNOWN),
        (finished("SAFE", client_overstays=2, tested_leases=99), PAUSES, True, NOT_KNOWN),
        (finished("SAFE", skipped="the worker had ended"), UNSTABLE, True, NOT_KNOWN),
        (finished("VIOLATED", service_faults=1, skipped="the worker had ended"), UNSTABLE, True, VIOLATED),
        (finished("NOT TESTED", client_overstays=2, tested_leases=9), PAUSES, True, NOT_KNOWN),
        (finished("VIOLATED", service_faults=1), PAUSES, True, VIOLATED),
        (finished("VIOLATED", foreign_deletes=1), PAUSES, True, VIOLATED),
    ],
)
def test_what_a_load_says_of_a_recipe(ended: Done[Any], disturbance: Disturbance, safe: bool, verdict: str) -> None:
    assert judge_load(ended, disturbance, safe=safe).verdict == verdict


def test_a_fault_that_did_not_take_place_is_named() -> None:
    finding = judge_load(finished(skipped="there is no compiler"), PAUSES, safe=True)
    assert finding.reason is not None
    assert "stop: there is no compiler" in finding.reason


@pytest.mark.parametrize("duration_ms", [QUICK_MS, FULL_MS])
@pytest.mark.parametrize(
    "disturbance, recipe", [(disturbance, recipe) for disturbance, recipes in ROWS for recipe in recipes]
)
def test_every_load_is_one_that_a_run_accepts(disturbance: Disturbance, recipe: str, duration_ms: float) -> None:
    scenario = scenario_of(disturbance, recipe, seed=7, duration_ms=duration_ms)
    find_recipe(recipe).require(scenario.instances, scenario.pause)
    orders = read_faults(scenario.faults, seed=scenario.seed, duration_ms=scenario.duration_ms)
    assert len(orders) == len(disturbance.faults) * (duration_ms // QUICK_MS)
    assert scenario.seed == 7
