"""No false alarm: so many operations of a correct lock, in `make test-long` millions, while its
clients are stopped.

Every stop lasts longer than the TTL, so holders outlive their leases and others take over:
overstays must be seen, and nothing else. That the oracle would see more is shown by the same
history with a release too late to be its own.
"""

import os
import signal
import subprocess
import sys
import time
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

from bench.measure.history import History, history_parts, read_history
from bench.measure.outcomes import acquired
from bench.measure.run_result import SafetyReport
from bench.safety.judge import Judge, judge
from bench.topology.fleet import start_fleet
from tests.integration.storm_client import KINDS

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
CLIENTS = 2
STOPPED_S = 0.09
BETWEEN_S = 0.15
RUSH = KINDS["rush"]
LATE_NS = 10**12


def storm(folder: Path, operations: int) -> None:
    """Have two processes make so many operations on three instances, each stopped in its turn;
    records in `folder`."""
    with start_fleet(3, "none") as fleet:
        command = [sys.executable, "-m", "tests.integration.storm_client", "rush"]
        share = operations // CLIENTS
        clients = [
            subprocess.Popen(
                [*command, str(number), str(CLIENTS), str(share), str(folder), *fleet.urls],
                cwd=ROOT,
            )
            for number in range(CLIENTS)
        ]
        try:
            for client in cycle(clients):
                if all(one.poll() is not None for one in clients):
                    break
                if client.poll() is None:
                    os.kill(client.pid, signal.SIGSTOP)
                    time.sleep(STOPPED_S)
                    os.kill(client.pid, signal.SIGCONT)
                time.sleep(BETWEEN_S)
            assert [client.returncode for client in clients] == [0] * CLIENTS
        finally:
            for client in clients:
                client.kill()
                client.wait()


def judged(folder: Path) -> tuple[SafetyReport, int]:
    """What the oracle says, part by part, and of how many operations."""
    oracle = Judge(RUSH.ttl_ms)
    parts = history_parts(folder)
    operations = 0
    for part in range(parts):
        history = read_history(folder, part, parts)
        oracle.add(history)
        operations += len(history.records)
    return oracle.report(), operations


@pytest.mark.parametrize("operations", [100_000, pytest.param(10_000_000, marks=pytest.mark.slow)])
def test_stops_longer_than_the_ttl_make_redlock_overstay_and_the_oracle_sees_nothing_else(
    tmp_path: Path, operations: int
) -> None:
    storm(tmp_path, operations)
    report, seen = judged(tmp_path)
    assert seen > operations - CLIENTS * RUSH.callers
    assert report.client_overstays > 0, "the storm was felt"
    assert report.tested_leases > operations / 1000
    alarms = (
        report.service_faults,
        report.granted_invalid,
        report.foreign_deletes,
        report.spurious_refusals,
    )
    assert alarms == (0, 0, 0, 0), report.examples
    assert report.verdict == "SAFE", report.reason
    assert planted(tmp_path).service_faults > 0, "the oracle is not blind to this very history"


def planted(folder: Path) -> SafetyReport:
    """The negative control: some of the same history, its leases believed valid far too long and
    never given back."""
    records = read_history(folder, part=0, parts=100).records
    leases = np.flatnonzero(acquired(records))
    records["valid_until_ns"][leases] += LATE_NS
    records["release_sent_ns"][leases] = 0
    return judge(History(records, 0, 0), RUSH.ttl_ms)
