"""redis-py's own `Lock` under lockbench's load: *one attempt, one way to give back → a recipe*.

Everything else (retries until the wait is over, pause points, the record of every operation) comes
from PlainRecipe; a library that retries by itself has `acquire` and `release` of its own instead
(bench/recipes/protocol.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from redis import Redis
from redis.exceptions import LockNotOwnedError
from redis.lock import Lock

from bench.recipes.plain import HELD, PlainRecipe, Refusal
from bench.recipes.protocol import About, RecipeSettings
from lockcore import Lease, Outcome
from lockcore.clock import monotonic_ns


class RedisPyLock(PlainRecipe):
    """One instance, SET NX PX and a compare-and-delete in Lua, all done by redis-py."""

    about = About(
        how="one instance through redis-py's own Lock",
        flaw="none in the lock itself; that one instance is a single point of failure",
        safe=True,
    )
    client: Redis

    @classmethod
    def connect(cls, targets: Sequence[str], settings: RecipeSettings) -> Self:
        """Connect; PlainRecipe checks that the instance can be used."""
        recipe = super().connect(targets, settings)
        recipe.client = Redis.from_url(targets[0], socket_timeout=1.0)
        return recipe

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """Ask once, without waiting."""
        token = self.new_token()
        started_ns = monotonic_ns()
        if not self._lock(resource, ttl_ms).acquire(token=token):
            return HELD
        return self.leased(resource, token, ttl_ms, started_ns)

    def give_back(self, lease: Lease) -> Outcome:
        """Release what the lease's owner token proves to be ours."""
        lock = self._lock(lease.resource, lease.ttl_ms)
        lock.local.token = lease.owner_token
        try:
            lock.release()
        except LockNotOwnedError:
            return Outcome.GONE
        return Outcome.RELEASED

    def close(self) -> None:
        """Close this client, too."""
        self.client.close()
        super().close()

    def _lock(self, resource: str, ttl_ms: int) -> Lock:
        return Lock(
            self.client,
            self.key(resource),
            timeout=ttl_ms / 1000,
            blocking=False,
            thread_local=False,
        )
