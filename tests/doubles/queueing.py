"""A RESP server of known capacity: *commands of a lock → one queue, a fixed time each → honest replies*.

A command that came in at t is done at max(t, end of the one before) + `service_s`, whatever the threads do meanwhile:
errors of sleeping do not add up, and what waits on the socket when a reply leaves came while the server worked, however
late a busy machine lets it be read. What came together is answered together. The handshake is free. So a lease (SET
and release) takes 2 · `service_s`, and the capacity is 1 ÷ (2 · `service_s`) leases/s. For one connection at a time.
"""

import select
import socket
import time
from collections.abc import Sequence
from typing import Any

from tests.doubles.instance import Instance, Say, _kind_of
from tests.doubles.keyspace import Command


class QueueingInstance(Instance):
    """One server with a queue. `service_s`: seconds of work per command."""

    def __init__(self, service_s: float) -> None:
        self._service_s, self._came_s, self._free_s, self._has_more = service_s, 0.0, 0.0, False
        super().__init__("delifeq")

    def _execute(self, number: int, connection: socket.socket, reader: Any) -> bool:
        self._came_s = self._free_s if self._has_more else time.monotonic()
        return super()._execute(number, connection, reader)

    def _answer(self, number: int, command: Command) -> bytes | Say:
        if _kind_of(command) != "other":
            self._free_s = max(self._came_s, self._free_s) + self._service_s
        return super()._answer(number, command)

    def _send(self, connection: socket.socket, replies: Sequence[bytes]) -> None:
        time.sleep(max(self._free_s - time.monotonic(), 0.0))
        self._has_more = bool(select.select([connection], [], [], 0)[0])
        super()._send(connection, replies)
