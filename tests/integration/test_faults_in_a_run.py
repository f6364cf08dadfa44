"""`lockbench run` with faults: they strike when due, are undone however it ends, and explain what
they cause."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from bench.measure.run_result import RunResult
from bench.run.faults import TOO_LATE
from bench.topology.fleet import start_fleet
from tests.conftest import Ended
from tests.integration.locust_runs import all_end, result_in, started, targets, until

pytestmark = pytest.mark.integration
SHORT = ("--duration", "2s", "--warmup", "0", "--users", "7", "--think", "fixed:5ms")
SHORT += ("--ttl", "500ms", "--max-ttl", "500ms", "--wait", "100ms")


def fault(
    kind: str, at: str, target: str = "instance:0", lasts: str | None = None, **params: str
) -> str:
    """One fault as an option's value."""
    parts = [f'at = "{at}"', f'kind = "{kind}"', f'target = ["{target}"]']
    parts += [f'for = "{lasts}"'] if lasts else []
    parts += [
        "params = {" + ", ".join(f'{name} = "{value}"' for name, value in params.items()) + "}"
    ]
    return "{" + ", ".join(parts) + "}"


def start(folder: Path, *arguments: str, faults: tuple[str, ...]) -> subprocess.Popen[str]:
    options = [word for text in faults for word in ("--fault", text)]
    return started(folder, "run", "--out", "result", *arguments, *options)


def end(run: subprocess.Popen[str], folder: Path) -> tuple[int, str, str]:
    """Exit code, stdout, stderr; and nothing left in the folder but the result."""
    stdout, stderr = run.communicate(timeout=60)
    assert list(folder.glob("lockbench-*")) == []
    if TOO_LATE in " ".join(stdout.split()):
        pytest.skip(
            "the machine was too busy: the measured time was over before a fault could begin"
        )
    return run.returncode, stdout, stderr


def test_faults_strike_when_due_and_what_cannot_strike_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = (
        fault("stop", "300ms", lasts="300ms"),
        fault("restart", "400ms", "instance:1", delay="200ms"),
        fault("power-cut", "500ms", "instance:2"),
        fault("client-kill", "1s", "instance:3"),
        fault("readonly", "1500ms", "instance:4"),
        fault("drop", "1s", "instance:4"),
    )
    (tmp_path / "nft").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "nft").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    run = start(tmp_path, *SHORT, "--fsync", "always", "--allow-skipped", faults=faults)
    code, stdout, stderr = end(run, tmp_path)
    assert code == 0, stderr
    *struck, skipped = result_in(tmp_path / "result", RunResult)["faults"]
    expected = {
        "stop": (0.3, 0.6),
        "restart": (0.4, 0.6),
        "power-cut": (0.5, 0.5),
        "client-kill": (1.0, 1.0),
    }
    for entry in struck:
        begun_s, ended_s = expected.get(entry["kind"], (1.5, 2.0))
        assert begun_s <= entry["begun_s"] < begun_s + 3.0
        assert ended_s <= entry["ended_s"] < ended_s + 3.0
        assert (entry["skipped"], entry["failed"]) == (None, None)
        assert entry["begun_ns"] <= entry["in_force_ns"] <= entry["ended_ns"]
    assert skipped["begun_ns"] is None
    assert "needs root" in skipped["skipped"]
    assert f"the fault drop on instance:4 was skipped: {skipped['skipped']}" in " ".join(
        stdout.split()
    )
    assert [
        instance["leaked_keys"]
        for instance in result_in(tmp_path / "result", RunResult)["instances"]
    ] == [0] * 5


def test_a_violation_is_blamed_on_the_fault_that_caused_it(tmp_path: Path) -> None:
    """The only instance's clock jumps over the TTL: its key goes, and somebody else gets the lock
    at once."""
    alone = (
        "--recipe",
        "set-nx-lua",
        "--instances",
        "1",
        "--resources",
        "1",
        "--hold",
        "fixed:300ms",
    )
    run = start(tmp_path, *SHORT, *alone, faults=(fault("clock-jump", "500ms", by="1h"),))
    code, _, stderr = end(run, tmp_path)
    safety = result_in(tmp_path / "result", RunResult)["safety"]
    assert code == 5, stderr
    assert safety["service_faults"] > 0
    assert safety["unexplained"] == 0
    assert {one["blame"] for one in safety["examples"] if one["kind"] == "service_fault"} == {
        "injected fault"
    }


def test_ctrl_c_undoes_a_stopped_worker_and_a_stopped_instance_first(tmp_path: Path) -> None:
    """Else Locust would not hear that it shall end."""
    faults = (fault("stop", "100ms", "worker:0"), fault("stop", "100ms", "instance:0"))
    run = start(tmp_path, *SHORT, "--duration", "60s", "--instances", "3", faults=faults)
    until(lambda: bool(stopped(run.pid)), "a worker and an instance that stand still", 55)
    family = stopped(run.pid)
    run.send_signal(signal.SIGINT)
    asked_s = time.monotonic()
    code, _, stderr = end(run, tmp_path)
    assert code == 130, stderr
    assert time.monotonic() - asked_s < 40
    all_end(process.pid for process in family)
    for entry in result_in(tmp_path / "result", RunResult)["faults"]:
        assert entry["failed"] is None
        assert entry["ended_s"] < 30


def stopped(pid: int) -> list[psutil.Process]:
    """The whole family, once two of it stand still."""
    try:
        family = psutil.Process(pid).children(recursive=True)
        still = [process for process in family if process.status() == psutil.STATUS_STOPPED]
    except psutil.NoSuchProcess:
        return []
    return family if len(still) >= 2 else []


def test_servers_that_are_not_ours_are_left_alone(lockbench: Callable[..., Ended]) -> None:
    with start_fleet(3, "none") as fleet:
        pids = [instance.pid for instance in fleet.instances]
        done = lockbench("run", *SHORT, *targets(fleet), "--fault", fault("kill", "100ms"))
        assert done.returncode == 2
        assert "the fault kill on instance:0 is not possible" in done.stderr
        assert fleet.exit_codes() == (None, None, None)
        assert [instance.pid for instance in fleet.instances] == pids


def test_a_fault_that_meets_nobody_leaves_the_run_without_a_verdict(tmp_path: Path) -> None:
    """Known only meanwhile: the second kill finds a worker that the first has killed."""
    faults = (fault("kill", "200ms", "worker:1"), fault("kill", "700ms", "worker:1"))
    run = start(tmp_path, *SHORT, "--processes", "2", faults=faults)
    code, stdout, stderr = end(run, tmp_path)
    assert code == 4, stderr
    assert result_in(tmp_path / "result", RunResult)["verdict"]["status"] == "invalid"
    assert "the fault kill on worker:1 failed: the fault did not begin" in " ".join(stdout.split())
