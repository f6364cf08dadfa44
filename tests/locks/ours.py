"""Locks as people write them, whose faults are known: *URLs → a lock*, for `lockbench judge`.

without_owner        SET NX PX with a fixed value, DEL without a look: deletes a stranger's lock
get_then_del         looks before it deletes, in two steps: a pause between them deletes one, too
in_memory            a mutex of one process, which asks no server
true_or_none         prints; acquire returns what SET NX returns in redis-py: True, or None for no
none_or_false        acquire: None for a grant, False for no; release: True, or None if it is late
semaphore            at most three, by a sorted set
wrong_semaphore      the same, and it lets a fourth in
semaphore_of_keys    at most three, and each holder has a key of its own
"""

import contextlib
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

import redis

Made = Callable[[str], AbstractContextManager[object]]
TTL_MS = 2000
REST_S = 0.005
TAKE = """
redis.call("zremrangebyscore", KEYS[1], "-inf", ARGV[1] - ARGV[4])
if redis.call("zcard", KEYS[1]) >= tonumber(ARGV[3]) then return 0 end
redis.call("zadd", KEYS[1], ARGV[1], ARGV[2])
return redis.call("pexpire", KEYS[1], ARGV[4])
"""
GIVE = """
if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end
return 0
"""
# Each lease has a key with another name.
TAKE_KEY = """
if #redis.call("keys", KEYS[1] .. ":*") >= 3 then return false end
return redis.call("set", KEYS[1] .. ":" .. ARGV[1], 1, "px", ARGV[2])
"""


def without_owner(urls: Sequence[str]) -> Made:
    """SET NX PX with a fixed value, DEL without a look."""
    client = redis.Redis.from_url(urls[0])

    @contextlib.contextmanager
    def held(name: str) -> Iterator[None]:
        _wait_for(lambda: client.set(name, "1", nx=True, px=TTL_MS))
        try:
            yield
        finally:
            client.delete(name)

    return held


def get_then_del(urls: Sequence[str]) -> Made:
    """The owner is compared by the client, and the key deleted by a second command."""
    client = redis.Redis.from_url(urls[0])

    @contextlib.contextmanager
    def held(name: str) -> Iterator[None]:
        owner = uuid.uuid4().bytes
        _wait_for(lambda: client.set(name, owner, nx=True, px=TTL_MS))
        try:
            yield
        finally:
            if client.get(name) == owner:
                client.delete(name)

    return held


def in_memory(_urls: Sequence[str]) -> Made:
    """A mutex of this process."""
    locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
    return lambda name: locks[name]


class TrueOrNone:
    """Acquire does not wait and writes to stdout, and a grant that comes late does not count."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._client = redis.Redis.from_url(urls[0])
        self._owner = uuid.uuid4().hex

    def acquire(self, name: str) -> object:
        """True, or None."""
        print(f"acquire {name}", flush=True)
        begun_s = time.monotonic()
        got = self._client.set(name, self._owner, nx=True, px=TTL_MS)
        return got if time.monotonic() - begun_s < TTL_MS / 2000 else None

    def release(self, name: str) -> object:
        """1, or 0 if the lock is not ours any more."""
        return self._client.eval(GIVE, 1, name, self._owner)


true_or_none = TrueOrNone


class NoneOrFalse(TrueOrNone):
    """The same lock, which answers in other words."""

    def acquire(self, name: str) -> object:
        """None for a grant, or False."""
        return None if super().acquire(name) else False

    def release(self, name: str) -> object:
        """True, or None if the lock is not ours any more."""
        return bool(super().release(name)) or None


none_or_false = NoneOrFalse


def semaphore(urls: Sequence[str]) -> Made:
    """At most three."""
    return _semaphore(urls, 3)


def wrong_semaphore(urls: Sequence[str]) -> Made:
    """At most three, it says."""
    return _semaphore(urls, 4)


def _semaphore(urls: Sequence[str], most: int) -> Made:
    client = redis.Redis.from_url(urls[0])

    @contextlib.contextmanager
    def held(name: str) -> Iterator[None]:
        owner = uuid.uuid4().hex
        _wait_for(lambda: client.eval(TAKE, 1, name, _now_ms(), owner, most, TTL_MS))
        try:
            yield
        finally:
            client.zrem(name, owner)

    return held


def semaphore_of_keys(urls: Sequence[str]) -> Made:
    """At most three. An interrupted acquire leaves its key."""
    client = redis.Redis.from_url(urls[0])

    @contextlib.contextmanager
    def held(name: str) -> Iterator[None]:
        owner = uuid.uuid4().hex
        _wait_for(lambda: client.eval(TAKE_KEY, 1, name, owner, TTL_MS))
        try:
            yield
        finally:
            client.delete(f"{name}:{owner}")

    return held


def _wait_for(is_taken: Callable[[], object]) -> None:
    while not is_taken():
        time.sleep(REST_S)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
