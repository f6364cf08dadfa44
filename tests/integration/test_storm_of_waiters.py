"""Turns passed between processes in a storm: a minority of the servers is stopped again and again,
and a client killed.

Nobody's lock is another's, nobody waits in vain, and nothing is left: no key, no subscription.
"""

import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from bench.measure.history import history_parts, read_history
from bench.measure.outcomes import Outcomes, count_acquires
from bench.measure.record import Records, records_of
from bench.measure.run_result import SafetyReport
from bench.safety.judge import Judge
from bench.topology.fleet import HOST, Fleet, start_fleet, wait_until
from lockcore.clock import NS_PER_MS
from tests.doubles.lossy_relay import LossyRelay
from tests.integration.lockcore.keys import client
from tests.integration.storm_client import KINDS
from tests.integration.test_storm_of_stops import ROOT

pytestmark = pytest.mark.integration
LINE = KINDS["line"]
CLIENTS = 4
STOPPED_S = 0.12
BETWEEN_S = 0.2


def started(folder: Path, operations: int, urls: Iterable[str]) -> list[subprocess.Popen[bytes]]:
    """Four processes, of which three make so many operations: one is killed."""
    command = [sys.executable, "-m", "tests.integration.storm_client", "line"]
    share = operations // (CLIENTS - 1)
    return [
        subprocess.Popen(
            [*command, str(number), str(CLIENTS), str(share), str(folder), *urls], cwd=ROOT
        )
        for number in range(CLIENTS)
    ]


def end(clients: Iterable[subprocess.Popen[bytes]]) -> None:
    for one in clients:
        with suppress(ProcessLookupError):
            one.kill()
        one.wait()


def storm(fleet: Fleet, folder: Path, operations: int) -> None:
    """A minority of the servers is stopped again and again; the last client is killed on its
    way."""
    clients = started(folder, operations, fleet.urls)
    try:
        wait_until(
            lambda: len(list(folder.glob("connected-*"))) == CLIENTS, 60.0, "not all have connected"
        )
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
        end(clients)


def judged(folder: Path) -> tuple[Records, SafetyReport]:
    """All that was recorded, and what the oracle says of it."""
    oracle = Judge(LINE.ttl_ms)
    seen = list[Records]()
    parts = history_parts(folder)
    for part in range(parts):
        history = read_history(folder, part, parts)
        oracle.add(history)
        seen.append(history.records)
    return records_of(np.concatenate(seen)), oracle.report()


def nobody_waited_in_vain(records: Records) -> None:
    """Everybody got it, or found no quorum: on a machine that is busy enough servers are silent."""
    counts = Outcomes(**count_acquires(records))
    assert counts.acquired + counts.unreachable == counts.total
    assert counts.acquired > counts.total / 10


def longest_ms(records: Records) -> float:
    return float((records["ended_ns"] - records["start_ns"]).max() / NS_PER_MS)


def nothing_is_left(fleet: Fleet) -> None:
    for url in fleet.urls:
        wait_until(
            lambda url=url: not client(url).pubsub_channels(), 10.0, "a subscription is left"
        )  # type: ignore[misc]
        wait_until(
            lambda url=url: not client(url).keys("*"),  # type: ignore[misc]
            10.0,
            "a key is left",
        )


@pytest.mark.parametrize("operations", [8_000, pytest.param(1_001_000, marks=pytest.mark.slow)])
def test_who_waits_for_a_word_gets_the_lock_alone_and_leaves_nothing(
    tmp_path: Path, operations: int
) -> None:
    with start_fleet(5, "none") as fleet:
        storm(fleet, tmp_path, operations)
        nothing_is_left(fleet)
    records, report = judged(tmp_path)
    # each caller makes a whole number
    assert len(records) >= operations - CLIENTS * LINE.callers
    tested = report.tested_leases
    print(
        f"{len(records):,} operations, {tested:,} leases tested, waited at most "
        f"{longest_ms(records):.0f} ms"
    )
    assert tested > operations // 400
    alarms = (report.service_faults, report.granted_invalid, report.foreign_deletes)
    assert alarms == (0, 0, 0), report.examples
    nobody_waited_in_vain(records)
    assert longest_ms(records) < LINE.wait_ms


@pytest.mark.parametrize("share", [pytest.param(0.3, marks=pytest.mark.slow), 1.0])
def test_lost_words_cost_time_and_nobody_is_stuck(tmp_path: Path, share: float) -> None:
    with (
        start_fleet(5, "none") as fleet,
        LossyRelay([one.port for one in fleet.instances], share) as relay,
    ):
        urls = [f"redis://{HOST}:{port}" for port in relay.ports]
        clients = started(tmp_path, 8_000, urls)
        try:
            assert [one.wait(300.0) for one in clients] == [0] * CLIENTS
        finally:
            end(clients)
        assert relay.lost > 0
        nothing_is_left(fleet)
    records, report = judged(tmp_path)
    assert (report.service_faults, report.granted_invalid, report.foreign_deletes) == (0, 0, 0), (
        report.examples
    )
    nobody_waited_in_vain(records)
    waited_ms = (records["ended_ns"] - records["start_ns"]) / NS_PER_MS
    print(
        f"{share:.0%} lost: waited {np.percentile(waited_ms, 99):.0f} ms (p99), "
        f"{waited_ms.max():.0f} ms at most"
    )
    assert waited_ms.max() < LINE.wait_ms / 2
