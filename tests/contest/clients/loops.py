"""Callers that lock and release until the time is over: *an order and a lock → an answer*, by
threads, gevent, asyncio.

    order    what to lock, how long, by how many callers
    answer   cycles completed between the end of the warm-up and the end, CPU of the same span; of
             all acquires begun in it, however long they took, how long (by bucket) or that they
             were never granted

Rules
- The standard library only, because this runs in every peer's own environment; drivers in other
  languages read and write the same two documents, and count alike. A cycle is acquire, hold,
  release; times are noted, and counted later.
- `replay` has no lock: each connection sends its next batch, lockcore's bytes built beforehand,
  once it has counted the bytes of all replies to the last one: a client that decides nothing, so
  what the servers alone can bear.
- A release that fails is an error and no cycle. An acquire that gave up, failed or never returned
  took for ever (`failed`); every one counts. After a failure the next cycle begins when a moment
  has passed (else a broken library would only burn the CPU).
"""

import asyncio
import math
import select
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.experiments.judge.clients.lock import KEY_PREFIX, ClientOrder, Lock, at_once, value

BIN_S = 0.1
# A time is kept as floor(ln(µs) / BUCKET), so a bucket is 1 % wide.
BUCKET = math.log(1.01)
# the rest after a failure
REST_S = 0.001
# At the end callers have so much longer than an acquire may take.
LATE_S = 10.0
NEVER = math.inf


@dataclass(frozen=True, kw_only=True)
class LoadOrder(ClientOrder):
    """`pids` of the servers; `seconds` of load after `warmup_s`; `own` gives each caller a resource
    of its own, else all want one, held for `hold_s`; `ttl_ms` of a lock, `wait_ms` an acquire may
    take where a library can be told so."""

    pids: Sequence[int]
    seconds: float
    warmup_s: float
    callers: int
    own: bool
    ttl_ms: int
    wait_ms: int
    hold_s: float = 0.0

    def resource(self, caller: int) -> str:
        """What this caller locks."""
        return f"peers:r{caller}" if self.own else "peers:hot"


@dataclass
class DriverAnswer:
    """What happened, as every driver writes it; `acquires` by bucket of their time, `bins` by tenth
    of a second since the begin, `all_cycles` those of warm-up and end, too."""

    seconds: float
    cycles: float = 0
    client_us: float = 0.0
    server_us: float = 0.0
    acquires: dict[int, int] = field(default_factory=dict)
    failed: int = 0
    leases_by_caller: Sequence[int] = ()
    bins: dict[int, int] = field(default_factory=dict)
    gave_up: int = 0
    all_cycles: float = 0
    errors: dict[str, int] = field(default_factory=dict)


def meter(pids: Sequence[int]) -> Callable[[], tuple[float, float]]:
    """Return what tells the CPU time (µs) that this process, and those of `pids`, have used from
    now on."""
    client_s = time.process_time()
    server_ns = _run_ns(pids)
    return lambda: ((time.process_time() - client_s) * 1e6, (_run_ns(pids) - server_ns) / 1e3)


def _run_ns(pids: Sequence[int]) -> int:
    """CPU time of all threads of these processes so far, as the kernel's scheduler counted it."""
    threads = (path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(path.read_text().split()[0]) for path in threads)


def bucket_of(seconds: float) -> int:
    """Which bucket a time belongs to."""
    return int(math.log(max(seconds * 1e6, 1.0)) / BUCKET)


def middle_us(bucket: int) -> float:
    """The time (µs) that stands for a bucket, right to half a hundredth."""
    return math.exp((bucket + 0.5) * BUCKET)


class NotReleasedError(Exception):
    """A release that did not do what it should, of a library that says so by its answer."""


@dataclass
class Calls:
    """What one caller did, cycle after cycle: when (s) its acquire was granted, or NEVER; when it
    had completed it, or lost it (negative), which is when it began the next."""

    first_s: float = NEVER
    # A deque, because a list is copied as it grows, and that would cost the callers time.
    granted: deque[float] = field(default_factory=deque)
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
        """Yield when each was begun, granted and completed, or NEVER; one that has not returned yet
        never will."""
        begun_s = self.first_s
        for granted_s, ended_s in zip(self.granted, self.ended, strict=False):
            yield begun_s, granted_s, ended_s if ended_s > 0 else NEVER
            begun_s = abs(ended_s)
        if begun_s < end_s:
            yield begun_s, self.granted[-1] if len(self.granted) > len(self.ended) else NEVER, NEVER


class ClientLoad:
    """A load from its making on. `calls`: of every caller."""

    def __init__(self, order: LoadOrder) -> None:
        # The process that stops a server in the middle counts its time from this word.
        sys.stderr.write("begin\n")
        self.order = order
        self.calls = [Calls() for _ in range(order.callers)]
        self.begin_s = time.perf_counter()
        self.measure_s = self.begin_s + order.warmup_s
        self.end_s = self.measure_s + order.seconds
        self._cpu_us = (0.0, 0.0)

    def rests(self) -> Iterator[float]:
        """Yield how long (s) to sleep, to the end of the load; between two rests its measured time
        begins, which may be later than it should, and without a warm-up is all of the time."""
        yield self.order.warmup_s
        used_us = meter(self.order.pids)
        if self.order.warmup_s:
            self.measure_s = time.perf_counter()
        yield max(self.end_s - time.perf_counter(), 0)
        self._cpu_us = used_us()

    def answer(self) -> DriverAnswer:
        """Count what all callers have noted, once they have ended."""
        acquires = Counter[int]()
        bins = Counter[int]()
        leases = [0] * len(self.calls)
        attempts = 0
        for caller, calls in enumerate(self.calls):
            for began_s, granted_s, ended_s in calls.cycles(self.end_s):
                if measured := self.measure_s <= began_s < self.end_s:
                    attempts += 1
                if measured and granted_s < NEVER:
                    acquires[bucket_of(granted_s - began_s)] += 1
                if ended_s < NEVER:
                    bins[int((ended_s - self.begin_s) / BIN_S)] += 1
                    leases[caller] += measured and ended_s <= self.end_s
        errors = sum((calls.errors for calls in self.calls), Counter[str]())
        return DriverAnswer(
            self.end_s - self.measure_s,
            sum(leases),
            *self._cpu_us,
            acquires,
            attempts - acquires.total(),
            leases,
            bins,
            sum(calls.gave_up for calls in self.calls),
            bins.total(),
            errors,
        )


