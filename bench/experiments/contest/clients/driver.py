"""Each Python lock behind the same two calls, alone in its process: *an order on stdin → its answer on stdout*.

Rules: defaults of the library, retries included, but the TTL (10 s) and, where one must say how long to wait, the
order's wait; nothing is tuned. Imported by name, as each is installed in an environment of its own, lockcore in ours.
What a library writes to stdout goes to stderr, so that the answer stands alone. Source: the quick start of
each library's README.
"""

import json
import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from operator import methodcaller
from typing import Any
from urllib.parse import urlsplit

from bench.experiments.contest.clients import wire
from bench.experiments.contest.clients.loops import Lock, run_greenlets, run_tasks, run_threads
from bench.experiments.contest.clients.order import ClientOrder, DriverAnswer

RELEASE = methodcaller("release")


def lockcore(shell: str, order: ClientOrder) -> Lock:
    """lockcore for threads or gevent, with its default retry policy; its own functions, as a user would call them."""
    core = import_module("lockcore")
    return _lockcore(core, core.Redlock.connect(shell=shell, **_settings(order)), order)


async def lockcore_async(order: ClientOrder) -> Lock:
    """lockcore for asyncio, as above."""
    core = import_module("lockcore")
    return _lockcore(core, await core.AsyncRedlock.connect(**_settings(order)), order)


def _settings(order: ClientOrder) -> dict[str, Any]:
    return {"urls": order.urls, "key_prefix": wire.KEY_PREFIX, "rejoin": "trust-first", "merge_releases": order.merge}


def _lockcore(core: Any, lock: Any, order: ClientOrder) -> Lock:
    if order.waiting:
        lock.keep_alive(lock.acquire("held", order.ttl_ms))
    return Lock(lock.try_acquire, lock.try_release, core.Denied, core.Outcome.RELEASED)


def redis_by_hand(order: ClientOrder) -> Lock:
    """The commands of Redlock by redis-py, one instance after the other."""
    redis = import_module("redis")
    clients = [redis.Redis.from_url(url) for url in order.urls]
    source = import_module("lockcore.commands").COMPARE_AND_DELETE.source
    scripts = [client.register_script(source) for client in clients]

    def acquire(resource: str, ttl_ms: int, _wait_ms: int) -> str:
        for client in clients:
            client.set(wire.KEY_PREFIX + resource, "owner", nx=True, px=ttl_ms)
        return wire.KEY_PREFIX + resource

    def release(key: str) -> None:
        for script in scripts:
            script(keys=[key], args=["owner"])

    return Lock(acquire, release)


def redis_py(order: ClientOrder) -> Lock:
    """redis-py's Lock, one server."""
    client = import_module("redis").Redis.from_url(order.urls[0])

    def acquire(resource: str, ttl_ms: int, wait_ms: int) -> object:
        lock = client.lock(resource, timeout=ttl_ms / 1000, blocking_timeout=wait_ms / 1000)
        return lock if lock.acquire() else None

    return Lock(acquire, RELEASE)


async def redis_asyncio(order: ClientOrder) -> Lock:
    """redis.asyncio's Lock, one server."""
    client = import_module("redis.asyncio").Redis.from_url(order.urls[0])

    async def acquire(resource: str, ttl_ms: int, wait_ms: int) -> object:
        lock = client.lock(resource, timeout=ttl_ms / 1000, blocking_timeout=wait_ms / 1000)
        return lock if await lock.acquire() else None

    return Lock(acquire, RELEASE)


def python_redis_lock(order: ClientOrder) -> Lock:
    """python-redis-lock, one server; it wakes a waiter by BLPOP."""
    make = import_module("redis_lock").Lock
    client = import_module("redis").StrictRedis.from_url(order.urls[0])

    def acquire(resource: str, ttl_ms: int, wait_ms: int) -> object:
        lock = make(client, resource, expire=ttl_ms // 1000)
        return lock if lock.acquire(timeout=wait_ms // 1000) else None

    return Lock(acquire, RELEASE)


def redlock_py(order: ClientOrder) -> Lock:
    """redlock-py: instances one after the other, 3 tries 0.2 s apart; it says False when it gave up."""
    manager = import_module("redlock").Redlock(list(order.urls))
    return Lock(lambda resource, ttl_ms, _wait_ms: manager.lock(resource, ttl_ms), manager.unlock, refused=bool)


def pottery(order: ClientOrder) -> Lock:
    """pottery's Redlock: a thread pool per operation."""
    make = import_module("pottery").Redlock
    masters = {import_module("redis").Redis.from_url(url) for url in order.urls}

    def acquire(resource: str, ttl_ms: int, wait_ms: int) -> object:
        lock = make(key=resource, masters=masters, auto_release_time=ttl_ms / 1000)
        return lock if lock.acquire(timeout=wait_ms / 1000) else None

    return Lock(acquire, RELEASE)


async def pottery_asyncio(order: ClientOrder) -> Lock:
    """pottery's AIORedlock."""
    make = import_module("pottery").AIORedlock
    masters = {import_module("redis.asyncio").Redis.from_url(url) for url in order.urls}

    async def acquire(resource: str, ttl_ms: int, wait_ms: int) -> object:
        lock = make(key=resource, masters=masters, auto_release_time=ttl_ms / 1000)
        return lock if await lock.acquire(timeout=wait_ms / 1000) else None

    return Lock(acquire, RELEASE)


async def aioredlock(order: ClientOrder) -> Lock:
    """aioredlock on aioredis 1: 3 tries, 0.1 to 0.3 s apart, then LockError."""
    library = import_module("aioredlock")
    servers = [{"host": part.hostname, "port": part.port} for part in map(urlsplit, order.urls)]
    manager = library.Aioredlock(servers)

    async def acquire(resource: str, ttl_ms: int, _wait_ms: int) -> object:
        try:
            return await manager.lock(resource, lock_timeout=ttl_ms / 1000)
        except library.LockError:
            return None

    return Lock(acquire, manager.unlock)


def _tasks(loop: str, connect: Any, order: ClientOrder) -> DriverAnswer:
    answer: DriverAnswer = import_module(loop).run(run_tasks(connect, order))
    return answer


DRIVERS: dict[str, Callable[[ClientOrder], DriverAnswer]] = {
    "lockcore gevent": partial(run_greenlets, partial(lockcore, "gevent")),
    "lockcore threads": partial(run_threads, partial(lockcore, "threads")),
    "lockcore asyncio": partial(_tasks, "asyncio", lockcore_async),
    "lockcore uvloop": partial(_tasks, "uvloop", lockcore_async),
    "redis-py Lock": partial(run_threads, redis_py),
    "redis.asyncio Lock": partial(_tasks, "asyncio", redis_asyncio),
    "python-redis-lock": partial(run_threads, python_redis_lock),
    "redlock-py": partial(run_threads, redlock_py),
    "pottery": partial(run_threads, pottery),
    "pottery asyncio": partial(_tasks, "asyncio", pottery_asyncio),
    "aioredlock": partial(_tasks, "asyncio", aioredlock),
    "redis-py by hand": partial(run_threads, redis_by_hand),
    "raw": partial(run_threads, wire.raw),
    "replay": wire.replay,
}


def main() -> None:
    """Run the order on stdin."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)
    order = ClientOrder(**json.load(sys.stdin))
    answer.write(json.dumps(vars(DRIVERS[order.name](order))) + "\n")
    answer.flush()
    os._exit(0)  # threads of a library that still wait for a stopped server have nothing more to say


if __name__ == "__main__":
    main()
