"""The properties Redlock is asked for, each a scenario and an assertion; those of clocks stand in a file of their own.

Numbered as in the project's list: 1 exclusion, 2 elapsed check, 3 pause in the critical section, 7 restarts, 8
extension, 9 freedom from deadlock, 10 minority and majority down, 11 late commands.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from bench.experiments.safety_matrix.leases import PREFIX, connect, double_grant, extension, release_to_all, votes
from bench.experiments.safety_matrix.result import Finding
from bench.experiments.safety_matrix.row import RowSetup
from bench.recipes.schedules.stage import SHORT_MS, Shown
from bench.recipes.schedules.table import SCHEDULES, play
from bench.scenario import Fault
from bench.topology.faults.injection import Injection
from bench.topology.faults.kinds import injection, needs_of, read_faults
from bench.topology.faults.site import Site
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.server import find_server
from lockcore import LagCap, Outcome, Redlock
from tests.integration.lockcore.keys import keys_on
from tests.integration.lockcore.margins import answered, known, locked_with_margin, until_granted

pytestmark = pytest.mark.integration
HOLDERS, LEASES_EACH = 6, 40
PATIENT = {"instance_timeout_ms": 1000, "lag_cap": LagCap(age_ms=1000)}  # with a machine that is busy elsewhere


@pytest.fixture(scope="module")
def three() -> Iterator[Fleet]:
    with start_fleet(3, "none") as fleet:
        yield fleet


@pytest.fixture
def ground(three: Fleet, tmp_path: Path) -> RowSetup:
    return RowSetup(three, seed=1, quick=True, server=None, scratch=tmp_path, run_id="abcd")


def played(schedule: str, fleet: Fleet) -> Shown:
    return play(SCHEDULES[schedule], "redlock", fleet)


def figures_of(finding: Finding) -> dict[str, float | None]:
    return dict(finding.figures)


# -- 1 ---------------------------------------------------------------------------------------------------------------


def overlaps(spans: list[tuple[int, int]]) -> int:
    """How many neighbours among (granted, given back or ended) overlap."""
    return sum(following[0] < before[1] for before, following in pairwise(sorted(spans)))


def hold_in_turn(lock: Redlock, spans: list[tuple[int, int]]) -> None:
    for _ in range(LEASES_EACH):
        lease = lock.acquire("shared", 5000, 20_000)
        sent_ns = time.monotonic_ns()
        spans.append((lease.granted_ns, min(sent_ns, lease.valid_until_ns)))
        lock.release(lease)


def test_1_no_two_leases_are_valid_at_once_without_faults(three: Fleet) -> None:
    spans: list[tuple[int, int]] = []
    with connect(three.urls, **PATIENT) as one, connect(three.urls, **PATIENT) as other:
        threads = [
            threading.Thread(target=hold_in_turn, args=((one, other)[number % 2], spans)) for number in range(HOLDERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(spans) == HOLDERS * LEASES_EACH
    assert overlaps(spans) == 0


def test_1_an_overlap_would_be_counted() -> None:
    assert overlaps([(0, 10), (9, 20), (20, 30)]) == 1


# -- 2, 3 ------------------------------------------------------------------------------------------------------------


def test_2_a_quorum_that_comes_after_the_validity_has_ended_is_no_grant(ground: RowSetup) -> None:
    figures = figures_of(known(votes, ground))
    assert figures["too_late"], "replies came late enough to try it"
    assert figures["granted_after_their_end"] == figures["granted_below_quorum"] == 0


def test_3_a_pause_in_the_critical_section_is_an_overstay_and_no_service_fault(three: Fleet) -> None:
    report = played("overslept-holder", three).report
    assert report.client_overstays == 1
    assert (report.service_faults, report.foreign_deletes, report.unexplained) == (0, 0, 0)


# -- 7 ---------------------------------------------------------------------------------------------------------------


def check_doubled(fleet: Fleet, hurt: Callable[[], object], forgets: bool) -> None:
    """Another client is granted a lease that is still valid exactly where `hurt` forgets and no vote is to spare."""
    for margin in (0, 1):
        resource = f"hurt-{margin}"
        with connect(fleet.urls) as first:
            lease = locked_with_margin(fleet, first, resource, margin)
            hurt()
            with connect(fleet.urls) as second:
                doubled = double_grant(lease, answered(second, resource))
        assert doubled is (forgets and margin == 0), margin


@pytest.mark.parametrize("fsync", ["none", "no", "always"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["kill", "shutdown"])
def test_7_one_restart_at_once_loses_the_lock_without_persistence_and_without_a_vote_to_spare(
    fsync: str, number: signal.Signals
) -> None:
    with start_fleet(3, fsync) as fleet:
        check_doubled(fleet, lambda: (fleet.kill(0, number), fleet.restart(0)), fsync == "none")


def check_waited_for(fleet: Fleet, hurt: Callable[[], object]) -> None:
    """What the first server forgets is waited for: the next lease is granted when the lost one has ended."""
    with connect(fleet.urls, max_ttl_ms=400, rejoin="trust-first") as second, connect(fleet.urls) as first:
        lease = locked_with_margin(fleet, first, "waited", 0, 400)
        hurt()
        following = until_granted(second, "waited", 400)
        assert not double_grant(lease, following)
        second.release(following)


def test_7_a_restart_that_is_waited_for_loses_nothing(three: Fleet) -> None:
    check_waited_for(three, lambda: three.restart(0))


@contextmanager
def power_that_fails(fsync: str) -> Iterator[tuple[Fleet, Injection]]:
    """Three servers, and what cuts the first one's power and brings it back on what its disk had kept."""
    order = read_faults([Fault("power-cut", 0, None, ("instance:0",), "fixed", {})])[0]
    server = find_server()
    with (
        Site(needs_of([order])) as site,
        start_fleet(3, fsync, server=server, environment=site.environment, config=site.config(server)) as fleet,
    ):
        site.attach(fleet)
        cut = injection(site, order)
        if reason := cut.why_not():
            pytest.skip(reason)
        yield fleet, cut


