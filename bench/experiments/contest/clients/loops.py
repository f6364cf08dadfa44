"""Callers that lock and release until the time is over: *a lock and an order → an answer*, by threads, gevent, asyncio.

Rules: the loop of a caller is the same every time; it notes times, which are counted when the load is over, so that it
costs what a user's would. A failure is noted and the next cycle begins at once, after a moment if it failed at once
(else a broken library would only burn the CPU).
"""

import asyncio
import inspect
import math
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from bench.experiments.contest.clients.order import BIN_S, ClientOrder, DriverAnswer, bucket_of, meter

REST_S = 0.001  # after a failure
LATE_S = 10.0  # beyond the time that an acquire may take, for the callers to end
NEVER = math.inf
Result = TypeVar("Result")


class NotReleasedError(Exception):
    """A release that did not do what it should, of a library that says so by its answer."""


class Lock(NamedTuple):
    """A library's lock. `acquire(resource, ttl_ms, wait_ms)`, with the library's own retries, returns what the others
    take, or a `refused` when it gave up; a release that did what it should returns `released`. All may be coroutines.

    What only an audit asks for, None where the library has no such thing: `extend(held, ttl_ms)` raises or returns
    something false when it did not; `is_held(held)`: does the library say that it still is? `valid_ms(held)`: for how
    long, as the library told at the grant; `hold(resource, ttl_ms, wait_ms)`: its context manager.
    """

    acquire: Callable[[str, int, int], Any]
    release: Callable[[Any], Any]
    refused: type = type(None)
    released: object = None
    extend: Callable[[Any, int], Any] | None = None
    is_held: Callable[[Any], Any] | None = None
    valid_ms: Callable[[Any], float] | None = None
    hold: Callable[[str, int, int], Any] | None = None


@dataclass
class Calls:
    """What one caller did, cycle after cycle: when (s) its acquire was granted, or NEVER; when it had completed it, or
    lost it (negative), which is when it began the next."""

    first_s: float = NEVER
    granted: deque[float] = field(default_factory=deque)  # not copied as it grows, as a list is
    ended: deque[float] = field(default_factory=deque)
    gave_up: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def lose(self, error: BaseException | None) -> float:
        """The cycle is lost: by an error, or (None) because the acquire gave up. Returns now."""
        if error is None:
            self.gave_up += 1
        else:
            self.errors[type(error).__name__] += 1
        if len(self.granted) == len(self.ended):
            self.granted.append(NEVER)
        now_s = time.perf_counter()
        self.ended.append(-now_s)
        return now_s

    def cycles(self, end_s: float) -> Iterator[tuple[float, float, float]]:
        """Yield when each was begun, granted and completed, or NEVER; one that has not returned yet never will."""
        begun_s = self.first_s
        for granted_s, ended_s in zip(self.granted, self.ended, strict=False):
            yield begun_s, granted_s, ended_s if ended_s > 0 else NEVER
            begun_s = abs(ended_s)
        if begun_s < end_s:
            yield begun_s, self.granted[-1] if len(self.granted) > len(self.ended) else NEVER, NEVER


class ClientTurn:
    """A load from its making on. `calls`: of every caller."""

    def __init__(self, order: ClientOrder) -> None:
        sys.stderr.write("begin\n")  # whoever stops a server in the middle goes by this
        self.order, self.calls = order, [Calls() for _ in range(order.callers)]
        self.begin_s = time.perf_counter()
        self.measure_s = self.begin_s + order.warmup_s
        self.end_s = self.measure_s + order.seconds
        self._cpu_us = (0.0, 0.0)

    def rests(self) -> Iterator[float]:
        """Yield how long (s) to sleep, to the end of the load; between two rests its measured time begins, which may be
        later than it should, and without a warm-up is all of the time."""
        yield self.order.warmup_s
        used_us = meter(self.order.pids)
        if self.order.warmup_s:
            self.measure_s = time.perf_counter()
        yield max(self.end_s - time.perf_counter(), 0)
        self._cpu_us = used_us()

    def answer(self) -> DriverAnswer:
        """Count what all callers have noted, once they have ended."""
        acquires, bins, leases, asked = Counter[int](), Counter[int](), [0] * len(self.calls), 0
        errors: Counter[str] = Counter()
        for caller, calls in enumerate(self.calls):
            errors += calls.errors
            for began_s, granted_s, ended_s in calls.cycles(self.end_s):
                if measured := self.measure_s <= began_s < self.end_s:
                    asked += 1
                if measured and granted_s < NEVER:
                    acquires[bucket_of(granted_s - began_s)] += 1
                if ended_s < NEVER:
                    bins[int((ended_s - self.begin_s) / BIN_S)] += 1
                    leases[caller] += measured and ended_s <= self.end_s
        return DriverAnswer(
            self.end_s - self.measure_s, sum(leases), *self._cpu_us, acquires, asked - acquires.total(), leases, bins,
            sum(calls.gave_up for calls in self.calls), bins.total(), errors,
        )  # fmt: skip


