"""Connects the audited Python libraries: *an order that names a lock → this lock*. Each driver runs
alone in its process.

All settings, also the settings for retries, have the library's default values. There are two
exceptions. The audit sets the TTL of a lock to 10 s. If a library requires a waiting time, the
audit sets the waiting time, too. The driver imports a library by its name, because each library has
a virtual environment of its own. lockcore is in lockbench's environment. The calls come from the
quick start in each library's README.
"""

import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from operator import methodcaller
from typing import Any
from urllib.parse import urlsplit

from bench.experiments.judge.clients.lock import KEY_PREFIX, PUSH, ClientOrder, Connect, Lock, then
from bench.experiments.judge.clients.steps import serve


def lockcore(shell: str, order: ClientOrder) -> Lock:
    """Connect lockcore for threads or gevent. If the library's name in `order` ends with PUSH, the
    lock uses the retry policy `push`. Otherwise the lock uses its default retry policy. The driver
    uses only lockcore's public functions."""
    return _lockcore(import_module("lockcore").Redlock.connect(shell=shell, **_settings(order)))


async def lockcore_async(order: ClientOrder) -> Lock:
    """Connect lockcore for asyncio, with the same retry policies as `lockcore`."""
    return _lockcore(await import_module("lockcore").AsyncRedlock.connect(**_settings(order)))


def _settings(order: ClientOrder) -> dict[str, object]:
    settings = {
        "urls": order.urls,
        "key_prefix": KEY_PREFIX,
        "rejoin": "trust-first",
        "merge_releases": order.merge,
    }
    return settings | (
        {"retry": import_module("lockcore").RetryPolicy("push")}
        if order.name.endswith(PUSH)
        else {}
    )


def _lockcore(lock: Any) -> Lock:
    core = import_module("lockcore")
    return Lock(
        lock.try_acquire,
        lock.try_release,
        core.Denied,
        core.Outcome.RELEASED,
        lock.try_extend,
        is_held=lambda lease: time.monotonic_ns() < lease.valid_until_ns,
        valid_ms=lambda lease: (lease.valid_until_ns - time.monotonic_ns()) / 1e6,
        hold=lock.hold,
    )


def of_objects(
    make: Callable[[str, int, int], object],
    extend: Callable[[Any, int], object] | None = None,
    is_held: Callable[[Any], object] | None = None,
    get: Callable[[Any, int], object] = lambda lock, _wait_ms: lock.acquire(),
) -> Lock:
    """Return the lock of a library that has an object for each resource. `make` creates this
    object. `get` takes this object and a waiting time in ms, and tries to acquire the lock for up
    to this time."""

    def acquire(resource: str, ttl_ms: int, wait_ms: int) -> object:
        lock = make(resource, ttl_ms, wait_ms)
        return then(get(lock, wait_ms), lambda got: lock if got else None)

    return Lock(acquire, methodcaller("release"), extend=extend, is_held=is_held, hold=make)


def _in_seconds(make: Callable[..., object]) -> Callable[[str, int, int], object]:
    """Return a function that takes times in ms, converts the times to seconds, and passes them to
    `make`."""
    return lambda name, ttl_ms, wait_ms: make(
        name, timeout=ttl_ms / 1000, blocking_timeout=wait_ms / 1000
    )


def redis_lock(module: str, order: ClientOrder) -> Lock:
    """Connect the Lock of redis-py or redis.asyncio to one server."""
    return of_objects(
        _in_seconds(import_module(module).Redis.from_url(order.urls[0]).lock),
        lambda lock, ttl_ms: lock.extend(ttl_ms / 1000, replace_ttl=True),
        methodcaller("owned"),
    )


async def coredis(order: ClientOrder) -> Lock:
    """Connect coredis' Lock to one server."""
    client = import_module("coredis").Redis.from_url(order.urls[0])
    await client.__aenter__()
    return of_objects(
        _in_seconds(partial(import_module("coredis.patterns.lock").Lock, client)),
        lambda lock, ttl_ms: lock.extend(ttl_ms / 1000),
    )


