"""Each Python lock, alone in its process: *an order, then steps, on lines of stdin → an answer to
each on stdout*.

    acquire   ok: granted; valid_ms: how long the library says it is ours
    release   ok: the library reports nothing wrong
    extend    ok: the library says it is ours for longer
    held      ok: the library says it is still ours
    hold      ok: the body ran; raises: it is to end by an exception
    fork      ok: a forked child was granted the same resource through the parent's objects

Rules
- Defaults of the library, retries included, but the TTL (10 s) and, where one must say how long to
  wait, the order's wait; nothing is tuned. Imported by name, as each is installed in an environment
  of its own, lockcore in ours. What a library writes to stdout goes to stderr. Source: the quick
  start of each library's README.
- One client, one resource at a time. `absent`: the library has no such thing. SIGINT interrupts the
  step under way: KeyboardInterrupt in a thread, the task's cancellation in asyncio. Whatever a
  library raises is an answer.
- Drivers in other languages also run loads, so they are told the word `steps`. Here it changes
  nothing.
"""

import asyncio
import contextvars
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from importlib import import_module
from inspect import isawaitable
from operator import methodcaller
from typing import Any
from urllib.parse import urlsplit

from bench.experiments.audit.clients.lock import (
    KEY_PREFIX,
    PUSH,
    ClientOrder,
    Lock,
    at_once,
    value,
)

Answer = dict[str, Any]
ABSENT: Answer = {"ok": False, "absent": True}


def lockcore(shell: str, order: ClientOrder) -> Lock:
    """lockcore for threads or gevent, with its default retry policy or `push`; its own functions,
    as users do."""
    return _lockcore(import_module("lockcore").Redlock.connect(shell=shell, **_settings(order)))


async def lockcore_async(order: ClientOrder) -> Lock:
    """lockcore for asyncio, as above."""
    return _lockcore(await import_module("lockcore").AsyncRedlock.connect(**_settings(order)))


def _settings(order: ClientOrder) -> dict[str, Any]:
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
    extend: Callable[[Any, int], object],
    is_held: Callable[[Any], object] | None = None,
    get: Callable[[Any, int], object] = lambda lock, _wait_ms: lock.acquire(),
) -> Lock:
    """The lock of a library that `make`s an object per lock, which `get` tries to get for so many
    ms."""

    def acquire(resource: str, ttl_ms: int, wait_ms: int) -> object:
        lock = make(resource, ttl_ms, wait_ms)
        got = get(lock, wait_ms)
        if isawaitable(got):
            return once_got(lock, got)
        return lock if got else None

    return Lock(acquire, methodcaller("release"), extend=extend, is_held=is_held, hold=make)


async def once_got(lock: object, got: Awaitable[object]) -> object:
    """The lock of a library of coroutines."""
    return lock if await got else None


def redis_lock(module: str, order: ClientOrder) -> Lock:
    """The Lock of redis-py or redis.asyncio, one server."""
    make_lock = import_module(module).Redis.from_url(order.urls[0]).lock
    return of_objects(
        lambda name, ttl_ms, wait_ms: make_lock(
            name, timeout=ttl_ms / 1000, blocking_timeout=wait_ms / 1000
        ),
        lambda lock, ttl_ms: lock.extend(ttl_ms / 1000, replace_ttl=True),
        methodcaller("owned"),
    )


async def coredis(order: ClientOrder) -> Lock:
    """coredis' Lock, one server."""
    client = import_module("coredis").Redis.from_url(order.urls[0])
    await client.__aenter__()
    make_lock = partial(import_module("coredis.patterns.lock").Lock, client)
    return of_objects(
        lambda name, ttl_ms, wait_ms: make_lock(
            name, timeout=ttl_ms / 1000, blocking_timeout=wait_ms / 1000
        ),
        lambda lock, ttl_ms: lock.extend(ttl_ms / 1000),
    )


