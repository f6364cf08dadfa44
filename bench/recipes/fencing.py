"""Fencing. Each holder writes to a protected register. If a holder's lease is no longer the newest
lease, the register rejects the write.

Rules
- One script sends the SET and increments the counter. Therefore a later lease always has a larger
  fencing token.
- Redlock has no counter. Instead, each holder first marks the register with its owner token.
  docs/fencing.md lists the faults that fencing tokens detect, and the faults that marks detect.
- One script checks the register and writes to it, so there is no race between the check and the
  write.
- The registers of a run are on the run's first instance. The registers are not part of the lock.
  Therefore the command counts of the lock do not include the commands that recipes send to the
  registers.

Sources: "How to do distributed locking" (Kleppmann, 2016), and the answer "Is Redlock safe?"
(Sanfilippo, 2016).
"""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha1
from typing import Self

from redis.exceptions import RedisError

from bench.recipes.plain import PlainInstance
from bench.recipes.protocol import Recipe, RecipeSettings
from lockcore import Denied, InstanceStatus, Lease, Outcome
from lockcore.bench import Script
from lockcore.clock import monotonic_ns

# The key of the counter, after the run's prefix. All resources share this counter.
COUNTER = "fencing-tokens"
# The key of the hash with the protected registers. All resources share this hash.
REGISTERS = "registers"
# A run with fencing has these keys on its servers, in addition to the keys of the locks.
OWN_KEYS = (COUNTER, REGISTERS)


def script_of(text: str) -> Script:
    """Return a Lua script together with its SHA-1 digest, which EVALSHA needs."""
    source = text.encode()
    return Script(source, sha1(source, usedforsecurity=False).hexdigest().encode())


FENCED_SET = script_of(
    """-- KEYS[1] the key, KEYS[2] the counter, ARGV[1] owner token, ARGV[2] TTL in ms
-- → fencing token, nothing if held
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return redis.call('INCR', KEYS[2])
end
return false
"""
)
_WRITE_IF_NEWEST = script_of(
    """-- KEYS[1] the registers, ARGV[1] resource, ARGV[2] fencing token, ARGV[3] value
-- → 1 written, 0 stale
local newest = tonumber(redis.call('HGET', KEYS[1], ARGV[1] .. ' token') or '0')
if newest > tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1] .. ' token', ARGV[2], ARGV[1], ARGV[3])
return 1
"""
)
_WRITE_IF_MARKED = script_of(
    """-- KEYS[1] the registers, ARGV[1] resource, ARGV[2] owner token, ARGV[3] value
-- → 1 written, 0 another's mark
if redis.call('HGET', KEYS[1], ARGV[1] .. ' owner') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
"""
)


class FencedLease(Lease):
    """A lease with a `fencing_token`.

    The token is larger than the token of every earlier lease on this instance.
    """

    __slots__ = ("fencing_token",)
    fencing_token: int

    @classmethod
    def of(cls, lease: Lease, fencing_token: int) -> Self:
        """Return a copy of `lease` that has a fencing token (≥ 1)."""
        fenced = cls(
            lease.resource,
            lease.owner_token,
            lease.ttl_ms,
            lease.started_ns,
            lease.granted_ns,
            lease.valid_until_ns,
            lease.round,
        )
        fenced.fencing_token = fencing_token
        return fenced


class Protected:
    """A recipe that writes to a register before each release. Every resource has its own register.

    A register rejects a fencing token that is smaller than an earlier token. If the recipe does not
    issue fencing tokens, callers mark the register with their owner tokens. The register then
    accepts a write only from the caller that made the last mark.
    """

    def __init__(self, recipe: Recipe, url: str, settings: RecipeSettings) -> None:
        self.recipe = recipe
        self.take_reply_times_ns = recipe.take_reply_times_ns
        self._instance = PlainInstance(0, url, settings)
        self._registers = settings.key_prefix + REGISTERS
        self._counts: Counter[str] = Counter()

    def acquire(self, resource: str, ttl_ms: int, wait_ms: int, /) -> Lease | Denied:
        """Acquire with the recipe. If the lease has no fencing token, mark the register."""
        result = self.recipe.acquire(resource, ttl_ms, wait_ms)
        if isinstance(result, Lease) and not isinstance(result, FencedLease):
            try:
                self.mark(result)
            except BaseException:
                self.recipe.release(result)
                raise
        return result

    def mark(self, lease: Lease) -> None:
        """Mark the register with the lease's owner token. Without fencing tokens, only the caller
        that made the last mark can write."""
        with suppress(RedisError):
            self._instance.ask(
                "HSET", self._registers, f"{lease.resource} owner", lease.owner_token
            )

    def write(self, lease: Lease, value: str) -> bool | None:
        """Write `value` to the register, and count whether the register accepted the write.

        Returns True if the register accepted the write. Returns None if no answer came. Returns
        False if the fencing token is stale, or if another holder has marked the register in the
        meantime.
        """
        script = _WRITE_IF_MARKED
        proof = lease.owner_token
        if isinstance(lease, FencedLease):
            script = _WRITE_IF_NEWEST
            proof = b"%d" % lease.fencing_token
        lease_is = "stale" if monotonic_ns() > lease.valid_until_ns else "valid"
        try:
            written = bool(
                self._instance.run(script, (self._registers,), lease.resource, proof, value)
            )
        except RedisError:
            self._counts["failed_writes"] += 1
            return None
        self._counts[f"{lease_is}_writes_{'accepted' if written else 'rejected'}"] += 1
        return written

    def release(self, lease: Lease, /) -> Outcome:
        """Write to the register, and then release with the recipe.

        A caller that is killed during the write still gives its lease back.
        """
        try:
            self.write(lease, "work")
        finally:
            outcome = self.recipe.release(lease)
        return outcome

    @property
    def instances(self) -> tuple[InstanceStatus, ...]:
        return self.recipe.instances

    @property
    def figures(self) -> Mapping[str, int]:
        return {**self.recipe.figures, **self._counts}

    def close(self) -> None:
        self.recipe.close()
        self._instance.close()
