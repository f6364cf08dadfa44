"""Fail-over by hand, and the unique index that catches what it lets through."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from redis import Redis

from bench.recipes.protocol import RecipeSettings
from bench.recipes.several_instances import MultiWrite, MultiWriteUniqueIndex
from bench.topology.fleet import Fleet
from lockcore import Denied, Lease, Outcome, Tally
from lockcore.clock import monotonic_ns
from lockcore.facts.model import Closed

pytestmark = pytest.mark.integration


def test_the_first_instance_decides_and_the_others_get_copies(
    fleet: Fleet, servers: list[Redis], settings: RecipeSettings
) -> None:
    recipe = MultiWrite.connect(fleet.urls, settings)
    servers[1].set("test:r1", "another's")
    lease = recipe.acquire("r1", 5000, 0)
    assert isinstance(lease, Lease)
    assert lease.tally == Tally(granted=3)
    assert {server.get("test:r1") for server in servers} == {lease.owner_token}
    assert recipe.release(lease) is Outcome.RELEASED
    recipe.close()


def test_after_an_error_the_next_instance_decides_and_stays_in_use(
    fleet: Fleet, servers: list[Redis], settings: RecipeSettings, dead: str
) -> None:
    recipe = MultiWrite.connect((dead, *fleet.urls[1:]), settings)
    lease = recipe.acquire("r1", 5000, 0)
    assert isinstance(lease, Lease)
    assert lease.tally == Tally(granted=2, errored=1)
    tried = recipe.instances[0].commands
    denied = recipe.acquire("r1", 5000, 0)
    assert isinstance(denied, Denied)
    assert recipe.instances[0].commands == tried, "the dead one is not asked again"
    assert recipe.release(lease) is Outcome.RELEASED
    recipe.close()


def lease_of(resource: str, token: bytes, lasts_ms: int) -> Lease:
    now_ns = monotonic_ns()
    return Lease(
        resource,
        token,
        lasts_ms,
        now_ns,
        now_ns,
        now_ns + lasts_ms * 1_000_000,
        Closed(Tally(granted=1)),
    )


@pytest.fixture
def two(
    fleet: Fleet, settings: RecipeSettings, tmp_path: Path
) -> Iterator[list[MultiWriteUniqueIndex]]:
    """Two clients of one run, whose database they share."""
    made = [
        MultiWriteUniqueIndex.connect(fleet.urls, replace(settings, folder=tmp_path))
        for _ in range(2)
    ]
    yield made
    for recipe in made:
        recipe.close()


def test_the_index_admits_one_lease_of_a_resource_over_all_connections(
    two: list[MultiWriteUniqueIndex],
) -> None:
    first, second = two
    mine = lease_of("r1", b"a", 60_000)
    other = lease_of("r1", b"b", 60_000)
    assert first.insert(mine)
    assert not second.insert(other)
    assert second.insert(lease_of("r2", b"c", 60_000))
    second.give_back(other)
    assert not second.insert(other), "only a lease's own row is deleted"
    first.give_back(mine)
    assert second.insert(other)


def test_an_expired_row_gives_way(two: list[MultiWriteUniqueIndex]) -> None:
    index, _ = two
    assert index.insert(lease_of("r1", b"a", -1))
    assert index.insert(lease_of("r1", b"b", 60_000))
    assert not index.insert(lease_of("r1", b"c", 60_000))


def test_a_rejected_row_is_counted_and_its_keys_are_given_back(
    servers: list[Redis], two: list[MultiWriteUniqueIndex]
) -> None:
    first, second = two
    assert isinstance(first.acquire("r1", 5000, 0), Lease)
    for server in servers:
        server.delete("test:r1")
    denied = second.acquire("r1", 5000, 0)
    assert isinstance(denied, Denied)
    assert (denied.outcome, second.figures["caught_double_grants"]) == (Outcome.CONTENDED, 1)
    assert [server.dbsize() for server in servers] == [0, 0, 0]


def test_without_a_folder_of_the_run_the_database_is_this_processs_and_ends_with_its_last_client(
    fleet: Fleet, settings: RecipeSettings
) -> None:
    row = lease_of("r1", b"a", 60_000)
    for _ in range(2):
        first, second = (MultiWriteUniqueIndex.connect(fleet.urls, settings) for _ in range(2))
        assert (first.insert(row), second.insert(row)) == (True, False)
        first.close()
        second.close()
