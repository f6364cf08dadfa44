"""A recipe whose holders write to what the lock protects: *a recipe, an instance → leases, and their writes judged*.

Rules
- Every holder writes once, at the end of its work, just before its release: to a `FencingRegister` where the recipe has
  fencing tokens, else to an `OwnerRegister`, which it marks as soon as it has the lock.
- Counted: writes `accepted` and `rejected`, each of a `valid` lease or of a `stale` one (sent after its end); and
  `failed_writes`, which got no answer. By token no valid write is rejected, and a stale one is accepted only while no
  later holder has written. By owner both happen: a stale holder that marks late shuts its successor out.
- The registers live on the first instance. They are no part of the lock, and stand in none of its counts.

Source: bench.recipes.fencing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from redis.exceptions import RedisError

from bench.recipes.fencing import REGISTERS, FencedLease, FencingRegister, OwnerRegister
from bench.recipes.instance import Instance
from bench.recipes.protocol import Recipe, RecipeSettings
from lockcore import Denied, InstanceStatus, Lease, Outcome
from lockcore.clock import monotonic_ns


class Protected:
    """`recipe`, each of whose leases ends with a protected write."""

    def __init__(self, recipe: Recipe, url: str, settings: RecipeSettings) -> None:
        self.recipe = recipe
        self.take_reply_times_ns = recipe.take_reply_times_ns
        self._instance = Instance(0, url, settings)
        key = settings.key_prefix + REGISTERS
        self._by_token, self._by_owner = FencingRegister(self._instance, key), OwnerRegister(self._instance, key)
        self._counts: Counter[str] = Counter()

    def acquire(self, resource: str, ttl_ms: int, wait_ms: int, /) -> Lease | Denied:
        """As the recipe; a holder without fencing token marks the register."""
        result = self.recipe.acquire(resource, ttl_ms, wait_ms)
        if isinstance(result, Lease) and not isinstance(result, FencedLease):
            try:
                self.mark(result)
            except BaseException:
                self.recipe.release(result)
                raise
        return result

    def mark(self, lease: Lease) -> None:
        """Begin to work: by owner only the holder that marked last can write."""
        with suppress(RedisError):
            self._by_owner.mark(lease)

    def write(self, lease: Lease, value: str) -> bool | None:
        """True when written, False when rejected, None without an answer; counted."""
        lease_is = "stale" if monotonic_ns() > lease.valid_until_ns else "valid"
        try:
            if isinstance(lease, FencedLease):
                written = self._by_token.write(lease, value)
            else:
                written = self._by_owner.write(lease, value)
        except RedisError:
            self._counts["failed_writes"] += 1
            return None
        self._counts[f"{lease_is}_writes_{'accepted' if written else 'rejected'}"] += 1
        return written

    def release(self, lease: Lease, /) -> Outcome:
        """The work's write, then as the recipe. A caller killed while it writes gives its lease back all the same."""
        try:
            self.write(lease, "work")
        except BaseException:
            self.recipe.release(lease)
            raise
        return self.recipe.release(lease)

    @property
    def instances(self) -> tuple[InstanceStatus, ...]:
        """The recipe's."""
        return self.recipe.instances

    @property
    def figures(self) -> Mapping[str, int]:
        """The recipe's, and the writes."""
        return {**self.recipe.figures, **self._counts}

    def close(self) -> None:
        """Close the recipe and the register. Idempotent."""
        self.recipe.close()
        self._instance.close()
