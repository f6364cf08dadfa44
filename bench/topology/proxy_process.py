"""A slow, cut or lossy link in front of every instance: *bytes in → the same bytes, in order, when they are due*.

Run as `python -I -S proxy_process.py SEED PORT…` with a SOCK_SEQPACKET socket as standard input; it imports only the
standard library. One process serves all instances of a fleet, so that all are equally far away.

Rules
- A chunk gets its due time when it arrives and never overtakes the one before it. Nobody sleeps: one timer waits for
  whatever is due next, so a delay costs no throughput.
- A held direction (a black hole) keeps its bytes, and the end of the stream, and hands them over when it is healed, as
  TCP's own repetition would: a stream with a hole in it is a fault no network has.
- A sender is held back once 8 MiB wait for it, or the other side takes no more.
- A reset ends every connection of the instance with RST, new ones at once, for as long as it lasts.
- It ends when its owner closes the socket or dies.

Source: timerfd_create(2); asyncio's protocols.
"""

import asyncio
import contextlib
import ctypes
import heapq
import itertools
import json
import os
import random
import socket
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

MESSAGE_BYTES = 1 << 16
HOST = "127.0.0.1"
_WAITING_BYTES = 8 << 20
_NS = 1_000_000_000
_CLOCK_MONOTONIC, _ABSOLUTE = 1, 1
_RST = struct.pack("ii", 1, 0)  # SO_LINGER on, for no time


class DueTimer:
    """Calls pipes at their due times, to the precision of the kernel's timers (asyncio's own are 1 ms wide)."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._libc = ctypes.CDLL(None)
        self._file: int = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        self._heap: list[tuple[int, int, Pipe]] = []
        self._order = itertools.count()
        loop.add_reader(self._file, self._fire)

    def call(self, due_ns: int, pipe: "Pipe") -> None:
        """Have `pipe.called()` at `due_ns` (monotonic)."""
        heapq.heappush(self._heap, (due_ns, next(self._order), pipe))
        if self._heap[0][0] == due_ns:
            self._arm()

    def _fire(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._file, 8)
        now_ns = time.monotonic_ns()
        while self._heap and self._heap[0][0] <= now_ns:
            heapq.heappop(self._heap)[2].called()
        if self._heap:
            self._arm()

    def _arm(self) -> None:
        due_ns = self._heap[0][0]
        when = struct.pack("qqqq", 0, 0, due_ns // _NS, due_ns % _NS)
        self._libc.timerfd_settime(self._file, _ABSOLUTE, when, None)


@dataclass(slots=True)
class Link:
    """The way to one instance as it is now. `slow`: delayed directions; `held`: those that hand over nothing."""

    port: int
    timer: DueTimer
    random: random.Random
    delay_ns: int = 0
    jitter_ns: int = 0
    slow: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()
    reset: bool = False
    pipes: "set[Pipe]" = field(default_factory=set)

    def shape(self, wish: dict[str, Any]) -> None:
        """Be as `wish` says from now on; what waits keeps its due time."""
        self.delay_ns, self.jitter_ns, self.reset = wish["delay_ns"], wish["jitter_ns"], wish["reset"]
        self.slow, self.held = frozenset(wish["slow"]), frozenset(wish["held"])
        for pipe in tuple(self.pipes):
            if self.reset and pipe.source is not None:
                pipe.source.reset()
            pipe.flush()

    def due_ns(self, direction: str) -> int:
        """When a chunk that came now may go on; 0 = at once."""
        if direction not in self.slow:
            return 0
        return time.monotonic_ns() + self.delay_ns + int(self.random.uniform(0, self.jitter_ns))


class Pipe:
    """One direction of one connection: chunks in order, each with its due time; None is the end of the stream."""

    def __init__(self, link: Link, direction: str) -> None:
        self._link, self._direction = link, direction
        self._waiting: deque[tuple[int, bytes | None]] = deque()
        self._bytes = self._last_ns = 0
        self._timed = False
        self.source: End | None = None
        self.sink: End | None = None
        link.pipes.add(self)

    def feed(self, chunk: bytes | None) -> None:
        """Take a chunk from the source."""
        due_ns = self._link.due_ns(self._direction)
        if not due_ns and not self._waiting and self._open:
            self._hand_over(chunk)  # the common case: no queue, no clock
            return
        self._last_ns = max(self._last_ns, due_ns)
        self._waiting.append((self._last_ns, chunk))
        self._bytes += len(chunk or b"")
        self.flush()

    def called(self) -> None:
        """The timer: something is due."""
        self._timed = False
        self.flush()

    def flush(self) -> None:
        """Hand over what is due, and have the timer call for the rest."""
        if self._open:
            now_ns = time.monotonic_ns()
            while self._waiting and self._waiting[0][0] <= now_ns:
                chunk = self._waiting.popleft()[1]
                self._bytes -= len(chunk or b"")
                self._hand_over(chunk)
            if self._waiting and not self._timed:
                self._timed = True
                self._link.timer.call(self._waiting[0][0], self)
        if self.source is not None:
            self.source.hold_back("queue", self._bytes > _WAITING_BYTES)

    def forget(self) -> None:
        """Nobody is there to take anything any more."""
        self.sink = None
        self._waiting.clear()
        self._bytes = 0
        self._link.pipes.discard(self)

    @property
    def _open(self) -> bool:
        return self.sink is not None and self._direction not in self._link.held

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

    def __init__(self, link: Link, out: Pipe, into: Pipe) -> None:
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
        super().__init__(link, Pipe(link, "to"), Pipe(link, "from"))
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


async def serve(owner: socket.socket, seed: int, ports: list[int]) -> None:
    """Listen for every port's clients, tell the owner where, do what it says until it is gone."""
    loop = asyncio.get_running_loop()
    timer = DueTimer(loop)
    links = [Link(port, timer, random.Random(f"{seed}:{index}")) for index, port in enumerate(ports)]
    servers = [await loop.create_server(lambda link=link: ClientEnd(link), HOST, 0, backlog=4096) for link in links]  # type: ignore[misc]
    gone = asyncio.Event()

    def obey() -> None:
        try:
            message = owner.recv(MESSAGE_BYTES)
        except OSError:
            message = b""
        if not message:
            loop.remove_reader(owner)
            gone.set()
            return
        wish = json.loads(message)
        links[wish["index"]].shape(wish)
        owner.send(json.dumps({"id": wish["id"]}).encode())

    owner.send(json.dumps({"id": 0, "ports": [server.sockets[0].getsockname()[1] for server in servers]}).encode())
    loop.add_reader(owner, obey)
    await gone.wait()


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        asyncio.run(serve(socket.socket(fileno=0), int(sys.argv[1]), [int(port) for port in sys.argv[2:]]))
