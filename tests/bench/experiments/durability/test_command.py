"""`lockbench fsync`'s options: what they ask for, and what is refused in one sentence before
anything starts."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from bench.errors import UsageError
from bench.experiments.durability.command import FsyncOptions, fsync_plan_of
from bench.experiments.durability.planner import machine_text
from bench.experiments.durability.question import CRASH, FSYNC
from bench.measure.environment import describe_environment
from bench.program import execute

HISTORIES = Path(__file__).parents[3] / "histories" / "results"
SPEED = str(HISTORIES / "fsync.json")
Said = Callable[[], Any]


@pytest.fixture
def said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Said:
    """What was printed, in a folder that is empty."""
    monkeypatch.chdir(tmp_path)
    return capsys.readouterr


def stored(kind: str, folder: str, **changes: Any) -> str:
    """A stored result of that kind in a folder of its own, as if both were of the machine and hour
    of the crashes."""
    result = json.loads((HISTORIES / f"{kind}.json").read_text("utf-8"))
    crash = json.loads((HISTORIES / "crash.json").read_text("utf-8"))
    result |= {name: crash[name] for name in ("environment", "started_at")}
    # as a full one has
    if kind == "crash":
        result["conditions"]["cuts_per_cell"] = 20
        for row in (*result["groups"], *result["rows"]):
            row["cuts"] = 20
    for path, value in changes.items():
        *place, last = path.split("__")
        section = result
        for name in place:
            section = section[name]
        section[last] = value
    Path(folder).mkdir(parents=True, exist_ok=True)
    Path(folder, "result.json").write_text(json.dumps(result), encoding="utf-8")
    return folder


def values(*arguments: str) -> FsyncOptions:
    return FsyncOptions.of(FSYNC.command().make_context("fsync", list(arguments)).params)


def test_lists_are_multiplied() -> None:
    plan = fsync_plan_of(
        values(
            "--fsync",
            "everysec,always",
            "--instances",
            "1,3",
            "--pipeline",
            "1,16",
            "--latency",
            "raw,2ms",
        )
    )
    assert len(plan.cells) == 2 * 2 * 2 * 2 * 2, (
        "policies × N × clients (1, 16) × pipelines × latencies"
    )
    assert {cell.injected_ms for cell in plan.cells} == {0.0, 2.0}


def test_with_targets_all_of_them_take_part_and_nothing_is_injected() -> None:
    plan = fsync_plan_of(
        values("--target", "redis://127.0.0.1:1", "--target", "redis://127.0.0.1:2")
    )
    assert {cell.instances for cell in plan.cells} == {2}
    assert {cell.injected_ms for cell in plan.cells} == {0.0}


def test_a_scenario_brings_its_callers_hold_and_servers(said: Said) -> None:
    Path("mine.toml").write_text(
        'users = 48\nprocesses = 2\nhold = "exp:5ms"\ninstances = 3\nrate = 100\n', "utf-8"
    )
    plan = fsync_plan_of(values("mine.toml"))
    assert {
        (cell.instances, cell.clients, cell.pipeline, cell.hold, cell.injected_ms)
        for cell in plan.cells
    } == {(3, 2, 24, "exp:5ms", 0.0)}
    assert {cell.policy for cell in plan.cells} == {"none", "no", "everysec", "always", "waitaof"}
    assert "48 users, 2 processes, a hold time of exp:5ms" in plan.scenario
    assert "rate of 100/s" in plan.scenario
    assert fsync_plan_of(values("mine.toml", "--instances", "5")).cells[0].instances == 5
    Path("slow.toml").write_text('hold = "5s"\n', "utf-8")
    assert execute(["fsync", "slow.toml"]) == 2
    assert "the hold time of a lock is longer than a load of 2 s" in said().err
    Path("theirs.toml").write_text('targets = ["redis://127.0.0.1:1"]\n', "utf-8")
    assert execute(["fsync", "theirs.toml"]) == 3
    assert "lockbench cannot use 1 of 1 targets: 127.0.0.1:1" in said().err


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--fsync", "sometimes"], "'--fsync': 'sometimes' is not one of 'none'"),
        (["--clients", "0"], "'--clients': 0 is not in the range 1<="),
        (["--instances", "99"], "'--instances': 99 is not in the range 1<=x<=15"),
        (["--clients", "60000", "--pipeline", "60000"], "more than 65,536 callers"),
        (["--latency", "2"], "'--latency': '2' is not a duration"),
        (
            ["--target", "redis://127.0.0.1:1", "--instances", "3"],
            "3 is more than 1, the number of servers",
        ),
        (["--latency", "5s"], "5s is not between 0 and 1s"),
        (
            ["--target", "redis://127.0.0.1:1", "--latency", "2ms"],
            "fsync latency can only be added",
        ),
        (["--target", "127.0.0.1:1"], "'--target': "),
        (
            ["--target", "redis://127.0.0.1:1", "--disk", "."],
            "options --server and --disk are only for servers that lockbench starts",
        ),
        (["--duration", "nan"], "nan"),
        (["--disk", "nowhere"], "nowhere is not a folder"),
        (
            ["--allow-config"],
            "only for your own servers; name your servers with --target",
        ),
    ],
)
def test_what_is_wrong_is_refused_in_one_sentence(
    arguments: list[str], sentence: str, said: Said
) -> None:
    assert execute(["fsync", *arguments]) == 2
    told = said().err
    assert sentence in told
    assert told.count("\n") == 1
    assert list(Path().iterdir()) == []


def test_a_target_that_is_dead_is_named_and_no_option_advised_that_there_is_not(said: Said) -> None:
    assert execute(["fsync", "--target", "redis://127.0.0.1:1"]) == 3
    told = said().err
    assert "lockbench cannot use 1 of 1 targets: 127.0.0.1:1 (connection refused" in told
    assert "--allow-missing" not in told
    assert told.count("\n") == 1
    assert list(Path().iterdir()) == []


def test_the_planner_writes_its_page_or_says_what_it_needs(said: Said) -> None:
    assert execute(["planner"]) == 3
    assert "results/ has no result of lockbench fsync" in said().err
    speed = stored("fsync", "speed")
    losses = stored("crash", "losses")
    assert execute(["planner", "--costs", speed, "--crash", losses, "--html", "page.html"]) == 0
    page = Path("page.html").read_text("utf-8")
    text = said().out
    assert text.startswith(
        "RECOMMENDED   appendfsync everysec, and start a crashed server only when your \n"
    )
    assert "made of" in text
    assert "lockbench now runs on another machine, so measure again here" in " ".join(text.split())
    assert "a crash" in page


def test_the_planner_takes_the_users_longest_ttl(said: Said) -> None:
    speed = stored("fsync", "speed")
    losses = stored("crash", "losses")
    assert execute(["planner", "--costs", speed, "--crash", losses, "--ttl", "30s", "--json"]) == 0
    page = json.loads(said().out)
    assert page["longest_ttl_ms"] == 30_000
    assert "ExecStartPre=/bin/sleep 31" in page["advice"][1]


@pytest.mark.parametrize(
    "ttl", ["10", "0", "-1s", "nan", "inf", "soon", "", "0.5ms", "25h", "9" * 400 + "h"]
)
def test_a_ttl_that_is_none_is_refused_in_one_sentence(ttl: str, said: Said) -> None:
    speed = stored("fsync", "speed")
    losses = stored("crash", "losses")
    assert execute(["planner", "--costs", speed, "--crash", losses, "--ttl", ttl]) == 2
    shown = said()
    assert "--ttl" in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)


def test_figures_of_another_machine_are_called_so() -> None:
    here = describe_environment()
    there = structs.replace(here, cpu_model="a cray")
    assert (
        machine_text(here, here)
        == f"measured on {here.cpu_model}, {here.cores} cores, kernel {here.kernel}"
    )
    assert machine_text(there, here).endswith(
        "; lockbench now runs on another machine, so measure again here"
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"verdict__word": "VIOLATED", "verdict__status": "violated"},
            "the stored verdict is VIOLATED, but the sections give AS",
        ),
        (
            {"interrupted": True},
            "the stored verdict is AS EXPECTED, but the sections give INTERRUPTED",
        ),
        (
            {
                "interrupted": True,
                "verdict": {
                    "word": "INTERRUPTED",
                    "exit_code": 130,
                    "status": "inconclusive",
                    "reasons": [],
                },
            },
            "the verdict of the losses of 2026-11-22 is INTERRUPTED: interrupted, so the "
            "unfinished groups",
        ),
        (
            {"environment__cpu_model": "a toaster"},
            "were measured on two different machines: cpu_model",
        ),
        ({"environment__kernel": "2.6.9"}, "were measured on two different machines: kernel"),
        ({"fleet__server__version": "8.4.0"}, "the losses on redis 8.4.0"),
        (
            {"started_at": "2019-01-01T00:00:00Z"},
            "days lie between the speed (2026-11-22) and the losses (2019-01-01)",
        ),
        ({"started_at": "yesterday"}, "started_at 'yesterday' is not a point in time"),
    ],
)
def test_losses_that_do_not_belong_to_the_speed_are_refused(
    changes: dict[str, Any], sentence: str, said: Said
) -> None:
    speed = stored("fsync", "results/speed")
    losses = stored("crash", "results/losses", **changes)
    # also where it is only the newest
    for named in (["--costs", speed, "--crash", losses], []):
        assert execute(["planner", *named]) == 2
        told = said()
        assert sentence in told.err
        assert told.out == ""
    assert execute(["report", speed]) == 0, "speed alone is told, and why it is alone"
    text = " ".join(said().out.split())
    assert "double grants in" not in text
    assert "warning" in text


def test_without_losses_nothing_is_recommended(said: Said) -> None:
    assert execute(["planner", "--costs", stored("fsync", "results/speed")]) == 4
    assert said().out.startswith("NOT KNOWN   there is no recommendation yet")


def test_a_report_finds_the_crash_result_beside_or_says_what_to_type(said: Said) -> None:
    stored("fsync", "results/speed")
    assert execute(["report", "results/speed"]) == 0
    assert "locks granted twice in" not in " ".join(said().out.split())
    stored("crash", "results/losses")
    assert execute(["report", "results/speed"]) == 0
    assert "locks granted twice in" in " ".join(said().out.split())
    assert "locks granted twice in" in Path("results/speed/report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("kind", "command", "sentence"),
    [
        ("safety", ["planner", "--costs", SPEED, "--crash"], "name a result of lockbench crash"),
        (
            "crash",
            ["planner", "--costs", SPEED, "--crash"],
            "is not a complete CrashResult of lockbench",
        ),
        ("fsync", ["planner", "--costs"], "is not a complete FsyncResult of lockbench"),
    ],
)
def test_a_wrong_result_is_refused_and_none_older_taken(
    kind: str, command: list[str], sentence: str, said: Said
) -> None:
    folder = Path("results/broken")
    folder.mkdir(parents=True)
    broken = {
        "schema_version": 1,
        "kind": kind,
        "id": "c0",
        "started_at": "2026",
        "rows": [{"instances": 3}],
    }
    (folder / "result.json").write_text(json.dumps(broken), encoding="utf-8")
    assert execute([*command, str(folder)]) == 2
    assert sentence in said().err
    stored("crash", "results/older", started_at="2025")
    if kind == "crash":
        with pytest.raises(UsageError, match="is not a complete CrashResult"):
            CRASH.answer().newest(Path("results"))
