"""A slow, cut or lossy link in front of every instance: *bytes in → the same bytes, in order, when they are due*.

Run as `python -I -S proxy_process.py SEED PORT…`; wishes and answers are lines of JSON. It imports only the standard
library. One process serves all instances of a fleet, so that all are equally far away.

Rules
- A chunk gets its due time when it arrives and never overtakes the one before it. Nobody sleeps: a timer waits for
  whatever is due next, so a delay costs no throughput.
- A held direction (a black hole) keeps its bytes, and the end of the stream, and hands them over when it is healed, as
  TCP's own repetition would: a stream with a hole in it is a fault no network has.
- A sender is held back once 8 MiB wait for it, or the other side takes no more.
- A reset ends every connection of the instance with RST, new ones at once, for as long as it lasts.
- It ends when its owner closes its stdin or dies.

Source: asyncio's protocols.
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
from collections import deque
from dataclasses import dataclass, field
from typing import Any

HOST = "127.0.0.1"
_WAITING_BYTES = 8 << 20
_RST = struct.pack("ii", 1, 0)  # SO_LINGER on, for no time


class ExactSelector(selectors.EpollSelector):
    """Waits as exactly as select(2) does: epoll's own time-outs are whole milliseconds."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What is ready within `timeout` (s)."""
        if timeout is None or timeout > 0:
            select.select([self], [], [], timeout)
        return super().select(0)


@dataclass(slots=True)
class Link:
    """The way to one instance as it is now, as `Shape` in bench/topology/servants.py says."""

    port: int
    random: random.Random
    delay_s: float = 0.0
    jitter_s: float = 0.0
    slow: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    reset: bool = False
    flows: "set[Flow]" = field(default_factory=set)

    def shape(self, wish: dict[str, Any]) -> None:
        """Be as `wish` says from now on; what waits keeps its due time."""
        self.delay_s, self.jitter_s, self.reset = wish["delay_s"], wish["jitter_s"], wish["reset"]
        self.slow, self.held = wish["slow"], wish["held"]
        for flow in tuple(self.flows):
            if self.reset and flow.source is not None:
                flow.source.reset()
            flow.flush()


class Flow:
    """One direction of one connection: chunks in order, each with its due time; None is the end of the stream."""

    def __init__(self, link: Link, direction: str) -> None:
        self._link, self._direction = link, direction
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[float, bytes | None]] = deque()
        self._bytes, self._last_s = 0, 0.0
        self._timed = False
        self.source: End | None = None
        self.sink: End | None = None
        link.flows.add(self)

    def feed(self, chunk: bytes | None) -> None:
        """Take a chunk from the source."""
        slow = self._direction in self._link.slow
        if not slow and not self._waiting and self._open:
            self._hand_over(chunk)  # the common case: no queue, no clock
            return
        if slow:
            late_s = self._link.delay_s + self._link.random.uniform(0, self._link.jitter_s)
            self._last_s = max(self._last_s, self._loop.time() + late_s)
        self._waiting.append((self._last_s, chunk))
        self._bytes += len(chunk or b"")
        self.flush()

    def flush(self) -> None:
        """Hand over what is due, and have a timer call for the rest."""
        if self._open:
            now_s = self._loop.time()
            while self._waiting and self._waiting[0][0] <= now_s:
                chunk = self._waiting.popleft()[1]
                self._bytes -= len(chunk or b"")
                self._hand_over(chunk)
            if self._waiting and not self._timed:
                self._timed = True
                self._loop.call_at(self._waiting[0][0], self._called)
        if self.source is not None:
            self.source.hold_back("queue", self._bytes > _WAITING_BYTES)

    def forget(self) -> None:
        """Nobody is there to take anything any more."""
        self.sink = None
        self._waiting.clear()
        self._bytes = 0
        self._link.flows.discard(self)

    @property
    def _open(self) -> bool:
        return self.sink is not None and self._direction not in self._link.held

    def _called(self) -> None:
        self._timed = False
        self.flush()

    def _hand_over(self, chunk: bytes | None) -> None:
        sink = self.sink
        assert sink is not None
        if chunk is None:
            self.forget()
            sink.finish()
        else:
            sink.write(chunk)


class End(asyncio.Protocol):
    """One side of a connection: what it reads goes into `out`, what it writes comes out of `into`."""

    def __init__(self, link: Link, out: Flow, into: Flow) -> None:
        self._link, self._out, self._into = link, out, into
        self._transport: asyncio.Transport | None = None
        self._reasons: set[str] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open: what waited for it may come."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._out.source = self._into.sink = self
        if self._link.reset:
            self.reset()
        self._into.flush()

    def data_received(self, data: bytes) -> None:
        """Bytes to pass on."""
        self._out.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone: the other side learns it after what was under way."""
        self._transport = self._out.source = None
        self._into.forget()
        self._out.feed(None)

    def pause_writing(self) -> None:
        """This side takes no more: who sends to it is held back."""
        if self._into.source is not None:
            self._into.source.hold_back("sink", True)

    def resume_writing(self) -> None:
        """This side takes more again."""
        if self._into.source is not None:
            self._into.source.hold_back("sink", False)

    def write(self, chunk: bytes) -> None:
        """Send."""
        if self._transport is not None:
            self._transport.write(chunk)

    def finish(self) -> None:
        """The other side has ended: so does this one, after what was written."""
        if self._transport is not None:
            self._transport.close()

    def reset(self) -> None:
        """End now, with RST."""
        if self._transport is not None:
            with contextlib.suppress(OSError):
                self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
            self._transport.abort()

    def hold_back(self, reason: str, wanted: bool) -> None:
        """Read no more while there is a reason not to."""
        before = bool(self._reasons)
        self._reasons = self._reasons | {reason} if wanted else self._reasons - {reason}
        if self._transport is not None and before != bool(self._reasons):
            if self._reasons:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()


class ClientEnd(End):
    """The side of a client, which makes the other one."""

    def __init__(self, link: Link) -> None:
        super().__init__(link, Flow(link, "to"), Flow(link, "from"))
        self._dialling: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client came: connect to the instance."""
        super().connection_made(transport)
        self._dialling = asyncio.get_running_loop().create_task(self._dial())

    async def _dial(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.create_connection(lambda: End(self._link, self._into, self._out), HOST, self._link.port)
        except OSError:
            self._out.forget()
            self.reset()  # nothing listens there: as near to a refusal as an accepted connection comes


async def serve(seed: int, ports: list[int]) -> None:
    """Listen for every port's clients, tell the owner where, do what it says until it is gone."""
    loop = asyncio.get_running_loop()
    links = [Link(port, random.Random(f"{seed}:{index}")) for index, port in enumerate(ports)]
    servers = [await loop.create_server(lambda link=link: ClientEnd(link), HOST, 0, backlog=4096) for link in links]  # type: ignore[misc]
    wishes = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(wishes), sys.stdin)
    _say({"id": 0, "ports": [server.sockets[0].getsockname()[1] for server in servers]})
    async for line in wishes:
        wish = json.loads(line)
        links[wish["index"]].shape(wish)
        _say({"id": wish["id"]})


def _say(message: dict[str, object]) -> None:
    print(json.dumps(message), flush=True)  # noqa: T201 - the owner reads it


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(ExactSelector())) as runner:
        runner.run(serve(int(sys.argv[1]), [int(port) for port in sys.argv[2:]]))
