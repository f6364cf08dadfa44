"""Locks for readers and writers on one instance. Several readers may hold a resource together, and
a writer holds it alone.

A writer's owner token is the value of the resource's key, as in `set-nx-lua`. The owner tokens of
readers are members of a sorted set in a second key. The score of each member is the end of the
lease on the server's clock. A reader's owner token begins with `READER`. Therefore the token shows
whether a lease belongs to a reader or a writer.

`reader-writer-late` is flawed on purpose. Do not copy it.
"""

from contextlib import suppress
from dataclasses import replace

from redis.exceptions import RedisError

from bench.recipes.fencing import script_of
from bench.recipes.one_instance import SetNxLuaRecipe
from bench.recipes.plain import Refusal
from lockcore import Denied, Lease, Outcome

# All other tokens begin with a hexadecimal digit. This letter is not a hexadecimal digit.
READER = b"r"
_NOW = """-- KEYS[1] a writer, KEYS[2] readers, ARGV[1] owner token, ARGV[2] TTL in ms
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
_FORGET_ENDED = "redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)\n"
# In each script, the first write is the command that needs memory. A server without free memory
# refuses such a command only while the script has written nothing.
_WRITE = script_of(
    _NOW
    + """-- → 1, 0 if held
if redis.call('EXISTS', KEYS[1]) > 0 then return 0 end
if redis.call('ZCOUNT', KEYS[2], '(' .. now, '+inf') > 0 then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
)
_READ = script_of(
    _NOW
    + """-- → 1, 0 if a writer holds it
if redis.call('EXISTS', KEYS[1]) > 0 then return 0 end
redis.call('ZADD', KEYS[2], now + ARGV[2], ARGV[1])
if redis.call('PTTL', KEYS[2]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
"""
    + _FORGET_ENDED
    + "return 1\n"
)
_GIVE_BACK = script_of(
    _NOW
    + _FORGET_ENDED
    + """-- → 1, 0 if it was gone
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return redis.call('ZREM', KEYS[2], ARGV[1])
"""
)


class ReaderWriter(SetNxLuaRecipe):
    """A lock for readers and writers. Readers lock with one script, and writers lock with another
    script. Each script checks that no holder prevents the lock, and then sets the lock."""

    about = replace(
        SetNxLuaRecipe.about,
        how="one instance: Lua keeps readers in a sorted set, and a writer in a key beside it",
        shares=True,
        beside=(":readers",),
    )

    def acquire_shared(self, resource: str, ttl_ms: int, wait_ms: int, /) -> Lease | Denied:
        """Acquire the lock for a reader. Other readers may hold the same resource at the same
        time."""
        return self.acquire_by(self.attempt_shared, resource, ttl_ms, wait_ms)

    def attempt_shared(self, resource: str, ttl_ms: int) -> Lease | Refusal:
        """Try once to lock the resource for a reader. Raises RedisError."""
        return self.attempt_as(READER + self.new_token(), resource, ttl_ms)

    def give_back(self, lease: Lease) -> Outcome:
        keys = self._keys(lease.resource)
        deleted = self.server.run(_GIVE_BACK, keys, lease.owner_token)
        return Outcome.RELEASED if deleted else Outcome.GONE

    def _keys(self, resource: str) -> tuple[str, str]:
        """Return the key of the writer and the key of the readers."""
        key = self.key(resource)
        return key, f"{key}:readers"

    def _set(self, resource: str, token: bytes, ttl_ms: int) -> int:
        script = _READ if token.startswith(READER) else _WRITE
        return int(self.server.run(script, self._keys(resource), token, ttl_ms))

    def _undo(self, resource: str, token: bytes) -> None:
        with suppress(RedisError):
            self.server.run(_GIVE_BACK, self._keys(resource), token)


class ReaderWriterLate(ReaderWriter):
    """A lock for readers and writers. With the first command, a writer checks for holders. With the
    second command, it sets its key.

    This lock is flawed on purpose. Do not copy it.
    """

    about = replace(
        ReaderWriter.about,
        how="like reader-writer, but a writer first checks that the lock is free, and then sets "
        "its key",
        flaw="if another caller gets the lock between a writer's check and its SET, both hold "
        "the lock",
        safe=False,
        points=("after-check",),
    )

    def _set(self, resource: str, token: bytes, ttl_ms: int) -> int:
        if token.startswith(READER):
            return super()._set(resource, token, ttl_ms)
        keys = self._keys(resource)
        if self.ask("EXISTS", *keys):
            return 0
        self.pause("after-check")
        return int(self.ask("SET", keys[0], token, "PX", ttl_ms) is not None)
