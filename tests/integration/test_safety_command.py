"""`lockbench safety` as it is typed: exit codes, result, refusals, and what Ctrl-C leaves."""

import json
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from bench.experiments.safety_matrix import experiment as safety_matrix
from bench.experiments.safety_matrix.experiment import PlannedRow, look_at_recipe, run_safety
from bench.experiments.safety_matrix.leases import RowSetup
from bench.experiments.safety_matrix.result import Finding, SafetyPlan, SafetyResult
from bench.measure.result import read_result
from bench.recipes.registry import find_recipe
from bench.run.experiment import ExperimentOrder
from tests.conftest import Ended
from tests.integration.locust_runs import cut_short, result_in, started

pytestmark = pytest.mark.integration
Lockbench = Callable[..., Ended]


SAFETY = ("safety", "--quick")


def test_one_recipe_shows_its_flaw_in_the_table_and_as_markdown(
    lockbench: Lockbench, tmp_path: Path
) -> None:
    words = ("--out", "out", "--markdown", "table.md", "--junit", "rows.xml")
    ended = lockbench(*SAFETY, "--recipe", "replica-failover", *words)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("AS EXPECTED")
    assert "steps 7" in ended.stdout
    assert "| replica-failover | explored | the flaw | the flaw |" in (
        tmp_path / "table.md"
    ).read_text("utf-8")
    assert "schedule replica-failover explored" in (tmp_path / "rows.xml").read_text("utf-8")


def test_ctrl_c_in_a_claim_keeps_the_rows_before_it(tmp_path: Path) -> None:
    words = ("--recipe", "set-nx-lua", "--claim", "clock-drift")
    out = cut_short(started(tmp_path, *SAFETY, "--out", "out", *words), "claim: ")
    result = result_in(tmp_path / "out", SafetyResult)
    assert result["interrupted"]
    assert [row["fault"] for row in result["rows"]] == ["explored"]
    assert result["verdict"]["reasons"] == ["interrupted after 1 of 2 rows"]
    assert "then interrupted" in out.splitlines()[0]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_wish_to_end_that_a_row_swallows_ends_it_after_the_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def swallow(_ground: RowSetup) -> Finding:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return Finding("–", "as expected")

    cases = [
        PlannedRow("schedule", name, "planted", "nothing", "a row that swallows Ctrl-C", swallow)
        for name in ("a", "b")
    ]
    monkeypatch.setattr(safety_matrix, "choose_cases", lambda *_names: cases)
    done = run_safety(
        ExperimentOrder(SafetyPlan((), (), True, 1), "abcd", [], tmp_path), lambda _text: None
    )
    assert (done.exit_code, len(done.result.rows)) == (130, 1)


def test_a_result_that_cannot_be_stored_is_handed_back_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken").write_text("a file")
    seen = PlannedRow(
        "schedule", "a", "planted", "nothing", "", lambda _ground: Finding("–", "as expected")
    )
    monkeypatch.setattr(safety_matrix, "choose_cases", lambda *_names: [seen])
    done = run_safety(
        ExperimentOrder(SafetyPlan((), (), True, 1), "abcd", [], tmp_path / "taken"),
        lambda _text: None,
    )
    assert (done.path, done.exit_code, len(done.result.rows)) == (None, 3, 1)
    assert "cannot write" in done.unstored


CLAIMS = {
    "votes": {"schedules": 250, "broken_rules": 0},
    "release-to-all": {"schedules": 250, "broken_rules": 0},
    "extension": {"schedules": 250, "broken_rules": 0},
    "partition-ttl": {},
    "owner-tokens": {"urandom_collisions": 0, "uuid1_collisions": 0},
    "everysec-loses": {},
}


def test_claims_come_with_the_figures_they_are_known_for(
    lockbench: Lockbench, tmp_path: Path
) -> None:
    ended = lockbench(
        *SAFETY, "--json", "--out", "out", *(word for name in CLAIMS for word in ("--claim", name))
    )
    code = ended.returncode
    result = json.loads(ended.stdout)
    assert result == result_in(tmp_path / "out", SafetyResult)
    rows = {row["fault"]: row for row in result["rows"]}
    assert rows.keys() == CLAIMS.keys()
    unknown = {name: row["reason"] for name, row in rows.items() if row["verdict"] == "not known"}
    assert code == (4 if unknown else 0), result["verdict"]
    for name, figures in CLAIMS.items():
        if name in unknown:
            continue
        assert {figure: rows[name]["figures"][figure] for figure in figures} == figures
        assert rows[name]["verdict"] == (
            "not measured here" if name == "everysec-loses" else "as expected"
        )
    assert "power cuts" in rows["everysec-loses"]["reason"]
    if unknown:
        pytest.skip(f"not known here: {unknown}")
    assert 0.5 < rows["partition-ttl"]["figures"]["blocked_per_ttl"] < 1.5
    counted = ("votes granted", "votes too_late", "release-to-all late_votes", "extension extended")
    assert all(rows[claim]["figures"][name] > 20 for claim, name in map(str.split, counted))


@pytest.mark.parametrize(
    "recipe, claims_safe, verdict, code",
    [("set-nx-fixed", True, "violated", 5), ("set-nx-lua", False, "not known", 4)],
)
def test_a_row_that_comes_out_otherwise_is_told_by_the_exit_code(
    recipe: str,
    claims_safe: bool,
    verdict: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(safety_matrix, "SCHEDULES_OF_A_FLAW", 100)
    about = replace(find_recipe(recipe).about, safe=claims_safe)
    monkeypatch.setattr(find_recipe(recipe).recipe, "about", about)
    look = partial(look_at_recipe, recipe)
    planted = PlannedRow("schedule", recipe, "planted", "otherwise", "a wrong expectation", look)
    monkeypatch.setattr(safety_matrix, "choose_cases", lambda *_names: [planted])
    done = run_safety(
        ExperimentOrder(SafetyPlan((), (), True, 1), "abcd", [], tmp_path), lambda _text: None
    )
    assert done.exit_code == code
    stored = read_result(tmp_path)
    assert [row["verdict"] for row in stored["rows"]] == [verdict]
    assert stored["verdict"]["reasons"][0].startswith(
        f"{recipe}, planted: expected otherwise, but the result is "
    )
