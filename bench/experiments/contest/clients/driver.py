"""Each Python lock behind the same calls, alone in its process: *an order on stdin → its answer on stdout*.

With the word `steps` the order is one line, and steps.py answers those that follow. Two contestants have no lock:

    replay   each connection sends its next batch, lockcore's bytes built beforehand, once it has counted the bytes of
             all replies to the last one: a client that decides nothing, so what the servers alone can bear
    raw      one caller: send to all, then read all, over blocking sockets

Rules: defaults of the library, retries included, but the TTL (10 s) and, where one must say how long to wait, the
order's wait; nothing is tuned. Imported by name, as each is installed in an environment of its own, lockcore in ours.
What a library writes to stdout goes to stderr. Source: the quick start of each library's README.
"""

import json
import logging
import os
import select
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from inspect import isawaitable
from operator import methodcaller
from typing import Any
from urllib.parse import urlsplit

from bench.experiments.contest.clients.loops import (
    PUSH,
    ClientOrder,
    DriverAnswer,
    Lock,
    meter,
    run_blocking,
    run_tasks,
    value,
)
from bench.experiments.contest.clients.steps import Answer, step_tasks, step_threads

KEY_PREFIX = "lockbench:"
RELEASE = methodcaller("release")


def lockcore(shell: str, order: ClientOrder) -> Lock:
    """lockcore for threads or gevent, with its default retry policy or `push`; its own functions, as users do."""
    lock = import_module("lockcore").Redlock.connect(shell=shell, **_settings(order))
    return _lockcore(lock, lambda lease, ttl_ms: bool(lock.try_extend(lease, ttl_ms)))


async def lockcore_async(order: ClientOrder) -> Lock:
    """lockcore for asyncio, as above."""
    lock = await import_module("lockcore").AsyncRedlock.connect(**_settings(order))

    async def extend(lease: Any, ttl_ms: int) -> bool:
        return bool(await lock.try_extend(lease, ttl_ms))

    return _lockcore(lock, extend)


def _settings(order: ClientOrder) -> dict[str, Any]:
    told = {"urls": order.urls, "key_prefix": KEY_PREFIX, "rejoin": "trust-first", "merge_releases": order.merge}
    return told | ({"retry": import_module("lockcore").RetryPolicy("push")} if order.name.endswith(PUSH) else {})


def _lockcore(lock: Any, extend: Callable[[Any, int], Any]) -> Lock:
    core = import_module("lockcore")
    return Lock(
        lock.try_acquire, lock.try_release, core.Denied, core.Outcome.RELEASED,
        extend=extend, is_held=lambda lease: time.monotonic_ns() < lease.valid_until_ns,
        valid_ms=lambda lease: (lease.valid_until_ns - time.monotonic_ns()) / 1e6,
        hold=lock.hold,
    )  # fmt: skip


def redis_by_hand(order: ClientOrder) -> Lock:
    """The commands of Redlock by redis-py, one instance after the other."""
    redis = import_module("redis")
    clients = [redis.Redis.from_url(url) for url in order.urls]
    source = import_module("lockcore.commands").COMPARE_AND_DELETE.source
    scripts = [client.register_script(source) for client in clients]

    def acquire(resource: str, ttl_ms: int, _wait_ms: int) -> str:
        for client in clients:
            client.set(KEY_PREFIX + resource, "owner", nx=True, px=ttl_ms)
        return KEY_PREFIX + resource

    def release(key: str) -> None:
        for script in scripts:
            script(keys=[key], args=["owner"])

    return Lock(acquire, release)


def getting(
    make: Callable[[str, int, int], object], get: Callable[[Any, int], object] = lambda lock, _wait_ms: lock.acquire()
) -> Callable[[str, int, int], object]:
    """How to acquire with a library that `make`s an object per lock, which `get` tries to get for so many ms."""

    def acquire(resource: str, ttl_ms: int, wait_ms: int) -> object:
        lock = make(resource, ttl_ms, wait_ms)
        got = get(lock, wait_ms)
        return once_got(lock, got) if isawaitable(got) else lock if got else None

    return acquire


async def once_got(lock: object, got: Awaitable[object]) -> object:
    """The lock of a library of coroutines."""
    return lock if await got else None


def redis_lock(module: str, order: ClientOrder) -> Lock:
    """The Lock of redis-py or redis.asyncio, one server."""
    client = import_module(module).Redis.from_url(order.urls[0])

    def make(resource: str, ttl_ms: int, wait_ms: int) -> object:
        return client.lock(resource, timeout=ttl_ms / 1000, blocking_timeout=wait_ms / 1000)

    return Lock(
        getting(make), RELEASE,
        extend=lambda lock, ttl_ms: lock.extend(ttl_ms / 1000, replace_ttl=True),
        is_held=methodcaller("owned"), hold=make,
    )  # fmt: skip


