"""`lockbench observe` as a command: a Prometheus to ask while it runs, and nothing left behind
however it ends."""

import json
import os
import re
import shutil
import signal
import subprocess
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.integration.locust_runs import started, until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        shutil.which("prometheus") is None, reason="Prometheus is missing (Debian: prometheus)"
    ),
]
SHORT = (
    "--users",
    "4",
    "--resources",
    "1",
    "--duration",
    "2s",
    "--warmup",
    "1s",
    "--out",
    "result",
)
PATIENCE_S = 60.0
LEASES = 'sum(redlock_acquire_outcomes_total{redlock_outcome="acquired"})'


def url_of(process: subprocess.Popen[str]) -> str:
    """Where its Prometheus is, as soon as it says so."""
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.match(r"Prometheus  (http://127\.0\.0\.1:\d+) ", line):
            return found[1]
    raise AssertionError("it never said where Prometheus is")


def ask(url: str, query: str) -> list[dict]:
    with urllib.request.urlopen(f"{url}/api/v1/query?query={query}", timeout=10) as answer:
        return json.load(answer)["data"]["result"]


def all_gone(folder: Path) -> bool:
    """No process and no folder of it is left."""
    living = [
        one
        for one in psutil.process_iter(["cmdline"])
        if str(folder) in " ".join(one.info["cmdline"] or ())
    ]
    return not living and not list(folder.glob("lockbench-*"))


@pytest.mark.slow
def test_prometheus_answers_while_it_runs_and_ctrl_c_keeps_what_was_measured(
    tmp_path: Path,
) -> None:
    process = started(
        tmp_path, "observe", *SHORT, "--duration", "60s", "--warmup", "0", "--quiet", "--json"
    )
    try:
        url = url_of(process)
        until(lambda: bool(ask(url, "redlock_run_active==1")), "running", PATIENCE_S)
        assert ask(url, "sum(redlock_acquire_outcomes_total)")
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    result = json.loads((tmp_path / "result" / "result.json").read_text())
    assert result["interrupted"] is True
    assert json.loads(out)["id"] == result["id"], "stdout is the result alone"
    until(lambda: all_gone(tmp_path), "the end of all of it", PATIENCE_S)


@pytest.mark.slow
def test_kill_9_leaves_no_prometheus_behind(tmp_path: Path) -> None:
    process = started(tmp_path, "observe", *SHORT, "--duration", "60s")
    url_of(process)
    process.kill()
    process.wait()
    until(lambda: all_gone(tmp_path), "the end of all of it", PATIENCE_S)


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("LOCKBENCH_COLLECTOR"), reason="LOCKBENCH_COLLECTOR names no collector"
)
def test_a_real_collector_takes_our_configuration_and_feeds_prometheus(tmp_path: Path) -> None:
    process = started(
        tmp_path, "observe", *SHORT, "--collector", os.environ["LOCKBENCH_COLLECTOR"], "--stay"
    )
    url = url_of(process)
    path = tmp_path / "result" / "result.json"
    try:
        until(path.exists, "the result", PATIENCE_S)
        acquired = json.loads(path.read_text())["totals"]["acquired"]
        until(
            lambda: [one["value"][1] for one in ask(url, LEASES)] == [str(acquired)],
            "all leases there",
            PATIENCE_S,
        )
    finally:
        process.kill()
        process.wait()


def test_a_prometheus_that_dies_in_the_middle_is_said_and_the_run_goes_on(tmp_path: Path) -> None:
    process = started(tmp_path, "observe", *SHORT, "--collector", "none", "--stay")
    url = url_of(process)
    port = f"--web.listen-address={url.removeprefix('http://')}"
    (watching,) = (
        one for one in psutil.process_iter(["cmdline"]) if port in (one.info["cmdline"] or ())
    )
    watching.kill()
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert "Prometheus ended before the run ended" in err
    assert "stays until Ctrl-C" not in err
    assert json.loads((tmp_path / "result" / "result.json").read_text())["totals"]["acquired"]


def test_a_program_that_is_no_prometheus_is_a_sentence(tmp_path: Path) -> None:
    process = started(
        tmp_path, "observe", *SHORT, "--prometheus", "/bin/true", "--collector", "none"
    )
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3
    assert not out
    assert err.startswith("lockbench: Prometheus did not start")
    assert not (tmp_path / "result").exists()
    until(lambda: all_gone(tmp_path), "the end of all of it", PATIENCE_S)
