"""A lock on one instance whose waiters are woken: *SET NX PX; a release that pushes to a list; BLPOP while it is held*.

Rules: the list only wakes; who is woken asks as everybody does. It lasts a second, and one push wakes one: the server
serves those who block in the order they came. What is lost costs a look of `LOOK_MS`. Source: python-redis-lock, and
the BLPOP command's reference page ("Pattern: event notification").
"""

from contextlib import suppress
from dataclasses import replace

from redis.exceptions import RedisError

from bench.recipes.fencing import script_of
from bench.recipes.one_instance import SetNxLuaRecipe
from lockcore import Lease, Outcome
from lockcore.clock import NS_PER_MS, NS_PER_S

LOOK_MS = 200
RELEASE_AND_WAKE = script_of(
    """-- KEYS[1] the key, KEYS[2] the list, ARGV[1] owner token → 1 released, 0 another's
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('LPUSH', KEYS[2], '1')
redis.call('PEXPIRE', KEYS[2], 1000)
return 1
"""
)


class SetNxBlpop(SetNxLuaRecipe):
    """A release wakes one who waits."""

    about = replace(
        SetNxLuaRecipe.about,
        how="as set-nx-lua, but who waits blocks in BLPOP on a list that the release pushes to",
        flaw="none in the lock itself; one instance, and a release costs more though nobody may wait",
    )

    def give_back(self, lease: Lease) -> Outcome:
        """Compare, delete, push."""
        keys = self.key(lease.resource), self._list(lease.resource)
        return Outcome.RELEASED if self.servers[0].run(RELEASE_AND_WAKE, keys, lease.owner_token) else Outcome.GONE

    def next_start_ns(self, outcome: Outcome, attempts: int, now_ns: int, deadline_ns: int) -> int | None:
        """At the next look, if nobody wakes it before."""
        start_ns = super().next_start_ns(outcome, attempts, now_ns, deadline_ns)
        if start_ns is None or outcome is not Outcome.CONTENDED:
            return start_ns
        return min(now_ns + LOOK_MS * NS_PER_MS, deadline_ns)

    def rest(self, resource: str, outcome: Outcome, delay_ns: int) -> None:
        """Block until a push, a millisecond at least (0 would be for ever)."""
        if outcome is not Outcome.CONTENDED:
            super().rest(resource, outcome, delay_ns)
            return
        with suppress(RedisError):
            self.servers[0].block(max(delay_ns, NS_PER_MS) / NS_PER_S, "BLPOP", self._list(resource))

    def _list(self, resource: str) -> str:
        return f"{self.key(resource)}:released"
