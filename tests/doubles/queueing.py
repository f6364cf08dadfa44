"""A RESP server of known capacity: *commands of a lock → one queue, a fixed time each → honest replies*.

A command that came in at t is done at max(t, end of the one before) + `service_s`, whatever the threads do meanwhile:
errors of sleeping do not add up. The handshake is free. So a lease (SET and release) takes 2 · `service_s`, and the
capacity is 1 ÷ (2 · `service_s`) leases/s.
"""

import socket
import time
from typing import Any

from tests.doubles.instance import Instance, Say, _kind_of
from tests.doubles.keyspace import Command


class QueueingInstance(Instance):
    """One server with a queue. `service_s`: seconds of work per command."""

    def __init__(self, service_s: float) -> None:
        self._service_s, self._came_s, self._free_s = service_s, 0.0, 0.0
        super().__init__("delifeq")

    def _execute(self, number: int, connection: socket.socket, reader: Any) -> bool:
        self._came_s = time.monotonic()
        return super()._execute(number, connection, reader)

    def _answer(self, number: int, command: Command) -> bytes | Say:
        if _kind_of(command) != "other":
            self._free_s = max(self._came_s, self._free_s) + self._service_s
            time.sleep(max(self._free_s - time.monotonic(), 0.0))
        return super()._answer(number, command)
