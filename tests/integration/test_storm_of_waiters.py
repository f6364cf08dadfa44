"""Turns passed between processes in a storm: a minority of the servers is stopped again and again, and a client killed.

Nobody's lock is another's, nobody waits in vain, and nothing is left: no key, no subscription.
"""

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from bench.measure.outcomes import acquired
from bench.measure.record import Records, history_parts, read_history
from bench.safety.judge import Judge
from bench.topology.fleet import Fleet, start_fleet, wait_until
from lockcore.clock import NS_PER_MS
from tests.integration.lockcore.keys import client
from tests.integration.storm_client import KINDS
from tests.integration.test_storm_of_stops import ROOT

pytestmark = pytest.mark.integration
LINE = KINDS["line"]
CLIENTS, STOPPED_S, BETWEEN_S = 4, 0.12, 0.2


def storm(fleet: Fleet, folder: Path, operations: int) -> None:
    """Four processes make so many operations; the last of them is killed on its way."""
    command = [sys.executable, "-m", "tests.integration.storm_client", "line"]
    clients = [
        subprocess.Popen([*command, str(number), str(operations // CLIENTS), str(folder), *fleet.urls], cwd=ROOT)
        for number in range(CLIENTS)
    ]
    try:
        turn = 0
        while any(one.poll() is None for one in clients[:-1]):
            for stopped in (turn % 5, (turn + 2) % 5):
                fleet.stop(stopped)
            time.sleep(STOPPED_S)
            for stopped in (turn % 5, (turn + 2) % 5):
                fleet.cont(stopped)
            time.sleep(BETWEEN_S)
            turn += 1
            if turn == 5:
                clients[-1].kill()
        assert [one.returncode for one in clients[:-1]] == [0] * (CLIENTS - 1)
    finally:
        for one in clients:
            with suppress(ProcessLookupError):
                one.kill()
            one.wait()


@pytest.mark.parametrize("operations", [8_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_who_waits_for_a_word_gets_the_lock_alone_and_leaves_nothing(tmp_path: Path, operations: int) -> None:
    with start_fleet(5, "none") as fleet:
        storm(fleet, tmp_path, operations)
        for url in fleet.urls:
            wait_until(lambda url=url: not client(url).pubsub_channels(), 10.0, "a subscription is left")  # type: ignore[misc]
            wait_until(lambda url=url: not client(url).keys("*"), 10.0, "a key is left")  # type: ignore[misc]
    oracle, seen = Judge(LINE.ttl_ms), list[Records]()
    parts = history_parts(tmp_path)
    for part in range(parts):
        history = read_history(tmp_path, part, parts)
        oracle.add(history)
        seen.append(history.records)
    records, report = np.concatenate(seen), oracle.report(0, 0)
    assert len(records) >= operations * (CLIENTS - 1) // CLIENTS - CLIENTS * LINE.callers
    alarms = (report.service_faults, report.granted_invalid, report.foreign_deletes)
    assert alarms == (0, 0, 0), report.examples
    assert acquired(records).all(), "everybody got it"
    waited_ms = (records["ended_ns"] - records["start_ns"]).max() / NS_PER_MS
    assert waited_ms < LINE.wait_ms
