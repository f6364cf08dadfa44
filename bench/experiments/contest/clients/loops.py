"""Callers that lock and release until the time is over: *a lock and an order → a tally*, by threads, gevent or asyncio.

Rules: the loop of a caller is the same three times; a failure is counted and the next cycle begins at once, after a
moment if it failed at once (else a broken library would only burn the CPU). Source: order.py.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from bench.experiments.contest.clients.order import Order, Span, Tally

REST_S = 0.001  # after a failure


class Lock(Protocol):
    """A library's lock, for callers that block: `acquire` returns what `release` needs, None when it gave up."""

    def acquire(self, resource: str) -> Any:
        """Take it, with the library's own retries."""

    def release(self, held: Any) -> None:
        """Give it back."""


class AsyncLock(Protocol):
    """The same for asyncio."""

    async def acquire(self, resource: str) -> Any:
        """Take it, with the library's own retries."""

    async def release(self, held: Any) -> None:
        """Give it back."""


def _calls(lock: Lock, tally: Tally, caller: int, sleep: Callable[[float], Any]) -> None:
    order, resource = tally.order, tally.order.resource(caller)
    while (began_s := tally.ask()) < tally.end_s:
        try:
            held = lock.acquire(resource)
            if held is None:
                tally.refuse(None)
                continue
            tally.grant(began_s)
            if order.hold_s:
                sleep(order.hold_s)
            lock.release(held)
        except Exception as error:  # noqa: BLE001 - whatever a library raises is a figure here
            tally.refuse(error)
            sleep(REST_S)
        else:
            tally.complete(caller, began_s)


async def _async_calls(lock: AsyncLock, tally: Tally, caller: int) -> None:
    order, resource = tally.order, tally.order.resource(caller)
    while (began_s := tally.ask()) < tally.end_s:
        try:
            held = await lock.acquire(resource)
            if held is None:
                tally.refuse(None)
                continue
            tally.grant(began_s)
            if order.hold_s:
                await asyncio.sleep(order.hold_s)
            await lock.release(held)
        except Exception as error:  # noqa: BLE001
            tally.refuse(error)
            await asyncio.sleep(REST_S)
        else:
            tally.complete(caller, began_s)


def run_threads(order: Order, lock: Lock) -> Tally:
    """One thread per caller."""
    tally = Tally(order)
    threads = [
        threading.Thread(target=_calls, args=(lock, tally, caller, time.sleep), daemon=True)
        for caller in range(order.callers)
    ]
    tally.start()
    for thread in threads:
        thread.start()
    _measure(tally, time.sleep)
    for thread in threads:
        thread.join(order.wait_ms / 1000 + 10)
    return tally


def run_greenlets(order: Order, lock: Lock) -> Tally:
    """One greenlet per caller."""
    import gevent

    tally = Tally(order)
    tally.start()
    callers = [gevent.spawn(_calls, lock, tally, caller, gevent.sleep) for caller in range(order.callers)]
    _measure(tally, gevent.sleep)
    gevent.joinall(callers, timeout=order.wait_ms / 1000 + 10)
    return tally


async def run_tasks(order: Order, lock: AsyncLock) -> Tally:
    """One asyncio task per caller."""
    tally = Tally(order)
    tally.start()
    callers = [asyncio.create_task(_async_calls(lock, tally, caller)) for caller in range(order.callers)]
    span = Span(tally)
    await asyncio.sleep(order.warmup_s)
    span.enter()
    await asyncio.sleep(max(tally.end_s - time.perf_counter(), 0))
    span.leave()
    await asyncio.wait(callers, timeout=order.wait_ms / 1000 + 10)
    return tally


def _measure(tally: Tally, sleep: Callable[[float], Any]) -> None:
    span = Span(tally)
    sleep(tally.order.warmup_s)
    span.enter()
    sleep(max(tally.end_s - time.perf_counter(), 0))
    span.leave()


Run = Callable[[Order], Tally]
AsyncConnect = Callable[[Order], Coroutine[Any, Any, AsyncLock]]


def by_threads(connect: Callable[[Order], Lock]) -> Run:
    """A driver: connect, then threads."""
    return lambda order: run_threads(order, connect(order))


def by_greenlets(connect: Callable[[Order], Lock]) -> Run:
    """A driver: connect, then greenlets."""
    return lambda order: run_greenlets(order, connect(order))


def by_tasks(connect: AsyncConnect) -> Run:
    """A driver: an event loop of asyncio's own, in which it connects and runs."""

    async def run(order: Order) -> Tally:
        return await run_tasks(order, await connect(order))

    return lambda order: asyncio.run(run(order))


def by_uvloop(connect: AsyncConnect) -> Run:
    """The same on uvloop."""

    async def run(order: Order) -> Tally:
        return await run_tasks(order, await connect(order))

    def on_uvloop(order: Order) -> Tally:
        import uvloop

        tally: Tally = uvloop.run(run(order))
        return tally

    return on_uvloop
