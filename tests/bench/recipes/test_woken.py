"""Who waits is woken by the release, and looks by itself where nobody wakes it, or where it may not
listen."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from bench.recipes import woken
from bench.recipes.registry import find_recipe
from bench.topology.fleet import Fleet, wait_until
from lockcore import Lease, Outcome
from tests.bench.recipes.conftest import SETTINGS

pytestmark = pytest.mark.integration
TTL_MS = 10_000


@pytest.fixture(params=["set-nx-blpop", "set-nx-pubsub"])
def recipe(fleet: Fleet, request: pytest.FixtureRequest) -> Any:
    """Connected."""
    made = find_recipe(request.param).connect(fleet.urls[:1], SETTINGS)
    yield made
    made.close()


def listens(recipe: Any, resource: str) -> Callable[[], bool]:
    """Whether somebody listens for the resource on its server."""
    ask = recipe.servers[0].ask
    key = recipe.key(resource)
    return lambda: (
        int(ask("INFO", "clients")["blocked_clients"]) > 0 or ask("PUBSUB", "NUMSUB", key)[1] > 0
    )


def test_a_release_wakes_who_waits(recipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(woken, "LOOK_MS", 60_000)
    recipe.servers[0]._patient.connection_pool.connection_kwargs["socket_timeout"] = 60.0
    held = recipe.acquire("woken", TTL_MS, 0)
    got = list[Any]()
    refused = list[str]()
    rest = recipe.rest
    monkeypatch.setattr(recipe, "rest", lambda *told: (refused.append(told[0]), rest(*told)))
    # in vain: once more when it has subscribed
    asks = 1 if isinstance(recipe, woken.SetNxBlpop) else 2
    waiting = threading.Thread(target=lambda: got.append(recipe.acquire("woken", TTL_MS, 30_000)))
    waiting.start()
    wait_until(lambda: len(refused) == asks and listens(recipe, "woken")(), 20.0, "nobody listens")
    assert recipe.release(held) is Outcome.RELEASED
    waiting.join(20.0)
    assert isinstance(got[0], Lease)
    assert got[0].attempts == asks + 1
    assert recipe.release(got[0]) is Outcome.RELEASED
    wait_until(lambda: not listens(recipe, "woken")(), 20.0, "nobody should listen any more")


def test_a_push_that_was_lost_costs_a_look(recipe: Any) -> None:
    # and never given back
    recipe.acquire("lost", 500, 0)
    lease = recipe.acquire("lost", TTL_MS, 30_000)
    assert isinstance(lease, Lease)
    assert recipe.release(lease) is Outcome.RELEASED


def test_another_ones_lock_is_not_released(recipe: Any) -> None:
    mine = recipe.acquire("mine", TTL_MS, 0)
    recipe.servers[0].ask("SET", recipe.key("mine"), "another")
    assert recipe.release(mine) is Outcome.GONE
    recipe.servers[0].ask("DEL", recipe.key("mine"))


def test_who_may_not_listen_polls(recipe: Any) -> None:
    ask = recipe.servers[0].ask
    ask("ACL", "SETUSER", "default", "-blpop", "-subscribe")
    try:
        recipe.acquire("polled", 500, 0)
        lease = recipe.acquire("polled", TTL_MS, 30_000)
    finally:
        ask("ACL", "SETUSER", "default", "+blpop", "+subscribe")
    assert isinstance(lease, Lease)
    # it slept in between
    assert lease.attempts < 500
    assert recipe.release(lease) is Outcome.RELEASED


def test_a_subscription_is_used_again_for_another_resource(fleet: Fleet) -> None:
    recipe = find_recipe("set-nx-pubsub").connect(fleet.urls[:1], SETTINGS)
    assert isinstance(recipe, woken.SetNxPubsub)
    for resource in ("one", "two", "one"):
        recipe.acquire(resource, 300, 0)
        lease = recipe.acquire(resource, TTL_MS, 30_000)
        assert isinstance(lease, Lease)
        recipe.release(lease)
    assert len(recipe._idle) == 1
    recipe.close()
