"""What every recipe promises, against a real server; and what is special about each."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import gevent
import pytest
from redis import Redis

from bench.recipes.protocol import Recipe, RecipeSettings
from bench.recipes.redlock import OBSERVE_EVERY
from bench.recipes.registry import RECIPES
from bench.recipes.set_nx_lua import SetNxLuaRecipe
from bench.topology.fleet import Fleet, start_fleet
from lockcore import Denied, Lease, Outcome, Redlock, RetryPolicy
from lockcore.clock import monotonic_ns

pytestmark = pytest.mark.integration
SETTINGS = RecipeSettings(key_prefix="test:", retry=RetryPolicy("full-jitter", 2.0, 1000))


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with start_fleet(1, "none") as started:
        yield started


@pytest.fixture
def server(fleet: Fleet) -> Iterator[Redis]:
    with Redis.from_url(fleet.urls[0]) as client:
        client.flushall()
        yield client


@pytest.fixture(params=list(RECIPES))
def recipe(request: pytest.FixtureRequest, fleet: Fleet, server: Redis) -> Iterator[Recipe]:
    connected = RECIPES[request.param].connect(fleet.urls, SETTINGS)
    yield connected
    connected.close()


@pytest.fixture
def plain(fleet: Fleet, server: Redis) -> Iterator[SetNxLuaRecipe]:
    connected = SetNxLuaRecipe.connect(fleet.urls, SETTINGS)
    yield connected
    connected.close()


def test_a_free_resource_is_granted_for_its_ttl_and_given_back(recipe: Recipe, server: Redis) -> None:
    before_ns = monotonic_ns()
    lease = recipe.acquire("r1", 2000, 0)
    assert isinstance(lease, Lease)
    assert before_ns <= lease.started_ns <= lease.granted_ns <= monotonic_ns()
    assert lease.valid_until_ns == lease.started_ns + (2000 - 20 - 2) * 1_000_000  # TTL − 1 % − 2 ms
    assert (lease.resource, lease.ttl_ms, lease.attempts, lease.tally.granted) == ("r1", 2000, 1, 1)
    assert server.get("test:r1") == lease.owner_token
    assert 1900 < server.pttl("test:r1") <= 2000
    assert recipe.release(lease) is Outcome.RELEASED
    assert server.dbsize() == 0


def test_a_held_resource_is_contended_and_stays_with_its_holder(recipe: Recipe, server: Redis) -> None:
    holder = recipe.acquire("r1", 5000, 0)
    denied = recipe.acquire("r1", 5000, 0)
    assert isinstance(denied, Denied)
    assert (denied.outcome, denied.attempts, denied.tally.refused) == (Outcome.CONTENDED, 1, 1)
    assert server.get("test:r1") == holder.owner_token  # type: ignore[union-attr]


def test_waiting_ends_at_its_deadline_after_several_attempts(recipe: Recipe) -> None:
    recipe.acquire("r1", 5000, 0)
    before_ns = monotonic_ns()
    denied = recipe.acquire("r1", 5000, 60)
    assert isinstance(denied, Denied)
    assert denied.attempts > 5
    assert monotonic_ns() - before_ns < 1_000_000_000


def test_a_lease_that_expired_is_gone_and_its_successor_untouched(recipe: Recipe, server: Redis) -> None:
    lease = recipe.acquire("r1", 5000, 0)
    assert isinstance(lease, Lease)
    server.delete("test:r1")
    successor = recipe.acquire("r1", 5000, 0)
    assert isinstance(successor, Lease)
    assert recipe.release(lease) is Outcome.GONE
    assert server.get("test:r1") == successor.owner_token


def test_every_attempt_has_an_owner_token_of_its_own(recipe: Recipe) -> None:
    tokens = set()
    for _ in range(50):
        lease = recipe.acquire("r1", 5000, 0)
        assert isinstance(lease, Lease)
        tokens.add(lease.owner_token)
        recipe.release(lease)
    assert len(tokens) == 50


def test_an_instance_that_forgot_its_scripts_is_taught_again(recipe: Recipe, server: Redis) -> None:
    lease = recipe.acquire("r1", 5000, 0)
    assert isinstance(lease, Lease)
    server.script_flush()
    assert recipe.release(lease) is Outcome.RELEASED


def test_a_full_memory_is_unreachable_and_counted_by_kind(recipe: Recipe, server: Redis) -> None:
    server.config_set("maxmemory", "1")
    try:
        denied = recipe.acquire("r1", 5000, 0)
    finally:
        server.config_set("maxmemory", "0")
    assert isinstance(denied, Denied)
    assert (denied.outcome, denied.tally.errored) == (Outcome.UNREACHABLE, 1)
    assert recipe.instances[0].errors == {"OOM": 1}


def test_a_longer_ttl_than_the_fleets_is_refused(recipe: Recipe) -> None:
    with pytest.raises(ValueError, match="ttl_ms 10001"):
        recipe.acquire("r1", 10_001, 0)


def test_the_instance_says_what_it_is_and_what_was_exchanged(recipe: Recipe, fleet: Fleet) -> None:
    for _ in range(3):
        lease = recipe.acquire("r1", 5000, 0)
        assert isinstance(lease, Lease)
        recipe.release(lease)
    (status,) = recipe.instances
    assert (status.index, status.state) == (0, "voting")
    assert status.address.endswith(f":{fleet.instances[0].port}")
    assert status.server.split()[0] in ("redis", "valkey")
    assert status.commands >= 6


def test_one_attempt_in_64_gives_its_reply_time(recipe: Recipe) -> None:
    for _ in range(2 * OBSERVE_EVERY):
        lease = recipe.acquire("r1", 5000, 0)
        assert isinstance(lease, Lease)
        recipe.release(lease)
    gevent.sleep(0.001)  # the last reply of an observed round may still be in its socket
    (times_ns,) = recipe.take_reply_times_ns()
    assert len(times_ns) == 2
    assert all(0 < time_ns < 1_000_000_000 for time_ns in times_ns)
    assert recipe.take_reply_times_ns() == ([],)


def test_closing_twice_is_fine(recipe: Recipe) -> None:
    recipe.close()
    recipe.close()


def test_redlocks_hot_path_is_lockcores_own(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Redlock] = []
    connect = Redlock.connect.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        Redlock, "connect", lambda *urls, **settings: made.append(connect(Redlock, *urls, **settings)) or made[0]
    )
    recipe = RECIPES["redlock"].connect(fleet.urls, SETTINGS)
    assert recipe.acquire == made[0].try_acquire
    assert recipe.release == made[0].try_release
    recipe.close()


def test_a_server_that_does_not_answer_costs_the_instance_timeout(fleet: Fleet, server: Redis) -> None:
    plain = SetNxLuaRecipe.connect(fleet.urls, replace(SETTINGS, instance_timeout_ms=30.0))
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
    lease = plain.acquire("r2", 5000, 0)
    assert isinstance(lease, Lease)
    assert plain.instances[0].state == "voting"
    plain.release(lease)
    plain.close()


class Interrupted(BaseException):
    """A kill in the middle of a command."""


@pytest.mark.parametrize("command", ["SET", "EVALSHA"])
def test_a_caller_killed_in_a_command_leaves_no_key(
    plain: SetNxLuaRecipe, server: Redis, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    real, killed = plain._client.execute_command, []

    def execute(*words: Any) -> Any:
        reply = real(*words)  # the server did it
        if words[0] == command and not killed:
            killed.append(command)
            raise Interrupted
        return reply

    monkeypatch.setattr(plain._client, "execute_command", execute)
    with pytest.raises(Interrupted):
        plain.release(plain.acquire("r1", 5000, 0))  # type: ignore[arg-type]
    assert server.dbsize() == 0


def test_many_callers_exclude_each_other(plain: SetNxLuaRecipe) -> None:
    inside, most, done = [0], [0], []

    def call() -> None:
        for _ in range(20):
            lease = plain.acquire("r1", 5000, 5000)
            assert isinstance(lease, Lease)
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            inside[0] -= 1
            assert plain.release(lease) is Outcome.RELEASED
        done.append(1)

    threads = [threading.Thread(target=call) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (len(done), most[0]) == (6, 1)
