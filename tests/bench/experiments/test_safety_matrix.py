"""The safety matrix: which rows there are, and what each comes to."""

from __future__ import annotations

import pytest

from bench.errors import UsageError
from bench.experiments.safety_matrix import all_cases, choose_cases
from bench.experiments.safety_matrix_row import AS_EXPECTED, NOT_SHOWN, SKIPPED, VIOLATED, judge_rows
from bench.experiments.safety_matrix_schedules import judge_shown
from bench.experiments.verdict import exit_code
from bench.recipes.registry import RECIPES, WITHDRAWN
from bench.recipes.schedules.shown import Shown
from bench.safety.report import SafetyReport

SAFE = SafetyReport("SAFE", None)
FAULTY = SafetyReport("VIOLATED", "1 × service fault", service_faults=1)


def row(verdict: str) -> dict[str, str | None]:
    return {"recipe": "a", "fault": "b", "expected": "c", "seen": "d", "verdict": verdict, "reason": None}


def test_every_recipe_stands_in_the_matrix_the_withdrawn_one_too() -> None:
    assert {case.recipe for case in all_cases()} >= {*WITHDRAWN, *RECIPES}


def test_deterministic_rows_come_first() -> None:
    parts = [case.part for case in all_cases()]
    assert parts == sorted(parts, key=["schedule", "load", "claim"].index)


def test_a_recipe_selects_its_rows_and_nothing_else() -> None:
    chosen = choose_cases(["set-nx-fixed"])
    assert chosen
    assert {case.recipe for case in chosen} == {"set-nx-fixed"}


def test_an_unknown_recipe_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="no recipe 'set-nx-fxed'; did you mean set-nx-fixed?") as refusal:
        choose_cases(["set-nx-fxed"])
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize(
    "seen, flawed, safe, report, verdict",
    [
        (True, True, False, FAULTY, AS_EXPECTED),
        (False, True, False, SAFE, NOT_SHOWN),
        (True, False, False, FAULTY, VIOLATED),
        (False, False, True, SAFE, AS_EXPECTED),
        (False, False, True, FAULTY, VIOLATED),
        (True, True, True, SAFE, AS_EXPECTED),
        (True, True, True, FAULTY, VIOLATED),  # blocked, as known; but two leases at once is more than it may
    ],
)
def test_what_a_schedule_says_of_a_recipe(
    seen: bool, flawed: bool, safe: bool, report: SafetyReport, verdict: str
) -> None:
    assert judge_shown(Shown(seen, {"chain": 5}, report), flawed=flawed, safe=safe).verdict == verdict


@pytest.mark.parametrize(
    "verdicts, code",
    [
        ([AS_EXPECTED], 0),
        ([AS_EXPECTED, SKIPPED], 0),
        ([AS_EXPECTED, NOT_SHOWN], 4),
        ([AS_EXPECTED, NOT_SHOWN, VIOLATED], 5),
        ([SKIPPED], 4),
        ([], 4),
    ],
)
def test_the_exit_code_of_the_rows(verdicts: list[str], code: int) -> None:
    assert exit_code(judge_rows([row(verdict) for verdict in verdicts]), interrupted=False) == code


def test_a_reason_names_row_expectation_and_what_was_seen() -> None:
    assert judge_rows([row(NOT_SHOWN)])["reasons"] == ["a, b: expected c, seen d"]
