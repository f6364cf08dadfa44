"""Locks on one instance by SET key value NX PX ttl, told apart by their release: *DEL; GET, then DEL; a Lua script*.

Rules
- `backoff` waits 0.1 s, 0.2 s, … 5 s once it was refused, and has no try/finally: newcomers overtake who waits longest
  (starvation), and an exception in the body leaves the lock where it is. Do not copy it.
- The same value for everybody and a plain DEL: a holder that outlives its TTL deletes its successor's lock, whose
  release deletes the next one's. GET == mine, then DEL: the same, in the gap between the two. Do not copy these.
- `set-nx-lua` is sound: the owner token is unique per attempt and compared by the server. A SET without a reply may
  have happened, so it is cleaned up, as is the one of a caller that was killed. A grant that came after its own end is
  given back and counts as too late. With fencing the SET and the counter are one script: every grant has a larger
  fencing token than all before it.

Source: the SET command's reference page ("Patterns").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from uuid import uuid1

from redis.exceptions import RedisError

from bench.recipes.fencing import COUNTER, FENCED_SET, FencedLease
from bench.recipes.instance import DEFINITE, PlainInstance
from bench.recipes.plain import GRANTED, HELD, PlainRecipe, Refusal
from bench.recipes.protocol import About, RecipeSettings
from lockcore import Lease, Outcome
from lockcore.clock import NS_PER_MS, monotonic_ns

FIRST_MS, LONGEST_MS = 100, 5_000  # of `backoff`


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
        return self.set_nx(resource, b"1", ttl_ms)

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
        return self.set_nx(resource, self.new_token(), ttl_ms)

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

    def __init__(self, servers: Sequence[PlainInstance], settings: RecipeSettings) -> None:
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
        return self.delete_own(lease)

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


class Backoff(PlainRecipe):
    """The longer one waits, the more seldom one asks. Flawed, on purpose: do not copy it."""

    about = About(
        how="SET NX PX with a uuid1; refused: wait 0.1 s, doubling to 5 s; used without try/finally",
        flaw="starves who waits long; an exception in the body leaks the lock",
        safe=True,
        shown_by=("same-time start", "exception in the body"),
    )

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """SET NX PX."""
        return self.set_nx(resource, str(uuid1()).encode(), ttl_ms)

    def give_back(self, lease: Lease) -> Outcome:
        """Compare-and-delete."""
        return self.delete_own(lease)

    def next_start_ns(self, outcome: Outcome, attempts: int, now_ns: int, deadline_ns: int) -> int | None:
        """Twice the last wait; the scenario's retry policy has no say."""
        if outcome is not Outcome.CONTENDED:
            return None
        start_ns = now_ns + min(FIRST_MS << min(attempts - 1, 16), LONGEST_MS) * NS_PER_MS
        return start_ns if start_ns <= deadline_ns else None

    def run(self, resource: str, ttl_ms: int, wait_ms: int, body: Callable[[Lease], None]) -> bool:
        """As described: what the body raises goes past the release."""
        lease = self.acquire(resource, ttl_ms, wait_ms)
        if not isinstance(lease, Lease):
            return False
        body(lease)
        self.release(lease)
        return True
