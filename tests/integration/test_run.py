"""`lockbench run` from end to end: a true result, and nothing left behind however it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.measure.run_result import RunResult
from bench.run.conclude import conclude
from bench.run.interrupt import Interrupts
from bench.run.run import Order, run_scenario
from bench.scenario import load
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.target import client_of, parse_targets
from tests.conftest import Ended
from tests.integration.locust_runs import CALM, ROOT, all_end, keys, result_in, targets, until

pytestmark = pytest.mark.integration
Lockbench = Callable[..., Ended]
SHORT = (*CALM, "--duration", "1s", "--warmup", "200ms")
LONG = (*CALM, "--duration", "60s", "--warmup", "0")
SECRET = "correct-horse-battery"


class Run:
    """A `lockbench run` under way in its own folder, and its whole family of processes as far as it
    was seen."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self.family: list[psutil.Process] = []
        self._stderr = folder / "stderr"
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
        with self._stderr.open("w") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bench", "run", "--out", "result", *arguments],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )

    def until(self, phase: str) -> None:
        """Return when the progress says that this phase has begun."""
        until(lambda: phase in self.stderr or self.process.poll() is not None, phase, 40)
        assert self.process.poll() is None, self.stderr
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def end(self) -> tuple[int, str]:
        """Wait for its end; return the exit code and stdout."""
        stdout, _ = self.process.communicate(timeout=60)
        return self.process.returncode, stdout

    @property
    def stderr(self) -> str:
        return self._stderr.read_text(encoding="utf-8")

    @property
    def result(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(
            (self.folder / "result" / "result.json").read_text(encoding="utf-8")
        )
        return document

    def assert_nothing_left(self) -> None:
        """No process of the family left, no private folder."""
        all_end(process.pid for process in self.family)
        assert list(self.folder.glob("lockbench-*")) == []
        assert "Traceback" not in self.stderr


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Three servers that outlive the run, to count what it leaves on them."""
    with start_fleet(3, "none") as fleet:
        yield fleet


def test_json_is_the_whole_stdout_and_meets_the_schema(
    lockbench: Lockbench, tmp_path: Path
) -> None:
    words = (
        "--out",
        "result",
        *SHORT,
        "--json",
        "--quiet",
        "--seed",
        "7",
        "--instances",
        "3",
        "--users",
        "8",
    )
    ended = lockbench("run", *words)
    code = ended.returncode
    result = json.loads(ended.stdout)
    assert code == {"pass": 0, "invalid": 4}[result["verdict"]["status"]], (
        "a busy machine may make a run invalid"
    )
    assert result == result_in(tmp_path / "result", RunResult)
    assert ended.stderr == ""
    assert (result["seed"], result["scenario"]["users"], result["interrupted"]) == (7, 8, False)
    assert result["command"][0] == "lockbench"
    assert result["outcomes"]["acquired"] > 0
    assert result["totals"]["acquired"] >= result["outcomes"]["acquired"]
    assert not [
        warning
        for warning in result["warnings"]
        if "Locust's table" in warning or "left" in warning
    ]
    assert [instance["leaked_keys"] for instance in result["instances"]] == [0, 0, 0]
    assert result["cost"]["client_cpu_us_per_cycle"] > 0
    assert result["cost"]["server_cpu_us_per_cycle"] > 0
    assert list(tmp_path.glob("lockbench-*")) == []


def test_a_result_that_cannot_be_stored_is_shown_all_the_same(tmp_path: Path) -> None:
    run = Run(tmp_path, *SHORT, "--instances", "3", "--users", "4", "--warmup", "1s")
    until(lambda: bool(list(tmp_path.glob("lockbench-run-*"))), "its folder", 40)
    (tmp_path / "result").write_text("somebody else's", encoding="utf-8")
    code, stdout = run.end()
    assert code == 3
    assert "leases/s over 1 s" in stdout
    assert "result.json" not in stdout, "nothing is said to be where it is not"
    assert run.stderr.splitlines()[-1].startswith(
        "lockbench: cannot write result/result.json: File exists"
    )
    run.assert_nothing_left()


def test_two_processes_and_an_open_loop_are_one_result(
    lockbench: Lockbench, tmp_path: Path
) -> None:
    rate = ("--processes", "2", "--rate", "400", "--instances", "3", "--instance-timeout", "2500ms")
    lockbench("run", *rate, "--duration", "1s", "--warmup", "200ms", "--out", "result", "--quiet")
    result = json.loads((tmp_path / "result" / "result.json").read_text("utf-8"))
    assert result["rate"]["offered_per_s"] == 400
    assert result["outcomes"]["acquired"] < 600
    # Locust gives a worker up that does not run for three seconds
    if result["generator"]["verdict"] == "INVALID":
        pytest.skip(f"not known here: {result['generator']['reason']}")
    assert result["totals"]["acquired"] > 0
    assert not [warning for warning in result["warnings"] if "Locust's table" in warning]


def test_a_run_that_is_cut_short_keeps_what_it_measured(tmp_path: Path, fleet: Fleet) -> None:
    run = Run(tmp_path, *LONG, *targets(fleet))
    run.until("measuring")
    # Ctrl-C: below, twice
    run.process.send_signal(signal.SIGTERM)
    code, stdout = run.end()
    assert code == 130
    assert "ended early (planned: 1m)" in stdout
    assert run.result["interrupted"]
    assert 0 < run.result["duration_s"] < 30
    assert run.result["outcomes"]["acquired"] > 0
    assert keys(fleet) == 0
    run.assert_nothing_left()


def test_a_second_ctrl_c_leaves_no_process_and_no_lock(tmp_path: Path, fleet: Fleet) -> None:
    run = Run(
        tmp_path, *LONG, *targets(fleet), "--hold", "fixed:40s", "--ttl", "60s", "--max-ttl", "60s"
    )
    run.until("measuring")
    assert keys(fleet) > 0, "locks are held for 40 s"
    run.process.send_signal(signal.SIGINT)
    # two presses of a key, not one
    time.sleep(0.2)
    run.process.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert run.end()[0] == 130
    assert time.monotonic() - began < 30, "it did not wait for the holds"
    assert keys(fleet) == 0
    run.assert_nothing_left()


def test_ctrl_c_while_the_run_is_judged_keeps_it_whole_and_shows_in_the_exit_code(
    tmp_path: Path, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*evidence: Any, **identity: Any) -> dict[str, Any]:
        signal.raise_signal(signal.SIGINT)
        return conclude(*evidence, **identity)

    monkeypatch.setattr("bench.run.run.conclude", interrupted)
    scenario = load(
        None, {"targets": list(fleet.urls), "users": "4", "duration": "1s", "warmup": "200ms"}
    )
    order = Order(scenario, "judged", ["lockbench", "run"], tmp_path)
    with Interrupts() as interrupts:
        finished = run_scenario(order, interrupts, lambda _progress: None)
    assert (finished.exit_code, finished.result["interrupted"]) == (130, False)
    assert finished.path is not None
    assert finished.path.exists()
    assert keys(fleet) == 0


def test_ctrl_c_before_anything_was_measured_leaves_nothing(tmp_path: Path, fleet: Fleet) -> None:
    run = Run(tmp_path, *CALM, "--warmup", "60s", *targets(fleet))
    run.until("warm-up")
    run.process.send_signal(signal.SIGINT)
    code, stdout = run.end()
    assert (code, stdout) == (130, "")
    assert run.stderr.rstrip().endswith("lockbench: interrupted")
    assert not (tmp_path / "result").exists()
    assert keys(fleet) == 0
    run.assert_nothing_left()


def test_a_killed_worker_makes_the_run_invalid_and_leaves_no_lock(
    tmp_path: Path, fleet: Fleet
) -> None:
    run = Run(tmp_path, *LONG, *targets(fleet), "--processes", "2", "--hold", "fixed:50ms")
    run.until("measuring")
    (note,) = tmp_path.glob("lockbench-run-*/worker-1-*.json")
    os.kill(int(note.stem.rpartition("-")[2]), signal.SIGKILL)
    code, stdout = run.end()
    assert code == 4
    assert stdout.startswith("INVALID")
    assert "ended early (planned: 1m)" in stdout
    assert run.result["verdict"]["status"] == "invalid"
    assert "worker 1" in run.result["verdict"]["reasons"][0]
    assert run.result["safety"]["verdict"] == "UNKNOWN"
    assert keys(fleet) == 0
    run.assert_nothing_left()


def test_instances_that_die_are_told_and_the_run_goes_on_without_a_majority_too(
    tmp_path: Path, fleet: Fleet
) -> None:
    run = Run(tmp_path, *CALM, *targets(fleet), "--duration", "3s", "--warmup", "0")
    run.until("measuring")
    fleet.kill(2)
    # a while with two of three
    time.sleep(0.5)
    fleet.kill(1)
    code, stdout = run.end()
    assert code in (0, 4), "a busy machine may make a run invalid"
    assert min(run.result["outcomes"]["acquired"], run.result["outcomes"]["unreachable"]) > 0
    assert run.result["votes"]["absent"] > 0
    assert run.result["verdict"]["status"] in ("pass", "invalid")
    assert (
        not run.result["verdict"]["reasons"]
        or "did not end" not in run.result["verdict"]["reasons"][0]
    )
    for instance in fleet.instances[1:]:
        said = (
            f"instance #{instance.index} ({instance.url.removeprefix('redis://')}): down at the end"
        )
        assert said in " ".join(stdout.split())
    run.assert_nothing_left()


# -- kill -9, on targets with a password -----------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[list[str]]:
    """The URLs of three servers that ask for a password."""
    with start_fleet(3, "none", config=["--requirepass", SECRET]) as fleet:
        yield [url.replace("//", f"//:{SECRET}@") for url in fleet.urls]


def locks(urls: list[str]) -> list[int]:
    clients = [client_of(target, 2.0) for target in parse_targets(urls)]
    return [int(client.dbsize()) for client in clients]  # type: ignore[arg-type]


def files_with_the_secret(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and SECRET.encode() in path.read_bytes()
    ]


@pytest.mark.parametrize(
    "when, seen", [("under load", "worker-1-*.json"), ("before its users run", "locust.log")]
)
def test_killed_it_leaves_no_process_no_folder_no_password_and_no_lock(
    tmp_path: Path, guarded: list[str], when: str, seen: str
) -> None:
    named = [f"--target={url}" for url in guarded]
    run = Run(tmp_path, *LONG, *named, "--processes", "2", "--hold", "fixed:20ms")
    until(lambda: bool(list(tmp_path.glob(f"lockbench-run-*/{seen}"))), seen, 40)
    if when == "under load":
        until(lambda: sum(locks(guarded)) > 0, "locks")
        assert files_with_the_secret(tmp_path) == [], "no password on the disk while it runs"
        run.family = psutil.Process(run.process.pid).children(recursive=True)
        assert len(run.family) >= 1 + 2
    run.process.kill()
    assert run.end() == (-signal.SIGKILL, "")
    # on a busy machine; else 1
    until(lambda: not list(tmp_path.glob("lockbench-*")), "the end of the work folder", 15)
    run.assert_nothing_left()
    assert files_with_the_secret(tmp_path) == []
    assert locks(guarded) == [0, 0, 0]
