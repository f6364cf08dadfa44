"""`lockbench fsync`'s options: what they ask for, and what is refused in one sentence before anything starts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.cli.commands import execute
from bench.experiments.crash.result import CrashResult
from bench.experiments.fsync.command import fsync, fsync_plan_of
from bench.measure.result import newest_result

STORED = Path(__file__).parents[3] / "histories" / "results"
SPEED = str(STORED / "fsync.json")
Said = Callable[[], Any]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Said:
    """What was printed, in a folder that is empty."""
    monkeypatch.chdir(tmp_path)
    return capsys.readouterr


def values(*arguments: str) -> dict[str, Any]:
    return dict(fsync.make_context("fsync", list(arguments)).params)


def test_lists_are_multiplied() -> None:
    plan = fsync_plan_of(
        values("--fsync", "everysec,always", "--instances", "1,3", "--pipeline", "1,16", "--latency", "raw,2ms")
    )
    assert len(plan.cells) == 2 * 2 * 2 * 2 * 2, "policies × N × clients (1, 16) × pipelines × latencies"
    assert {cell.injected_ms for cell in plan.cells} == {0.0, 2.0}


def test_with_targets_all_of_them_take_part_and_nothing_is_injected() -> None:
    plan = fsync_plan_of(values("--target", "redis://127.0.0.1:1", "--target", "redis://127.0.0.1:2"))
    assert {cell.instances for cell in plan.cells} == {2}
    assert {cell.injected_ms for cell in plan.cells} == {0.0}


def test_a_scenario_brings_its_callers_hold_and_servers(said: Said) -> None:
    Path("mine.toml").write_text('users = 48\nprocesses = 2\nhold = "exp:5ms"\ninstances = 3\nrate = 100\n', "utf-8")
    plan = fsync_plan_of(values("mine.toml"))
    assert {(cell.instances, cell.clients, cell.pipeline, cell.hold, cell.injected_ms) for cell in plan.cells} == {
        (3, 2, 24, "exp:5ms", 0.0)
    }
    assert {cell.policy for cell in plan.cells} == {"none", "no", "everysec", "always", "waitaof"}
    assert "users 48, processes 2, hold exp:5ms" in plan.scenario
    assert "rate of 100/s" in plan.scenario
    assert fsync_plan_of(values("mine.toml", "--instances", "5")).cells[0].instances == 5
    Path("slow.toml").write_text('hold = "5s"\n', "utf-8")
    assert execute(["fsync", "slow.toml"]) == 2
    assert "a lock is held longer than a load of 2 s takes" in said().err
    Path("theirs.toml").write_text('targets = ["redis://127.0.0.1:1"]\n', "utf-8")
    assert execute(["fsync", "theirs.toml"]) == 3
    assert "1 of 1 targets cannot be used: 127.0.0.1:1" in said().err


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--fsync", "sometimes"], "'--fsync': 'sometimes' is not one of 'none'"),
        (["--clients", "0"], "'--clients': 0 is not in the range 1<="),
        (["--instances", "99"], "'--instances': 99 is not in the range 1<=x<=15"),
        (["--clients", "60000", "--pipeline", "60000"], "more than 65,536 callers"),
        (["--latency", "2"], "'--latency': '2' is not a duration"),
        (["--target", "redis://127.0.0.1:1", "--instances", "3"], "3 is more than the 1 that --target names"),
        (["--latency", "5s"], "too slow for a disk"),
        (["--target", "redis://127.0.0.1:1", "--latency", "2ms"], "no fsync latency is added"),
        (["--target", "127.0.0.1:1"], "'--target': "),
        (["--target", "redis://127.0.0.1:1", "--disk", "."], "options --server and --disk are for servers of our own"),
        (["--duration", "nan"], "nan"),
        (["--disk", "nowhere"], "nowhere is not a folder"),
        (["--allow-config"], "for servers that are not ours: name them with --target"),
    ],
)
def test_what_is_wrong_is_refused_in_one_sentence(arguments: list[str], sentence: str, said: Said) -> None:
    assert execute(["fsync", *arguments]) == 2
    told = said().err
    assert sentence in told
    assert told.count("\n") == 1
    assert list(Path().iterdir()) == []


def test_a_target_that_is_dead_is_named_and_no_option_advised_that_there_is_not(said: Said) -> None:
    assert execute(["fsync", "--target", "redis://127.0.0.1:1"]) == 3
    told = said().err
    assert "1 of 1 targets cannot be used: 127.0.0.1:1 (connection refused" in told
    assert "--allow-missing" not in told
    assert told.count("\n") == 1
    assert list(Path().iterdir()) == []


def test_the_planner_writes_its_page_or_says_what_it_needs(said: Said) -> None:
    assert execute(["planner"]) == 3
    assert "there is no result of lockbench fsync" in said().err
    speed, losses = (str(STORED / f"{kind}.json") for kind in ("fsync", "crash"))
    assert execute(["planner", "--costs", speed, "--crash", losses, "--html", "page.html", "--quiet"]) == 0
    page = Path("page.html").read_text("utf-8")
    assert "take everysec with delayed restart" in page
    assert "a crash" in page


def test_a_report_finds_the_crash_result_beside_or_says_what_to_type(said: Said) -> None:
    alone = json.loads((STORED / "fsync.json").read_text("utf-8"))
    alone["planner"]["ttl_ms"], alone["planner"]["advice"] = None, ["speed alone"]
    for option in alone["planner"]["options"]:
        option["crash"] = None
    Path("results/speed").mkdir(parents=True)
    Path("results/speed/result.json").write_text(json.dumps(alone), "utf-8")
    assert execute(["report", "results/speed"]) == 0
    assert "double grants in" not in said().out
    Path("results/losses").mkdir()
    Path("results/losses/result.json").write_bytes((STORED / "crash.json").read_bytes())
    assert execute(["report", "results/speed"]) == 0
    assert "double grants in" in said().out
    assert "double grants in" in Path("results/speed/report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("kind", "command", "sentence"),
    [
        ("safety", ["planner", "--costs", SPEED, "--crash"], "is no result of lockbench crash"),
        ("crash", ["planner", "--costs", SPEED, "--crash"], "is not a whole CrashResult of lockbench"),
        ("fsync", ["planner", "--costs"], "is not a whole FsyncResult of lockbench"),
    ],
)
def test_a_wrong_result_is_refused_or_passed_over(kind: str, command: list[str], sentence: str, said: Said) -> None:
    folder = Path("results/broken")
    folder.mkdir(parents=True)
    broken = {"schema_version": 1, "kind": kind, "id": "c0", "started_at": "2026", "rows": [{"instances": 3}]}
    (folder / "result.json").write_text(json.dumps(broken), encoding="utf-8")
    assert execute([*command, str(folder)]) == 2
    assert sentence in said().err
    assert newest_result(Path("results"), "crash", CrashResult) is None
