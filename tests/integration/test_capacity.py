"""`lockbench capacity` on real processes: what is found, and what is kept when it is cut short."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bench.measure.result import schema
from tests.doubles.queueing import QueueingInstance

pytestmark = pytest.mark.integration

PROBES = ("--duration", "1s", "--warmup", "300ms", "--no-callers", "--quick")


def capacity(*options: str, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench", "capacity", "--out", str(out), *PROBES, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def result_in(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    jsonschema.validate(result, schema("capacity"))
    return result


def test_what_was_probed_before_ctrl_c_is_kept(tmp_path: Path) -> None:
    out = tmp_path / "cut"
    with capacity("--slo", "acquire.p99 < 1s", "--first-rate", "50", "--instances", "1", out=out) as process:
        assert process.stderr is not None
        while not (out / "probes" / "01" / "result.json").exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    result = result_in(out)
    assert result["interrupted"]
    assert [probe["seen"] for probe in result["points"][0]["probes"]] == ["held"]
    assert "≥ 50 leases/s" in said


def test_a_target_that_cannot_be_reached_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "none"
    with capacity("--slo", "acquire.p99 < 1s", "--target", "redis://127.0.0.1:1", out=out) as process:
        said, complaint = process.communicate(timeout=60)
    assert process.returncode == 3
    assert said == ""
    assert "cannot be used" in complaint
    assert not out.exists()


@pytest.mark.slow
def test_the_known_capacity_of_a_queueing_server_is_found_within_five_per_cent(tmp_path: Path) -> None:
    """One server: of several, a lagging one abstains, and those that are left bear more than each alone."""
    service_s = 0.004  # per command: 125 leases/s; long beside the moments a busy machine takes from everybody
    out = tmp_path / "known"
    with QueueingInstance(service_s) as instance:
        options = ["--slo", "acquire.p90 < 40ms", "--arrivals", "fixed", "--target", instance.url]
        with capacity(*options, "--duration", "4s", out=out) as process:
            _, complaint = process.communicate(timeout=600)
    assert process.returncode == 0, complaint
    found = result_in(out)["points"][0]["capacity"]
    assert found["low"] == pytest.approx(1 / (2 * service_s), rel=0.05)
    assert found["confirmed"] == 3
