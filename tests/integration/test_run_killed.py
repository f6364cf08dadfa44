"""`kill -9` of `lockbench run` on named targets: no process, no folder, no password and no lock stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from bench.topology.fleet import Fleet, start_fleet
from bench.topology.target import parse_targets
from tests.integration.locust_runs import ROOT, all_end, until

pytestmark = pytest.mark.integration
SECRET = "correct-horse-battery"
END_S = 15.0  # a busy machine; here it takes one


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with start_fleet(3, "none", config=["--requirepass", SECRET]) as fleet:
        yield fleet


def urls_of(fleet: Fleet) -> list[str]:
    return [instance.url.replace("//", f"//:{SECRET}@") for instance in fleet.instances]


def locks(fleet: Fleet) -> list[int]:
    return [int(target.client(2.0).dbsize()) for target in parse_targets(urls_of(fleet))]  # type: ignore[arg-type]


def files_with_the_secret(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]


@contextmanager
def started(folder: Path, fleet: Fleet, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-m", "bench", "run", "--duration", "60s", "--warmup", "0", "--out", "result", *arguments]
    words += [word for url in urls_of(fleet) for word in ("--target", url)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder)}
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(words, cwd=folder, env=environ, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_under_load(tmp_path: Path, fleet: Fleet) -> None:
    processes = 2
    with started(tmp_path, fleet, "--processes", str(processes), "--hold", "fixed:20ms") as lockbench:
        until(lambda: len(list(tmp_path.glob("lockbench-run-*/worker-*.json"))) == processes, "all workers", 40)
        until(lambda: sum(locks(fleet)) > 0, "locks")
        assert files_with_the_secret(tmp_path) == [], "no password on the disk while it runs"
        family = [process.pid for process in psutil.Process(lockbench.pid).children(recursive=True)]
        assert len(family) >= 1 + processes
        lockbench.kill()
    assert lockbench.returncode == -signal.SIGKILL
    until(lambda: not list(tmp_path.glob("lockbench-*")), "the end of the work folder", END_S)
    all_end(family)
    assert not list(tmp_path.glob("lockbench-*")), "nobody has made it anew"
    assert files_with_the_secret(tmp_path) == []
    assert locks(fleet) == [0, 0, 0]


def test_before_locust_has_read_the_plan(tmp_path: Path, fleet: Fleet) -> None:
    with started(tmp_path, fleet) as lockbench:
        until(lambda: bool(list(tmp_path.glob("lockbench-run-*/plan.json"))), "the plan", 40)
        lockbench.kill()
    until(lambda: not list(tmp_path.glob("lockbench-*")), "the end of the work folder", END_S)
    assert files_with_the_secret(tmp_path) == []
