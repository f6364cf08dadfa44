"""What is really on real servers: *URLs, a prefix → keys, values, remaining times*, read by
redis-py."""

from collections.abc import Sequence
from functools import cache

import redis


@cache
def client(url: str) -> redis.Redis:
    """A connection of the test's own."""
    return redis.Redis.from_url(url, protocol=2, socket_timeout=5.0)


def keys_on(urls: Sequence[str], prefix: str) -> list[bytes]:
    """Every key with that prefix on any of the servers."""
    return [key for url in urls for key in client(url).keys(f"{prefix}*")]


def values_on(urls: Sequence[str], key: str) -> list[bytes | None]:
    """What each server holds under `key`."""
    return [client(url).get(key) for url in urls]


def ttls_on(urls: Sequence[str], key: str) -> list[int]:
    """What each server says is left of `key`, in ms."""
    return [client(url).pttl(key) for url in urls]
