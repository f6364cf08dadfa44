"""`lockbench crash` as it is typed: what Ctrl-C and kill -9 leave, and how it goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from bench.cli.commands import execute
from bench.errors import UsageError
from bench.run.journal import JOURNAL_NAME, read_journal

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "bench", "crash", "--instances", "1", "--rate", "60", *arguments]


def until(reached: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def cuts_in(folder: Path) -> int:
    with contextlib.suppress(UsageError):  # its first line is not there yet
        return len(read_journal(folder)[1]) if (folder / JOURNAL_NAME).exists() else 0
    return 0


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_a_matrix_that_was_ended_goes_on_where_it_stopped(tmp_path: Path, number: signal.Signals) -> None:
    folder, options = tmp_path / "out", ("--policy", "none", "--kind", "kill", "--cuts", "3", "--seed", "5")
    with subprocess.Popen(
        command(*options, "--fleets", "3", "--out", str(folder)),
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as started:  # fmt: skip
        until(lambda: cuts_in(folder) >= 3)
        children = psutil.Process(started.pid).children(recursive=True)
        os.kill(started.pid, number)
        out, err = started.communicate(timeout=PATIENCE_S)
    assert started.returncode == (130 if number is signal.SIGINT else -9), err
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert alive == []
    kept = cuts_in(folder)
    assert 3 <= kept < 6
    assert not (folder / "result.json").exists()
    if number is signal.SIGINT:
        assert out.startswith("INTERRUPTED")
        assert f"--resume {folder}" in err
    ended = subprocess.run(
        [sys.executable, "-m", "bench", "crash", "--resume", str(folder), "--json"],
        cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert f"plan: 6 cuts in 2 groups, {kept} of them done before" in ended.stderr
    assert [row["cuts"] for row in json.loads(ended.stdout)["rows"]] == [3, 3, 3]
    assert cuts_in(folder) == 6


def test_another_plan_does_not_go_on_in_the_same_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / JOURNAL_NAME).write_text('{"plan": {"experiment": "crash", "seed": 1}}\n')
    assert execute([*command("--quick", "--out", str(tmp_path))[3:]]) == 2
    err = capsys.readouterr().err
    assert "was begun differently" in err
    assert err.count("\n") == 1
