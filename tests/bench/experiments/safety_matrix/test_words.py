"""What `lockbench safety` says of its rows."""

from pathlib import Path
from typing import Any

from bench.experiments.safety_matrix.result import SafetyResult
from bench.experiments.safety_matrix.words import figures, figures_text, sheet, suite
from bench.measure.result import read_result
from bench.measure.section import typed
from tests.bench.report.screen import sheet_text

OLD = Path(__file__).parents[3] / "histories" / "results" / "safety.json"
ROW = {
    "part": "schedule",
    "recipe": "set-nx-fixed",
    "fault": "overslept-holder",
    "expected": "the flaw",
    "seen": "no flaw",
    "about": "a holder deletes its successor's lock",
    "figures": {"chain": 0, "recovery_ms": None},
    "reason": None,
    "verdict": "not shown",
}


def result(*rows: dict[str, Any], interrupted: bool = False) -> SafetyResult:
    old = {
        **read_result(OLD),
        "duration_s": 18.2,
        "warnings": ["read-write: skipped: withdrawn"],
        "rows": rows,
    }
    told = {"status": "inconclusive", "reasons": ["set-nx-fixed, overslept-holder: …"]}
    own = {"counts": {"not shown": len(rows)}, "interrupted": interrupted, "verdict": told}
    return typed({**old, **own}, SafetyResult)


def printed(width: int, *rows: dict[str, Any]) -> list[str]:
    return sheet_text(sheet(result(*rows), "here"), width).splitlines()


def test_the_verdict_comes_first_and_every_row_says_all_six_things() -> None:
    lines = printed(80, ROW)
    assert lines[0].startswith("NOT AS EXPECTED   0 of 1 known flaws showed")
    at = next(number for number, line in enumerate(lines) if line.startswith("set-nx-fixed "))
    for words in ("overslept-holder", "the flaw", "no flaw", "not shown"):
        assert words in lines[at]
    assert lines[at + 1].strip() == "chain 0, recovery ms never"


def test_a_row_that_was_not_looked_at_shows_its_reason() -> None:
    lines = printed(
        80, {**ROW, "figures": {}, "reason": "there is no compiler", "verdict": "skipped"}
    )
    assert any("there is no compiler" in line for line in lines)


def test_figures_keep_their_size() -> None:
    assert figures_text({"double_grants": 1000, "idle_ms": 96.512, "rate": 1234.5}) == (
        "double grants 1,000, idle ms 96.5, rate 1,234"
    )


def test_rows_are_junit_cases_and_what_was_not_looked_at_is_no_pass() -> None:
    unseen = {**ROW, "fault": "power", "verdict": "skipped", "reason": "no compiler", "figures": {}}
    cases = suite(
        result(ROW, {**ROW, "verdict": "as expected"}, {**ROW, "verdict": "violated"}, unseen)
    )
    assert [case.status for case in cases.cases] == ["inconclusive", "pass", "violated"]
    assert cases.cases[0].name == "schedule set-nx-fixed overslept-holder"
    assert cases.properties["rows not looked at"] == "1"


def test_an_interrupted_matrix_says_so_in_its_first_line() -> None:
    first = sheet_text(sheet(result(ROW, interrupted=True), "here"), 80).splitlines()[0]
    assert first.startswith("NOT AS EXPECTED   0 of 1 known flaws showed, then interrupted")


def test_a_violated_claim_has_a_red_bar_and_one_that_is_not_known_has_none() -> None:
    claim = {**ROW, "part": "claim", "recipe": "redlock", "expected": "confirmed", "figures": {}}
    violated = {**claim, "fault": "votes", "seen": "refuted", "verdict": "violated"}
    unknown = {**claim, "fault": "extension", "seen": "not known", "verdict": "not known"}
    (picture,) = figures(result(violated, unknown))
    assert [row[-1] for row in picture.rows] == [1, None]
    assert picture.svg.count('class="area bad"') == 1
    assert "refuted: violated" in picture.svg
    assert [*picture.legend] == ["broken"]
