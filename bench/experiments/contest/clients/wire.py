"""lockcore's bytes without lockcore's decisions: *an order → what the servers alone can bear*.

replay   each connection sends its next batch, built beforehand, once it has counted the bytes of all replies to the
         last one: a client that decides nothing
raw      one caller: send to all, then read all, over blocking sockets
"""

import select
import socket
import time
from urllib.parse import urlsplit

from bench.experiments.contest.clients.loops import Lock
from bench.experiments.contest.clients.order import ClientOrder, DriverAnswer, meter

KEY_PREFIX = "lockbench:"


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

    def acquire(_resource: str, _ttl_ms: int, _wait_ms: int) -> str:
        exchange(claim)
        return "held"

    return Lock(acquire, lambda _held: exchange(release))
