"""A reader that goes away changes no exit code: stdout closed early, tables and --json alike."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.whole_run import SAMPLE

DEADLINE_S = 60.0


def code_without_a_reader(*words: str, folder: Path) -> int:
    """The exit code of a command whose stdout and stderr are pipes that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "bench", *words],
            stdout=writing,
            stderr=writing,
            cwd=folder,
            timeout=DEADLINE_S,
            check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )
    finally:
        os.close(writing)
    return done.returncode


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("report", "r"), 0),
        (("report", "r", "--json"), 0),
        (("gate", "--baseline", "r", "--candidate", "s"), 4),
        (("recipes",), 0),
        (("gate", "--baseline", "nowhere", "--candidate", "s"), 2),
    ],
)
def test_an_exit_code_does_not_depend_on_who_reads(
    words: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    for name in ("r", "s"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(
            json.dumps(SAMPLE | {"id": name}), encoding="utf-8"
        )
    assert code_without_a_reader(*words, folder=tmp_path) == code


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_remarks_that_cannot_be_written_are_dropped(tmp_path: Path) -> None:
    """A full disk below stderr, or a terminal that is gone: the run was lost at its first line of
    progress."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "bench", "report", "nowhere"],
            stdout=subprocess.DEVNULL,
            stderr=full,
            cwd=tmp_path,
            timeout=DEADLINE_S,
            check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )
    assert done.returncode == 2
