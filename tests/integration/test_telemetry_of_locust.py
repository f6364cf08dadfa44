"""Plain `locust` exports, too: every worker by itself, and their sums are those of Locust's own
table."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.topology.fleet import Fleet, start_fleet
from tests.doubles.collector import Collector, attributes_of, number_of
from tests.integration.locust_runs import free_port, until

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
USERS = 6


def exporting(collector: Collector) -> int:
    """How many workers have exported operations by now."""
    return sum(
        "redlock.acquire.outcomes" in metrics
        for metrics in list(collector.received.instances.values())
    )


def plain_locust(fleet: Fleet, collector: Collector, folder: Path) -> tuple[int, str]:
    """Plain `locust` in two processes, ended when both have exported: its exit code and what it
    said on stderr."""
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(folder),
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
    }
    env |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        "LOCKBENCH_TARGETS": " ".join(fleet.urls),
    }
    port = str(free_port())
    users = str(USERS)
    words = [
        "-f",
        str(ROOT / "bench/workloads/locustfile.py"),
        "--headless",
        "-u",
        users,
        "-r",
        users,
        "--think",
    ]
    words += [
        "fixed:10ms",
        "--exit-code-on-error",
        "0",
        "--only-summary",
        "--json-file",
        "table",
        "--processes",
        "2",
    ]
    words += ["--master-port", port, "--master-bind-port", port]
    with subprocess.Popen(
        [sys.executable, "-m", "locust", *words],
        env=env,
        cwd=folder,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        try:
            # a run time counts from the order to spawn: on a busy machine it is over before anybody
            # has begun
            until(lambda: exporting(collector) == 2, "both workers' exports", 60)
        finally:
            run.terminate()
            _, said = run.communicate(timeout=60)
    return run.returncode, said


def test_workers_of_plain_locust_export_what_its_table_counts(tmp_path: Path) -> None:
    with start_fleet(3, "none") as fleet, Collector() as collector:
        code, said = plain_locust(fleet, collector, tmp_path)
    assert code == 0, said
    if "failed to send heartbeat" in said:
        pytest.skip(
            "not known here: Locust gave a worker up that did not run for three seconds, "
            "and its counts with it"
        )
    assert "telemetry" not in said
    counted = sum(row["num_requests"] for row in json.loads((tmp_path / "table.json").read_text()))
    exported = 0.0
    assert len(collector.received.instances) == 2
    for metrics in collector.received.instances.values():
        assert not [name for name in metrics if name.startswith("redlock.safety")], (
            "no oracle runs here"
        )
        acquires = sum(
            number_of(point) for point in metrics["redlock.acquire.outcomes"].sum.data_points
        )
        releases = sum(
            number_of(point) for point in metrics["redlock.release.duration"].histogram.data_points
        )
        exported += acquires + releases
    assert exported == counted > 0, said
    assert collector.received.resource["redlock.fsync"] == "none"
    of_servers = [
        metrics for metrics in collector.received.instances.values() if "redis.restarts" in metrics
    ]
    # one worker asks the servers for all
    assert len(of_servers) == 1
    assert list(tmp_path.glob("lockbench-*")) == []
    children = [span for span in collector.received.spans if span.name == "SET"]
    assert children
    assert {attributes_of(span)["server.port"] for span in children} == {
        instance.port for instance in fleet.instances
    }
