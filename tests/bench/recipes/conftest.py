"""Servers for recipes: three independent ones, and a master with its replica."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from redis import Redis

from bench.recipes.protocol import Recipe, RecipeSettings
from bench.recipes.registry import RECIPES, RecipeEntry
from bench.recipes.replica_failover import replicate
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.ports import HOST, KeptPort
from lockcore import RetryPolicy

SETTINGS = RecipeSettings(key_prefix="test:", retry=RetryPolicy("full-jitter", 2.0, 1000), instance_timeout_ms=100.0)


@pytest.fixture
def settings() -> RecipeSettings:
    """What recipes are told, for a test to change."""
    return SETTINGS


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    with start_fleet(3, "none") as started:
        yield started


@pytest.fixture(scope="session")
def replicas() -> Iterator[Fleet]:
    with start_fleet(2, "none") as started:
        replicate(started.urls)
        yield started


@dataclass(frozen=True)
class Under:
    """A recipe under test, connected, and its servers (only those that take writes)."""

    entry: RecipeEntry
    recipe: Recipe
    servers: tuple[Redis, ...]
    urls: tuple[str, ...]

    def settles(self, seen: Callable[[], object], wanted: object) -> None:
        """`seen()` becomes `wanted`: a quorum's answer does not wait for the last server."""
        deadline = time.monotonic() + 30
        while seen() != wanted and time.monotonic() < deadline:
            time.sleep(0.001)
        assert seen() == wanted

    def values(self, resource: str = "r1") -> list[bytes | None]:
        """What the key of a resource holds on each server."""
        return [server.get(f"test:{resource}") for server in self.servers]

    def keys(self) -> int:
        """How many keys there are on all servers."""
        return sum(server.dbsize() for server in self.servers)


@pytest.fixture(params=list(RECIPES))
def under(request: pytest.FixtureRequest, fleet: Fleet, replicas: Fleet) -> Iterator[Under]:
    """Every recipe in turn."""
    yield from connected(request.param, fleet, replicas)


def connected(name: str, fleet: Fleet, replicas: Fleet) -> Iterator[Under]:
    entry = RECIPES[name]
    urls = replicas.urls if entry.about.replicated else fleet.urls[: entry.about.most]
    servers = tuple(Redis.from_url(url) for url in (urls[:1] if entry.about.replicated else urls))
    for server in servers:
        server.flushall()
    recipe = entry.connect(urls, SETTINGS)
    yield Under(entry, recipe, servers, urls)
    recipe.close()
    for server in servers:
        server.close()


@pytest.fixture
def server(fleet: Fleet) -> Iterator[Redis]:
    """The first server, empty."""
    with Redis.from_url(fleet.urls[0]) as client:
        client.flushall()
        yield client


@pytest.fixture
def servers(fleet: Fleet) -> Iterator[list[Redis]]:
    """All three, empty."""
    made = [Redis.from_url(url) for url in fleet.urls]
    for server in made:
        server.flushall()
    yield made
    for server in made:
        server.close()


@pytest.fixture
def dead() -> Iterator[str]:
    """Where nothing listens."""
    port = KeptPort()
    yield f"redis://{HOST}:{port.number}"
    port.release()
