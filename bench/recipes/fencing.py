"""Fencing: *a lease and a write → accepted or rejected by what is written to*.

A lock cannot stop a client that was paused past the end of its lease; what it writes to can.

Rules
- A `FencingRegister` keeps the largest fencing token it was shown and rejects smaller ones. The counter is incremented
  in the same script as the SET, so a later grant has a larger token: every stale write is rejected once a later holder
  has written, and none before (then it does no harm).
- Redlock has no counter. An `OwnerRegister` is marked with the owner token of who works on it; a write is a
  compare-and-set on that mark. It rejects a stale write of a client that had marked it before its pause. It does not
  catch one that is paused before its mark: that client takes the register over from its successor.
- Registers live on an instance of their own choosing, in one script per write: they have no race themselves.

Source: M. Kleppmann, "How to do distributed locking" (2016); S. Sanfilippo's answer "Is Redlock safe?" (2016).
"""

from __future__ import annotations

from hashlib import sha1

from bench.recipes.instance import Instance
from lockcore import Lease
from lockcore.commands import Script

COUNTER = "fencing-tokens"  # the key of the counter, below the run's prefix; one for all resources
REGISTERS = "registers"  # the key of what is protected: one hash for all resources
OWN_KEYS = (COUNTER, REGISTERS)  # what a fenced run has on its servers beside the keys of its locks


def script_of(text: str) -> Script:
    """A Lua script and the name EVALSHA knows it by."""
    source = text.encode()
    return Script(source, sha1(source, usedforsecurity=False).hexdigest().encode())


FENCED_SET = script_of(
    """-- KEYS[1] the key, KEYS[2] the counter, ARGV[1] owner token, ARGV[2] TTL in ms → fencing token, nothing if held
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return redis.call('INCR', KEYS[2]) end
return false
"""
)
_WRITE_IF_NEWEST = script_of(
    """-- KEYS[1] the registers, ARGV[1] resource, ARGV[2] fencing token, ARGV[3] value → 1 written, 0 stale
if tonumber(redis.call('HGET', KEYS[1], ARGV[1] .. ' token') or '0') > tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1] .. ' token', ARGV[2], ARGV[1], ARGV[3])
return 1
"""
)
_WRITE_IF_MARKED = script_of(
    """-- KEYS[1] the registers, ARGV[1] resource, ARGV[2] owner token, ARGV[3] value → 1 written, 0 another's mark
if redis.call('HGET', KEYS[1], ARGV[1] .. ' owner') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
"""
)


class FencedLease(Lease):
    """A lease with its `fencing_token`: larger than that of every lease granted before it on this instance."""

    __slots__ = ("fencing_token",)
    fencing_token: int

    @classmethod
    def of(cls, lease: Lease, fencing_token: int) -> FencedLease:
        """`lease` with a token ≥ 1."""
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


class FencingRegister:
    """Per resource something protected that takes no write with a smaller fencing token than one it has seen."""

    def __init__(self, instance: Instance, key: str) -> None:
        self._instance, self._key = instance, key

    def write(self, lease: FencedLease, value: str) -> bool:
        """True when written, False when rejected as stale. Raises RedisError."""
        written = self._instance.run(_WRITE_IF_NEWEST, (self._key,), lease.resource, lease.fencing_token, value)
        return bool(written)


class OwnerRegister:
    """Per resource something protected that takes writes only from the owner token it is marked with."""

    def __init__(self, instance: Instance, key: str) -> None:
        self._instance, self._key = instance, key

    def mark(self, lease: Lease) -> None:
        """Begin to work: whatever mark there was is replaced. Raises RedisError."""
        self._instance.ask("HSET", self._key, f"{lease.resource} owner", lease.owner_token)

    def write(self, lease: Lease, value: str) -> bool:
        """True when written, False when another has marked it since. Raises RedisError."""
        written = self._instance.run(_WRITE_IF_MARKED, (self._key,), lease.resource, lease.owner_token, value)
        return bool(written)
