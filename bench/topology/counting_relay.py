"""A relay that counts what a client says to its instances: *ports → ports, and exact counts of what went through*.

Rules: replies are held back until everybody has been silent for `QUIET_S`, then all go at once. What a client sends
between two such moments is one round trip: so requests in parallel are one, one after the other they are as many as
there are instances, whatever the machine's speed. Commands are counted by parsing what the client sends, so scripts
count as one. One thread with an event loop of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any, Self, TypeVar

import hiredis

from bench.topology.fleet import HOST

QUIET_S = 0.015
CHUNK_BYTES = 65_536
Done = TypeVar("Done")


@dataclass(slots=True)
class Counts:
    """What went through since the relay began; bytes and commands over all instances."""

    connections: int = 0
    commands: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    round_trips: int = 0

    def since(self, before: Counts) -> Counts:
        """What was added to `before`."""
        return Counts(*(new - old for new, old in zip(astuple(self), astuple(before), strict=True)))


class CountingRelay:
    """Stands before loopback ports; `ports` are its own, in the same order. A context manager."""

    def __init__(self, targets: Sequence[int]) -> None:
        self._loop = asyncio.new_event_loop()
        self._counts, self._active_s = Counts(), self._loop.time()
        self._held: dict[asyncio.StreamWriter, bytearray] = {}  # replies that wait, by the client they are for
        self._thread = threading.Thread(target=self._loop.run_forever, name="counting-relay", daemon=True)
        self._thread.start()
        self.ports: tuple[int, ...] = self._run(self._open(targets))

    def settled(self, timeout_s: float = 10.0) -> Counts:
        """Wait until nothing is under way, and return what went through so far; after `timeout_s` what there is."""
        return self._run(self._settled(timeout_s))

    def close(self) -> None:
        """End the relay and every connection through it. Idempotent."""
        if not self._loop.is_closed():
            self._run(self._end())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def _run(self, doing: Coroutine[Any, Any, Done]) -> Done:
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result()

    async def _open(self, targets: Sequence[int]) -> tuple[int, ...]:
        self._servers = [await asyncio.start_server(partial(self._relay, target), HOST, 0) for target in targets]
        self._ticking = asyncio.create_task(self._let_go())
        return tuple(server.sockets[0].getsockname()[1] for server in self._servers)

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _settled(self, timeout_s: float) -> Counts:
        deadline_s = self._loop.time() + timeout_s
        while (any(self._held.values()) or self._silent_s() < 2 * QUIET_S) and self._loop.time() < deadline_s:
            await asyncio.sleep(QUIET_S)
        return replace(self._counts)

    def _silent_s(self) -> float:
        return self._loop.time() - self._active_s

    async def _relay(self, target: int, requests: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        replies, server = await asyncio.open_connection(HOST, target)
        self._counts.connections += 1
        self._active_s = self._loop.time()
        self._held[client] = bytearray()
        ways = [asyncio.create_task(self._ask(requests, server)), asyncio.create_task(self._hold(replies, client))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            del self._held[client]
            client.close()
            server.close()

    async def _ask(self, requests: asyncio.StreamReader, server: asyncio.StreamWriter) -> None:
        commands = hiredis.Reader()
        with contextlib.suppress(OSError):
            while chunk := await requests.read(CHUNK_BYTES):
                self._active_s = self._loop.time()
                self._counts.bytes_sent += len(chunk)
                commands.feed(chunk)
                while commands.gets() is not False:
                    self._counts.commands += 1
                server.write(chunk)

    async def _hold(self, replies: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await replies.read(CHUNK_BYTES):
                self._active_s = self._loop.time()
                self._counts.bytes_received += len(chunk)
                self._held[client] += chunk

    async def _let_go(self) -> None:
        """Hand over all replies that wait, whenever everybody is silent: the end of one round trip."""
        while True:
            await asyncio.sleep(QUIET_S / 3)
            waiting = {client: held for client, held in self._held.items() if held}
            if waiting and self._silent_s() > QUIET_S:
                self._counts.round_trips += 1
                self._active_s = self._loop.time()
                for client, held in waiting.items():
                    client.write(bytes(held))
                    held.clear()
