"""The properties Redlock is asked for, each a scenario and an assertion.

Numbered as in the project's list: 1 exclusion, 2 elapsed check, 3 pause in the critical section, 4
clocks that jump forward, 5 back, 6 drift inside and beyond the factor, 7 restarts, 8 extension, 9
freedom from deadlock, 10 minority and majority down, 11 late commands. Servers expire keys by their
wall clock, which the fault shim moves.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import pytest

from bench.experiments.safety_matrix import leases
from bench.experiments.safety_matrix.experiment import PlannedRow, look
from bench.experiments.safety_matrix.leases import PREFIX, SKIPPED, RowSetup, connect, double_grant
from bench.experiments.safety_matrix.result import Finding
from bench.measure.expectation import NOT_KNOWN
from bench.scenario import Fault
from bench.topology.faults.injection import Injection, Need, prepared_fleet
from bench.topology.faults.kinds import injection, needs_of, read_faults
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.servants import Shape
from lockcore import Denied, LagCap, Lease, Outcome, Redlock
from lockcore.clock import NS_PER_MS
from lockcore.facts.quorum import quorum_of
from tests.integration.lockcore.keys import client, keys_on, values_on

pytestmark = pytest.mark.integration
HOLDERS = 6
LEASES_EACH = 40
# waited for, where a lock must expire
SHORT_MS = 240
# with a machine that is busy elsewhere
PATIENT = {"instance_timeout_ms": 1000, "lag_cap": LagCap(age_ms=1000)}


@pytest.fixture(scope="module")
def three() -> Iterator[Fleet]:
    with start_fleet(3, "none") as fleet:
        yield fleet


def locked_with_margin(
    fleet: Fleet, lock: Redlock, resource: str, margin: int, ttl_ms: int = 10_000
) -> Lease:
    """A lease of `quorum + margin` votes, all there: the other instances are held by a stranger,
    who then lets go."""
    key = PREFIX + resource
    votes = quorum_of(len(fleet.urls)) + margin
    strangers = [client(url) for url in fleet.urls[votes:]]
    for stranger in strangers:
        stranger.set(key, "stranger")
    deadline = time.monotonic() + 30
    while (lease := _with_all_votes(lock, resource, ttl_ms)).tally != (
        votes,
        len(strangers),
        0,
        0,
        0,
        0,
    ):
        # somebody was too busy to vote in time: once more
        assert time.monotonic() < deadline, lease
        lock.try_release(lease)
    assert values_on(fleet.urls[:votes], key) == [lease.owner_token] * votes
    for stranger in strangers:
        stranger.delete(key)
    assert values_on(fleet.urls[votes:], key) == [None] * len(strangers)
    return lease


def _with_all_votes(lock: Redlock, resource: str, ttl_ms: int) -> Lease:
    lease = until_granted(lock, resource, ttl_ms)
    while lease.is_open:
        time.sleep(0.001)
    return lease


def until_granted(lock: Redlock, resource: str, ttl_ms: int) -> Lease:
    """The lease of the first attempt that is granted: a busy machine may answer too late.

    Fails after 30 s.
    """
    deadline = time.monotonic() + 30
    while not (result := lock.try_acquire(resource, ttl_ms)):
        assert time.monotonic() < deadline, result
        time.sleep(0.002)
    return result


def answered(lock: Redlock, resource: str, ttl_ms: int = 10_000) -> Lease | Denied:
    """What becomes of an attempt that a quorum answers in time; one that met a busy machine's
    silence is made again."""
    deadline = time.monotonic() + 30
    while not (result := lock.try_acquire(resource, ttl_ms)):
        if result.tally.refused >= len(lock.instances) - quorum_of(len(lock.instances)) + 1:
            break
        assert time.monotonic() < deadline, result
    return result


def known(look_at: Callable[[RowSetup], Finding]) -> Finding:
    """What a claim of the safety matrix shows; a skipped test where its preconditions did not come
    about here."""
    setup = RowSetup(1, True, None, None)  # type: ignore[arg-type]
    finding = look(PlannedRow("claim", "redlock", "here", "confirmed", "", look_at), setup)
    if finding.verdict in (NOT_KNOWN, SKIPPED):
        pytest.skip(f"not known here: {finding.reason}")
    return finding


# -- 1 ---------------------------------------------------------------------------------------------


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
            threading.Thread(target=hold_in_turn, args=((one, other)[number % 2], spans))
            for number in range(HOLDERS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(spans) == HOLDERS * LEASES_EACH
    assert overlaps(spans) == 0


def test_1_an_overlap_would_be_counted() -> None:
    assert overlaps([(0, 10), (9, 20), (20, 30)]) == 1


# -- 2, 3 ------------------------------------------------------------------------------------------


def test_2_a_quorum_that_comes_after_the_validity_has_ended_is_no_grant() -> None:
    """TTLs so short that replies, late by chance, come after the validity has ended."""
    results: list[Lease | Denied] = []
    with prepared_fleet(frozenset({Need.PROXY}), 3, "none") as fleet:
        for index in range(3):
            fleet.shape(index, Shape(delay_s=200e-6, jitter_s=1.5e-3, slow=("from",)))
        # a busy machine grants none of the shortest
        for ttl_ms in (6, 12, 24, 48):
            with connect(fleet.load_urls, drift_factor=0.5, max_ttl_ms=ttl_ms) as lock:
                results += [
                    lock.try_acquire(f"v{ttl_ms}-{number}", ttl_ms) for number in range(300)
                ]
    leases_got = [result for result in results if isinstance(result, Lease)]
    if len(leases_got) < 30 or not any(result.outcome is Outcome.TOO_LATE for result in results):
        pytest.skip("not known here: nobody, or everybody, was granted in time")
    assert all(lease.granted_ns < lease.valid_until_ns for lease in leases_got)


def test_3_a_pause_in_the_critical_section_ends_in_an_overstay_and_in_nothing_worse(
    three: Fleet,
) -> None:
    with connect(three.urls) as one, connect(three.urls) as other:
        slept = until_granted(one, "slept", SHORT_MS)
        time.sleep((SHORT_MS + 20) / 1000)
        following = until_granted(other, "slept", 10_000)
        assert not double_grant(slept, following)
        assert one.try_release(slept) is Outcome.GONE
        assert values_on(three.urls, PREFIX + "slept").count(following.owner_token) >= 2, (
            "nobody else's is deleted"
        )
        other.release(following)


# -- 4 to 6: wrong clocks --------------------------------------------------------------------------


@contextmanager
def faulty(
    instances: int, fsync: str, kind: str, hurt: int, **params: str
) -> Iterator[tuple[Fleet, list[Injection]]]:
    """Servers, and a fault of this kind for each of the first `hurt` of them."""
    targets = tuple(f"instance:{index}" for index in range(hurt))
    orders = read_faults([Fault(kind, 0, None, targets, "fixed", params)])
    with prepared_fleet(needs_of(orders), instances, fsync) as fleet:
        faults = [injection(fleet, order) for order in orders]
        if reason := faults[0].refusal():
            pytest.skip(str(reason))
        yield fleet, faults


@pytest.mark.parametrize("instances", [3, 4, 5])
def test_4_jumps_forward_on_f_instances_violate_exactly_from_2q_minus_n_plus_margin(
    instances: int,
) -> None:
    quorum = quorum_of(instances)
    with (
        faulty(instances, "none", "clock-jump", instances, by="60s") as (fleet, clocks),
        connect(fleet.urls) as first,
        connect(fleet.urls) as second,
    ):
        for margin in range(instances - quorum + 1):
            for jumped in range(quorum + margin + 1):
                resource = f"jump-{margin}-{jumped}"
                lease = locked_with_margin(fleet, first, resource, margin)
                for clock in clocks[:jumped]:
                    clock.begin()
                doubled = double_grant(lease, answered(second, resource))
                assert doubled is (jumped >= 2 * quorum - instances + margin), (margin, jumped)
                if instances % 2:
                    assert doubled is (jumped > margin)


def test_5_a_jump_back_blocks_for_longer_and_nothing_worse() -> None:
    ttl_ms = 300
    with (
        faulty(3, "none", "clock-jump", 3, by="-400ms") as (fleet, clocks),
        connect(fleet.urls) as first,
        connect(fleet.urls) as second,
    ):
        lease = until_granted(first, "back", ttl_ms)
        for clock in clocks:
            clock.begin()
        following = until_granted(second, "back", ttl_ms)
        assert not double_grant(lease, following)
        blocked_ms = (following.granted_ns - lease.granted_ns) / NS_PER_MS
        assert ttl_ms + 300 < blocked_ms < ttl_ms + 3000, "its TTL and the jump"


def test_6_drift_within_the_factor_makes_no_overlap_and_beyond_it_does() -> None:
    within, beyond = (
        known(partial(leases.drift, rates)) for rates in (leases.WITHIN, leases.BEYOND)
    )
    assert {value for name, value in within.figures.items() if name.startswith("overlap")} == {0}
    assert beyond.figures["overlap_ms_at_rate_0.9"] == 0
    fast = beyond.figures["overlap_ms_at_rate_1.1"]
    assert fast is not None
    assert 40 < fast < 100, "of a TTL of 1,000 ms: 10 % less the drift that was allowed for"


# -- 7 ---------------------------------------------------------------------------------------------


def check_doubled(fleet: Fleet, hurt: Callable[[], object], forgets: bool) -> None:
    """Another client is granted a lease that is still valid exactly where `hurt` forgets and no
    vote is to spare."""
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
    """What the first server forgets is waited for: the next lease is granted when the lost one has
    ended."""
    with (
        connect(fleet.urls, max_ttl_ms=400, rejoin="trust-first") as second,
        connect(fleet.urls) as first,
    ):
        lease = locked_with_margin(fleet, first, "waited", 0, 400)
        hurt()
        following = until_granted(second, "waited", 400)
        assert not double_grant(lease, following)
        second.release(following)


def test_7_a_restart_that_is_waited_for_loses_nothing(three: Fleet) -> None:
    check_waited_for(three, lambda: three.restart(0))


@pytest.mark.parametrize("fsync", ["always", "no"])
def test_7_a_power_cut_loses_what_was_not_synced_and_it_takes_a_vote_to_spare_then(
    fsync: str,
) -> None:
    with faulty(3, fsync, "power-cut", 1) as (fleet, (cut,)):
        check_doubled(fleet, lambda: (cut.begin(), cut.end()), fsync == "no")


@pytest.mark.parametrize("fsync", ["everysec", "no"])
def test_7_a_power_cut_that_is_waited_for_loses_nothing_whatever_was_synced(fsync: str) -> None:
    with faulty(3, fsync, "power-cut", 1) as (fleet, (cut,)):
        check_waited_for(fleet, lambda: (cut.begin(), cut.end()))


# -- 8 to 10: extension and late commands (8, 11) are explored; on real servers: test_lease, test_cl


def test_9_a_holder_that_is_gone_blocks_for_its_ttl_and_no_longer(three: Fleet) -> None:
    with connect(three.urls) as other:
        with connect(three.urls) as dead:
            lease = until_granted(dead, "dead", SHORT_MS)
        following = until_granted(other, "dead", SHORT_MS)
        assert not double_grant(lease, following)
        assert following.granted_ns - lease.granted_ns < (SHORT_MS + 1000) * NS_PER_MS, (
            "and what a busy machine adds"
        )
        other.release(following)


@pytest.mark.parametrize("instances, down", [(3, 1), (5, 2)])
def test_10_a_minority_down_works_and_a_majority_down_fails_fast(instances: int, down: int) -> None:
    with start_fleet(instances, "none") as fleet, connect(fleet.urls) as lock:
        for index in range(down):
            fleet.kill(index)
        lease = until_granted(lock, "minority", 2000)
        assert lock.try_release(lease) is Outcome.RELEASED
        fleet.kill(down)
        outcomes = []
        took_s = []
        for _ in range(3):
            began = time.monotonic()
            outcomes.append(lock.try_acquire("majority", 2000, 1000).outcome)
            took_s.append(time.monotonic() - began)
        assert outcomes == [Outcome.UNREACHABLE] * 3
        assert min(took_s) < 0.5, "nobody waits for what is known to be down"


def test_nothing_of_these_scenarios_is_left(three: Fleet) -> None:
    assert keys_on(three.urls, PREFIX) == []
