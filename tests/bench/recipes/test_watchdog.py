"""Renewal: it outlives the TTL, ends with the release, and what is lost is noticed."""

import threading
from dataclasses import replace

import pytest
from redis import Redis

from bench.recipes.one_instance import Watchdog, WatchdogNaive
from bench.recipes.protocol import RecipeSettings
from bench.topology.fleet import Fleet, wait_until
from lockcore import Lease, Outcome
from lockcore.clock import monotonic_ns

pytestmark = pytest.mark.integration
# three renewals in it, on a busy machine, too
TTL_MS = 400
PATIENCE_S = 30.0


def taken(recipe: Watchdog, resource: str = "r1") -> Lease:
    lease = recipe.acquire(resource, TTL_MS, 0)
    assert isinstance(lease, Lease)
    return lease


@pytest.mark.parametrize("kind", [Watchdog, WatchdogNaive])
def test_a_lock_is_renewed_beyond_its_ttl_and_its_lease_says_so(
    kind: type[Watchdog], fleet: Fleet, server: Redis, settings: RecipeSettings
) -> None:
    recipe = kind.connect(fleet.urls[:1], settings)
    leases = [taken(recipe, f"r{number}") for number in range(3)]
    first_ends_ns = [lease.valid_until_ns for lease in leases]
    wait_until(
        lambda: monotonic_ns() > max(first_ends_ns) + 50_000_000, PATIENCE_S, "it did not come"
    )
    assert server.dbsize() == 3
    assert all(lease.valid_until_ns > monotonic_ns() for lease in leases)
    assert [recipe.release(lease) for lease in leases] == [Outcome.RELEASED] * 3
    assert server.dbsize() == 0
    recipe.close()


def test_after_the_release_nothing_is_renewed(
    fleet: Fleet, server: Redis, settings: RecipeSettings
) -> None:
    recipe = Watchdog.connect(fleet.urls[:1], settings)
    lease = taken(recipe)
    recipe.release(lease)
    before = recipe.instances[0].commands
    other = taken(recipe, "r2")
    # after r1's was due
    renewed_ns = other.started_ns + TTL_MS * 1_000_000
    wait_until(lambda: other.valid_until_ns > renewed_ns, PATIENCE_S, "it did not come")
    assert recipe.instances[0].commands == before + 2
    assert recipe.figures["lost_leases"] == 0
    recipe.close()


def test_a_lock_that_is_gone_is_noticed_and_left_alone(
    fleet: Fleet, server: Redis, settings: RecipeSettings
) -> None:
    recipe = Watchdog.connect(fleet.urls[:1], settings)
    lease = taken(recipe)
    server.set("test:r1", "somebody else's", px=5000)
    wait_until(lambda: bool(recipe.figures["lost_leases"]), PATIENCE_S, "it did not come")
    assert server.get("test:r1") == b"somebody else's"
    assert server.pttl("test:r1") > 4000
    assert recipe.release(lease) is Outcome.GONE
    recipe.close()


def test_a_renewal_that_gets_no_answer_is_tried_again(
    fleet: Fleet, server: Redis, settings: RecipeSettings
) -> None:
    reached = threading.Event()
    opened = threading.Event()

    def gate(point: str) -> None:
        if point == "before-renew":
            reached.set()
            opened.wait(PATIENCE_S)

    recipe = Watchdog.connect(
        fleet.urls[:1], replace(settings, gate=gate, instance_timeout_ms=20.0)
    )
    lease = recipe.acquire("r1", 1200, 0)
    assert isinstance(lease, Lease)
    first_end_ns = lease.valid_until_ns
    assert reached.wait(PATIENCE_S)
    fleet.stop(0)
    opened.set()
    wait_until(lambda: recipe.instances[0].state == "down", PATIENCE_S, "it did not come")
    fleet.cont(0)
    wait_until(lambda: lease.valid_until_ns > first_end_ns, PATIENCE_S, "it did not come")
    assert recipe.release(lease) is Outcome.RELEASED
    recipe.close()


def test_closing_ends_the_watchdog(fleet: Fleet, settings: RecipeSettings, server: Redis) -> None:
    before = threading.active_count()
    recipe = Watchdog.connect(fleet.urls[:1], settings)
    taken(recipe)
    assert threading.active_count() == before + 1
    recipe.close()
    assert threading.active_count() == before
