"""A relay that counts what a client says to its instances: *ports → ports, and exact counts of what went through*.

Rules
- Replies are held back until everybody has been silent for `QUIET_S`, then all go at once. What a client sends between
  two such moments is one round trip, however many instances it speaks to: so requests in parallel are one round trip,
  one after the other they are as many as there are instances, whatever the machine's speed.
- Commands are counted by parsing what the client sends, so scripts count as the one command they are sent as.
- One thread, plain TCP, loopback only; it ends with `close`.

Source: RESP (hiredis parses it).
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import hiredis

QUIET_S = 0.015
CHUNK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Counts:
    """What went through since the relay began; bytes and commands over all instances."""

    connections: int = 0
    commands: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    round_trips: int = 0

    def since(self, before: Counts) -> Counts:
        """What was added to `before`."""
        return Counts(
            self.connections - before.connections,
            self.commands - before.commands,
            self.bytes_sent - before.bytes_sent,
            self.bytes_received - before.bytes_received,
            self.round_trips - before.round_trips,
        )


@dataclass(slots=True)
class _Pipe:
    """One client connection and the one made for it; `held`: replies that wait."""

    client: socket.socket
    server: socket.socket
    reader: hiredis.Reader
    held: bytearray


class CountingRelay:
    """Stands before loopback ports; `ports` are its own, in the same order. A context manager."""

    def __init__(self, targets: Sequence[int]) -> None:
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._pipes: list[_Pipe] = []
        self._listeners: list[socket.socket] = []
        self._connections = self._commands = self._sent = self._received = self._round_trips = 0
        self._active_s = time.monotonic()
        self._open = True
        ports = []
        for target in targets:
            listener = socket.create_server(("127.0.0.1", 0))
            self._listeners.append(listener)
            self._selector.register(listener, selectors.EVENT_READ, target)
            ports.append(int(listener.getsockname()[1]))
        self.ports = tuple(ports)
        self._thread = threading.Thread(target=self._serve, name="counting-relay", daemon=True)
        self._thread.start()

    def settled(self, timeout_s: float = 10.0) -> Counts:
        """Wait until nothing is under way, and return what went through so far; after `timeout_s` what there is."""
        deadline_s = time.monotonic() + timeout_s
        with self._idle:
            while not self._is_quiet() and time.monotonic() < deadline_s:
                self._idle.wait(QUIET_S)
            return Counts(self._connections, self._commands, self._sent, self._received, self._round_trips)

    def close(self) -> None:
        """End the relay and every connection through it. Idempotent."""
        self._open = False
        self._thread.join()
        for listener in self._listeners:
            listener.close()
        for pipe in self._pipes:
            pipe.client.close()
            pipe.server.close()
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def _is_quiet(self) -> bool:
        silent_s = time.monotonic() - self._active_s
        return silent_s > 2 * QUIET_S and not any(pipe.held for pipe in self._pipes)

    def _serve(self) -> None:
        while self._open:
            for key, _ in self._selector.select(QUIET_S / 3):
                with self._lock:
                    self._turn(key)
            with self._lock:
                if time.monotonic() - self._active_s > QUIET_S:
                    self._let_go()

    def _turn(self, key: selectors.SelectorKey) -> None:
        assert isinstance(key.fileobj, socket.socket)
        if isinstance(key.data, int):
            self._accept(key.fileobj, key.data)
            return
        pipe: _Pipe = key.data
        try:
            chunk = key.fileobj.recv(CHUNK_BYTES)
            self._pass(pipe, key.fileobj, chunk)
        except OSError:
            chunk = b""
        if not chunk:
            self._end(pipe)

    def _accept(self, listener: socket.socket, target: int) -> None:
        client, _ = listener.accept()
        server = socket.create_connection(("127.0.0.1", target))
        pipe = _Pipe(client, server, hiredis.Reader(), bytearray())
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(sock, selectors.EVENT_READ, pipe)
        self._pipes.append(pipe)
        self._connections += 1
        self._active_s = time.monotonic()

    def _pass(self, pipe: _Pipe, source: socket.socket, chunk: bytes) -> None:
        if not chunk:
            return
        self._active_s = time.monotonic()
        if source is pipe.server:
            pipe.held += chunk
            self._received += len(chunk)
            return
        self._sent += len(chunk)
        pipe.reader.feed(chunk)
        while pipe.reader.gets() is not False:
            self._commands += 1
        pipe.server.sendall(chunk)

    def _let_go(self) -> None:
        """Hand over all replies that wait: the end of one round trip."""
        waiting = [pipe for pipe in self._pipes if pipe.held]
        self._round_trips += bool(waiting)
        for pipe in waiting:
            with contextlib.suppress(OSError):
                pipe.client.sendall(pipe.held)
            pipe.held.clear()
            self._active_s = time.monotonic()
        self._idle.notify_all()

    def _end(self, pipe: _Pipe) -> None:
        for sock in (pipe.client, pipe.server):
            with contextlib.suppress(KeyError):
                self._selector.unregister(sock)
            sock.close()
        pipe.held.clear()
