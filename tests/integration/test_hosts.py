"""One run led here, its load made by workers whose clocks are hours apart from ours: one verdict,
on what is known."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.experiments.capacity.result import CapacityResult
from bench.measure.run_result import RunResult
from bench.run.kept import judge_kept
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

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("unshare"),
        reason="other clocks need root and unshare",
    ),
]
LOAD = ("--users", 16, "--resources", 8, "--hold", "5ms", "--warmup", "500ms", *CALM)
# how far the workers' clocks are ahead of ours (s): behind is refused soon after boot
HOURS = (7_200, 18_000)


def ahead(seconds: int) -> tuple[str, ...]:
    """What runs a command whose monotonic clock is ahead of ours."""
    return ("unshare", "--time", "--monotonic", str(seconds), "--fork", "--kill-child=TERM")


@contextmanager
def workers(folder: Path, port: int, *hosts: tuple[str, ...]) -> Iterator[list[psutil.Process]]:
    """`lockbench worker`, once per host; who outlives the test is ended."""
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
    for number, host in enumerate(hosts):
        with (folder / f"worker-{number}.log").open("w") as log:
            running.append(
                subprocess.Popen((*host, *words), cwd=folder, env=environ, stdout=log, stderr=log)
            )
    try:
        yield [psutil.Process(process.pid) for process in running]
    finally:
        for process in running:
            with_children = [process, *_children(process.pid)]
            for one in with_children:
                if one.poll() is None if isinstance(one, subprocess.Popen) else one.is_running():
                    one.kill()
            process.wait(30)


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def lead(
    folder: Path, fleet: Fleet, port: int, *words: object, expect: int = 2
) -> subprocess.Popen[str]:
    here = ("--expect-workers", expect, "--bind", f"127.0.0.1:{port}", "--out", "out")
    return started(folder, "run", *targets(fleet), *LOAD, *here, *words)


def left(folder: Path) -> list[str]:
    return [path.name for path in folder.glob("lockbench-*")]


def finished(process: subprocess.Popen[str], folder: Path) -> tuple[int, dict[str, Any], str]:
    out, err = process.communicate(timeout=150)
    assert "Traceback" not in out + err, err
    return process.returncode, result_in(folder / "out", RunResult), out + err


def counted(result: dict[str, Any]) -> None:
    """All that workers did is counted, whatever the oracle judged."""
    acquired = result["totals"]["acquired"]
    assert sum(worker["leases"] for worker in result["workers"]) == acquired > 200
    assert result["latency_s"]["acquire"]["count"] == result["outcomes"]["acquired"]
    assert sum(map(sum, result["over_time"]["outcomes"].values())) >= result["outcomes"]["acquired"]
    assert not any("Locust's table" in warning for warning in result["warnings"]), (
        "what Locust counted is all"
    )
    assert [worker["phase"] for worker in result["workers"]] == ["stopped"] * 2


def test_clocks_hours_apart_give_one_verdict_with_its_bound_on_all_of_it(
    tmp_path: Path, fleet: Fleet
) -> None:
    port = free_port()
    leader = lead(tmp_path, fleet, port, "--duration", "5s", "--keep-history")
    with workers(tmp_path, port, *map(ahead, HOURS)) as processes:
        code, result, said = finished(leader, tmp_path)
        all_end(process.pid for process in processes)
    # by how many leases were tested: nothing else
    assert result["verdict"]["word"] in ("SAFE", "NOT TESTED"), said
    assert code == 0, said
    assert "on each host, run lockbench worker --master 127.0.0.1" in said
    counted(result)
    assert result["safety"]["judged_ratio"] == 1, "within what may travel"
    assert "the oracle judged" not in said
    for worker in result["workers"]:
        assert worker["leases"] > 50
        assert worker["round_trips"] > 30
        assert 0 < worker["clock_error_s"] <= worker["clock_error_max_s"] < 1
        assert not worker["same_clock"]
    for instance in result["instances"]:
        calls = instance["info"]["calls"]
        # each tries a lock and its release when it connects
        probes = 2 * len(result["workers"])
        assert calls["set"] + calls["evalsha"] - probes == instance["commands"], (
            "what the servers counted is all"
        )
    assert keys(fleet) == 0
    assert left(tmp_path) == [], "their histories are here, and nowhere else"
    again = judge_kept(tmp_path / "out")
    assert again.verdict.word == result["verdict"]["word"], "the clocks of the hosts are kept, too"
    assert again.measured.safety.tested_leases == result["safety"]["tested_leases"]


def test_workers_of_one_clock_are_exact(tmp_path: Path, fleet: Fleet) -> None:
    port = free_port()
    leader = lead(tmp_path, fleet, port, "--duration", "4s", "--resources", 2, expect=1)
    with workers(tmp_path, port, ()):
        code, result, said = finished(leader, tmp_path)
    assert (code, result["verdict"]["word"]) == (0, "SAFE"), said
    assert [worker["same_clock"] for worker in result["workers"]] == [True]
    assert "one clock" in said


def test_plain_locust_with_a_place_for_the_result_is_led_and_judged_the_same_way(
    tmp_path: Path, fleet: Fleet
) -> None:
    port = free_port()
    locust = (sys.executable, "-m", "locust", "-f", str(ROOT / "bench/workloads/locustfile.py"))
    there = (
        "--master-bind-host",
        "127.0.0.1",
        "--master-bind-port",
        str(port),
        "--expect-workers",
        "1",
    )
    load = (
        "--headless",
        "-u",
        "8",
        "-t",
        "2s",
        "--resources",
        "4",
        "--hold",
        "5ms",
        *CALM,
        "--result",
        "out",
    )
    environ = {**os.environ, "TMPDIR": str(tmp_path), "LOCKBENCH_TARGETS": " ".join(fleet.urls)}
    joins = ("--worker", "--master-host", "127.0.0.1", "--master-port", str(port))
    leader, worker = (
        subprocess.Popen(
            (*locust, *words), cwd=tmp_path, env=environ, text=True, stdout=-1, stderr=-1
        )
        for words in ((*load, "--master", *there), joins)
    )
    try:
        code, result, said = finished(leader, tmp_path)
        worker.communicate(timeout=60)
    finally:
        leader.kill()
        worker.kill()
    if code == 4 and result["generator"]["verdict"] == "invalid":
        pytest.skip(f"not known here: {result['generator']['reason']}")
    assert (code, result["verdict"]["word"]) in ((0, "SAFE"), (0, "NOT TESTED")), said
    assert result["verdict"]["word"] in said
    assert result["workers"][0]["leases"] == result["totals"]["acquired"] > 0
    assert worker.returncode == 0
    assert (keys(fleet), left(tmp_path)) == (0, [])


def series(folder: Path, port: int, command: str, *words: object) -> tuple[int, str]:
    """A command that makes several runs, led here; the workers join each of them, and are ended
    with the last."""
    here = ("--expect-workers", 2, "--bind", f"127.0.0.1:{port}", "--out", "out")
    leader = started(folder, command, *words, *here)
    with workers(folder, port, *map(ahead, HOURS)) as processes:
        # sixteen runs of a second, on a busy machine fifteen seconds each
        out, err = leader.communicate(timeout=600)
        family = [child for process in processes for child in process.children(recursive=True)]
        # unshare takes no signal
        for worker in (child for process in processes for child in process.children()):
            worker.send_signal(signal.SIGTERM)
        all_end(process.pid for process in (*processes, *family))
    assert "Traceback" not in out + err, err
    print(out + err)
    logs = "".join(path.read_text() for path in folder.glob("worker-*.log"))
    assert "Traceback" not in logs, logs
    assert left(folder) == []
    return leader.returncode, out + err


def test_workers_join_again_for_every_run_of_a_series_and_end_with_the_last(
    tmp_path: Path, fleet: Fleet
) -> None:
    port = free_port()
    words = (*targets(fleet), *LOAD, "--duration", "1s", "--repeat", 2)
    leader = started(
        tmp_path,
        "run",
        *words,
        "--expect-workers",
        1,
        "--bind",
        f"127.0.0.1:{port}",
        "--out",
        "out",
    )
    with workers(tmp_path, port, ahead(HOURS[0])) as (process,):
        out, err = leader.communicate(timeout=150)
        assert process.wait(30) == 0, "it knew which was the last"
    assert leader.returncode in (0, 4), out + err
    for number in (1, 2):
        result = result_in(tmp_path / "out" / str(number), RunResult)
        assert result["workers"][0]["leases"] == result["totals"]["acquired"] > 0
    assert (keys(fleet), left(tmp_path)) == (0, [])


@pytest.mark.slow
def test_a_gate_is_led_over_hosts(tmp_path: Path, fleet: Fleet) -> None:
    """Holding a key six times as long costs rate, and two hosts show it."""
    port = free_port()
    for name, hold in (("base", "1ms"), ("slow", "6ms")):
        urls = ", ".join(f'"{url}"' for url in fleet.urls)
        (tmp_path / f"{name}.toml").write_text(
            f'targets = [{urls}]\nusers = 8\nhold = "{hold}"\nresources = 8\n'
        )
    sides = ("--baseline", "base.toml", "--candidate", "slow.toml", "--variable", "hold")
    words = (*sides, "--metric", "rate", "--duration", "1s", "--pairs", 8, *CALM)
    code, said = series(tmp_path, port, "gate", *words)
    assert (code, "FAIL" in said) == (1, True), said
    assert keys(fleet) == 0


@pytest.mark.slow
def test_a_capacity_is_led_over_hosts(tmp_path: Path, fleet: Fleet) -> None:
    port = free_port()
    words = (
        *targets(fleet),
        "--slo",
        "acquire.p99 < 2s",
        "--quick",
        "--budget",
        "60s",
        "--instance-timeout",
        "2s",
    )
    code, said = series(tmp_path, port, "capacity", *words)
    assert code in (0, 4), said
    result = result_in(tmp_path / "out", CapacityResult)
    assert result["points"][0]["callers"], said
    probes = [
        result_in(path.parent, RunResult)
        for path in (tmp_path / "out" / "probes").glob("*/result.json")
    ]
    assert len(probes) > 3
    assert all(len(probe["workers"]) == 2 for probe in probes)
    assert keys(fleet) == 0


@pytest.mark.slow
def test_a_lock_that_does_not_hold_is_caught_across_hosts(tmp_path: Path, fleet: Fleet) -> None:
    """Each of two callers on two hosts believes in a lock of 100 ms that all read as free at
    once."""
    port = free_port()
    words = (
        "--recipe",
        "get-set",
        "--target",
        fleet.urls[0],
        "--users",
        16,
        "--resources",
        1,
        "--hold",
        "100ms",
    )
    wide = (
        "--pause",
        "after-get:50ms:0.5",
        "--duration",
        "5s",
        "--expect-workers",
        2,
        "--out",
        "out",
    )
    leader = started(tmp_path, "run", *words, *wide, "--bind", f"127.0.0.1:{port}")
    with workers(tmp_path, port, *map(ahead, HOURS)):
        code, result, said = finished(leader, tmp_path)
    assert (code, result["verdict"]["word"]) == (5, "VIOLATED"), said
    assert result["safety"]["service_faults"] > 0
    assert {worker["same_clock"] for worker in result["workers"]} == {False}


@pytest.mark.slow
def test_a_worker_that_is_killed_is_named_and_the_others_are_judged(
    tmp_path: Path, fleet: Fleet
) -> None:
    port = free_port()
    leader = lead(tmp_path, fleet, port, "--duration", "60s")
    with workers(tmp_path, port, *map(ahead, HOURS)) as processes:
        assert leader.stderr is not None
        assert any(line.startswith("measuring") for line in leader.stderr)
        for victim in processes[0].children(recursive=True):
            victim.kill()
        code, result, said = finished(leader, tmp_path)
        all_end([processes[1].pid])
    assert (code, result["verdict"]["word"]) == (4, "INVALID"), said
    assert any("was lost" in reason for reason in result["verdict"]["reasons"])
    assert sorted(worker["phase"] for worker in result["workers"]) == ["lost", "stopped"]
    assert [worker["leases"] > 0 for worker in result["workers"]].count(True) == 1
    assert result["safety"]["tested_leases"] > 0
    until(lambda: keys(fleet) == 0, "the locks of the killed one to expire")


def test_a_worker_that_comes_late_is_sent_away_and_named(tmp_path: Path, fleet: Fleet) -> None:
    port = free_port()
    leader = lead(tmp_path, fleet, port, "--duration", "90s", expect=1)
    with workers(tmp_path, port, ahead(HOURS[0])):
        assert leader.stderr is not None
        assert any(line.startswith("measuring") for line in leader.stderr)
        (tmp_path / "late").mkdir()
        with workers(tmp_path / "late", port, ahead(HOURS[1])) as late:
            assert late[0].wait(80) == 3
        assert leader.poll() is None, "the run goes on"
        leader.send_signal(signal.SIGINT)
        log = (tmp_path / "late" / "worker-0.log").read_text()
        assert (log.count("after the run had begun"), log.count("Traceback")) == (1, 0), log
        _, result, said = finished(leader, tmp_path)
    assert len(result["workers"]) == 1
    assert result["workers"][0]["leases"] == result["totals"]["acquired"] > 0
    assert sum("connected after the run began" in warning for warning in result["warnings"]) == 1, (
        said
    )
    assert (keys(fleet), left(tmp_path), left(tmp_path / "late")) == (0, [], [])


def test_a_port_that_is_taken_is_refused_in_one_sentence(tmp_path: Path, fleet: Fleet) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        leader = lead(tmp_path, fleet, taken.getsockname()[1], expect=1)
        out, err = leader.communicate(timeout=60)
    assert (leader.returncode, out) == (3, "")
    assert "Address already in use" in err.splitlines()[-1]


def test_a_worker_without_a_leader_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    with workers(tmp_path, free_port(), ("nice",)) as (process,):
        until(lambda: "no leader answers" in log.read_text(), "its note", 90)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert "Traceback" not in log.read_text()
    assert left(tmp_path) == []


@pytest.mark.slow
def test_workers_whose_leader_is_killed_give_their_locks_back_and_keep_their_history(
    tmp_path: Path, fleet: Fleet
) -> None:
    port = free_port()
    leader = lead(tmp_path, fleet, port, "--duration", "60s", "--ttl", "60s", "--max-ttl", "60s")
    with workers(tmp_path, port, *map(ahead, HOURS)) as processes:
        assert leader.stderr is not None
        assert any(line.startswith("measuring") for line in leader.stderr)
        for process in reversed(
            [psutil.Process(leader.pid), *psutil.Process(leader.pid).children(recursive=True)]
        ):
            process.send_signal(signal.SIGKILL)
        leader.communicate(timeout=30)
        until(
            lambda: not any(is_alive(process.pid) for process in processes),
            "the workers to end",
            90,
        )
    assert keys(fleet) == 0, "sixty seconds before they would expire"
    kept = [
        path for path in tmp_path.glob("lockbench-worker-*/history-*.bin") if path.stat().st_size
    ]
    assert len(kept) == 2
    logs = "".join(path.read_text() for path in tmp_path.glob("worker-*.log"))
    assert logs.count("the history of this worker is kept in") == 2
    assert "Traceback" not in logs
