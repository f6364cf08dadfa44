"""The sheet of a judged lock: the head says what went wrong, and nothing is said twice."""

from pathlib import Path

from msgspec.structs import replace

from bench.experiments.judge.judge import earned
from bench.experiments.judge.result import JudgedWord, JudgeResult
from bench.experiments.judge.words import sheet
from bench.measure.result import read_result
from bench.measure.section import typed

STAYS = "a key stays although no client has the lock"


def judged(**verdicts: JudgedWord) -> JudgeResult:
    """A stored judgement, in which these rows have other words."""
    path = Path(__file__).parents[3] / "histories" / "results" / "judge.json"
    result = typed(read_result(path), JudgeResult)
    words = {name.replace("_", "-"): word for name, word in verdicts.items()}
    rows = tuple(
        replace(
            row,
            verdict=words[row.topic],
            happened=STAYS,
            wrong=int(words[row.topic] == "does not"),
        )
        if row.topic in words
        else row
        for row in result.rows
    )
    return earned(replace(result, rows=rows))


def test_the_head_says_what_went_wrong_in_the_worst_row() -> None:
    failed = sheet(judged(late_set="does not"))
    assert failed.verdict == "FAIL"
    assert failed.headline.endswith(f"{STAYS} (late-set)")
    assert "1 does not (late-set)" in failed.conditions
    worse = sheet(judged(late_set="does not", paused_in_acquire="does not"))
    assert worse.verdict == "VIOLATED"
    assert worse.headline.endswith("(paused-in-acquire)")
    assert "2 do not (paused-in-acquire, late-set)" in worse.conditions


def test_the_head_of_a_lock_without_fault_says_what_the_load_found() -> None:
    assert sheet(judged()).headline.endswith("tested leases (contention)")
    cut = sheet(replace(judged(), interrupted=True))
    assert "interrupted after" in cut.headline
    assert cut.headline.endswith("no row shows a fault so far")
    broken = sheet(replace(judged(late_set="does not"), interrupted=True))
    assert broken.headline.endswith(f"{STAYS} (late-set)")


def test_a_reason_in_the_table_is_not_said_again() -> None:
    result = judged(late_set="does not")
    assert f"late-set: {STAYS}" in result.verdict.reasons
    assert [line for line in sheet(result).lines if line.label == "because"] == []


def test_only_a_lock_that_holds_is_to_be_kept_so() -> None:
    def keeps(result: JudgeResult) -> bool:
        return any("keep the lock correct" in line.text for line in sheet(result).lines)

    assert keeps(judged())
    assert not keeps(judged(late_set="not known"))
    assert not keeps(judged(renewal="does not"))


def test_a_choice_of_rows_names_each_row_once() -> None:
    result = judged()
    rows = tuple(row for row in result.rows if row.topic in ("contention", "late-set"))
    chosen = earned(replace(result, chosen=("contention", "late-set"), rows=rows))
    (warning,) = (line.text for line in sheet(chosen).lines if line.label == "warning")
    assert warning.startswith(
        "the judge played only these rows: contention, late-set; run lockbench judge"
    )


def test_rows_that_are_not_applicable_stand_together_by_reason() -> None:
    result = judged()
    missing = [row for row in result.rows if row.verdict == "not applicable"]
    assert missing
    whole = sheet(result)
    assert {row[1] for row in whole.parts[0].rows}.isdisjoint(row.topic for row in missing)
    lines = [line.text for line in whole.lines if line.label == "not measured"]
    assert len(lines) == len({row.happened for row in missing}) + 1
    assert all(any(row.topic in line for line in lines) for row in missing)
