"""`lockbench fsync`'s options: what they ask for, and what is refused in one sentence before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.cli.commands import execute
from bench.experiments.fsync.command import crash_of, fsync, fsync_plan_of

STORED = Path(__file__).parents[3] / "histories" / "results"


def values(*arguments: str) -> dict[str, Any]:
    return dict(fsync.make_context("fsync", list(arguments)).params)


def test_lists_are_multiplied() -> None:
    plan = fsync_plan_of(
        values("--policy", "everysec,always", "--instances", "1,3", "--clients", "2", "--latency", "raw,2ms")
    )
    assert len(plan.cells) == 2 * 2 * 2 * 2, "policies × N × pipelines × latencies"
    assert {cell.injected_ms for cell in plan.cells} == {0.0, 2.0}


def test_with_targets_all_of_them_take_part_and_nothing_is_injected() -> None:
    plan = fsync_plan_of(values("--target", "redis://127.0.0.1:1", "--target", "redis://127.0.0.1:2"))
    assert {cell.instances for cell in plan.cells} == {2}
    assert {cell.injected_ms for cell in plan.cells} == {0.0}


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--policy", "sometimes"], "'--policy': 'sometimes' is not one of 'none'"),
        (["--clients", "0"], "'--clients': 0 is not in the range 1<="),
        (["--instances", "99"], "'--instances': 99 is not in the range 1<=x<=15"),
        (["--clients", "60000", "--pipeline", "60000"], "more than 65,536 callers"),
        (["--latency", "2"], "'--latency': '2' is not a duration"),
        (["--target", "redis://127.0.0.1:1", "--instances", "3"], "3 is more than the 1 that --target names"),
        (["--latency", "5s"], "too slow for a disk"),
        (["--target", "redis://127.0.0.1:1", "--latency", "2ms"], "no fsync latency is added"),
        (["--target", "redis://127.0.0.1:1", "--rewrite", "on"], "no file rewritten"),
        (["--target", "127.0.0.1:1"], "option --target"),
        (["--target", "redis://127.0.0.1:1", "--disk", "."], "options --server and --disk are for servers of our own"),
        (["--seconds", "nan"], "'nan' is not a number"),
        (["--resume", "nowhere"], "no matrix was cut in nowhere"),
        (["--disk", "nowhere"], "nowhere is not a folder"),
    ],
)
def test_what_is_wrong_is_refused_in_one_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert execute(["fsync", *arguments]) == 2
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_planner_without_results_says_what_to_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert execute(["planner"]) == 3
    assert "there is no result of lockbench fsync" in capsys.readouterr().err


def test_the_planner_writes_its_page(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    speed, losses = (str(STORED / f"{kind}.json") for kind in ("fsync", "crash"))
    assert execute(["planner", "--fsync", speed, "--crash", losses, "--html", "page.html", "--quiet"]) == 0
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "take everysec with delayed restart" in page
    assert "planner-losses" in page


def test_a_result_of_another_command_is_no_crash_result(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "result.json").write_text(json.dumps({"schema_version": 1, "kind": "safety"}), encoding="utf-8")
    assert execute(["fsync", "--quick", "--crash", "result.json"]) == 2
    assert "is no result of lockbench crash" in capsys.readouterr().err


def test_a_target_that_is_dead_is_named_and_no_option_advised_that_there_is_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert execute(["fsync", "--target", "redis://127.0.0.1:1"]) == 3
    told = capsys.readouterr().err
    assert "1 of 1 targets cannot be used: 127.0.0.1:1 (connection refused" in told
    assert "--allow-missing" not in told
    assert told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_crash_result_that_is_not_whole_is_refused_before_the_measuring_or_passed_over(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    """Found only at the end, it would cost the matrix."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results" / "broken"
    folder.mkdir(parents=True)
    broken = {"schema_version": 1, "kind": "crash", "id": "c0", "started_at": "2026", "rows": [{"instances": 3}]}
    (folder / "result.json").write_text(json.dumps(broken), encoding="utf-8")
    assert execute(["fsync", "--quick", "--crash", str(folder)]) == 2
    assert "is not a whole result of lockbench crash" in capsys.readouterr().err
    assert crash_of(None) is None
    (folder / "result.json").write_text(json.dumps({**broken, "kind": "fsync"}), encoding="utf-8")
    assert execute(["planner", "--fsync", str(folder)]) == 2
    assert "is not a whole result of lockbench fsync" in capsys.readouterr().err
