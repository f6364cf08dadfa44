"""`make peers` with lockcore alone: the whole way from the drivers to a result."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench.experiments.contest.result import PeersResult

from tests.integration.locust_runs import result_in

pytestmark = pytest.mark.integration


def run_peers(out: Path, *options: str) -> dict[str, object]:
    command = [
        sys.executable,
        "-m",
        "bench.experiments.contest.command",
        "peers",
        "--rounds",
        "1",
        "--seconds",
        "0.2",
    ]
    command += ["--only", "lockcore gevent", "--cache", str(out.parent / "cache")]
    command += ["--out", str(out), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    # a part measures none of the bars
    assert done.returncode in (0, 4), done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    assert result == result_in(out, PeersResult)
    return result


@pytest.mark.slow
def test_one_hot_key_is_measured(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("kept", encoding="utf-8")
    rows = run_peers(tmp_path / "out", "--part", "hot", "--readme", str(readme))["hot"]
    # a part never takes the place of the whole table
    assert readme.read_text(encoding="utf-8") == "kept"
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
    (row,) = run_peers(tmp_path / "out", "--part", "stopped")["stopped"]  # type: ignore[misc]
    assert row["keys_left"] == 0
    assert row["stopped_per_s"] > 0.5 * row["before_per_s"]
