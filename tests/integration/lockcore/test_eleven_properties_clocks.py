"""The properties of Redlock that wrong clocks try: 4 jumps forward, 5 jumps back, 6 drift inside and beyond the factor.

Servers expire keys by their wall clock, which the fault shim moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.experiments.safety_matrix.leases import clock_drift, connect, double_grant, validity_drift
from bench.experiments.safety_matrix.row import RowSetup
from bench.scenario import Fault
from bench.topology.faults.kinds import injection, needs_of, read_faults
from bench.topology.faults.site import Site
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.server import find_server
from lockcore.clock import NS_PER_MS
from lockcore.quorum import quorum_of
from tests.integration.lockcore.margins import answered, known, locked_with_margin, until_granted

pytestmark = pytest.mark.integration

Jump = Callable[[Sequence[int]], None]


@contextmanager
def jumping(instances: int, by: str) -> Iterator[tuple[Fleet, Jump]]:
    """Servers, and what lets the clocks of some of them jump."""
    server = find_server()
    targets = tuple(f"instance:{index}" for index in range(instances))
    orders = read_faults([Fault("clock-jump", 0, None, targets, "fixed", {"by": by})])
    with (
        Site(needs_of(orders)) as site,
        start_fleet(
            instances, "none", server=server, environment=site.environment, config=site.config(server)
        ) as fleet,
    ):
        site.attach(fleet)
        jumps = [injection(site, order) for order in orders]
        if reason := jumps[0].why_not():
            pytest.skip(reason)

        def jump(indices: Sequence[int]) -> None:
            for index in indices:
                jumps[index].begin()

        yield fleet, jump


@pytest.mark.parametrize("instances", [3, 4, 5])
def test_4_jumps_forward_on_f_instances_violate_exactly_from_2q_minus_n_plus_margin(instances: int) -> None:
    quorum = quorum_of(instances)
    with jumping(instances, "60s") as (fleet, jump), connect(fleet.urls) as first, connect(fleet.urls) as second:
        for margin in range(instances - quorum + 1):
            for jumped in range(quorum + margin + 1):
                resource = f"jump-{margin}-{jumped}"
                lease = locked_with_margin(fleet, first, resource, margin)
                jump(range(jumped))
                doubled = double_grant(lease, answered(second, resource))
                assert doubled is (jumped >= 2 * quorum - instances + margin), (margin, jumped)
                if instances % 2:
                    assert doubled is (jumped > margin)


def test_5_a_jump_back_blocks_for_longer_and_nothing_worse() -> None:
    ttl_ms = 300
    with jumping(3, "-400ms") as (fleet, jump), connect(fleet.urls) as first, connect(fleet.urls) as second:
        lease = until_granted(first, "back", ttl_ms)
        jump(range(3))
        following = until_granted(second, "back", ttl_ms)
        assert not double_grant(lease, following)
        blocked_ms = (following.granted_ns - lease.granted_ns) / NS_PER_MS
        assert ttl_ms + 300 < blocked_ms < ttl_ms + 3000, "its TTL and the jump"


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[RowSetup]:
    with start_fleet(1, "none") as fleet:
        yield RowSetup(fleet, seed=1, quick=True, server=None, scratch=tmp_path, run_id="abcd")


def test_6_drift_within_the_factor_makes_no_overlap_and_beyond_it_does(ground: RowSetup) -> None:
    within, beyond = known(validity_drift, ground), known(clock_drift, ground)
    overlaps = {name: value for name, value in within.figures.items() if name.startswith("overlap")}
    assert set(overlaps.values()) == {0}
    assert beyond.figures["overlap_ms_at_rate_0.9"] == 0
    fast = beyond.figures["overlap_ms_at_rate_1.1"]
    assert fast is not None
    assert 40 < fast < 100, "of a TTL of 1,000 ms: 10 % less the drift that was allowed for"
