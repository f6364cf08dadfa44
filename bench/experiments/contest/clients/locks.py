"""Each Python lock behind the same two calls: *a library as it comes → acquire and release*.

Rules: defaults of the library, retries included, but the TTL (10 s) and, where one must say how long to wait, the
order's wait; nothing is tuned. Imported by name, as each is installed in an environment of its own, lockcore in ours.
Source: the quick start of each library's README.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal
from urllib.parse import urlsplit

from bench.experiments.contest.clients.order import ClientOrder

KEY_PREFIX = "lockbench:"


class _Library:
    """Of most libraries: an acquire that gave up returns None, a release nothing."""

    refused: type = type(None)
    released: object = None

    @classmethod
    async def connect(cls, order: ClientOrder) -> Any:
        """For asyncio: it connects on first use."""
        return cls(order)  # type: ignore[call-arg]  # each library takes it


class Lockcore:
    """lockcore with its default retry policy; the loop calls its own functions, as a user would."""

    def __init__(self, order: ClientOrder, lock: Any) -> None:
        core: Any = import_module("lockcore")
        self.refused, self.released = core.Denied, core.Outcome.RELEASED
        self.acquire, self.release = lock.try_acquire, lock.try_release
        if order.waiting:
            lock.keep_alive(lock.acquire("held", order.ttl_ms))

    @classmethod
    def blocking(cls, shell: Literal["gevent", "threads"]) -> Callable[[ClientOrder], Lockcore]:
        """For threads or gevent."""
        return lambda order: cls(order, import_module("lockcore").Redlock.connect(shell=shell, **_settings(order)))

    @classmethod
    async def connect(cls, order: ClientOrder) -> Lockcore:
        """For asyncio."""
        return cls(order, await import_module("lockcore").AsyncRedlock.connect(**_settings(order)))


def _settings(order: ClientOrder) -> dict[str, Any]:
    return {"urls": order.urls, "key_prefix": KEY_PREFIX, "rejoin": "trust-first", "merge_releases": order.merge}


class RedisPyByHand(_Library):
    """The commands of Redlock by redis-py, one instance after the other."""

    def __init__(self, order: ClientOrder) -> None:
        redis: Any = import_module("redis")
        self._clients = [redis.Redis.from_url(url) for url in order.urls]
        source = import_module("lockcore.commands").COMPARE_AND_DELETE.source
        self._scripts = [client.register_script(source) for client in self._clients]

    def acquire(self, resource: str, ttl_ms: int, wait_ms: int) -> str:
        """See Lock."""
        for client in self._clients:
            client.set(KEY_PREFIX + resource, "owner", nx=True, px=ttl_ms)
        return KEY_PREFIX + resource

    def release(self, held: str) -> None:
        """See Lock."""
        for script in self._scripts:
            script(keys=[held], args=["owner"])


class RedisPy(_Library):
    """redis-py's Lock, one server."""

    def __init__(self, order: ClientOrder) -> None:
        self._client: Any = import_module("redis").Redis.from_url(order.urls[0])

    def acquire(self, resource: str, ttl_ms: int, wait_ms: int) -> Any:
        """See Lock."""
        lock = self._client.lock(resource, timeout=ttl_ms / 1000, blocking_timeout=wait_ms / 1000)
        return lock if lock.acquire() else None

    def release(self, held: Any) -> None:
        """See Lock."""
        held.release()


class RedisAsyncio(_Library):
    """redis.asyncio's Lock, one server."""

    def __init__(self, order: ClientOrder) -> None:
        self._client: Any = import_module("redis.asyncio").Redis.from_url(order.urls[0])

    async def acquire(self, resource: str, ttl_ms: int, wait_ms: int) -> Any:
        """See Lock."""
        lock = self._client.lock(resource, timeout=ttl_ms / 1000, blocking_timeout=wait_ms / 1000)
        return lock if await lock.acquire() else None

    async def release(self, held: Any) -> None:
        """See Lock."""
        await held.release()


class PythonRedisLock(_Library):
    """python-redis-lock, one server; it wakes a waiter by BLPOP."""

    def __init__(self, order: ClientOrder) -> None:
        self._lock: Any = import_module("redis_lock").Lock
        self._client = import_module("redis").StrictRedis.from_url(order.urls[0])

    def acquire(self, resource: str, ttl_ms: int, wait_ms: int) -> Any:
        """See Lock."""
        lock = self._lock(self._client, resource, expire=ttl_ms // 1000)
        return lock if lock.acquire(timeout=wait_ms // 1000) else None

    def release(self, held: Any) -> None:
        """See Lock."""
        held.release()


class RedlockPy(_Library):
    """redlock-py: instances one after the other, 3 tries 0.2 s apart."""

    def __init__(self, order: ClientOrder) -> None:
        self._manager: Any = import_module("redlock").Redlock(list(order.urls))

    def acquire(self, resource: str, ttl_ms: int, wait_ms: int) -> Any:
        """See Lock."""
        return self._manager.lock(resource, ttl_ms) or None

    def release(self, held: Any) -> None:
        """See Lock."""
        self._manager.unlock(held)


class Pottery(_Library):
    """pottery's Redlock: a thread pool per operation."""

    def __init__(self, order: ClientOrder) -> None:
        self._redlock: Any = import_module("pottery").Redlock
        redis: Any = import_module("redis")
        self._masters = {redis.Redis.from_url(url) for url in order.urls}

    def acquire(self, resource: str, ttl_ms: int, wait_ms: int) -> Any:
        """See Lock."""
        lock = self._redlock(key=resource, masters=self._masters, auto_release_time=ttl_ms / 1000)
        return lock if lock.acquire(timeout=wait_ms / 1000) else None

    def release(self, held: Any) -> None:
        """See Lock."""
        held.release()


class AsyncPottery(_Library):
    """pottery's AIORedlock."""

    def __init__(self, order: ClientOrder) -> None:
        self._redlock: Any = import_module("pottery").AIORedlock
        redis: Any = import_module("redis.asyncio")
        self._masters = {redis.Redis.from_url(url) for url in order.urls}

    async def acquire(self, resource: str, ttl_ms: int, wait_ms: int) -> Any:
        """See Lock."""
        lock = self._redlock(key=resource, masters=self._masters, auto_release_time=ttl_ms / 1000)
        return lock if await lock.acquire(timeout=wait_ms / 1000) else None

    async def release(self, held: Any) -> None:
        """See Lock."""
        await held.release()


class Aioredlock(_Library):
    """aioredlock on aioredis 1: 3 tries, 0.1 to 0.3 s apart, then LockError."""

    def __init__(self, order: ClientOrder) -> None:
        parts = [urlsplit(url) for url in order.urls]
        servers = [{"host": part.hostname, "port": part.port} for part in parts]
        self._manager: Any = import_module("aioredlock").Aioredlock(servers)
        self._gave_up: Any = import_module("aioredlock").LockError

    async def acquire(self, resource: str, ttl_ms: int, wait_ms: int) -> Any:
        """See Lock."""
        try:
            return await self._manager.lock(resource, lock_timeout=ttl_ms / 1000)
        except self._gave_up:
            return None

    async def release(self, held: Any) -> None:
        """See Lock."""
        await self._manager.unlock(held)