@pytest.mark.parametrize("fsync", ["always", "no"])
def test_7_a_power_cut_loses_what_was_not_synced_and_it_takes_a_vote_to_spare_then(fsync: str) -> None:
    with power_that_fails(fsync) as (fleet, cut):
        check_doubled(fleet, lambda: (cut.begin(), cut.end()), fsync == "no")


@pytest.mark.parametrize("fsync", ["everysec", "no"])
def test_7_a_power_cut_that_is_waited_for_loses_nothing_whatever_was_synced(fsync: str) -> None:
    with power_that_fails(fsync) as (fleet, cut):
        check_waited_for(fleet, lambda: (cut.begin(), cut.end()))


# -- 8 to 11 ---------------------------------------------------------------------------------------------------------


def test_8_an_extension_is_never_foreign_nor_after_the_end_nor_by_a_minority(ground: RowSetup) -> None:
    figures = figures_of(known(extension, ground))
    assert figures.pop("extended_in_time") == 1
    assert set(figures.values()) == {0}


def test_9_a_killed_holder_blocks_for_its_ttl_and_no_longer(three: Fleet) -> None:
    figures = played("killed-holder", three).figures
    recovery_ms = figures["recovery_ms"]
    assert figures["keys_without_end"] == 0
    assert recovery_ms is not None
    assert recovery_ms <= SHORT_MS + 1000, "its TTL, a retry, and what a busy machine adds"


@pytest.mark.parametrize("instances, down", [(3, 1), (5, 2)])
def test_10_a_minority_down_works_and_a_majority_down_fails_fast(instances: int, down: int) -> None:
    with start_fleet(instances, "none") as fleet, connect(fleet.urls) as lock:
        for index in range(down):
            fleet.kill(index)
        lease = until_granted(lock, "minority", 2000)
        assert lock.try_release(lease) is Outcome.RELEASED
        fleet.kill(down)
        outcomes, took_s = [], []
        for _ in range(3):
            began = time.monotonic()
            outcomes.append(lock.try_acquire("majority", 2000, 1000).outcome)
            took_s.append(time.monotonic() - began)
        assert outcomes == [Outcome.UNREACHABLE] * 3
        assert min(took_s) < 0.5, "nobody waits for what is known to be down"


def test_11_late_commands_leave_no_vote_after_the_release(ground: RowSetup) -> None:
    figures = figures_of(known(release_to_all, ground))
    assert figures["late_votes"], "SETs were executed after their acquire was over"
    assert figures["orphan_votes"] == 0


def test_nothing_of_these_scenarios_is_left(three: Fleet) -> None:
    assert keys_on(three.urls, PREFIX) == []
