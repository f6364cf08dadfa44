"""Known locks beside a judged one, for comparison: *URLs → redis-py's lock, or lockcore's*. They
are driven like the judged lock."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from redis import Redis

from lockcore import Redlock

TTL_S = 10.0
WAIT_S = 0.5


def redis_py(urls: Sequence[str]) -> Callable[[str], AbstractContextManager[object]]:
    """The Lock of redis-py, on the first server."""
    client = Redis.from_url(urls[0])
    return lambda name: client.lock(name, timeout=TTL_S, blocking_timeout=WAIT_S)


def lockcore(urls: Sequence[str]) -> Callable[[str], AbstractContextManager[object]]:
    """lockcore for threads, on all servers."""
    redlock = Redlock.connect(urls, rejoin="trust-first")
    return lambda name: redlock.hold(name, ttl_ms=int(TTL_S * 1000), wait_ms=int(WAIT_S * 1000))
