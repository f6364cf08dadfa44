"""One contestant of `make bench`, alone in its process: *a JSON order on stdin → its figures as JSON on stdout*.

    replay      exactly lockcore's bytes, built beforehand, sent and counted by a client that decides nothing: the
    ceiling raw         one caller: send to all, then read all, over blocking sockets gevent · asyncio · uvloop ·
    threads    lockcore on that shell redis-py    the same commands by redis-py, one instance after the other, one
    caller

Rules: acquire and release of a free resource, one resource per caller. CPU is the process's own plus, of the servers,
what the kernel says they ran (ns); latency is of acquire. Nothing is written anywhere.
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from lockcore import AsyncRedlock, Redlock
from lockcore.commands import FIRST_NUMBER, Dialect, claim_stem, set_nx_px

TTL_MS = 10_000
SAMPLE_EVERY = 16


@dataclass(frozen=True, slots=True)
class TurnOrder:
    """`pids`: of the servers; `seconds` of load after a tenth of it as warm-up; `callers` at once; `merge`: releases;
    `waiting`: callers besides, in line for a resource that is held (gevent only)."""

    name: str
    urls: Sequence[str]
    pids: Sequence[int]
    seconds: float
    callers: int
    merge: bool = False
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Figures:
    """Per cycle (acquire + release on all instances): CPU in µs. `p50_us`: of acquire, None where nobody waits for
    one."""

    cycles_per_s: float
    client_us: float
    server_us: float
    p50_us: float | None


class Meter:
    """Measures what lies between its making and `figures`."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._server_ns = self._run_ns()
        self._client_s = time.process_time()
        self._wall_s = time.perf_counter()

    def figures(self, cycles: float, acquires_s: Sequence[float] = ()) -> Figures:
        """What `cycles` cost since; `acquires_s`: the latencies of some acquires."""
        wall_s = time.perf_counter() - self._wall_s
        client_s = time.process_time() - self._client_s
        server_ns = self._run_ns() - self._server_ns
        cycles = max(cycles, 1)
        p50_us = statistics.median(acquires_s) * 1e6 if acquires_s else None
        return Figures(cycles / wall_s, client_s * 1e6 / cycles, server_ns / 1e3 / cycles, p50_us)

    def _run_ns(self) -> int:
        threads = (path for pid in self._pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
        return sum(int(path.read_text().split()[0]) for path in threads)


def _connect(order: TurnOrder, shell: Literal["gevent", "threads"]) -> Redlock:
    return Redlock.connect(
        order.urls, shell=shell, key_prefix="lockbench:speed:", rejoin="trust-first", merge_releases=order.merge
    )


def _cycle_loop(lock: Redlock, resource: str, until: float, acquires_s: list[float]) -> int:
    """Cycles of one caller until `until`; every 16th acquire is timed."""
    acquire, release, now = lock.try_acquire, lock.try_release, time.perf_counter
    cycles = 0
    while True:
        begin = now()
        if begin >= until:
            return cycles
        lease = acquire(resource, TTL_MS)
        if not cycles % SAMPLE_EVERY:
            acquires_s.append(now() - begin)
        release(lease)  # type: ignore[arg-type]
        cycles += 1


def gevent_shell(order: TurnOrder) -> Figures:
    """Lockcore on gevent: one greenlet per caller."""
    import gevent

    lock = _connect(order, "gevent")
    acquires_s: list[float] = []

    def load(seconds: float) -> int:
        until = time.perf_counter() + seconds
        callers = [gevent.spawn(_cycle_loop, lock, f"r{i}", until, acquires_s) for i in range(order.callers)]
        gevent.joinall(callers, raise_error=True)
        return sum(caller.value for caller in callers)

    held = lock.acquire("held", TTL_MS)
    if order.waiting:
        lock.keep_alive(held)
    wait_ms = 3_000 * order.seconds
    besides = [gevent.spawn(lock.try_acquire, "held", TTL_MS, wait_ms) for _ in range(order.waiting)]
    load(order.seconds / 10)
    acquires_s.clear()
    meter = Meter(order.pids)
    figures = meter.figures(load(order.seconds), acquires_s)
    gevent.killall(besides)
    lock.release(held)
    lock.close()
    return figures


def thread_shell(order: TurnOrder) -> Figures:
    """Lockcore on threads: one thread per caller."""
    lock = _connect(order, "threads")
    acquires_s: list[float] = []

    def load(seconds: float) -> int:
        until = time.perf_counter() + seconds
        cycles: list[int] = []
        threads = [
            threading.Thread(target=lambda i=i: cycles.append(_cycle_loop(lock, f"r{i}", until, acquires_s)))
            for i in range(order.callers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(cycles)

    load(order.seconds / 10)
    acquires_s.clear()
    meter = Meter(order.pids)
    figures = meter.figures(load(order.seconds), acquires_s)
    lock.close()
    return figures


async def _async_cycles(lock: AsyncRedlock, resource: str, until: float, acquires_s: list[float]) -> int:
    acquire, release, now = lock.try_acquire, lock.try_release, time.perf_counter
    cycles = 0
    while True:
        begin = now()
        if begin >= until:
            return cycles
        lease = await acquire(resource, TTL_MS)
        if not cycles % SAMPLE_EVERY:
            acquires_s.append(now() - begin)
        await release(lease)  # type: ignore[arg-type]
        cycles += 1


async def _asyncio_load(order: TurnOrder) -> Figures:
    lock = await AsyncRedlock.connect(
        order.urls, key_prefix="lockbench:speed:", rejoin="trust-first", merge_releases=order.merge
    )
    acquires_s: list[float] = []

    async def load(seconds: float) -> int:
        until = time.perf_counter() + seconds
        callers = (_async_cycles(lock, f"r{i}", until, acquires_s) for i in range(order.callers))
        return sum(await asyncio.gather(*callers))

    await load(order.seconds / 10)
    acquires_s.clear()
    meter = Meter(order.pids)
    figures = meter.figures(await load(order.seconds), acquires_s)
    await lock.close()
    return figures


def asyncio_shell(order: TurnOrder) -> Figures:
    """Lockcore on asyncio's own loop."""
    return asyncio.run(_asyncio_load(order))


def uvloop_shell(order: TurnOrder) -> Figures:
    """Lockcore on asyncio with uvloop."""
    import uvloop

    return uvloop.run(_asyncio_load(order))


def _sockets(order: TurnOrder) -> list[socket.socket]:
    addresses = (urlsplit(url) for url in order.urls)
    sockets = [socket.create_connection((address.hostname, address.port), timeout=10) for address in addresses]
    for sock in sockets:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sockets


def _batches(order: TurnOrder) -> tuple[bytes, bytes]:
    """The SETs and the releases of all callers, as lockcore would send them to the instances of `order`."""
    with _connect(order, "threads") as lock:
        encode_release = Dialect(lock.instances[0].release_command, native_extend=False).encode_release
    head, tail = set_nx_px(TTL_MS)
    stems = (claim_stem(f"lockbench:speed:r{i}".encode(), b"r" * 22) for i in range(order.callers))
    claims = [stem + b"%d\r\n" % number for number, stem in enumerate(stems, FIRST_NUMBER)]
    return b"".join(head + claim + tail for claim in claims), b"".join(map(encode_release, claims))


def replay(order: TurnOrder) -> Figures:
    """Blind replay: each connection sends its next batch once it has counted the bytes of all replies to the last
    one."""
    batches = [
        (data, order.callers * len(reply)) for data, reply in zip(_batches(order), (b"+OK\r\n", b":1\r\n"), strict=True)
    ]
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

    load(order.seconds / 10)
    meter = Meter(order.pids)
    return meter.figures(load(order.seconds))


def raw(order: TurnOrder) -> Figures:
    """One caller that sends to all and then reads all: what a single acquire costs without any client."""
    one = TurnOrder(order.name, order.urls, order.pids, order.seconds, 1)
    acquire, release = _batches(one)
    sockets = _sockets(order)
    acquires_s: list[float] = []
    meter = Meter(order.pids)
    until, now = time.perf_counter() + order.seconds, time.perf_counter
    cycles = 0
    while (begin := now()) < until:
        for sock in sockets:
            sock.send(acquire)
        for sock in sockets:
            sock.recv(64)
        acquires_s.append(now() - begin)
        for sock in sockets:
            sock.send(release)
        for sock in sockets:
            sock.recv(64)
        cycles += 1
    return meter.figures(cycles, acquires_s)


def redis_py(order: TurnOrder) -> Figures:
    """One caller, one instance after the other, by redis-py as it comes."""
    import redis

    from lockcore.commands import COMPARE_AND_DELETE

    clients = [redis.Redis.from_url(url) for url in order.urls]
    scripts = [client.register_script(COMPARE_AND_DELETE.source) for client in clients]
    acquires_s: list[float] = []
    meter = Meter(order.pids)
    until, now = time.perf_counter() + order.seconds, time.perf_counter
    cycles = 0
    while (begin := now()) < until:
        for client in clients:
            client.set("lockbench:speed:r0", "owner", nx=True, px=TTL_MS)
        acquires_s.append(now() - begin)
        for script in scripts:
            script(keys=["lockbench:speed:r0"], args=["owner"])
        cycles += 1
    return meter.figures(cycles, acquires_s)


CONTESTANTS: dict[str, Callable[[TurnOrder], Figures]] = {
    "replay": replay,
    "raw": raw,
    "gevent": gevent_shell,
    "asyncio": asyncio_shell,
    "uvloop": uvloop_shell,
    "threads": thread_shell,
    "redis-py": redis_py,
}


def main() -> None:
    """Run the order on stdin."""
    fields: dict[str, Any] = json.load(sys.stdin)
    order = TurnOrder(**fields)
    json.dump(asdict(CONTESTANTS[order.name](order)), sys.stdout)


if __name__ == "__main__":
    main()
