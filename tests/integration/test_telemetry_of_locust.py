"""Plain `locust` exports, too: every worker by itself, and their sums are those of Locust's own table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.topology.fleet import start_fleet
from tests.doubles.collector import Collector, attributes_of, number_of
from tests.integration.locust_runs import free_port

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
USERS = 6


def test_workers_of_plain_locust_export_what_its_table_counts(tmp_path: Path) -> None:
    with start_fleet(3, "none") as fleet, Collector() as collector:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
        env |= {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "LOCKBENCH_TARGETS": " ".join(fleet.urls)}
        command = [sys.executable, "-m", "locust", "-f", str(ROOT / "bench/workloads/locustfile.py"), "--headless"]
        command += [
            "-u",
            str(USERS),
            "-r",
            str(USERS),
            "-t",
            "2s",
            "--exit-code-on-error",
            "0",
            "--only-summary",
            "--json-file",
            "table",
        ]
        port = str(free_port())
        command += ["--processes", "2", "--master-port", port, "--master-bind-port", port]
        run = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)
    assert run.returncode == 0, run.stderr
    assert "telemetry" not in run.stderr
    counted = sum(row["num_requests"] for row in json.loads((tmp_path / "table.json").read_text()))
    exported = 0.0
    assert len(collector.received.instances) == 2
    for metrics in collector.received.instances.values():
        assert not [name for name in metrics if name.startswith("redlock.safety")], "no oracle runs here"
        acquires = sum(number_of(point) for point in metrics["redlock.acquire.outcomes"].sum.data_points)
        releases = sum(number_of(point) for point in metrics["redlock.release.duration"].histogram.data_points)
        exported += acquires + releases
    assert exported == counted > 0, run.stderr
    assert collector.received.resource["redlock.fsync"] == "none"
    of_servers = [metrics for metrics in collector.received.instances.values() if "redis.uptime" in metrics]
    assert len(of_servers) == 1  # one worker asks the servers for all
    assert list(tmp_path.glob("lockbench-*")) == []
    children = [span for span in collector.received.spans if span.name == "SET"]
    assert children
    assert {attributes_of(span)["server.port"] for span in children} == {instance.port for instance in fleet.instances}
