"""The commands a lock sends, executed honestly on a dictionary: *arguments → one RESP2 reply*.

What is said of Redis and Valkey in their manuals, for the few forms lockcore uses; held against the
real servers by test_dialects.py. `dialect`: the compare-and-delete it knows, `delex`, `delifeq`,
both with a space between (as Valkey 9.2), or `evalsha` (which has no SET … IFEQ); with `no eval` it
knows no script.
"""

from collections.abc import Callable

from lockcore.clock import NS_PER_MS, monotonic_ns
from lockcore.rounds.commands import COMPARE_AND_DELETE, COMPARE_AND_DELETE_MANY, COMPARE_AND_EXTEND

Command = list[bytes]
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


class Keyspace:
    """Keys with their values and ends, and the scripts it was taught; `rate`: how fast its clock
    runs."""

    def __init__(
        self, dialect: str, now_ns: Callable[[], int] = monotonic_ns, rate: float = 1.0
    ) -> None:
        self.dialect = dialect
        self.now_ns = now_ns
        self.rate = rate
        self.scripts: set[bytes] = set()
        self._entries: dict[bytes, tuple[bytes, int]] = {}
        self._commands: dict[bytes, Callable[[Command], bytes]] = {
            b"SET": self._set,
        }
        if "no eval" not in dialect:
            self._commands |= {
                b"EVAL": self._eval,
                b"EVALSHA": self._evalsha,
                b"SCRIPT": self._script,
            }
        if "delex" in dialect:
            self._commands[b"DELEX"] = lambda command: self._delete(command[1], command[3])
        if "delifeq" in dialect:
            self._commands[b"DELIFEQ"] = lambda command: self._delete(command[1], command[2])

    @property
    def keys(self) -> dict[bytes, bytes]:
        """What is held now."""
        now_ns = self.now_ns()
        return {
            key: value for key, (value, end_ns) in list(self._entries.items()) if now_ns < end_ns
        }

    def get(self, key: bytes) -> bytes | None:
        """What is held under `key`; for whoever executes commands, as what has expired is
        forgotten."""
        value, end_ns = self._entries.get(key, (None, 0))
        if value is not None and end_ns <= self.now_ns():
            self.drop(key)
            return None
        return value

    def ttl_ms(self, key: bytes) -> float:
        """What is left of a key that is held."""
        return (self._entries[key][1] - self.now_ns()) / NS_PER_MS

    def put(self, key: bytes, value: bytes, ttl_ms: int = 60_000) -> None:
        """Somebody else takes `key`."""
        self._entries[key] = (value, self.now_ns() + int(ttl_ms * NS_PER_MS / self.rate))

    def drop(self, key: bytes) -> None:
        """Somebody else removes `key`."""
        self._entries.pop(key, None)

    def clear(self) -> None:
        """A restart without persistence."""
        self._entries.clear()
        self.scripts.clear()

    def run(self, command: Command) -> bytes:
        """Execute one command."""
        run = self._commands.get(command[0].upper())
        return (
            run(command)
            if run
            else error(f"ERR unknown command '{command[0].decode()}', with args beginning with: ")
        )

    def _set(self, command: Command) -> bytes:
        _, key, value, *options = command
        ttl_ms = int(options[options.index(b"PX") + 1])
        held = self.get(key)
        if b"IFEQ" in options:
            if "del" not in self.dialect:
                return error("ERR syntax error")
            if held != options[options.index(b"IFEQ") + 1]:
                return NIL
        elif held is not None:
            return NIL
        self.put(key, value, ttl_ms)
        return OK

    def _delete(self, key: bytes, value: bytes) -> bytes:
        if self.get(key) != value:
            return ZERO
        self.drop(key)
        return ONE

    def _extend(self, key: bytes, value: bytes, ttl_ms: int) -> bytes:
        if self.get(key) != value:
            return ZERO
        self.put(key, value, ttl_ms)
        return ONE

    def _script(self, command: Command) -> bytes:
        if command[1] == b"LOAD":
            self.scripts.add(command[2])
            return OK
        self.scripts.clear()
        return OK

    def _eval(self, command: Command) -> bytes:
        self.scripts.add(command[1])
        return self._call(command[1], command)

    def _evalsha(self, command: Command) -> bytes:
        for script in (COMPARE_AND_DELETE, COMPARE_AND_DELETE_MANY, COMPARE_AND_EXTEND):
            if script.sha == command[1] and script.source in self.scripts:
                return self._call(script.source, command)
        return NOSCRIPT

    def _call(self, source: bytes, command: Command) -> bytes:
        count = int(command[2])
        keys = command[3 : 3 + count]
        values = command[3 + count :]
        if source == COMPARE_AND_DELETE.source:
            return self._delete(keys[0], values[0])
        if source == COMPARE_AND_EXTEND.source:
            return self._extend(keys[0], values[0], int(values[1]))
        assert source == COMPARE_AND_DELETE_MANY.source, source
        return b"*%d\r\n" % count + b"".join(map(self._delete, keys, values))
