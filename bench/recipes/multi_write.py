"""Fail-over by hand: *SET NX on redis-1, then copy to the others; another instance when that one errs*.

Flawed, on purpose: do not copy it. Its fault: whoever cannot reach redis-1 locks on redis-2, where the copy of a lock
granted on redis-1 may not have arrived: both are granted. The release deletes its own keys everywhere.
Source: the table in the README of this folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from redis.exceptions import RedisError

from bench.recipes.about import About
from bench.recipes.instance import DEFINITE, Instance
from bench.recipes.plain import PlainRecipe, Refusal
from bench.recipes.protocol import RecipeSettings
from lockcore import Lease, Outcome, Tally
from lockcore.clock import monotonic_ns


class MultiWrite(PlainRecipe):
    """The instance in use decides; the others get copies."""

    about = About(
        how="SET NX PX on the instance in use, then copy to the others; switch the instance on an error",
        flaw="during a switch two clients are granted on two instances, before the copies arrive",
        safe=False,
        shown_by=("proxy", "pause before-copy"),
        least=2,
        most=None,
        usual=3,
        points=("before-copy",),
    )

    def __init__(self, servers: Sequence[Instance], settings: RecipeSettings) -> None:
        super().__init__(servers, settings)
        self._in_use = 0

    @classmethod
    def needed(cls, instances: int) -> int:
        """One is enough."""
        return 1

    def attempt(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """SET NX PX on the first instance that answers; copies to the others, whatever comes of them."""
        key, token, started_ns = self.key(resource), self.new_token(), monotonic_ns()
        errored = silent = 0
        for server in self._from_the_one_in_use():
            try:
                granted = server.ask("SET", key, token, "NX", "PX", ttl_ms)
            except DEFINITE:
                errored += 1
                continue
            except RedisError:
                silent += 1
                continue
            self._in_use = server.index
            others = len(self.servers) - 1 - errored - silent
            if granted is None:
                return Refusal(Outcome.CONTENDED, Tally(0, 1, errored, silent, others))
            self.pause("before-copy")
            copies = self._copy(server, key, token, ttl_ms)
            tally = Tally(1 + copies, 0, len(self.servers) - 1 - copies)
            return self.leased(resource, token, ttl_ms, started_ns, tally=tally)
        return Refusal(Outcome.UNREACHABLE, Tally(errored=errored, silent=silent))

    def give_back(self, lease: Lease) -> Outcome:
        """Compare-and-delete everywhere; the instance in use says how it went."""
        key, found = self.key(lease.resource), Outcome.UNREACHABLE
        for server in self.servers:
            with suppress(RedisError):
                deleted = server.delete_own(key, lease.owner_token)
                if server.index == self._in_use:
                    found = Outcome.RELEASED if deleted else Outcome.GONE
        return found

    def _from_the_one_in_use(self) -> Iterator[Instance]:
        for turn in range(len(self.servers)):
            yield self.servers[(self._in_use + turn) % len(self.servers)]

    def _copy(self, origin: Instance, key: str, token: bytes, ttl_ms: int) -> int:
        """To how many others the copy went."""
        copies = 0
        for server in self.servers:
            if server is not origin:
                with suppress(RedisError):
                    server.ask("SET", key, token, "PX", ttl_ms)
                    copies += 1
        return copies
