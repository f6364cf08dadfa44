"""This process puts a link in front of every instance, and each link can be slow or cut: *bytes
from one side → the same bytes in the same order, after a delay*.

Run as `python -I -S proxy_process.py SEED PORT…`. Requests and answers are lines of JSON. The
process ends when its owner closes its stdin or dies.

Rules: the proxy decides the due time of a chunk of bytes when the chunk arrives. A chunk never
overtakes an earlier chunk. A link may hold back all bytes of one direction. This direction then
behaves like a black hole. The proxy keeps the held bytes and the end of the stream. When the
direction is healed, the proxy delivers these bytes, just as TCP retransmission would deliver them.
When 8 MiB are waiting for the receiver, the proxy stops reading from the sender. A reset ends every
connection of the instance with RST.
"""

import asyncio
import contextlib
import json
import random
import select
import selectors
import socket
import struct
import sys

HOST = "127.0.0.1"
_CHUNK_BYTES = 8 << 10
_CHUNKS = 1 << 10
# SO_LINGER is on with a time of zero, so that closing resets the connection.
_RST = struct.pack("ii", 1, 0)
# Chunks, each with its due time. An empty chunk is the end of the stream.
Waiting = asyncio.Queue[tuple[float, bytes]]


class ExactSelector(selectors.EpollSelector):
    """A selector whose time-outs are as exact as the time-outs of select(2).

    The time-outs of epoll are whole milliseconds.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the events that are ready within `timeout` (s)."""
        if timeout is None or timeout > 0:
            select.select([self], [], [], timeout)
        return super().select(0)


class Link:
    """The link between the clients and one instance. The object contains the present behaviour of
    the link."""

    def __init__(self, port: int, seed: str) -> None:
        self._own_port = self._port = port
        self._random = random.Random(seed)
        self._delay_s = self._jitter_s = 0.0
        self._slow: list[str] = []
        self._reset = False
        self._open = {direction: asyncio.Event() for direction in ("to", "from")}
        self._ends: set[asyncio.StreamWriter] = set()
        for gate in self._open.values():
            gate.set()

    def shape(
        self,
        delay_s: float,
        jitter_s: float,
        slow: list[str],
        held: list[str],
        *,
        reset: bool,
        port: int | None,
    ) -> None:
        """Change the behaviour of this link to the given values.

        This method does not change the due times of chunks that have already arrived.
        """
        self._port = port or self._own_port
        self._delay_s = delay_s
        self._jitter_s = jitter_s
        self._slow = slow
        self._reset = reset
        for direction, gate in self._open.items():
            (gate.clear if direction in held else gate.set)()
        for end in tuple(self._ends) if self._reset else ():
            _reset(end)

    async def connect(self, requests: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        """Connect a new client to the instance, and pass bytes on until both sides have ended."""
        if self._reset:
            _reset(client)
            return
        ends = [client]
        self._ends.add(client)
        try:
            answers, server = await asyncio.open_connection(HOST, self._port)
            ends.append(server)
            self._ends.add(server)
            await asyncio.gather(
                self._flow(requests, server, "to"), self._flow(answers, client, "from")
            )
        except OSError:
            # Nothing listens on the port of the instance. The client's connection is already
            # accepted, so the proxy cannot refuse it and resets it instead.
            _reset(client)
        finally:
            self._ends.difference_update(ends)

    async def _flow(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, direction: str
    ) -> None:
        waiting: Waiting = asyncio.Queue(_CHUNKS)
        await asyncio.gather(
            self._take(source, waiting, direction), self._hand_over(waiting, sink, direction)
        )

    async def _take(self, source: asyncio.StreamReader, waiting: Waiting, direction: str) -> None:
        chunk = b"a beginning"
        due_s = 0.0
        now_s = asyncio.get_running_loop().time
        while chunk:
            try:
                chunk = await source.read(_CHUNK_BYTES)
            except OSError:
                # A reset also ends the stream.
                chunk = b""
            if direction in self._slow:
                due_s = max(
                    due_s, now_s() + self._delay_s + self._random.uniform(0, self._jitter_s)
                )
            await waiting.put((due_s, chunk))

    async def _hand_over(
        self, waiting: Waiting, sink: asyncio.StreamWriter, direction: str
    ) -> None:
        chunk = b"a beginning"
        gate = self._open[direction]
        now_s = asyncio.get_running_loop().time
        while chunk:
            due_s, chunk = await waiting.get()
            if due_s > now_s():
                await asyncio.sleep(due_s - now_s())
            if not gate.is_set():
                await gate.wait()
            if not sink.is_closing():
                sink.write(chunk)
                # If the peer is gone, the flow from the peer ends, too. The end of this flow
                # informs the other side.
                with contextlib.suppress(OSError):
                    await sink.drain()
        sink.close()


def _reset(end: asyncio.StreamWriter) -> None:
    """End a connection now, with RST."""
    with contextlib.suppress(OSError):
        end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
    end.transport.abort()


async def serve(seed: int, ports: list[int]) -> None:
    """Start to listen for clients, once for each port, and send the new port numbers to the owner.

    After that, carry out the owner's requests until the owner has ended.
    """
    loop = asyncio.get_running_loop()
    links = [Link(port, f"{seed}:{index}") for index, port in enumerate(ports)]
    servers = [await asyncio.start_server(link.connect, HOST, 0, backlog=4096) for link in links]
    wishes = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(wishes), sys.stdin)
    _say({"id": 0, "ports": [server.sockets[0].getsockname()[1] for server in servers]})
    async for line in wishes:
        wish = json.loads(line)
        link = links[wish.pop("index")]
        number = wish.pop("id")
        link.shape(**wish)
        _say({"id": number})


def _say(message: dict[str, object]) -> None:
    print(json.dumps(message), flush=True)  # noqa: T201 - the owner reads it


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(ExactSelector())) as runner:
        runner.run(serve(int(sys.argv[1]), [int(port) for port in sys.argv[2:]]))