def python_redis_lock(order: ClientOrder) -> Lock:
    """python-redis-lock, one server; it wakes a waiter by BLPOP."""
    make_lock = partial(
        import_module("redis_lock").Lock, import_module("redis").StrictRedis.from_url(order.urls[0])
    )
    return of_objects(
        lambda name, ttl_ms, _wait_ms: make_lock(name, expire=ttl_ms // 1000),
        lambda lock, ttl_ms: lock.extend(ttl_ms // 1000),
        lambda lock: lock.get_owner_id() == lock.id,
        lambda lock, wait_ms: lock.acquire(timeout=wait_ms // 1000),
    )


def redlock_py(order: ClientOrder) -> Lock:
    """redlock-py: instances one after the other, 3 tries 0.2 s apart; it says False when it gave
    up."""
    manager = import_module("redlock").Redlock(list(order.urls))
    return Lock(
        lambda resource, ttl_ms, _wait_ms: manager.lock(resource, ttl_ms),
        manager.unlock,
        refused=bool,
        valid_ms=lambda lock: lock.validity,
    )


def redlock_ng(kind: str, order: ClientOrder) -> Lock:
    """redlock-ng: instances one after the other, 3 more tries 0.1 to 0.3 s apart; its AsyncRedlock
    extends nothing."""
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
    """pottery's Redlock, a thread pool per operation, or its AIORedlock."""
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
        acquire,
        manager.unlock,
        extend=lambda lock, _ttl_ms: lock.extend(),
        is_held=methodcaller("is_locked"),
        hold=lambda resource, ttl_ms, _wait_ms: manager.lock(resource, lock_timeout=ttl_ms / 1000),
    )


def control(order: ClientOrder) -> Lock:
    """Redlock by hand, with the fault that its name says."""
    from bench.experiments.audit.clients.control import control_lock

    return control_lock(order)


# by name: how its callers run, and the function that connects it
LIBRARIES: dict[str, tuple[str, Callable[[ClientOrder], Any]]] = {
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
    "control": ("threads", control),
}
BLOCKING = ("threads", "gevent")


class _BodyError(Exception):
    """What the body raises when it is told to."""


class _Steps:
    """One client of a library: what it holds, and what is asked of it."""

    def __init__(self, lock: Lock, *, forks: bool = False) -> None:
        self._lock = lock
        self._forks = forks
        self._held = None

    async def answer(self, step: Answer) -> Answer:
        """Do one step; what the library raised is said."""
        try:
            done: Answer = await getattr(self, step.pop("do"))(**step)
        except (KeyboardInterrupt, asyncio.CancelledError, Exception) as error:  # noqa: BLE001
            # Whatever a library raises is an answer.
            return _raised(error, ok=False)
        return done

    async def acquire(self, resource: str, ttl_ms: int, wait_ms: int) -> Answer:
        held = await value(self._lock.acquire(resource, ttl_ms, wait_ms))
        if held.__class__ is self._lock.refused:
            return {"ok": False}
        self._held = held
        validity_ms = self._lock.valid_ms
        return {"ok": True} | ({"valid_ms": float(validity_ms(held))} if validity_ms else {})

    async def release(self) -> Answer:
        return {"ok": await value(self._lock.release(self._held)) is self._lock.released}

    async def extend(self, ttl_ms: int) -> Answer:
        """Have it for longer; a library that says nothing has."""
        if self._lock.extend is None:
            return ABSENT
        outcome = await value(self._lock.extend(self._held, ttl_ms))
        return {"ok": outcome is None or bool(outcome)}

    async def held(self) -> Answer:
        return (
            {"ok": bool(await value(self._lock.is_held(self._held)))}
            if self._lock.is_held
            else ABSENT
        )

    async def hold(
        self, resource: str, ttl_ms: int, wait_ms: int, *, raises: bool = False
    ) -> Answer:
        if self._lock.hold is None:
            return ABSENT
        ran = False
        try:
            manager = await value(self._lock.hold(resource, ttl_ms, wait_ms))
            async with AsyncExitStack() as stack:
                if hasattr(manager, "__aenter__"):
                    await stack.enter_async_context(manager)
                else:
                    stack.enter_context(manager)
                ran = True
                if raises:
                    raise _BodyError
        except _BodyError:
            pass
        except Exception as error:  # noqa: BLE001 - whatever it raises is an answer
            return _raised(error, ok=ran)
        return {"ok": ran}

    async def fork(self, resource: str, ttl_ms: int, wait_ms: int) -> Answer:
        """Ask for what the parent holds, in a forked child, and end it as multiprocessing does."""
        if not self._forks:
            # An event loop does not survive a fork.
            return ABSENT
        from multiprocessing import get_context

        def ask() -> None:
            if self._lock.acquire(resource, ttl_ms, wait_ms).__class__ is self._lock.refused:
                raise SystemExit(1)

        child = get_context("fork").Process(target=ask)
        child.start()
        child.join(5.0)
        if child.exitcode is None:
            child.kill()
        return {"ok": child.exitcode == 0}


def _raised(error: BaseException, *, ok: bool) -> Answer:
    return {"ok": ok, "error": f"{type(error).__name__}: {error}"[:200]}


def step(
    how: str,
    connect: Callable[[ClientOrder], Any],
    order: ClientOrder,
    say: Callable[[Answer], None],
) -> None:
    """Do the steps on stdin with a lock that waits as `how` says."""
    read: Callable[[], str] = sys.stdin.readline
    # Reading in a thread lets the greenlets go on.
    if how == "gevent":
        read = partial(import_module("gevent").get_hub().threadpool.apply, sys.stdin.readline)
    if how not in BLOCKING:
        import_module(how).run(_step_tasks(connect, order, say))
        return
    steps = _Steps(connect(order), forks=True)
    say({"ok": True})
    while line := read():
        say(at_once(steps.answer(json.loads(line))))


async def _step_tasks(
    connect: Callable[[ClientOrder], Any], order: ClientOrder, say: Callable[[Answer], None]
) -> None:
    """Do the steps of a library of coroutines, each in a task of its own."""
    loop = asyncio.get_running_loop()
    steps = _Steps(await value(connect(order)))
    context = contextvars.copy_context()
    say({"ok": True})
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        # All steps share one context: coredis keeps its token there.
        task = asyncio.create_task(steps.answer(json.loads(line)), context=context)
        loop.add_signal_handler(signal.SIGINT, task.cancel)
        say(await task)


def library(order: ClientOrder) -> tuple[str, Callable[[ClientOrder], Any]]:
    """How the library that `order` names waits, and what connects it."""
    return LIBRARIES[order.name.partition(":")[0].removesuffix(PUSH)]


def serve(find: Callable[[ClientOrder], tuple[str, Callable[[ClientOrder], Any]]]) -> None:
    """Do the steps of the order on stdin, with the lock that `find` finds for it."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    logging.disable(logging.CRITICAL)

    def say(message: Any) -> None:
        answer.write(json.dumps(message) + "\n")
        answer.flush()

    order = ClientOrder(**json.loads(sys.stdin.readline()))
    step(*find(order), order, say)
    # Threads of a library may still wait for a stopped server. They have nothing more to say, so
    # nobody waits for them.
    os._exit(0)


if __name__ == "__main__":
    serve(library)
