"""Callers that lock and release until the time is over: *a lock and an order → an answer*, by threads, gevent, asyncio.

Rules: the loop of a caller is the same every time; it notes times and counts nothing, so that it costs what a user's
would. A failure is noted and the next cycle begins at once, after a moment if it failed at once (else a broken library
would only burn the CPU). Source: order.py.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from bench.experiments.contest.clients.order import Answer, ClientOrder, Turn

REST_S = 0.001  # after a failure


class NotReleasedError(Exception):
    """A release that did not do what it should, of a library that says so by its answer."""


class Lock(Protocol):
    """A library's lock: `acquire` returns what `release` needs. Those for asyncio return coroutines of the same."""

    @property
    def refused(self) -> type:
        """What an acquire that gave up returns."""

    @property
    def released(self) -> object:
        """What a release that did what it should returns."""

    def acquire(self, resource: str, /) -> Any:
        """Take it, with the library's own retries."""

    def release(self, held: Any, /) -> Any:
        """Give it back."""


def _call(lock: Lock, turn: Turn, caller: int, sleep: Callable[[float], Any]) -> None:
    calls, resource, end_s, hold_s = turn.calls[caller], turn.order.resource(caller), turn.end_s, turn.order.hold_s
    acquire, release, refused, released = lock.acquire, lock.release, lock.refused, lock.released
    now, begin, grant, end = time.perf_counter, calls.begun.append, calls.granted.append, calls.ended.append
    while (began_s := now()) < end_s:
        begin(began_s)
        try:
            held = acquire(resource)
            if isinstance(held, refused):
                calls.lose(None)
                continue
            grant(now())
            if hold_s:
                sleep(hold_s)
            if release(held) is not released:
                raise NotReleasedError
        except Exception as error:  # noqa: BLE001 - whatever a library raises is a figure here
            calls.lose(error)
            sleep(REST_S)
        else:
            end(now())


async def _call_async(lock: Lock, turn: Turn, caller: int) -> None:
    calls, resource, end_s, hold_s = turn.calls[caller], turn.order.resource(caller), turn.end_s, turn.order.hold_s
    acquire, release, refused, released = lock.acquire, lock.release, lock.refused, lock.released
    now, begin, grant, end = time.perf_counter, calls.begun.append, calls.granted.append, calls.ended.append
    while (began_s := now()) < end_s:
        begin(began_s)
        try:
            held = await acquire(resource)
            if isinstance(held, refused):
                calls.lose(None)
                continue
            grant(now())
            if hold_s:
                await asyncio.sleep(hold_s)
            if await release(held) is not released:
                raise NotReleasedError
        except Exception as error:  # noqa: BLE001
            calls.lose(error)
            await asyncio.sleep(REST_S)
        else:
            end(now())


def _span(turn: Turn, sleep: Callable[[float], Any]) -> Answer:
    sleep(turn.order.warmup_s)
    turn.enter()
    sleep(max(turn.end_s - time.perf_counter(), 0))
    return turn.leave()


def run_threads(order: ClientOrder, lock: Lock) -> Answer:
    """One thread per caller."""
    turn = Turn(order)
    threads = [
        threading.Thread(target=_call, args=(lock, turn, caller, time.sleep), daemon=True)
        for caller in range(order.callers)
    ]
    for thread in threads:
        thread.start()
    answer = _span(turn, time.sleep)
    for thread in threads:
        thread.join(order.wait_ms / 1000 + 10)
    return turn.count(answer)


def run_greenlets(order: ClientOrder, lock: Lock) -> Answer:
    """One greenlet per caller, and one for each who waits besides."""
    import gevent

    besides = [gevent.spawn(lock.acquire, "held") for _ in range(order.waiting)]
    turn = Turn(order)
    callers = [gevent.spawn(_call, lock, turn, caller, gevent.sleep) for caller in range(order.callers)]
    answer = _span(turn, gevent.sleep)
    gevent.joinall(callers, timeout=order.wait_ms / 1000 + 10)
    gevent.killall(besides)
    return turn.count(answer)


async def run_tasks(order: ClientOrder, lock: Lock) -> Answer:
    """One asyncio task per caller."""
    turn = Turn(order)
    callers = [asyncio.create_task(_call_async(lock, turn, caller)) for caller in range(order.callers)]
    await asyncio.sleep(order.warmup_s)
    turn.enter()
    await asyncio.sleep(max(turn.end_s - time.perf_counter(), 0))
    answer = turn.leave()
    await asyncio.wait(callers, timeout=order.wait_ms / 1000 + 10)
    return turn.count(answer)


Run = Callable[[ClientOrder], Answer]


def by_threads(connect: Callable[[ClientOrder], Lock]) -> Run:
    """A driver: connect, then threads."""
    return lambda order: run_threads(order, connect(order))


def by_greenlets(connect: Callable[[ClientOrder], Lock]) -> Run:
    """A driver: connect, then greenlets."""
    return lambda order: run_greenlets(order, connect(order))


def by_tasks(connect: Callable[[ClientOrder], Coroutine[Any, Any, Lock]], *, uvloop: bool = False) -> Run:
    """A driver: an event loop of asyncio's own, or uvloop's, in which it connects and runs."""

    async def run(order: ClientOrder) -> Answer:
        return await run_tasks(order, await connect(order))

    def on_uvloop(order: ClientOrder) -> Answer:
        import uvloop

        answer: Answer = uvloop.run(run(order))
        return answer

    return on_uvloop if uvloop else lambda order: asyncio.run(run(order))
