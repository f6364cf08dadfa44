"""Locks on one instance by SET key value NX PX ttl, told apart by their release: *DEL; GET, then DEL; a Lua script*.

Rules
- The same value for everybody and a plain DEL: a holder that outlives its TTL deletes its successor's lock, whose
  release deletes the next one's. GET == mine, then DEL: the same, in the gap between the two. Do not copy these.
- `set-nx-lua` is sound: the owner token is unique per attempt and compared by the server. A SET without a reply may
  have happened, so it is cleaned up, as is the one of a caller that was killed. A grant that came after its own end is
  given back and counts as too late. With fencing the SET and the counter are one script: every grant has a larger
  fencing token than all before it.

Source: the SET command's reference page ("Patterns").
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from redis.exceptions import RedisError

from bench.recipes.fencing import COUNTER, FENCED_SET, FencedLease
from bench.recipes.instance import DEFINITE, Instance
from bench.recipes.plain import GRANTED, HELD, PlainRecipe, Refusal
from bench.recipes.protocol import About, RecipeSettings
from lockcore import Lease, Outcome
from lockcore.clock import monotonic_ns


class SetNxFixed(PlainRecipe):
    """The same value for everybody, a plain DEL. Flawed, on purpose: do not copy it."""

    about = About(
        how="SET NX PX with the same value for all; DEL",
        flaw="deletes somebody else's lock after its own has expired",
        safe=False,
        shown_by=("pause after-grant", "stop worker"),
    )

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """SET NX PX."""
        started_ns = monotonic_ns()
        if self.ask("SET", self.key(resource), "1", "NX", "PX", ttl_ms) is None:
            return HELD
        return self.leased(resource, b"1", ttl_ms, started_ns)

    def give_back(self, lease: Lease) -> Outcome:
        """DEL."""
        return self.delete(lease.resource)


class SetNxGetDel(PlainRecipe):
    """A unique value, compared by the client. Flawed, on purpose: do not copy it."""

    about = About(
        how="SET NX PX with a unique value; GET, and DEL if it is ours",
        flaw="the gap between GET and DEL: the key may be another's by then",
        safe=False,
        shown_by=("pause after-get",),
        points=("after-get",),
    )

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """SET NX PX."""
        token, started_ns = self.new_token(), monotonic_ns()
        if self.ask("SET", self.key(resource), token, "NX", "PX", ttl_ms) is None:
            return HELD
        return self.leased(resource, token, ttl_ms, started_ns)

    def give_back(self, lease: Lease) -> Outcome:
        """GET, then DEL."""
        if self.ask("GET", self.key(lease.resource)) != lease.owner_token:
            return Outcome.GONE
        self.pause("after-get")
        return self.delete(lease.resource)


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
