"""`lockbench safety` as it is typed: exit codes, result, refusals, and what Ctrl-C leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.experiments import safety_matrix
from bench.experiments.safety_matrix import SafetyOrder, run_safety
from bench.experiments.safety_matrix_loads import load_cases
from bench.experiments.safety_matrix_row import Case, Ground
from bench.experiments.safety_matrix_schedules import look_at
from bench.measure.result import read_result
from bench.recipes.schedules.table import SCHEDULES
from bench.topology.fleet import start_fleet

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "bench", "safety", "--quick", *arguments]


def safety(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def looked_at(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    ended = safety("--json", "--out", str(tmp_path / "out"), *arguments)
    assert ended.stdout, ended.stderr
    result = json.loads(ended.stdout)
    assert result == json.loads((tmp_path / "out" / "result.json").read_text("utf-8"))
    return ended.returncode, result


def test_one_recipe_shows_its_flaw_in_the_table_and_as_markdown(tmp_path: Path) -> None:
    ended = safety("--recipe", "get-set", "--out", str(tmp_path / "out"), "--markdown", str(tmp_path / "table.md"))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("AS EXPECTED")
    assert "violations per 1000 acquires 500" in ended.stdout
    assert "| get-set | both-read-first | the flaw | the flaw |" in (tmp_path / "table.md").read_text("utf-8")


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--recipe", "redlok"], "no recipe 'redlok'; did you mean redlock?"),
        (["--claim", "restart"], "no claim 'restart'; did you mean restart-margin?"),
        (["--recipe", "set-nx-lua", "--recipe", "nothing"], "no recipe 'nothing'; did you mean"),
    ],
)
def test_an_unknown_name_is_one_sentence_and_starts_nothing(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    ended = safety(*arguments, "--out", str(tmp_path / "out"))
    assert ended.returncode == 2
    assert sentence in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_ctrl_c_leaves_no_process_and_no_result(tmp_path: Path) -> None:
    with subprocess.Popen(
        command("--out", str(tmp_path / "out")), cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()  # the first row is being looked at
        children = psutil.Process(process.pid).children(recursive=True)
        assert children, "servers run by now"
        process.send_signal(signal.SIGINT)
        process.wait(20)
        assert process.returncode == 130
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
    assert not (tmp_path / "out").exists()


def test_the_same_pauses_break_a_plain_delete_and_not_a_compare_and_delete(tmp_path: Path) -> None:
    with start_fleet(1, "none") as fleet:
        ground = Ground(fleet, seed=1, quick=True, server=None, scratch=tmp_path, run_id="abcd")
        looks = {case.recipe: case.look for case in load_cases() if case.fault == "pauses"}
        fixed, lua = (looks[recipe](ground) for recipe in ("set-nx-fixed", "set-nx-lua"))
    assert fixed.verdict == lua.verdict == "as expected"
    assert fixed.figures["service_faults"]
    assert lua.figures["service_faults"] == 0
    assert lua.figures["client_overstays"]


CLAIMS = {
    "votes": {"granted_below_quorum": 0, "granted_after_their_end": 0},
    "release-to-all": {"orphan_votes": 0},
    "extension": {"extended_in_time": 1, "extended_after_their_end": 0, "foreign_extensions": 0},
    "restart-margin": {"double_grants_n3_margin_1": 0, "double_grants_n3_margin_0": 3, "double_grants_n4_margin_0": 0},
    "clean-shutdown": {"lost_keys": 0},
    "delayed-restart": {"double_grants_delayed_all": 0, "double_grants_trusting_all": 1},
    "partition-ttl": {},
    "owner-tokens": {"urandom_collisions": 0, "uuid1_collisions": 0},
    "everysec-loses": {},
}


def test_claims_come_with_the_figures_they_are_known_for(tmp_path: Path) -> None:
    code, result = looked_at(tmp_path, *(word for name in CLAIMS for word in ("--claim", name)))
    rows = {row["fault"]: row for row in result["rows"]}
    assert code == 0, result["verdict"]
    assert rows.keys() == CLAIMS.keys()
    for name, figures in CLAIMS.items():
        assert {figure: rows[name]["figures"][figure] for figure in figures} == figures
        assert rows[name]["verdict"] == ("not measured here" if name == "everysec-loses" else "as expected")
    assert 0.5 < rows["partition-ttl"]["figures"]["blocked_per_ttl"] < 1.5
    assert any("power cuts" in warning for warning in result["warnings"])


@pytest.mark.parametrize(
    "recipe, flawed, verdict, code",
    [("set-nx-fixed", False, "violated", 5), ("set-nx-lua", True, "not shown", 4)],
)
def test_a_row_that_comes_out_otherwise_is_told_by_the_exit_code(
    recipe: str, flawed: bool, verdict: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = partial(look_at, SCHEDULES["overslept-holder"], recipe, flawed)
    planted = Case("schedule", recipe, "planted", "otherwise", "a wrong expectation", look)
    monkeypatch.setattr(safety_matrix, "choose_cases", lambda *_names: [planted])
    done = run_safety(SafetyOrder((), (), True, 1, "abcd", [], tmp_path), lambda _text: None)
    assert done.exit_code == code
    stored = read_result(tmp_path)
    assert [row["verdict"] for row in stored["rows"]] == [verdict]
    assert stored["verdict"]["reasons"][0].startswith(f"{recipe}, planted: expected otherwise, seen ")
