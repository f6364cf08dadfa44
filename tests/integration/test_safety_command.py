"""`lockbench safety` as it is typed: exit codes, result, refusals, and what Ctrl-C leaves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "bench", "safety", "--quick", *arguments]


def safety(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def looked_at(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    ended = safety("--json", "--out", str(tmp_path / "out"), *arguments)
    assert ended.stdout, ended.stderr
    result = json.loads(ended.stdout)
    assert result == json.loads((tmp_path / "out" / "result.json").read_text("utf-8"))
    return ended.returncode, result


def test_one_recipe_shows_its_flaw_in_the_table_and_as_markdown(tmp_path: Path) -> None:
    ended = safety("--recipe", "get-set", "--out", str(tmp_path / "out"), "--markdown", str(tmp_path / "table.md"))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("AS EXPECTED")
    assert "violations per 1000 acquires 500" in ended.stdout
    assert "| get-set | both-read-first | the flaw | the flaw |" in (tmp_path / "table.md").read_text("utf-8")


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--recipe", "redlok"], "no recipe 'redlok'; did you mean redlock?"),
        (["--recipe", "set-nx-lua", "--recipe", "nothing"], "no recipe 'nothing'; did you mean"),
    ],
)
def test_an_unknown_name_is_one_sentence_and_starts_nothing(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    ended = safety(*arguments, "--out", str(tmp_path / "out"))
    assert ended.returncode == 2
    assert sentence in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_ctrl_c_leaves_no_process_and_no_result(tmp_path: Path) -> None:
    with subprocess.Popen(
        command("--out", str(tmp_path / "out")), cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()  # the first row is being looked at
        children = psutil.Process(process.pid).children(recursive=True)
        assert children, "servers run by now"
        process.send_signal(signal.SIGINT)
        process.wait(20)
        assert process.returncode == 130
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
    assert not (tmp_path / "out").exists()
