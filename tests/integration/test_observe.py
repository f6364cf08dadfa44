"""`lockbench observe` as a command: a Prometheus to ask while it runs, and nothing left behind however it ends."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is missing (Debian: prometheus)"),
]
ROOT = Path(__file__).parents[2]
SHORT = ("--users", "4", "--resources", "1", "--duration", "2s", "--warmup", "1s", "--out", "result")
PATIENCE_S = 60.0
LEASES = 'sum(redlock_acquire_outcomes_total{redlock_outcome="acquired"})'


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-m", "bench", "observe", *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


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
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        living = [one for one in psutil.process_iter(["cmdline"]) if str(folder) in " ".join(one.info["cmdline"] or ())]
        if not living and not list(folder.glob("lockbench-*")):
            return True
        time.sleep(0.1)
    return False


@pytest.mark.slow
def test_prometheus_answers_while_it_runs_and_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    process = start(tmp_path, *SHORT, "--duration", "60s", "--quiet", "--json")
    try:
        url = url_of(process)
        deadline_s = time.monotonic() + PATIENCE_S
        while not ask(url, 'redlock_run_active{redlock_run_phase="measuring"}==1'):
            assert time.monotonic() < deadline_s
            time.sleep(0.2)
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
    assert all_gone(tmp_path)


@pytest.mark.slow
def test_kill_9_leaves_no_prometheus_behind(tmp_path: Path) -> None:
    process = start(tmp_path, *SHORT, "--duration", "60s")
    url_of(process)
    process.kill()
    process.wait()
    assert all_gone(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("LOCKBENCH_COLLECTOR"), reason="LOCKBENCH_COLLECTOR names no collector")
def test_a_real_collector_takes_our_configuration_and_feeds_prometheus(tmp_path: Path) -> None:
    process = start(tmp_path, *SHORT, "--stay")
    url, path = url_of(process), tmp_path / "result" / "result.json"
    try:
        deadline_s = time.monotonic() + 2 * PATIENCE_S
        while not path.exists():
            assert time.monotonic() < deadline_s
            time.sleep(0.2)
        acquired = json.loads(path.read_text())["totals"]["acquired"]
        while not [one for one in ask(url, LEASES) if float(one["value"][1]) == acquired]:
            assert time.monotonic() < deadline_s
            time.sleep(0.2)
    finally:
        process.kill()
        process.wait()


def test_a_program_that_is_no_prometheus_is_a_sentence(tmp_path: Path) -> None:
    process = start(tmp_path, *SHORT, "--prometheus", "/bin/true", "--collector", "none")
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3
    assert not out
    assert err.startswith("lockbench: Prometheus did not start")
    assert not (tmp_path / "result").exists()
    assert all_gone(tmp_path)
