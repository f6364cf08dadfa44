"""The simulated server's data under the name of a dialect: *what a server knows → the keyspace of
`lockbench explore`*; and replies as they stand on the wire.

`dialect`: the compare-and-delete it knows, `delex`, `delifeq`, both with a space between (as Valkey
9.2), or `evalsha` (which has no SET … IFEQ); with `no eval` it knows no script.
"""

import threading
from collections.abc import Callable

from bench.experiments.explore import keyspace as simulated
from lockcore.clock import monotonic_ns

Command = simulated.Command
OK = b"+OK\r\n"
NIL = b"$-1\r\n"
ONE = b":1\r\n"
ZERO = b":0\r\n"
NOSCRIPT = b"-NOSCRIPT No matching script. Please use EVAL.\r\n"
WRONGTYPE = b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"
MISCONF = b"-MISCONF the disk is full\r\n"


def error(text: str) -> bytes:
    """An error reply."""
    return f"-{text}\r\n".encode()


class Keyspace(simulated.Keyspace):
    """Keys with their values and ends, and the scripts it was taught; `rate`: how fast its clock
    runs. Safe to use from several threads."""

    # There is one Lua for all keyspaces of a process. A simulation has one thread, and the threads
    # of several doubles would run scripts in it at the same time.
    _one_at_a_time = threading.Lock()

    def __init__(
        self, dialect: str, now_ns: Callable[[], int] = monotonic_ns, rate: float = 1.0
    ) -> None:
        self.dialect = dialect
        # RESP3 is not spoken here.
        unknown = {b"HELLO"}
        unknown |= {name for name in (b"DELEX", b"DELIFEQ") if name.decode().lower() not in dialect}
        if "del" not in dialect:
            unknown.add(b"IFEQ")
        if "no eval" in dialect:
            unknown |= {b"EVAL", b"EVALSHA", b"SCRIPT"}
        super().__init__(now_ns, rate, frozenset(unknown))

    def run(self, command: Command) -> bytes:
        """Execute one command."""
        with self._one_at_a_time:
            return super().run(command)
