"""`lockbench compare` and `gate` from end to end: real pairs, real files, and nothing passes that
was not measured."""

import csv
import json
import re
import shutil
import signal
import timeit
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.errors import EnvironmentNotReadyError
from bench.experiments.compare.costs import costs_of
from bench.experiments.compare.pairs import Side
from bench.experiments.compare.result import ComparisonResult
from bench.measure.run_result import RunResult
from bench.scenario import load
from tests.conftest import Ended
from tests.integration.locust_runs import ROOT, result_in, started

pytestmark = pytest.mark.integration
SCENARIO = 'users = 8\nresources = 50\ninstances = 3\nduration = "300ms"\nwarmup = "100ms"\n'
DELAYED = 'pause = ["after-grant:20ms:1.0"]\n'
LINK = """
[[faults]]
at = "0s"
kind = "proxy"
target = ["instance:0", "instance:1", "instance:2"]
params = { delay = "DELAY" }
"""
Lockbench = Callable[..., Ended]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.toml").write_text(SCENARIO, encoding="utf-8")
    (tmp_path / "same.toml").write_text(SCENARIO, encoding="utf-8")
    (tmp_path / "empty").mkdir()
    (tmp_path / "other" / "unused").mkdir(parents=True)
    (tmp_path / "other" / "unused" / "__init__.py").touch()
    (tmp_path / "slow.toml").write_text(SCENARIO + DELAYED, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gate"], "the baseline is missing"),
        (
            ["gate", "--baseline", "results/gone", "--candidate", "same.toml"],
            "no such result or scenario",
        ),
        (
            ["gate", "--baseline", "slwo.toml", "--candidate", "same.toml"],
            "did you mean slow.toml?",
        ),
        (
            ["gate", "--baseline", "lib:gone", "--candidate", "lib:empty"],
            "lib:gone: there is no such folder",
        ),
        (["gate", "--baseline", "lib:empty"], "empty contains no Python package"),
        (
            ["gate", "base.toml", "--baseline", "lib:other", "--candidate", "lib:other"],
            "recipe imports nothing from",
        ),
        (["gate", "--baseline", "git:origin/mian"], "git says 'not a git repository"),
        (["gate", "--baseline", "base.toml"], "the candidate is missing"),
        (
            ["gate", "--baseline", "base.toml", "--candidate", "gone.toml"],
            "gone.toml: there is no such",
        ),
        (
            ["gate", "--baseline", "base.toml", "--candidate", "same.toml", "--pairs", "5"],
            "5 pairs are too few",
        ),
        (
            ["gate", "--baseline", "base.toml", "--candidate", "same.toml", "--tolerance", "10"],
            "is not a number above 0",
        ),
        (
            ["gate", "--baseline", "base.toml", "--candidate", "same.toml", "--metric", "spead"],
            "no metric spead",
        ),
        (["compare", "base.toml"], "name at least two things"),
        (["compare", "--recipe", "redlock", "--recipe", "redlok"], "there is no recipe 'redlok'"),
        (
            ["compare", "base.toml", "slow.toml", "--variable", "users"],
            "cannot be compared, because they differ in settings",
        ),
        (
            ["compare", "base.toml", "same.toml", "--threshold", "aquire.p99 < 1ms"],
            "did you mean acquire.p99",
        ),
    ],
)
def test_what_cannot_be_answered_is_refused_before_anything_starts(
    lockbench: Lockbench, folder: Path, arguments: list[str], said: str
) -> None:
    done = lockbench(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert not (folder / "results").exists()


# ten processes; Ctrl-C below shows pairs in the default run
@pytest.mark.slow
def test_recipes_are_compared_with_the_noise_beside_them(
    lockbench: Lockbench, folder: Path
) -> None:
    load_options = ["--users", "4", "--duration", "300ms", "--warmup", "100ms", "--instances", "3"]
    recipes = ["--recipe", "redlock", "--recipe", "redlock-sequential"]
    files = ["--junit", "junit.xml", "--markdown", "mine.md", "--out", "result", "--json"]
    done = lockbench("compare", *recipes, "--pairs", "1", *load_options, *files)
    assert done.returncode == 4, "one pair never decides" + done.stderr
    assert "pair 1 of 1" in done.stderr
    result = result_in(folder / "result", ComparisonResult)
    assert json.loads(done.stdout) == result
    assert [side["label"] for side in result["sides"]] == [
        "redlock",
        "redlock-sequential",
        "redlock again",
    ]
    assert sorted(run["side"] for run in result["runs"]) == [0, 1, 2]
    assert {entry["role"] for entry in result["metrics"]} == {"judged", "noise"}
    assert {entry["verdict"] for entry in result["metrics"]} == {"inconclusive"}
    assert "an interval with confidence 0.95 needs 6 pairs, but there are 1" in (
        folder / "mine.md"
    ).read_text(encoding="utf-8")
    assert "<testcase" in (folder / "junit.xml").read_text(encoding="utf-8")


def test_ctrl_c_keeps_the_finished_pairs_and_says_so(folder: Path) -> None:
    process = started(
        folder, "gate", "--baseline", "base.toml", "--candidate", "same.toml", "--out", "result"
    )
    assert process.stderr is not None
    assert any("pair 2 of 24" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    # on a busy machine; else 2
    stdout, _ = process.communicate(timeout=150)
    assert process.returncode == 130
    result = result_in(folder / "result", ComparisonResult)
    assert (result["interrupted"], result["finished_pairs"], len(result["runs"])) == (True, 1, 2)
    assert "cut short" in stdout
    assert "1 of 24 pairs" in " ".join(stdout.split())


def test_sides_that_take_turns_are_runs_like_any_other(lockbench: Lockbench, folder: Path) -> None:
    """A gate of two real processes: every figure is there, the load was what it claims, and safety
    was judged."""
    (folder / "held.toml").write_text(
        SCENARIO + 'hold = "fixed:1ms"\nthink = "fixed:5ms"\n', encoding="utf-8"
    )
    words = [
        "--baseline",
        "held.toml",
        "--candidate",
        "held.toml",
        "--metric",
        "rate",
        "--pairs",
        "7",
    ]
    done = lockbench("gate", *words, "--out", "result")
    assert done.returncode in (0, 4), done.stdout + done.stderr
    result = result_in(folder / "result", ComparisonResult)
    # such a gate stops at once
    if result["verdict"]["word"] == "INVALID":
        pytest.skip(f"not known here: {result['verdict']['reasons']}")
    assert "pair 2 of 7: rate " in done.stderr, "what is so far is said"
    assert (result["in_turns"], result["looks"][-1], len(result["runs"])) == (True, 7, 14)
    assert {run["safety"]["verdict"] for run in result["runs"]} <= {"SAFE", "NOT TESTED"}
    assert sum(run["safety"]["tested_leases"] for run in result["runs"]) > 0
    assert {run["status"] for run in result["runs"]} == {"pass"}, [
        run["reasons"] for run in result["runs"]
    ]
    for run in result["runs"]:
        figures = run["figures"]
        assert figures["rate"] > 0
        assert figures["cost.client_cpu_us_per_cycle"] > 0
        assert figures["cost.commands_per_acquire"] == pytest.approx(6, rel=0.5), (
            "of its own servers only"
        )
        assert 0 < figures["acquire.p50"] < 0.3, "no pause is in a latency"


def test_a_baseline_that_is_not_there_stands_in_the_junit_file(
    lockbench: Lockbench, folder: Path
) -> None:
    done = lockbench(
        "gate", "--baseline", "results/gone", "--candidate", "same.toml", "--junit", "junit.xml"
    )
    assert done.returncode == 2
    text = (folder / "junit.xml").read_text(encoding="utf-8")
    assert 'errors="1"' in text
    assert "no such result or scenario" in text


def test_repeated_runs_are_a_folder_to_compare_and_lines_of_a_table(
    lockbench: Lockbench, folder: Path
) -> None:
    done = lockbench(
        "run",
        "base.toml",
        "--repeat",
        "2",
        "--name",
        "before",
        "--csv",
        "runs.csv",
        "--out",
        "before",
    )
    assert done.returncode in (0, 4), done.stderr
    assert [line[:6] for line in done.stdout.splitlines()] == ["1 of 2", "2 of 2", "2 of 2"]
    assert [path.name for path in sorted((folder / "before").iterdir())] == ["1", "2"]
    results = [result_in(folder / "before" / number, RunResult) for number in ("1", "2")]
    assert [(one["name"], one["seed"]) for one in results] == [("before", 1), ("before", 2)]
    again = lockbench("run", "base.toml", "--quiet", "--csv", "runs.csv", "--out", "after")
    assert again.returncode in (0, 4), again.stderr
    rows = list(csv.DictReader((folder / "runs.csv").open(encoding="utf-8")))
    assert [row["name"] for row in rows] == ["before", "before", ""]
    assert [row["id"] for row in rows][:2] == [one["id"] for one in results]
    assert float(rows[0]["rate"]) == results[0]["rate"]["achieved_per_s"]
    assert (rows[0]["users"], rows[0]["instances"], rows[1]["seed"]) == ("8", "3", "2")
    require_earned(folder, "before/1", "before/2", "after")
    compared = lockbench("compare", "before", "after", "--out", "compared")
    assert compared.returncode == 4, "one run is too few"
    sides = result_in(folder / "compared", ComparisonResult)["sides"]
    assert [side["label"] for side in sides] == ["before", "after"]
    (folder / "other.csv").write_text("a,b\n", encoding="utf-8")
    refused = lockbench("run", "base.toml", "--csv", "other.csv")
    assert refused.returncode == 2
    assert "differ from the columns of a run" in refused.stderr


def require_earned(folder: Path, *places: str) -> None:
    """Skip where the machine was too busy for runs that a comparison takes."""
    words = {result_in(folder / place, RunResult)["verdict"]["word"] for place in places}
    if words not in ({"SAFE"}, {"NOT TESTED"}):
        pytest.skip(f"the machine did not keep up: runs say {', '.join(sorted(words))}")


def store_runs(lockbench: Lockbench, name: str, *more: str) -> None:
    done = lockbench("run", "base.toml", "--quiet", "--out", name, *more)
    assert done.returncode in (0, 4), done.stderr


def test_stored_runs_are_refused_when_unlike_and_never_pass_alone(
    lockbench: Lockbench, folder: Path
) -> None:
    store_runs(lockbench, "one")
    store_runs(lockbench, "two", "--users", "9")
    unlike = lockbench("compare", "one", "two")
    assert unlike.returncode == 2
    assert "users 8 → 9" in unlike.stderr
    require_earned(folder, "one", "two")
    declared = lockbench("compare", "one", "two", "--variable", "users", "--out", "compared")
    assert declared.returncode == 4
    assert result_in(folder / "compared", ComparisonResult)["differs"] == ["users 8 → 9"]
    itself = lockbench("gate", "--baseline", "one", "--candidate", "one", "--out", "gated")
    assert (itself.returncode, "was named twice" in itself.stderr) == (2, True)
    alone = lockbench(
        "gate", "--baseline", "one", "--candidate", "two", "--variable", "users", "--out", "gated"
    )
    assert alone.returncode == 4
    shown = " ".join(alone.stdout.split())
    assert re.search(r"an interval with confidence 0\.\d+ needs \d+ runs of each side", shown), (
        shown
    )
    document = json.loads((folder / "one" / "result.json").read_text(encoding="utf-8"))
    document["generator"] |= {"verdict": "INVALID", "reason": "planted"}
    document["verdict"] |= {
        "status": "invalid",
        "word": "INVALID",
        "exit_code": 4,
        "reasons": ["planted"],
    }
    for number in range(12):
        place = folder / ("bad" if number % 2 else "too") / str(number)
        place.mkdir(parents=True)
        (place / "result.json").write_text(
            json.dumps(document | {"id": f"{number:08x}"}), encoding="utf-8"
        )
    invalid = lockbench("gate", "--baseline", "bad", "--candidate", "too", "--out", "invalid")
    assert (invalid.returncode, invalid.stdout) == (2, "")
    assert (
        "12 of 12 runs have another verdict: bad, run 00000001: INVALID (the load was not as "
        "requested: planted)" in invalid.stderr
    )


def test_costs_are_counted_exactly_and_each_time_the_same() -> None:
    scenario = load(None, {"instances": "3"})
    first, again = (costs_of(Side("x", scenario), None) for _ in range(2))
    assert first == again
    # and nothing of the looks at each server, whose replies grow
    replies = 3 * len(b"+OK\r\n:1\r\n")
    counted = {"commands": 6, "round_trips": 2, "connections": 0, "bytes_received": replies}
    assert {name: first[name] for name in counted} == counted


def test_one_after_the_other_is_as_many_round_trips_as_instances() -> None:
    costs = costs_of(
        Side("x", load(None, {"instances": "3", "recipe": "redlock-sequential"})), None
    )
    assert (costs["commands"], costs["round_trips"]) == (6, 6)


def test_what_is_counted_is_the_sides_own_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a lockcore that cannot be imported; were the one here counted instead, nobody would
    notice."""
    (tmp_path / "lockcore").mkdir()
    (tmp_path / "lockcore" / "__init__.py").write_text("raise SystemExit\n", encoding="utf-8")
    monkeypatch.chdir(ROOT)
    with pytest.raises(EnvironmentNotReadyError, match="could not count the costs"):
        costs_of(Side("x", load(None, {"instances": "1"}), (str(tmp_path),)), None)


@pytest.mark.slow
def test_a_revision_is_gated_against_the_code_here(lockbench: Lockbench, folder: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no git checkout")
    words = ["--baseline", "git:HEAD", "--repo", str(ROOT), "--metric", "rate", "--pairs", "7"]
    done = lockbench("gate", "base.toml", *words, "--out", "result")
    assert done.returncode in (0, 4), done.stdout + done.stderr
    sides = result_in(folder / "result", ComparisonResult)["sides"]
    assert [side["label"][:8] for side in sides] == ["git:HEAD", "the code"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["1", "2"])
def test_equal_scenarios_never_fail(lockbench: Lockbench, folder: Path, seed: str) -> None:
    done = lockbench("gate", "--baseline", "base.toml", "--candidate", "same.toml", "--seed", seed)
    assert done.returncode in (0, 4), done.stdout
    assert "all the same: commands 6" in done.stdout


@pytest.mark.slow
def test_a_link_that_is_a_fifth_slower_fails(lockbench: Lockbench, folder: Path) -> None:
    """As a user plants it: 24 pairs, the default, of a scenario whose link is late by 1 ms, and by
    1.2 ms."""
    for name, delay in (("link.toml", "1ms"), ("later.toml", "1.2ms")):
        (folder / name).write_text(SCENARIO + LINK.replace("DELAY", delay), encoding="utf-8")
    done = lockbench(
        "gate", "--baseline", "link.toml", "--candidate", "later.toml", "--out", "result"
    )
    assert done.returncode == 1, done.stdout
    assert "acquire.p50 got worse" in done.stdout


@pytest.mark.slow
def test_a_tenth_of_the_core_s_cpu_is_caught_with_real_pairs(
    lockbench: Lockbench, folder: Path
) -> None:
    """Planted: a loop of 1.75 µs where `try_acquire` begins; the two copies are equal but for
    it."""
    for name in ("old", "new"):
        shutil.copytree(ROOT / "lockcore", folder / name / "lockcore")
    shortcut = folder / "new" / "lockcore" / "shells" / "greenlets" / "fast.py"
    text = shortcut.read_text(encoding="utf-8")
    head = '        """See Redlock.try_acquire."""\n'
    assert text.count(head) == 1
    turn_s = min(timeit.repeat("for _ in range(1000): pass", number=10, repeat=20)) / 10_000
    loop = f"        for _ in range({1.75e-6 / turn_s:.0f}):\n            pass\n"
    shortcut.write_text(text.replace(head, head + loop), encoding="utf-8")
    (folder / "load.toml").write_text("users = 64\n", encoding="utf-8")
    words = ["--baseline", "lib:old", "--candidate", "lib:new", "--out", "result"]
    done = lockbench("gate", "load.toml", *words)
    assert done.returncode == 1, done.stdout
    assert "cost.client_cpu_us_per_cycle got worse" in done.stdout
    assert result_in(folder / "result", ComparisonResult)["exact"]["failures"] == []
