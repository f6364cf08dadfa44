"""`make peers` with lockcore alone: the whole way from the drivers to a result."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]


def run_peers(out: Path, *options: str) -> Any:
    """The JSON of a glance at one part."""
    words = ("-m", "tests.contest.command", "peers", "--rounds", "1", "--seconds", "0.2")
    only = ("--only", "lockcore gevent", "--cache", str(out.parent / "cache"), "--out", str(out))
    done = subprocess.run(
        [sys.executable, *words, *only, *options],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    # a busy machine may miss a bar
    assert done.returncode in (0, 1, 4), done.stderr
    assert done.stdout.startswith(("BARS REACHED   ", "BARS MISSED   ", "NOT KNOWN   "))
    return json.loads(out.read_text("utf-8"))


@pytest.mark.slow
def test_one_hot_key_is_measured(tmp_path: Path) -> None:
    rows = run_peers(tmp_path / "out.json", "--part", "hot")["hot"]
    assert isinstance(rows, list)
    assert sorted((row["instances"], row["processes"]) for row in rows) == [
        (1, 1),
        (5, 1),
        (5, 4),
        (5, 4),
    ]
    for row in rows:
        assert row["leases"] > 0
        assert row["commands_per_lease"] >= 2 * row["instances"]
        assert row["errors"] == {}


@pytest.mark.slow
def test_a_stopped_instance_leaves_no_key(tmp_path: Path) -> None:
    (row,) = run_peers(tmp_path / "out.json", "--part", "stopped")["stopped"]
    assert row["keys_left"] == 0
    assert row["stopped_per_s"] > 0.5 * row["before_per_s"]
