"""Locks of libraries as their READMEs use them: *URLs → a lock*, for `lockbench judge`.

Imported by name inside, because each library may be absent.
"""

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

TTL_S = 2


def redis_py(urls: Sequence[str]) -> Callable[[str], Any]:
    """The Lock of redis-py."""
    import redis

    client = redis.Redis.from_url(urls[0])
    return lambda name: client.lock(name, timeout=TTL_S)


def redis_asyncio(urls: Sequence[str]) -> Callable[[str], Any]:
    """The same of redis.asyncio."""
    import redis.asyncio

    client = redis.asyncio.Redis.from_url(urls[0])
    return lambda name: client.lock(name, timeout=TTL_S)


async def aioredlock(urls: Sequence[str]) -> Callable[[str], Any]:
    """aioredlock on aioredis 1."""
    import aioredlock  # type: ignore[import-not-found]

    servers = [{"host": part.hostname, "port": part.port} for part in map(urlsplit, urls)]
    manager = aioredlock.Aioredlock(servers)

    async def lock(name: str) -> Any:
        return await manager.lock(name, lock_timeout=TTL_S)

    class Locks:
        """The library's calls by name."""

        def __init__(self) -> None:
            self._held: dict[str, Any] = {}

        async def acquire(self, name: str) -> None:
            self._held[name] = await lock(name)

        async def release(self, name: str) -> None:
            await manager.unlock(self._held.pop(name))

    return Locks()  # type: ignore[return-value]


def python_redis_lock(urls: Sequence[str]) -> Callable[[str], Any]:
    """python-redis-lock."""
    import redis
    import redis_lock  # type: ignore[import-not-found]

    client = redis.StrictRedis.from_url(urls[0])
    return lambda name: redis_lock.Lock(client, name, expire=TTL_S)


def pottery(urls: Sequence[str]) -> Callable[[str], Any]:
    """pottery's Redlock."""
    import pottery  # type: ignore[import-not-found]
    import redis

    masters = {redis.Redis.from_url(url) for url in urls}
    return lambda name: pottery.Redlock(key=name, masters=masters, auto_release_time=TTL_S)


def lockcore(urls: Sequence[str]) -> Callable[[str], Any]:
    """lockcore for threads."""
    from lockcore import Redlock

    redlock = Redlock.connect(urls, rejoin="trust-first")
    return lambda name: redlock.hold(name, ttl_ms=TTL_S * 1000, wait_ms=10_000)