async def call(
    lock: Lock, load: ClientLoad, caller: int, sleep: Callable[[float], Any], *, waits: bool
) -> None:
    """Run one caller to the end of the load.

    `waits`: what the lock and `sleep` return is awaited.
    """
    order = load.order
    calls = load.calls[caller]
    resource = load.order.resource(caller)
    acquire: Callable[[str, int, int], Any] = lock.acquire
    release: Callable[[Any], Any] = lock.release
    refused = lock.refused
    released = lock.released
    ttl_ms = order.ttl_ms
    wait_ms = order.wait_ms
    hold_s = order.hold_s
    end_s = load.end_s
    now = time.perf_counter
    grant = calls.granted.append
    end = calls.ended.append
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
            outcome = release(held)
            if waits:
                outcome = await outcome
            if outcome is not released:
                raise NotReleasedError
        except Exception as error:  # noqa: BLE001 - whatever a library raises is a figure here
            await value(sleep(REST_S))
            began_s = calls.lose(error)
        else:
            began_s = now()
            end(began_s)


def run_blocking(
    connect: Callable[[LoadOrder], object], order: LoadOrder, *, greenlets: bool
) -> DriverAnswer:
    """One thread per caller, or one greenlet."""
    spawn: Callable[[Callable[[], None]], Any] = _thread
    sleep: Callable[[float], object] = time.sleep
    if greenlets:
        import gevent

        spawn = gevent.spawn
        sleep = gevent.sleep
    lock = connect(order)
    assert isinstance(lock, Lock)
    load = ClientLoad(order)
    calls = [call(lock, load, caller, sleep, waits=False) for caller in range(order.callers)]
    callers = [spawn(partial(at_once, one)) for one in calls]
    for rest_s in load.rests():
        sleep(rest_s)
    deadline_s = time.monotonic() + order.wait_ms / 1000 + LATE_S
    for caller in callers:
        caller.join(max(0.0, deadline_s - time.monotonic()))
    return load.answer()


def _thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


async def run_tasks(connect: Callable[[LoadOrder], Any], order: LoadOrder) -> DriverAnswer:
    """One asyncio task per caller."""
    lock = await value(connect(order))
    load = ClientLoad(order)
    callers = [
        asyncio.create_task(call(lock, load, number, asyncio.sleep, waits=True))
        for number in range(order.callers)
    ]
    for rest_s in load.rests():
        await asyncio.sleep(rest_s)
    await asyncio.wait(callers, timeout=order.wait_ms / 1000 + LATE_S)
    return load.answer()


def _sockets(order: LoadOrder) -> list[socket.socket]:
    addresses = (urlsplit(url) for url in order.urls)
    sockets = [
        socket.create_connection((address.hostname, address.port), timeout=10)
        for address in addresses
    ]
    for sock in sockets:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sockets


def _batches(order: LoadOrder) -> tuple[bytes, bytes]:
    """The SETs and the releases of all callers, as lockcore would send them to the instances of
    `order`."""
    # Imported here, because the environments of peers have no lockcore.
    from lockcore import Redlock
    from lockcore.rounds.claims import Claims
    from lockcore.rounds.commands import FIRST_NUMBER, Dialect, set_nx_px
    from lockcore.settings import Settings

    # `shell` is a way of waiting here, not a command line; S604 takes it for one.
    with Redlock.connect(
        order.urls,
        shell="threads",
        key_prefix=KEY_PREFIX,
        rejoin="trust-first",
    ) as lock:
        encode_release = Dialect(
            lock.instances[0].release_command, native_extend=False
        ).encode_release
    head, tail = set_nx_px(order.ttl_ms)
    claim = Claims(Settings(key_prefix=KEY_PREFIX)).claim
    first = FIRST_NUMBER
    claims = [claim(order.resource(caller), first + caller) for caller in range(order.callers)]
    return b"".join(head + claim + tail for claim in claims), b"".join(map(encode_release, claims))


def replay(order: LoadOrder) -> DriverAnswer:
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
        stage = dict.fromkeys(sockets, 0)
        missing = dict.fromkeys(sockets, batches[0][1])
        cycles = 0
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
    begin_s = time.perf_counter()
    used_us = meter(order.pids)
    cycles = load(order.seconds)
    return DriverAnswer(time.perf_counter() - begin_s, cycles, *used_us(), all_cycles=cycles)


def raw(order: LoadOrder) -> Lock:
    """What a single acquire costs without any client. One caller only."""
    (claim, release) = _batches(order)
    sockets = _sockets(order)

    def exchange(data: bytes) -> None:
        for sock in sockets:
            sock.send(data)
        for sock in sockets:
            sock.recv(64)

    return Lock(lambda *_: exchange(claim), lambda _held: exchange(release), refused=bool)
