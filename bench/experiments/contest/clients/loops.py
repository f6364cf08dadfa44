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

from bench.experiments.contest.clients.order import ClientOrder, ClientTurn, DriverAnswer

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

    def acquire(self, resource: str, ttl_ms: int, wait_ms: int, /) -> Any:
        """Take it, with the library's own retries."""

    def release(self, held: Any, /) -> Any:
        """Give it back."""


def _call(lock: Lock, turn: ClientTurn, caller: int, sleep: Callable[[float], Any]) -> None:
    order, calls, resource = turn.order, turn.calls[caller], turn.order.resource(caller)
    acquire, release, refused, released = lock.acquire, lock.release, lock.refused, lock.released
    ttl_ms, wait_ms, hold_s, end_s = order.ttl_ms, order.wait_ms, order.hold_s, turn.end_s
    now, grant, end = time.perf_counter, calls.granted.append, calls.ended.append
    calls.first_s = began_s = now()
    while began_s < end_s:
        try:
            held = acquire(resource, ttl_ms, wait_ms)
            if held.__class__ is refused:
                began_s = calls.lose(None)
                continue
            grant(now())
            if hold_s:
                sleep(hold_s)
            if release(held) is not released:
                raise NotReleasedError
        except Exception as error:  # noqa: BLE001 - whatever a library raises is a figure here
            sleep(REST_S)
            began_s = calls.lose(error)
        else:
            began_s = now()
            end(began_s)


async def _call_async(lock: Lock, turn: ClientTurn, caller: int) -> None:
    order, calls, resource = turn.order, turn.calls[caller], turn.order.resource(caller)
    acquire, release, refused, released = lock.acquire, lock.release, lock.refused, lock.released
    ttl_ms, wait_ms, hold_s, end_s = order.ttl_ms, order.wait_ms, order.hold_s, turn.end_s
    now, grant, end = time.perf_counter, calls.granted.append, calls.ended.append
    calls.first_s = began_s = now()
    while began_s < end_s:
        try:
            held = await acquire(resource, ttl_ms, wait_ms)
            if held.__class__ is refused:
                began_s = calls.lose(None)
                continue
            grant(now())
            if hold_s:
                await asyncio.sleep(hold_s)
            if await release(held) is not released:
                raise NotReleasedError
        except Exception as error:  # noqa: BLE001 - whatever a library raises is a figure here
            await asyncio.sleep(REST_S)
            began_s = calls.lose(error)
        else:
            began_s = now()
            end(began_s)


def _span(turn: ClientTurn, sleep: Callable[[float], Any]) -> DriverAnswer:
    sleep(turn.order.warmup_s)
    turn.enter()
    sleep(max(turn.end_s - time.perf_counter(), 0))
    return turn.leave()


def run_threads(order: ClientOrder, lock: Lock) -> DriverAnswer:
    """One thread per caller."""
    turn = ClientTurn(order)
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


def run_greenlets(order: ClientOrder, lock: Lock) -> DriverAnswer:
    """One greenlet per caller, and one for each who waits besides."""
    import gevent

    patience_ms = int(3000 * order.seconds)
    besides = [gevent.spawn(lock.acquire, "held", order.ttl_ms, patience_ms) for _ in range(order.waiting)]
    if besides:  # what is asked for after them is answered when all of them stand in line
        gevent.sleep(0)
        lock.release(lock.acquire("last", order.ttl_ms, patience_ms))
    turn = ClientTurn(order)
    callers = [gevent.spawn(_call, lock, turn, caller, gevent.sleep) for caller in range(order.callers)]
    answer = _span(turn, gevent.sleep)
    gevent.joinall(callers, timeout=order.wait_ms / 1000 + 10)
    gevent.killall(besides)
    return turn.count(answer)


async def run_tasks(order: ClientOrder, lock: Lock) -> DriverAnswer:
    """One asyncio task per caller."""
    turn = ClientTurn(order)
    callers = [asyncio.create_task(_call_async(lock, turn, caller)) for caller in range(order.callers)]
    await asyncio.sleep(order.warmup_s)
    turn.enter()
    await asyncio.sleep(max(turn.end_s - time.perf_counter(), 0))
    answer = turn.leave()
    await asyncio.wait(callers, timeout=order.wait_ms / 1000 + 10)
    return turn.count(answer)


Run = Callable[[ClientOrder], DriverAnswer]


def by_threads(connect: Callable[[ClientOrder], Lock]) -> Run:
    """A driver: connect, then threads."""
    return lambda order: run_threads(order, connect(order))


def by_greenlets(connect: Callable[[ClientOrder], Lock]) -> Run:
    """A driver: connect, then greenlets."""
    return lambda order: run_greenlets(order, connect(order))


def by_tasks(connect: Callable[[ClientOrder], Coroutine[Any, Any, Lock]], *, uvloop: bool = False) -> Run:
    """A driver: an event loop of asyncio's own, or uvloop's, in which it connects and runs."""

    async def run(order: ClientOrder) -> DriverAnswer:
        return await run_tasks(order, await connect(order))

    def on_uvloop(order: ClientOrder) -> DriverAnswer:
        import uvloop

        answer: DriverAnswer = uvloop.run(run(order))
        return answer

    return on_uvloop if uvloop else lambda order: asyncio.run(run(order))
