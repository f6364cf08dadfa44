"""Each Python lock behind the same two calls: *a library as it comes → acquire and release*.

Rules: defaults of the library, retries included, but the TTL (10 s) and, where one must say how long to wait, the
order's wait; nothing is tuned. Imported by name, as each is installed in an environment of its own, lockcore in ours.
Source: the quick start of each library's README.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal
from urllib.parse import urlsplit

from bench.experiments.contest.clients.order import Order

KEY_PREFIX = "lockbench:"
RELEASED = "released"  # lockcore's Outcome, by its value


class NotReleasedError(Exception):
    """A release that did not do what it should, of a library that says so by its answer."""


class Lockcore:
    """lockcore for threads or gevent, with its default retry policy."""

    def __init__(self, order: Order, shell: Literal["gevent", "threads"]) -> None:
        redlock: Any = import_module("lockcore").Redlock
        lock = redlock.connect(order.urls, shell=shell, key_prefix=KEY_PREFIX, rejoin="trust-first")
        self._try_acquire, self._try_release = lock.try_acquire, lock.try_release
        self._ttl_ms, self._wait_ms = order.ttl_ms, 0 if order.own else order.wait_ms

    def acquire(self, resource: str) -> Any:
        """See Lock."""
        lease = self._try_acquire(resource, self._ttl_ms, self._wait_ms)
        return lease if hasattr(lease, "valid_until_ns") else None

    def release(self, held: Any) -> None:
        """See Lock."""
        if self._try_release(held).value != RELEASED:
            raise NotReleasedError


class AsyncLockcore:
    """lockcore for asyncio, with its default retry policy."""

    def __init__(self, lock: Any, order: Order) -> None:
        self._try_acquire, self._try_release = lock.try_acquire, lock.try_release
        self._ttl_ms, self._wait_ms = order.ttl_ms, 0 if order.own else order.wait_ms

    @classmethod
    async def connect(cls, order: Order) -> AsyncLockcore:
        """Connect to all instances."""
        redlock: Any = import_module("lockcore").AsyncRedlock
        return cls(await redlock.connect(order.urls, key_prefix=KEY_PREFIX, rejoin="trust-first"), order)

    async def acquire(self, resource: str) -> Any:
        """See AsyncLock."""
        lease = await self._try_acquire(resource, self._ttl_ms, self._wait_ms)
        return lease if hasattr(lease, "valid_until_ns") else None

    async def release(self, held: Any) -> None:
        """See AsyncLock."""
        if (await self._try_release(held)).value != RELEASED:
            raise NotReleasedError


class RedisPy:
    """redis-py's Lock, one server."""

    def __init__(self, order: Order) -> None:
        self._client: Any = import_module("redis").Redis.from_url(order.urls[0])
        self._order = order

    def acquire(self, resource: str) -> Any:
        """See Lock."""
        order = self._order
        lock = self._client.lock(resource, timeout=order.ttl_ms / 1000, blocking_timeout=order.wait_ms / 1000)
        return lock if lock.acquire() else None

    def release(self, held: Any) -> None:
        """See Lock."""
        held.release()


class RedisAsyncio:
    """redis.asyncio's Lock, one server."""

    def __init__(self, order: Order) -> None:
        self._client: Any = import_module("redis.asyncio").Redis.from_url(order.urls[0])
        self._order = order

    @classmethod
    async def connect(cls, order: Order) -> RedisAsyncio:
        """It connects on first use."""
        return cls(order)

    async def acquire(self, resource: str) -> Any:
        """See AsyncLock."""
        order = self._order
        lock = self._client.lock(resource, timeout=order.ttl_ms / 1000, blocking_timeout=order.wait_ms / 1000)
        return lock if await lock.acquire() else None

    async def release(self, held: Any) -> None:
        """See AsyncLock."""
        await held.release()


class PythonRedisLock:
    """python-redis-lock, one server; it wakes a waiter by BLPOP."""

    def __init__(self, order: Order) -> None:
        self._lock: Any = import_module("redis_lock").Lock
        self._client = import_module("redis").StrictRedis.from_url(order.urls[0])
        self._order = order

    def acquire(self, resource: str) -> Any:
        """See Lock."""
        lock = self._lock(self._client, resource, expire=self._order.ttl_ms // 1000)
        return lock if lock.acquire(timeout=self._order.wait_ms // 1000) else None

    def release(self, held: Any) -> None:
        """See Lock."""
        held.release()


class RedlockPy:
    """redlock-py: instances one after the other, 3 tries 0.2 s apart."""

    def __init__(self, order: Order) -> None:
        self._manager: Any = import_module("redlock").Redlock(list(order.urls))
        self._ttl_ms = order.ttl_ms

    def acquire(self, resource: str) -> Any:
        """See Lock."""
        return self._manager.lock(resource, self._ttl_ms) or None

    def release(self, held: Any) -> None:
        """See Lock."""
        self._manager.unlock(held)


class Pottery:
    """pottery's Redlock: a thread pool per operation."""

    def __init__(self, order: Order) -> None:
        self._redlock: Any = import_module("pottery").Redlock
        redis: Any = import_module("redis")
        self._masters = {redis.Redis.from_url(url) for url in order.urls}
        self._order = order

    def acquire(self, resource: str) -> Any:
        """See Lock."""
        lock = self._redlock(key=resource, masters=self._masters, auto_release_time=self._order.ttl_ms / 1000)
        return lock if lock.acquire(timeout=self._order.wait_ms / 1000) else None

    def release(self, held: Any) -> None:
        """See Lock."""
        held.release()


class AsyncPottery:
    """pottery's AIORedlock."""

    def __init__(self, order: Order) -> None:
        self._redlock: Any = import_module("pottery").AIORedlock
        redis: Any = import_module("redis.asyncio")
        self._masters = {redis.Redis.from_url(url) for url in order.urls}
        self._order = order

    @classmethod
    async def connect(cls, order: Order) -> AsyncPottery:
        """It connects on first use."""
        return cls(order)

    async def acquire(self, resource: str) -> Any:
        """See AsyncLock."""
        lock = self._redlock(key=resource, masters=self._masters, auto_release_time=self._order.ttl_ms / 1000)
        return lock if await lock.acquire(timeout=self._order.wait_ms / 1000) else None

    async def release(self, held: Any) -> None:
        """See AsyncLock."""
        await held.release()


class Aioredlock:
    """aioredlock on aioredis 1: 3 tries, 0.1 to 0.3 s apart, then LockError."""

    def __init__(self, order: Order) -> None:
        parts = [urlsplit(url) for url in order.urls]
        servers = [{"host": part.hostname, "port": part.port} for part in parts]
        self._manager: Any = import_module("aioredlock").Aioredlock(servers)
        self._gave_up: Any = import_module("aioredlock").LockError
        self._ttl_s = order.ttl_ms / 1000

    @classmethod
    async def connect(cls, order: Order) -> Aioredlock:
        """It connects on first use."""
        return cls(order)

    async def acquire(self, resource: str) -> Any:
        """See AsyncLock."""
        try:
            return await self._manager.lock(resource, lock_timeout=self._ttl_s)
        except self._gave_up:
            return None

    async def release(self, held: Any) -> None:
        """See AsyncLock."""
        await self._manager.unlock(held)
