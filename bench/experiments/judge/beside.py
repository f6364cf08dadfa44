"""Connects two known locks. The judge compares the judged lock with both known locks, and drives
all three locks in the same way.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from redis import Redis

from lockcore import Redlock

TTL_S = 10.0
WAIT_S = 0.5


def redis_py(urls: Sequence[str]) -> Callable[[str], AbstractContextManager[object]]:
    """Return redis-py's Lock on the first server."""
    client = Redis.from_url(urls[0])
    return lambda name: client.lock(name, timeout=TTL_S, blocking_timeout=WAIT_S)


def lockcore(urls: Sequence[str]) -> Callable[[str], AbstractContextManager[object]]:
    """Return lockcore's lock for threads on all servers."""
    redlock = Redlock.connect(urls, rejoin="trust-first")
    return lambda name: redlock.hold(name, ttl_ms=int(TTL_S * 1000), wait_ms=int(WAIT_S * 1000))
