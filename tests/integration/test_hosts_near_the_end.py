"""A worker or the leader that is killed, stopped or asked to leave near the end: nobody else loses
anything by it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.measure.run_result import RunResult
from bench.topology.child import is_alive
from bench.topology.fleet import Fleet
from tests.integration.locust_runs import (
    CALM,
    ROOT,
    all_end,
    free_port,
    keys,
    result_in,
    started,
    targets,
    until,
)

pytestmark = pytest.mark.integration
WARMUP_S = 0.5
DURATION_S = 4.0
LOAD = ("--users", 12, "--resources", 6, "--hold", "5ms", "--warmup", f"{WARMUP_S}s", *CALM)
NS = 1_000_000_000


@dataclass
class Led:
    """A run that is led here: its leader, and each worker's command with the processes that it
    started."""

    folder: Path
    leader: subprocess.Popen[str]
    workers: list[subprocess.Popen[bytes]]
    families: list[list[psutil.Process]] = field(default_factory=list)
    # of the measured time, monotonic
    end_ns: int = 0

    def wait_until_it_runs(self) -> None:
        """Until every worker has told when its users ran, all by one clock."""
        notes: list[dict[str, Any]] = []

        def all_run() -> bool:
            found = []
            for path in self.folder.glob("lockbench-run-*/worker-*.json"):
                with suppress(OSError, ValueError):
                    found.append(json.loads(path.read_text()))
            notes[:] = [note for note in found if note["spawned_ns"]]
            return len(notes) == len(self.workers)

        until(all_run, "the users of all workers", 120)
        begun_ns = max(note["spawned_ns"] for note in notes)
        self.end_ns = begun_ns + int((WARMUP_S + DURATION_S) * NS)
        self.families = [
            [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]
            for worker in self.workers
        ]

    def kill(self, place: int) -> None:
        """Kill all of one worker but the guards of its folders, as a host does that runs out of
        memory."""
        for one in self.families[place]:
            with suppress(psutil.NoSuchProcess):
                if "guard_process.py" not in " ".join(one.cmdline()):
                    one.kill()

    def load_process(self, place: int) -> psutil.Process:
        """The Locust of one worker."""
        (found,) = [
            one for one in self.families[place][1:] if "bare_locust.py" in " ".join(one.cmdline())
        ]
        return found

    def sleep_until(self, after_end_s: float) -> None:
        while (left_s := (self.end_ns - time.monotonic_ns()) / NS + after_end_s) > 0:
            time.sleep(left_s)

    def log(self, place: int) -> str:
        return (self.folder / f"worker-{place}.log").read_text()


@contextmanager
def led(folder: Path, fleet: Fleet, workers: int, duration_s: float = DURATION_S) -> Iterator[Led]:
    """A run with so many workers; whatever outlives the test is ended."""
    port = free_port()
    here = (
        "--expect-workers",
        workers,
        "--bind",
        f"127.0.0.1:{port}",
        "--out",
        "out",
        "--duration",
        f"{duration_s}s",
    )
    leader = started(folder, "run", *targets(fleet), *LOAD, *here)
    words = (
        sys.executable,
        "-m",
        "bench",
        "worker",
        "--master",
        f"127.0.0.1:{port}",
        "--wait",
        "120s",
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    running = []
    for place in range(workers):
        with (folder / f"worker-{place}.log").open("w") as log:
            running.append(subprocess.Popen(words, cwd=folder, env=environ, stdout=log, stderr=log))
    run = Led(folder, leader, running)
    try:
        yield run
    finally:
        for process in (leader, *running):
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            process.kill()
            process.wait(30)


def ended(run: Led) -> tuple[int, dict[str, Any], str]:
    """The exit code of the leader, its result and what it said."""
    out, err = run.leader.communicate(timeout=150)
    assert "Traceback" not in out + err, err
    return run.leader.returncode, result_in(run.folder / "out", RunResult), out + err


def assert_nothing_is_left(run: Led, fleet: Fleet) -> None:
    all_end(one.pid for family in run.families for one in family)
    until(lambda: not list(run.folder.glob("lockbench-*")), "all folders to go")
    until(lambda: keys(fleet) == 0, "the locks of a killed worker to expire")


def assert_survivors_are_judged(
    run: Led, result: dict[str, Any], code: int, said: str, lost: int
) -> None:
    """Every worker but the `lost` ones was taken whole, knows it, and ended well."""
    phases = [worker["phase"] for worker in result["workers"]]
    assert phases.count("lost") <= lost, said
    for worker in result["workers"]:
        assert (worker["leases"] > 0) == (worker["phase"] == "stopped"), said
    assert sum(worker["leases"] for worker in result["workers"]) == result["totals"]["acquired"] > 0
    assert "0.0 of" not in said, "missing data is no evidence of missing callers"
    if "lost" in phases:
        assert (code, result["verdict"]["word"]) == (4, "INVALID"), said
        (named,) = [reason for reason in result["verdict"]["reasons"] if "was lost" in reason]
        pid = next(worker for worker in result["workers"] if worker["phase"] == "lost")["worker"]
        assert named.startswith(f"worker {pid} (pid ")
    elif not any("before the end of the run" in reason for reason in result["verdict"]["reasons"]):
        assert code == 0 or result["generator"]["verdict"] == "INVALID", said
    logs = "".join(run.log(place) for place in range(len(run.workers)))
    assert "Traceback" not in logs, logs


def kill_a_worker(folder: Path, fleet: Fleet, workers: int, after_end_s: float) -> None:
    with led(folder, fleet, workers) as run:
        run.wait_until_it_runs()
        run.sleep_until(after_end_s)
        run.kill(0)
        code, result, said = ended(run)
        codes = [worker.wait(60) for worker in run.workers]
        assert codes[1:] == [0] * (workers - 1), [run.log(place) for place in range(workers)]
        assert_survivors_are_judged(run, result, code, said, lost=1)
        if after_end_s < 0:
            assert "lost" in [worker["phase"] for worker in result["workers"]], said
        assert_nothing_is_left(run, fleet)


def test_a_worker_that_is_killed_just_before_the_end_costs_the_others_nothing(
    tmp_path: Path, fleet: Fleet
) -> None:
    kill_a_worker(tmp_path, fleet, 2, -0.3)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize(
    "after_end_s", [-3.9, -3, -2, -1, -0.5, -0.1, 0, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2, 3, 5]
)
def test_a_kill_at_any_time_until_after_the_end(
    tmp_path: Path, fleet: Fleet, workers: int, after_end_s: float
) -> None:
    kill_a_worker(tmp_path, fleet, workers, after_end_s)


@pytest.mark.slow
@pytest.mark.parametrize("after_end_s", [-1, -0.2, 0.1, 0.5])
def test_a_worker_that_is_asked_to_leave_near_the_end_is_still_taken(
    tmp_path: Path, fleet: Fleet, after_end_s: float
) -> None:
    with led(tmp_path, fleet, 2) as run:
        run.wait_until_it_runs()
        run.sleep_until(after_end_s)
        with suppress(psutil.NoSuchProcess):
            run.load_process(0).send_signal(signal.SIGTERM)
        code, result, said = ended(run)
        assert [worker.wait(60) for worker in run.workers] == [0, 0], run.log(0)
        assert [worker["phase"] for worker in result["workers"]] == ["stopped"] * 2, said
        assert_survivors_are_judged(run, result, code, said, lost=0)
        assert_nothing_is_left(run, fleet)


@pytest.mark.slow
@pytest.mark.parametrize(("after_end_s", "for_s"), [(-0.3, 30), (-0.3, 2), (0.1, 30)])
def test_a_worker_that_stands_still_near_the_end_is_lost_and_ends_when_it_goes_on(
    tmp_path: Path, fleet: Fleet, after_end_s: float, for_s: float
) -> None:
    with led(tmp_path, fleet, 2) as run:
        run.wait_until_it_runs()
        victim = run.load_process(0)
        run.sleep_until(after_end_s)
        victim.suspend()
        if for_s < 4:
            time.sleep(for_s)
            victim.resume()
        code, result, said = ended(run)
        with suppress(psutil.NoSuchProcess):
            victim.resume()
        codes = [worker.wait(60) for worker in run.workers]
        assert_survivors_are_judged(run, result, code, said, lost=1)
        assert codes[1] == 0, run.log(1)
        is_lost = "lost" in [worker["phase"] for worker in result["workers"]]
        assert codes[0] == (3 if is_lost else 0), run.log(0)
        assert run.log(0).count("the leader lost contact with this worker") == is_lost, run.log(0)
        assert_nothing_is_left(run, fleet)


@pytest.mark.slow
@pytest.mark.parametrize("after_end_s", [-0.5, 0.1, 0.6])
def test_workers_whose_leader_is_killed_near_the_end_say_one_sentence(
    tmp_path: Path, fleet: Fleet, after_end_s: float
) -> None:
    with led(tmp_path, fleet, 2) as run:
        run.wait_until_it_runs()
        run.sleep_until(after_end_s)
        leader = psutil.Process(run.leader.pid)
        for process in reversed([leader, *leader.children(recursive=True)]):
            process.kill()
        run.leader.communicate(timeout=30)
        until(
            lambda: not any(is_alive(worker.pid) for worker in run.workers),
            "the workers to end",
            90,
        )
        assert [worker.wait(1) for worker in run.workers] == [3, 3]
        assert keys(fleet) == 0
        for place in range(2):
            log = run.log(place)
            assert log.count("the leader sent nothing for 15 s") == 1, log
            assert "Traceback" not in log
        stay = "".join(run.log(place) for place in range(2)).count(
            "the history of this worker is kept in"
        )
        assert len(list(tmp_path.glob("lockbench-worker-*"))) == stay