async def call(lock: Lock, turn: ClientTurn, caller: int, sleep: Callable[[float], Any], *, waits: bool) -> None:
    """Run one caller to the end of the load. `waits`: what the lock and `sleep` return is awaited."""
    order, calls, resource = turn.order, turn.calls[caller], turn.order.resource(caller)
    acquire, release, refused, released = lock[:4]
    ttl_ms, wait_ms, hold_s, end_s = order.ttl_ms, order.wait_ms, order.hold_s, turn.end_s
    now, grant, end = time.perf_counter, calls.granted.append, calls.ended.append
    calls.first_s = began_s = now()
    while began_s < end_s:
        try:
            held = acquire(resource, ttl_ms, wait_ms)
            if waits:
                held = await held
            if held.__class__ is refused:
                began_s = calls.lose(None)
                continue
            grant(now())
            if hold_s:
                await value(sleep(hold_s))
            said = release(held)
            if waits:
                said = await said
            if said is not released:
                raise NotReleasedError
        except Exception as error:  # noqa: BLE001 - whatever a library raises is a figure here
            await value(sleep(REST_S))
            began_s = calls.lose(error)
        else:
            began_s = now()
            end(began_s)


async def value(given: Any) -> Any:
    """What a library gave, awaited if it must be."""
    return await given if inspect.isawaitable(given) else given


def at_once(work: Coroutine[Any, Any, Result]) -> Result:
    """What comes of a coroutine that awaits nothing."""
    try:
        work.send(None)
    except StopIteration as stop:
        done: Result = stop.value
        return done
    raise AssertionError("a library without coroutines awaited something")


def run_threads(connect: Callable[[ClientOrder], Lock], order: ClientOrder) -> DriverAnswer:
    """One thread per caller."""

    def spawn(work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    return _run(connect, order, spawn, time.sleep)


def run_greenlets(connect: Callable[[ClientOrder], Lock], order: ClientOrder) -> DriverAnswer:
    """One greenlet per caller."""
    import gevent

    return _run(connect, order, gevent.spawn, gevent.sleep)


def _run(
    connect: Callable[[ClientOrder], Lock], order: ClientOrder, spawn: Callable[..., Any], sleep: Callable[[float], Any]
) -> DriverAnswer:
    lock, turn = connect(order), ClientTurn(order)
    calls = [call(lock, turn, caller, sleep, waits=False) for caller in range(order.callers)]
    callers = [spawn(partial(at_once, one)) for one in calls]
    for rest_s in turn.rests():
        sleep(rest_s)
    deadline_s = time.monotonic() + order.wait_ms / 1000 + LATE_S
    for caller in callers:
        caller.join(max(0.0, deadline_s - time.monotonic()))
    return turn.answer()


async def run_tasks(connect: Callable[[ClientOrder], Any], order: ClientOrder) -> DriverAnswer:
    """One asyncio task per caller."""
    lock, turn = await value(connect(order)), ClientTurn(order)
    callers = [
        asyncio.create_task(call(lock, turn, number, asyncio.sleep, waits=True)) for number in range(order.callers)
    ]
    for rest_s in turn.rests():
        await asyncio.sleep(rest_s)
    await asyncio.wait(callers, timeout=order.wait_ms / 1000 + LATE_S)
    return turn.answer()


def read_line_beside() -> str:
    """The next line of stdin, while greenlets go on."""
    import gevent

    line: str = gevent.get_hub().threadpool.apply(sys.stdin.readline)
    return line
