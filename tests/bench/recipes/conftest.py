"""Servers for recipes: three independent ones, and a master with its replica."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import pytest
from redis import Redis

from bench.errors import EnvironmentNotReadyError
from bench.recipes.protocol import Recipe, RecipeSettings
from bench.recipes.registry import RECIPES, RecipeEntry
from bench.recipes.several_instances import replicate
from bench.topology.fleet import HOST, Fleet, KeptPort, start_fleet, wait_until
from lockcore import RetryPolicy

SETTINGS = RecipeSettings(
    key_prefix="test:", retry=RetryPolicy("full-jitter", 2.0, 1000), instance_timeout_ms=500.0
)


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
        with suppress(EnvironmentNotReadyError):
            wait_until(lambda: seen() == wanted, 30.0, "it did not come")
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
    entry = RECIPES[request.param]
    urls = replicas.urls if entry.about.replicated else fleet.urls[: entry.about.most]
    with ExitStack() as stack:
        writable = urls[:1] if entry.about.replicated else urls
        servers = tuple(stack.enter_context(Redis.from_url(url)) for url in writable)
        for server in servers:
            server.flushall()
        recipe = entry.connect(urls, SETTINGS)
        stack.callback(recipe.close)
        yield Under(entry, recipe, servers, urls)


@pytest.fixture
def servers(fleet: Fleet) -> Iterator[list[Redis]]:
    """All three, empty."""
    with ExitStack() as stack:
        made = [stack.enter_context(Redis.from_url(url)) for url in fleet.urls]
        for server in made:
            server.flushall()
        yield made


@pytest.fixture
def server(servers: list[Redis]) -> Redis:
    """The first server, empty."""
    return servers[0]


@pytest.fixture
def dead() -> Iterator[str]:
    """Where nothing listens."""
    port = KeptPort()
    yield f"redis://{HOST}:{port.number}"
    port.release()
