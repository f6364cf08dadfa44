"""The safety matrix: which rows there are, and what each comes to."""

from dataclasses import replace

import pytest

from bench.errors import EnvironmentNotReadyError
from bench.experiments.safety_matrix.experiment import PlannedRow, all_cases, choose_cases, look
from bench.experiments.safety_matrix.judge import ELSEWHERE, judge_rows
from bench.experiments.safety_matrix.leases import SKIPPED, RowSetup, confirmed
from bench.experiments.safety_matrix.result import Finding, MatrixWord, SafetyRow
from bench.measure.expectation import AS_EXPECTED, NOT_KNOWN, NOT_SHOWN, VIOLATED
from bench.recipes.registry import RECIPES, WITHDRAWN


def row(verdict: MatrixWord) -> SafetyRow:
    return SafetyRow("d", verdict, part="claim", recipe="a", fault="b", expected="c")


def test_every_recipe_stands_in_the_matrix_the_withdrawn_one_too() -> None:
    assert {case.recipe for case in all_cases()} >= {*WITHDRAWN, *RECIPES}


def test_the_recipes_come_first() -> None:
    parts = [case.part for case in all_cases()]
    assert parts == sorted(parts, key=["schedule", "claim"].index)


def test_a_recipe_selects_its_rows_and_nothing_else() -> None:
    chosen = choose_cases(["set-nx-fixed"])
    assert chosen
    assert {case.recipe for case in chosen} == {"set-nx-fixed"}


@pytest.mark.parametrize(
    "verdicts, code",
    [
        ([AS_EXPECTED], 0),
        ([AS_EXPECTED, SKIPPED], 0),
        ([AS_EXPECTED, SKIPPED, ELSEWHERE, ELSEWHERE], 0),
        ([AS_EXPECTED, *[SKIPPED] * 3], 4),
        ([AS_EXPECTED, NOT_KNOWN], 4),
        ([NOT_KNOWN, VIOLATED], 5),
        ([AS_EXPECTED, NOT_SHOWN], 4),
        ([AS_EXPECTED, NOT_SHOWN, VIOLATED], 5),
        ([SKIPPED], 4),
        ([], 4),
    ],
)
def test_the_exit_code_of_the_rows(verdicts: list[MatrixWord], code: int) -> None:
    assert judge_rows([row(verdict) for verdict in verdicts]).exit_code == code


def test_a_matrix_that_was_cut_short_is_never_as_expected() -> None:
    verdict = judge_rows([row(AS_EXPECTED)], planned=2)
    assert (verdict.word, verdict.exit_code) == ("INTERRUPTED", 130)
    assert judge_rows([row(VIOLATED)], planned=2).word == "VIOLATED"


def test_without_its_precondition_a_row_is_neither_confirmed_nor_refuted() -> None:
    for holds in (True, False):
        finding = confirmed(holds, {}, {"somebody was granted": False, "it took place": True})
        assert (finding.seen, finding.verdict) == (NOT_KNOWN, NOT_KNOWN)
        assert finding.reason == "these preconditions were not met: somebody was granted"
    assert confirmed(True, {}, {"somebody was granted": False}, broken=True).verdict == VIOLATED


def case_of(*findings: Finding | Exception) -> PlannedRow:
    coming = iter(findings)

    def next_look(_ground: RowSetup) -> Finding:
        finding = next(coming)
        if isinstance(finding, Exception):
            raise finding
        return finding

    return PlannedRow("claim", "redlock", "planted", "confirmed", "a planted row", next_look)


def ground(*, is_over: bool = False) -> RowSetup:
    return RowSetup(1, True, None, None, lambda: is_over)  # type: ignore[arg-type]


UNKNOWN = Finding("not known", NOT_KNOWN)


@pytest.mark.parametrize(
    "findings, verdict",
    [
        ((TimeoutError(), Finding("confirmed", AS_EXPECTED)), AS_EXPECTED),
        ((UNKNOWN, UNKNOWN, Finding("refuted", VIOLATED)), VIOLATED),
        # looked at: no second try
        ((Finding("refuted", NOT_SHOWN), Finding("confirmed", AS_EXPECTED)), NOT_SHOWN),
        ((UNKNOWN, UNKNOWN, UNKNOWN, Finding("confirmed", AS_EXPECTED)), NOT_KNOWN),
    ],
)
def test_only_what_is_not_known_is_looked_at_again(
    findings: tuple[Finding | Exception, ...], verdict: str
) -> None:
    assert look(case_of(*findings), ground()).verdict == verdict


def test_what_always_goes_wrong_on_the_way_is_not_known() -> None:
    wrong = EnvironmentNotReadyError("there is no server")
    finding = look(case_of(wrong, wrong, wrong), ground())
    assert (finding.verdict, finding.reason) == (
        NOT_KNOWN,
        "EnvironmentNotReadyError: there is no server",
    )


def test_nothing_is_looked_at_again_once_somebody_wants_it_to_end() -> None:
    finding = look(case_of(UNKNOWN, Finding("confirmed", AS_EXPECTED)), ground(is_over=True))
    assert finding.verdict == NOT_KNOWN


def test_what_is_known_beforehand_is_not_looked_at() -> None:
    known = {
        (case.recipe, case.fault): case.look
        for case in all_cases()
        if isinstance(case.look, Finding)
    }
    assert known["read-write", "none"].verdict == SKIPPED
    assert known["redlock", "everysec-loses"].verdict == ELSEWHERE


def test_a_search_that_ended_is_not_repeated_because_its_seed_plays_the_same_schedules() -> None:
    searched = replace(case_of(UNKNOWN, Finding("the flaw", AS_EXPECTED)), part="schedule")
    assert look(searched, ground()).verdict == NOT_KNOWN


def test_a_search_that_lost_its_process_is_repeated() -> None:
    searched = replace(
        case_of(EnvironmentNotReadyError("gone"), Finding("the flaw", AS_EXPECTED)), part="schedule"
    )
    assert look(searched, ground()).verdict == AS_EXPECTED
