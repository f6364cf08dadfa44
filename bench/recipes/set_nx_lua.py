"""The plain lock on one instance: *SET key token NX PX ttl, and a Lua script that deletes only its own*.

Rules
- The owner token is unique per attempt. A SET without a reply may have happened, so it is cleaned up, as is the one of
  a caller that was killed. A grant that came after its own end is given back and counts as too late.
- With fencing the SET and the counter are one script: every grant has a larger fencing token than all before it.

Source: the SET command's reference page ("Patterns"); the table in the README of this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from redis.exceptions import RedisError

from bench.recipes.about import About
from bench.recipes.fencing import COUNTER, FENCED_SET, FencedLease
from bench.recipes.instance import DEFINITE, Instance
from bench.recipes.plain import GRANTED, HELD, PlainRecipe, Refusal
from bench.recipes.protocol import RecipeSettings
from lockcore import Lease, Outcome
from lockcore.clock import monotonic_ns


class SetNxLuaRecipe(PlainRecipe):
    """A unique value, compared by the server."""

    about = About(
        how="one instance through redis-py: SET NX PX with a unique value, compare-and-delete in Lua",
        flaw="none in the lock itself; that one instance is a single point of failure",
        safe=True,
    )

    def __init__(self, servers: Sequence[Instance], settings: RecipeSettings) -> None:
        super().__init__(servers, settings)
        self._fencing = settings.fencing

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """SET NX PX; what it may have left is removed."""
        token, started_ns = self.new_token(), monotonic_ns()
        try:
            granted = self._set(resource, token, ttl_ms)
        except DEFINITE:
            raise
        except BaseException:
            self._undo(resource, token)
            raise
        if not granted:
            return HELD
        lease = self.leased(resource, token, ttl_ms, started_ns)
        if lease.granted_ns >= lease.valid_until_ns:
            self._undo(resource, token)
            return Refusal(Outcome.TOO_LATE, GRANTED)
        return FencedLease.of(lease, granted) if self._fencing else lease

    def give_back(self, lease: Lease) -> Outcome:
        """Delete the key if it is still ours."""
        deleted = self.servers[0].delete_own(self.key(lease.resource), lease.owner_token)
        return Outcome.RELEASED if deleted else Outcome.GONE

    def abandon(self, lease: Lease) -> None:
        """A caller that is killed has its key deleted all the same."""
        self._undo(lease.resource, lease.owner_token)

    def _set(self, resource: str, token: bytes, ttl_ms: int) -> int:
        """0 when it is held, else the fencing token (1 without fencing)."""
        key = self.key(resource)
        if self._fencing:
            return int(self.servers[0].run(FENCED_SET, (key, self.key(COUNTER)), token, ttl_ms) or 0)
        return int(self.ask("SET", key, token, "NX", "PX", ttl_ms) is not None)

    def _undo(self, resource: str, token: bytes) -> None:
        with suppress(RedisError):
            self.servers[0].delete_own(self.key(resource), token)
