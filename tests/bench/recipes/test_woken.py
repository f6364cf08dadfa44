"""Who waits in BLPOP is woken by the release, and looks by itself where nobody wakes it."""

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


@pytest.fixture
def recipe(fleet: Fleet) -> Any:
    """Connected."""
    made = find_recipe("set-nx-blpop").connect(fleet.urls[:1], SETTINGS)
    yield made
    made.close()


def blocked(recipe: Any) -> Callable[[], bool]:
    """Whether somebody is blocked on its server."""
    return lambda: int(recipe.servers[0].ask("INFO", "clients")["blocked_clients"]) > 0


def test_a_release_wakes_who_waits(recipe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(woken, "LOOK_MS", 60_000)
    recipe.servers[0]._timeout_s = 60.0
    held, got = recipe.acquire("woken", TTL_MS, 0), list[Any]()
    waiting = threading.Thread(target=lambda: got.append(recipe.acquire("woken", TTL_MS, 30_000)))
    waiting.start()
    wait_until(blocked(recipe), 20.0, "nobody blocks")
    assert recipe.release(held) is Outcome.RELEASED
    waiting.join(20.0)
    assert isinstance(got[0], Lease)
    assert got[0].attempts == 2
    assert recipe.release(got[0]) is Outcome.RELEASED


def test_a_push_that_was_lost_costs_a_look(recipe: Any) -> None:
    recipe.acquire("lost", 500, 0)  # and never given back
    lease = recipe.acquire("lost", TTL_MS, 30_000)
    assert isinstance(lease, Lease)
    assert recipe.release(lease) is Outcome.RELEASED


def test_another_ones_lock_is_not_released(recipe: Any) -> None:
    mine = recipe.acquire("mine", TTL_MS, 0)
    recipe.servers[0].ask("SET", recipe.key("mine"), "another")
    assert recipe.release(mine) is Outcome.GONE
    recipe.servers[0].ask("DEL", recipe.key("mine"))