def python_redis_lock(order: ClientOrder) -> Lock:
    """Connect python-redis-lock to one server. A waiting caller of this library blocks in BLPOP
    until the lock is free."""
    make_lock = partial(
        import_module("redis_lock").Lock, import_module("redis").StrictRedis.from_url(order.urls[0])
    )
    return of_objects(
        lambda name, ttl_ms, _wait_ms: make_lock(name, expire=ttl_ms // 1000),
        lambda lock, ttl_ms: lock.extend(ttl_ms // 1000),
        lambda lock: lock.get_owner_id() == lock.id,
        lambda lock, wait_ms: lock.acquire(timeout=wait_ms // 1000),
    )


def portalocker(order: ClientOrder) -> Lock:
    """Connect portalocker's RedisLock to one server. This lock uses a subscription instead of a
    key, so it has no TTL. A caller waits for the lock for 5 s."""
    library = import_module("portalocker")
    client = import_module("redis").Redis.from_url(order.urls[0])

    def get(lock: Any, _wait_ms: int) -> object:
        try:
            return lock.acquire()
        except library.AlreadyLocked:
            return None

    # Version 4.1 cannot be asked whether it still holds the lock.
    is_held = (lambda lock: not lock.lost) if hasattr(library.RedisLock, "lost") else None
    return of_objects(
        lambda name, _ttl_ms, _wait_ms: library.RedisLock(name, client), is_held=is_held, get=get
    )


def redlock_py(order: ClientOrder) -> Lock:
    """Connect redlock-py. This library asks one instance after another. An acquire makes up to 3
    tries, with 0.2 s between two tries. If the last try fails, the acquire returns False."""
    manager = import_module("redlock").Redlock(list(order.urls))
    return Lock(
        lambda resource, ttl_ms, _wait_ms: manager.lock(resource, ttl_ms),
        manager.unlock,
        refused=bool,
        valid_ms=lambda lock: lock.validity,
    )


def redlock_ng(kind: str, order: ClientOrder) -> Lock:
    """Connect redlock-ng. This library asks one instance after another. After a failed first try,
    an acquire makes up to 3 more tries, with 0.1 to 0.3 s between two tries. The class AsyncRedlock
    of redlock-ng cannot extend a lease."""
    manager = getattr(import_module("redlock"), kind)(list(order.urls))
    return Lock(
        lambda resource, ttl_ms, _wait_ms: manager.acquire(resource, ttl_ms),
        manager.release,
        extend=getattr(manager, "extend", None),
        is_held=lambda lock: lock.valid,
        valid_ms=lambda lock: lock.validity,
        hold=lambda resource, ttl_ms, _wait_ms: manager.lock(resource, ttl_ms),
    )


def pottery(kind: str, module: str, order: ClientOrder) -> Lock:
    """Connect pottery's Redlock or AIORedlock. The Redlock starts a thread pool for each
    operation."""
    masters = {import_module(module).Redis.from_url(url) for url in order.urls}
    make_lock = partial(getattr(import_module("pottery"), kind), masters=masters)
    return of_objects(
        lambda name, ttl_ms, wait_ms: make_lock(
            key=name, auto_release_time=ttl_ms / 1000, context_manager_timeout=wait_ms / 1000
        ),
        lambda lock, _ttl_ms: lock.extend(),
        methodcaller("locked"),
        lambda lock, wait_ms: lock.acquire(timeout=wait_ms / 1000),
    )


async def aioredlock(order: ClientOrder) -> Lock:
    """Connect aioredlock. This library needs version 1 of aioredis. An acquire makes up to 3 tries,
    with 0.1 to 0.3 s between two tries. If the last try fails, the acquire raises LockError."""
    library = import_module("aioredlock")
    servers = [{"host": part.hostname, "port": part.port} for part in map(urlsplit, order.urls)]
    manager = library.Aioredlock(servers)

    async def acquire(resource: str, ttl_ms: int, _wait_ms: int) -> object:
        try:
            return await manager.lock(resource, lock_timeout=ttl_ms / 1000)
        except library.LockError:
            return None

    return Lock(
        acquire,
        manager.unlock,
        extend=lambda lock, _ttl_ms: lock.extend(),
        is_held=methodcaller("is_locked"),
        hold=lambda resource, ttl_ms, _wait_ms: manager.lock(resource, lock_timeout=ttl_ms / 1000),
    )


def control(order: ClientOrder) -> Lock:
    """Connect the simple Redlock with a planted fault. The lock's name contains the name of the
    fault."""
    from bench.experiments.audit.clients.control import control_lock

    return control_lock(order)


# For each library's name: how the callers run, and the function that connects the library.
LIBRARIES: dict[str, tuple[str, Connect]] = {
    "lockcore gevent": ("gevent", partial(lockcore, "gevent")),
    "lockcore threads": ("threads", partial(lockcore, "threads")),
    "lockcore asyncio": ("asyncio", lockcore_async),
    "lockcore uvloop": ("uvloop", lockcore_async),
    "redis-py Lock": ("threads", partial(redis_lock, "redis")),
    "redis.asyncio Lock": ("asyncio", partial(redis_lock, "redis.asyncio")),
    "coredis Lock": ("asyncio", coredis),
    "python-redis-lock": ("threads", python_redis_lock),
    "portalocker": ("threads", portalocker),
    "portalocker 4.1": ("threads", portalocker),
    "redlock-py": ("threads", redlock_py),
    "redlock-ng": ("threads", partial(redlock_ng, "Redlock")),
    "redlock-ng asyncio": ("asyncio", partial(redlock_ng, "AsyncRedlock")),
    "pottery": ("threads", partial(pottery, "Redlock", "redis")),
    "pottery asyncio": ("asyncio", partial(pottery, "AIORedlock", "redis.asyncio")),
    "aioredlock": ("asyncio", aioredlock),
    "control": ("threads", control),
}


def library(order: ClientOrder) -> tuple[str, Connect]:
    """Return how the callers of the library in `order` run (threads, gevent, asyncio or uvloop).
    Also return the function that connects this library."""
    return LIBRARIES[order.name.partition(":")[0].removesuffix(PUSH)]


if __name__ == "__main__":
    serve(library)
