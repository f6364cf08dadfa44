"""What is special about the plain lock: cleaned up whatever happens, too late is no grant, fenced
if asked."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from bench.recipes.fencing import COUNTER, FencedLease
from bench.recipes.one_instance import Backoff, SetNxLuaRecipe
from bench.recipes.protocol import RecipeSettings
from bench.topology.fleet import Fleet
from lockcore import Denied, Lease, Outcome, RetryPolicy
from lockcore.clock import NS_PER_MS, monotonic_ns

pytestmark = pytest.mark.integration


@pytest.fixture
def plain(fleet: Fleet, server: Redis, settings: RecipeSettings) -> Iterator[SetNxLuaRecipe]:
    connected = SetNxLuaRecipe.connect(fleet.urls[:1], settings)
    yield connected
    connected.close()


class Interrupted(BaseException):
    """A kill in the middle of a command."""


@pytest.mark.parametrize("command", ["SET", "EVALSHA"])
def test_a_caller_killed_in_a_command_leaves_no_key(
    plain: SetNxLuaRecipe, server: Redis, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (instance,) = plain.servers
    real = instance._client.execute_command
    killed = []

    def execute(*words: Any) -> Any:
        # the server did it
        reply = real(*words)
        if words[0] == command and not killed:
            killed.append(command)
            raise Interrupted
        return reply

    monkeypatch.setattr(instance._client, "execute_command", execute)
    with pytest.raises(Interrupted):
        plain.release(plain.acquire("r1", 5000, 0))  # type: ignore[arg-type]
    assert server.dbsize() == 0


def test_a_server_that_does_not_answer_costs_the_instance_timeout(
    fleet: Fleet, server: Redis, settings: RecipeSettings
) -> None:
    plain = SetNxLuaRecipe.connect(fleet.urls[:1], replace(settings, instance_timeout_ms=30.0))
    fleet.stop(0)
    try:
        before_ns = monotonic_ns()
        denied = plain.acquire("r1", 5000, 0)
        took_ms = (monotonic_ns() - before_ns) / 1e6
    finally:
        fleet.cont(0)
    assert isinstance(denied, Denied)
    assert (denied.outcome, denied.tally.silent) == (Outcome.UNREACHABLE, 1)
    assert took_ms >= 29
    assert plain.instances[0].state == "down"
    assert plain.instances[0].errors["TimeoutError"] >= 1
    server.ping()
    lease = plain.acquire("r2", 5000, 0)
    assert isinstance(lease, Lease)
    assert plain.instances[0].state == "voting"
    plain.release(lease)
    plain.close()


def test_a_grant_that_came_after_its_own_end_is_given_back(
    fleet: Fleet, server: Redis, settings: RecipeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = SetNxLuaRecipe.connect(fleet.urls[:1], replace(settings, retry=RetryPolicy("none")))
    real = plain.ask

    def slow(*words: Any) -> Any:
        reply = real(*words)
        until_ns = monotonic_ns() + 20_000_000
        while monotonic_ns() < until_ns:
            pass
        return reply

    monkeypatch.setattr(plain, "ask", slow)
    denied = plain.acquire("r1", 15, 0)
    assert isinstance(denied, Denied)
    assert (denied.outcome, denied.tally.granted) == (Outcome.TOO_LATE, 1)
    assert server.dbsize() == 0
    plain.close()


def test_fencing_tokens_grow_with_every_grant_over_resources_and_a_forgotten_script(
    fleet: Fleet, server: Redis, settings: RecipeSettings
) -> None:
    plain = SetNxLuaRecipe.connect(fleet.urls[:1], replace(settings, fencing=True))
    tokens = []
    for resource in ("r1", "r2", "r1"):
        lease = plain.acquire(resource, 5000, 0)
        assert isinstance(lease, FencedLease)
        tokens.append(lease.fencing_token)
        assert isinstance(plain.acquire(resource, 5000, 0), Denied)
        server.script_flush()
        assert plain.release(lease) is Outcome.RELEASED
    assert tokens == [1, 2, 3], "a refused attempt takes no token"
    assert server.keys() == [b"test:" + COUNTER.encode()]
    plain.close()


def test_a_back_off_doubles_up_to_five_seconds_and_asks_once_more_at_its_deadline(
    fleet: Fleet, server: Redis, settings: RecipeSettings
) -> None:
    recipe = Backoff.connect(fleet.urls[:1], settings)
    delays = [
        recipe.next_start_ns(Outcome.CONTENDED, attempts, 0, 10**12)
        for attempts in (1, 2, 3, 6, 7, 8, 10_000)
    ]
    assert [(delay or 0) // NS_PER_MS for delay in delays] == [
        100,
        200,
        400,
        3200,
        5000,
        5000,
        5000,
    ]
    assert recipe.next_start_ns(Outcome.CONTENDED, 1, 0, 100 * NS_PER_MS) == 100 * NS_PER_MS
    assert recipe.next_start_ns(Outcome.CONTENDED, 1, 0, 100 * NS_PER_MS - 1) == 100 * NS_PER_MS - 1
    assert recipe.next_start_ns(Outcome.CONTENDED, 1, 100 * NS_PER_MS, 100 * NS_PER_MS) is None
    assert recipe.next_start_ns(Outcome.UNREACHABLE, 1, 0, 10**12) is None
    recipe.close()


def test_the_other_recipes_follow_the_scenarios_policy(
    fleet: Fleet, server: Redis, settings: RecipeSettings
) -> None:
    recipe = SetNxLuaRecipe.connect(
        fleet.urls[:1], replace(settings, retry=RetryPolicy("fixed", 40.0, 3))
    )
    starts = [
        recipe.next_start_ns(Outcome.CONTENDED, attempts, 0, 10**12) for attempts in (1, 2, 3)
    ]
    assert starts[2] is None
    assert all(30 * NS_PER_MS <= (start or 0) <= 50 * NS_PER_MS for start in starts[:2])
    recipe.close()