async def coredis(order: ClientOrder) -> Lock:
    """coredis' Lock, one server."""
    make_lock = import_module("coredis.patterns.lock").Lock
    client = import_module("coredis").Redis.from_url(order.urls[0])
    await client.__aenter__()

    def make(resource: str, ttl_ms: int, wait_ms: int) -> object:
        return make_lock(client, resource, timeout=ttl_ms / 1000, blocking_timeout=wait_ms / 1000)

    return Lock(getting(make), RELEASE, extend=lambda lock, ttl_ms: lock.extend(ttl_ms / 1000), hold=make)


def python_redis_lock(order: ClientOrder) -> Lock:
    """python-redis-lock, one server; it wakes a waiter by BLPOP."""
    make_lock = import_module("redis_lock").Lock
    client = import_module("redis").StrictRedis.from_url(order.urls[0])

    def make(resource: str, ttl_ms: int, _wait_ms: int) -> object:
        return make_lock(client, resource, expire=ttl_ms // 1000)

    return Lock(
        getting(make, lambda lock, wait_ms: lock.acquire(timeout=wait_ms // 1000)), RELEASE,
        extend=lambda lock, ttl_ms: lock.extend(ttl_ms // 1000),
        is_held=lambda lock: lock.get_owner_id() == lock.id, hold=make,
    )  # fmt: skip


def redlock_py(order: ClientOrder) -> Lock:
    """redlock-py: instances one after the other, 3 tries 0.2 s apart; it says False when it gave up."""
    manager = import_module("redlock").Redlock(list(order.urls))
    return Lock(
        lambda resource, ttl_ms, _wait_ms: manager.lock(resource, ttl_ms), manager.unlock, refused=bool,
        valid_ms=lambda lock: lock.validity,
    )  # fmt: skip


def redlock_ng(kind: str, order: ClientOrder) -> Lock:
    """redlock-ng: instances one after the other, 3 more tries 0.1 to 0.3 s apart; its AsyncRedlock extends nothing."""
    manager = getattr(import_module("redlock"), kind)(list(order.urls))
    return Lock(
        lambda resource, ttl_ms, _wait_ms: manager.acquire(resource, ttl_ms), manager.release,
        extend=getattr(manager, "extend", None), is_held=lambda lock: lock.valid, valid_ms=lambda lock: lock.validity,
        hold=lambda resource, ttl_ms, _wait_ms: manager.lock(resource, ttl_ms),
    )  # fmt: skip


def pottery(kind: str, module: str, order: ClientOrder) -> Lock:
    """pottery's Redlock, a thread pool per operation, or its AIORedlock."""
    masters = {import_module(module).Redis.from_url(url) for url in order.urls}
    make_lock = getattr(import_module("pottery"), kind)

    def make(resource: str, ttl_ms: int, wait_ms: int) -> object:
        return make_lock(
            key=resource, masters=masters, auto_release_time=ttl_ms / 1000, context_manager_timeout=wait_ms / 1000
        )

    return Lock(
        getting(make, lambda lock, wait_ms: lock.acquire(timeout=wait_ms / 1000)), RELEASE,
        extend=lambda lock, _ttl_ms: lock.extend(), is_held=methodcaller("locked"), hold=make,
    )  # fmt: skip


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

    return Lock(
        acquire, manager.unlock,
        extend=lambda lock, _ttl_ms: lock.extend(), is_held=methodcaller("is_locked"),
        hold=lambda resource, ttl_ms, _wait_ms: manager.lock(resource, lock_timeout=ttl_ms / 1000),
    )  # fmt: skip


def control(order: ClientOrder) -> Lock:
    """Redlock by hand with a fault, for the audit."""
    lock: Lock = import_module("bench.experiments.contest.clients.control").control(order)
    return lock


def _sockets(order: ClientOrder) -> list[socket.socket]:
    addresses = (urlsplit(url) for url in order.urls)
    sockets = [socket.create_connection((address.hostname, address.port), timeout=10) for address in addresses]
    for sock in sockets:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sockets


def _batches(order: ClientOrder) -> tuple[bytes, bytes]:
    """The SETs and the releases of all callers, as lockcore would send them to the instances of `order`."""
    from lockcore import Redlock  # peers' environments have none
    from lockcore.claims import Claims
    from lockcore.commands import FIRST_NUMBER, Dialect, set_nx_px
    from lockcore.settings import Settings

    with Redlock.connect(order.urls, shell="threads", key_prefix=KEY_PREFIX, rejoin="trust-first") as lock:  # noqa: S604 - a way of waiting
        encode_release = Dialect(lock.instances[0].release_command, native_extend=False).encode_release
    head, tail = set_nx_px(order.ttl_ms)
    claim, first = Claims(Settings(key_prefix=KEY_PREFIX)).claim, FIRST_NUMBER
    claims = [claim(order.resource(caller), first + caller) for caller in range(order.callers)]
    return b"".join(head + claim + tail for claim in claims), b"".join(map(encode_release, claims))


def replay(order: ClientOrder) -> DriverAnswer:
    """Blind replay: warm up, then measure."""
    sizes = (order.callers * len(reply) for reply in (b"+OK\r\n", b":1\r\n"))
    batches = list(zip(_batches(order), sizes, strict=True))
    sockets = {sock.fileno(): sock for sock in _sockets(order)}
    poll = select.epoll()
    for fileno, sock in sockets.items():
        sock.setblocking(False)
        poll.register(fileno, select.EPOLLIN)

    def load(seconds: float) -> float:
        until = time.perf_counter() + seconds
        stage, missing, cycles = dict.fromkeys(sockets, 0), dict.fromkeys(sockets, batches[0][1]), 0
        for sock in sockets.values():
            sock.send(batches[0][0])
        busy = len(sockets)
        while busy:
            for fileno, _ in poll.poll():
                missing[fileno] -= len(sockets[fileno].recv(65536))
                if missing[fileno]:
                    continue
                stage[fileno] ^= 1
                if not stage[fileno]:
                    cycles += order.callers
                    if time.perf_counter() >= until:
                        busy -= 1
                        continue
                data, missing[fileno] = batches[stage[fileno]]
                sockets[fileno].send(data)
        return cycles / len(sockets)

    load(order.warmup_s)
    begin_s, used_us = time.perf_counter(), meter(order.pids)
    cycles = load(order.seconds)
    return DriverAnswer(time.perf_counter() - begin_s, cycles, *used_us(), all_cycles=cycles)


def raw(order: ClientOrder) -> Lock:
    """What a single acquire costs without any client. One caller only."""
    (claim, release), sockets = _batches(order), _sockets(order)

    def exchange(data: bytes) -> None:
        for sock in sockets:
            sock.send(data)
        for sock in sockets:
            sock.recv(64)

    return Lock(lambda *_: exchange(claim), lambda _held: exchange(release), refused=bool)


LIBRARIES: dict[str, tuple[str, Callable[[ClientOrder], Any]]] = {  # how its callers run, how it is connected
    "lockcore gevent": ("gevent", partial(lockcore, "gevent")),
    "lockcore threads": ("threads", partial(lockcore, "threads")),
    "lockcore asyncio": ("asyncio", lockcore_async),
    "lockcore uvloop": ("uvloop", lockcore_async),
    "redis-py Lock": ("threads", partial(redis_lock, "redis")),
    "redis.asyncio Lock": ("asyncio", partial(redis_lock, "redis.asyncio")),
    "coredis Lock": ("asyncio", coredis),
    "python-redis-lock": ("threads", python_redis_lock),
    "redlock-py": ("threads", redlock_py),
    "redlock-ng": ("threads", partial(redlock_ng, "Redlock")),
    "redlock-ng asyncio": ("asyncio", partial(redlock_ng, "AsyncRedlock")),
    "pottery": ("threads", partial(pottery, "Redlock", "redis")),
    "pottery asyncio": ("asyncio", partial(pottery, "AIORedlock", "redis.asyncio")),
    "aioredlock": ("asyncio", aioredlock),
    "redis-py by hand": ("threads", redis_by_hand),
    "raw": ("threads", raw),
    "control": ("threads", control),
}
BLOCKING = ("threads", "gevent")


def drive(order: ClientOrder) -> DriverAnswer:
    """Have its callers lock and release until the time is over."""
    if order.name == "replay":
        return replay(order)
    how, connect = LIBRARIES[order.name.removesuffix(PUSH)]
    if how in BLOCKING:
        return run_blocking(connect, order, greenlets=how == "gevent")
    answer: DriverAnswer = import_module(how).run(run_tasks(connect, order))
    return answer


def step(order: ClientOrder, say: Callable[[Answer], None]) -> None:
    """Do the steps on stdin."""
    how, connect = LIBRARIES[order.name.partition(":")[0].removesuffix(PUSH)]
    read: Callable[[], str] = sys.stdin.readline
    if how == "gevent":  # while greenlets go on
        read = partial(import_module("gevent").get_hub().threadpool.apply, sys.stdin.readline)
    if how in BLOCKING:
        step_threads(connect(order), say, read)
        return

    async def steps() -> None:
        await step_tasks(await value(connect(order)), say)

    import_module(how).run(steps())


def main() -> None:
    """Run the order on stdin, and with the word `steps` what follows it."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)

    def say(said: Any) -> None:
        answer.write(json.dumps(said) + "\n")
        answer.flush()

    if sys.argv[1:] == ["steps"]:
        step(ClientOrder(**json.loads(sys.stdin.readline())), say)
    else:
        say(vars(drive(ClientOrder(**json.load(sys.stdin)))))
    os._exit(0)  # threads of a library that still wait for a stopped server have nothing more to say


if __name__ == "__main__":
    main()
