"""An instance that talks nonsense or falls silent costs its own vote only, and is tried again. On every way of waiting.

And on real servers: what is wrong with one resource stays with whoever locked it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from bench.topology.fleet import Fleet
from lockcore import AsyncRedlock, Outcome
from lockcore import settings as lockcore_settings
from tests.doubles.instance import LOSE, Instances
from tests.integration.lockcore.keys import client, keys_on
from tests.integration.lockcore.shell import PATIENT, TTL_MS, Connect, Shell

pytestmark = pytest.mark.integration
MANY = 20


@pytest.mark.parametrize(
    "nonsense", [b"%1\r\n*1\r\n:1\r\n:2\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n"], ids=["a map", "HTTP"]
)
def test_nonsense_of_one_instance_ends_its_connection_and_the_others_go_on(
    nonsense: bytes, shell: Shell, lock: Any, instances: Instances
) -> None:
    instances[0].says["set"] = nonsense
    lease = lock.try_acquire("stock", TTL_MS)
    assert lease.outcome is Outcome.ACQUIRED
    shell.until(lambda: lock.instances[0].reconnects or lock.instances[0].state == "down", "broken off")
    assert lock.try_release(lease) is Outcome.RELEASED
    instances[0].says.clear()
    shell.until(lambda: lock.instances[0].state == "voting" and lock.instances[0].reconnects, "back")
    lease = lock.try_acquire("stock", TTL_MS)
    shell.until(lambda: lease.tally.granted == 3, "every vote")
    assert lock.try_release(lease) is Outcome.RELEASED


def test_a_connection_that_falls_silent_is_given_up_and_made_anew(
    shell: Shell, connect: Connect, instances: Instances, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lockcore_settings, "SILENCE_NS", 100_000_000)
    lock = connect(instances.urls, instance_timeout_ms=50, lag_cap=lockcore_settings.LagCap(age_ms=50))
    instances[0].says["set"] = LOSE
    lease = lock.try_acquire("stock", TTL_MS)
    assert lease.outcome is Outcome.ACQUIRED
    shell.until(lambda: lock.instances[0].reconnects and lock.instances[0].state == "voting", "connected anew")
    instances[0].says.clear()  # not before: two votes suffice, and it may not have read its SET yet
    lock.try_release(lease)
    shell.until(lambda: instances.keys == [], "nothing left")


async def released_together(urls: list[str], prefix: str, spoil: Callable[[], None]) -> list[Outcome]:
    """Many leases, something happens to one key, all given back in one turn: one script call per instance."""
    settings: dict[str, Any] = PATIENT | {"key_prefix": prefix}
    async with await AsyncRedlock.connect(urls, **settings) as lock:
        leases = await asyncio.gather(*[lock.acquire(f"r{number}", TTL_MS) for number in range(MANY)])
        await asyncio.to_thread(spoil)
        before = lock.instances[0].commands
        outcomes = await asyncio.gather(*[lock.try_release(lease) for lease in leases])
        assert lock.instances[0].commands < before + 2 * MANY + 2
        return list(outcomes)


def check_only_one_is_spoiled(fleet: Fleet, urls: list[str], prefix: str, spoil: Callable[[], None]) -> None:
    """All but r7 are released, and nothing but its key is left."""
    try:
        outcomes = asyncio.run(released_together(urls, prefix, spoil))
        assert [number for number, outcome in enumerate(outcomes) if outcome is not Outcome.RELEASED] == [7]
        assert set(keys_on(fleet.urls, prefix)) == {f"{prefix}r7".encode()}
    finally:
        for url in fleet.urls:
            client(url).delete(f"{prefix}r7")


def test_a_key_of_the_wrong_type_spoils_no_other_release_of_its_turn(redis_fleet: Fleet) -> None:
    prefix = f"{uuid4().hex}:"

    def spoil() -> None:
        for url in redis_fleet.urls:
            client(url).delete(f"{prefix}r7")
            client(url).lpush(f"{prefix}r7", "x")

    check_only_one_is_spoiled(redis_fleet, redis_fleet.urls, prefix, spoil)


def test_a_key_outside_the_acl_pattern_spoils_no_other_release_of_its_turn(redis_fleet: Fleet) -> None:
    prefix, user = f"{uuid4().hex}:", uuid4().hex

    def allow(pattern: str) -> None:
        for url in redis_fleet.urls:
            client(url).execute_command("ACL", "SETUSER", user, "on", ">secret", "+@all", "resetkeys", *pattern.split())

    allow("~*")
    urls = [url.replace("redis://", f"redis://{user}:secret@") for url in redis_fleet.urls]
    narrow = " ".join(f"~{prefix}r{number}" for number in range(MANY) if number != 7)
    check_only_one_is_spoiled(redis_fleet, urls, prefix, lambda: allow(narrow))
    for url in redis_fleet.urls:
        client(url).execute_command("ACL", "DELUSER", user)
