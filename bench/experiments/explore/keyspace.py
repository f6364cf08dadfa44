"""Stores the data of a simulated server, and executes the commands that locks send. Each command
gets one RESP2 reply.

The commands do what the manuals of Redis and Valkey say. The server supports each command only in
the forms that locks use. An unknown command or option gets an error reply. A real server that is
too old for a command replies in the same way. The library lupa runs scripts unchanged in Lua.
`rate` is the speed of the server's clock, relative to the world's clock.
"""

import socket
import threading
from collections.abc import Callable, Mapping
from functools import cache
from hashlib import sha1
from types import SimpleNamespace
from typing import Any

from hiredis import Reader, ReplyError, pack_command

from bench.errors import EnvironmentNotReadyError
from lockcore.clock import FAR_FUTURE_NS, NS_PER_MS

Command = list[bytes]
# The types of RESP2 in this order: nil, integer, bulk, status, error and array.
Reply = None | int | bytes | str | ReplyError | list["Reply"]
OK = "OK"


def encoded(reply: Reply) -> bytes:
    """Return a reply as RESP2. The text "OK" and the bytes b"OK" both become a status reply."""
    if reply in (OK, b"OK"):
        return b"+OK\r\n"
    if isinstance(reply, ReplyError):
        return f"-{reply}\r\n".encode()
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, str):
        return f"+{reply}\r\n".encode()
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    return b"*%d\r\n" % len(reply) + b"".join(map(encoded, reply))


def nothing(_key: bytes) -> None:
    """Do nothing. A server without a replica calls this function when a key changes."""


class Keyspace:
    """The keys of a server. Each key has a value, and may have a time at which the key expires.

    `forbidden` holds the commands that this server is too old to know.
    """

    def __init__(
        self, now_ns: Callable[[], int], rate: float, forbidden: frozenset[bytes] = frozenset()
    ) -> None:
        self._now_ns = now_ns
        self._rate = rate
        self._forbidden = forbidden
        self.role = "master"
        self.is_full = False
        self.scripts: dict[bytes, bytes] = {}
        # The keyspace calls this function with each key that was written.
        self.changed: Callable[[bytes], object] = nothing
        self._entries: dict[bytes, tuple[object, int]] = {}

    # -- keys --------------------------------------------------------------------------------------

    @property
    def keys(self) -> dict[bytes, object]:
        """All keys that exist now, with their values."""
        return {key: value for key in list(self._entries) if (value := self.get(key)) is not None}

    def get(self, key: bytes) -> Any:
        """Return the value of `key`, or None if there is no such key."""
        entry = self.entry(key)
        return None if entry is None else entry[0]

    def entry(self, key: bytes) -> tuple[object, int] | None:
        """Return the value of `key` and the time (ns) at which `key` expires. Return None if there
        is no such key. The function first removes an expired key.
        """
        entry = self._entries.get(key)
        if entry is None or entry[1] > self._now_ns():
            return entry
        del self._entries[key]
        return None

    def put(self, key: bytes, value: object, end_ns: int = FAR_FUTURE_NS) -> None:
        """Set a key. The key expires when the world's clock reaches `end_ns`."""
        self._entries[key] = value, end_ns
        self.changed(key)

    def drop(self, key: bytes) -> int:
        """Delete a key. Return 1 if the key existed, and 0 if not."""
        held = self.get(key) is not None
        self._entries.pop(key, None)
        self.changed(key)
        return int(held)

    def clear(self) -> None:
        """Remove all keys and scripts, as a restart without persistence does."""
        self._entries.clear()
        self.scripts.clear()

    # -- commands ----------------------------------------------------------------------------------

    def run(self, command: Command) -> bytes:
        """Execute one command, and return its reply as bytes."""
        try:
            return encoded(self.call(command))
        except ReplyError as error:
            return encoded(error)

    def call(self, command: Command) -> Reply:
        """Return the reply to one command. Raises ReplyError."""
        name = command[0].upper()
        run = None if name in self._forbidden else _COMMANDS.get(name)
        if run is None:
            raise ReplyError(
                f"ERR unknown command '{command[0].decode()}', with args beginning with: "
            )
        return run(self, *command[1:])

    def end_ns(self, ttl_ms: float) -> int:
        """Return the time at which a key expires if its time to live starts now.

        The time to live is measured by this server's clock, but the result is a time on the world's
        clock.
        """
        return self._now_ns() + int(ttl_ms * NS_PER_MS / self._rate)

    def _set(self, key: bytes, value: bytes, *options: bytes) -> Reply:
        if self.is_full:
            raise ReplyError("MISCONF the disk is full")
        held = self.get(key)
        end_ns = FAR_FUTURE_NS
        left = iter(options)
        for word in left:
            option = word.upper()
            if option == b"NX":
                if held is not None:
                    return None
            elif option in {b"PX", b"EX"}:
                end_ns = self.end_ns(int(next(left, b"")) * (1 if option == b"PX" else 1000))
            elif option == b"IFEQ" and b"IFEQ" not in self._forbidden:
                if held != next(left, b""):
                    return None
            else:
                raise ReplyError("ERR syntax error")
        self.put(key, value, end_ns)
        return OK

    def _getset(self, key: bytes, value: bytes) -> Reply:
        held: bytes | None = self.get(key)
        self.put(key, value)
        return held

    def _getrange(self, key: bytes, start: bytes, end: bytes) -> Reply:
        """Execute GETRANGE. The first byte has position 0. The result includes the bytes at `start`
        and at `end`."""
        held: bytes = self.get(key) or b""
        return held[int(start) : int(end) + 1]

    def _pexpire(self, key: bytes, ttl_ms: bytes) -> Reply:
        held = self.get(key)
        if held is not None:
            self.put(key, held, self.end_ns(int(ttl_ms)))
        return int(held is not None)

    def _drop_if(self, key: bytes, value: bytes) -> Reply:
        """Execute DELIFEQ."""
        if self.get(key) == value:
            return self.drop(key)
        return 0

    def _delex(self, key: bytes, _ifeq: bytes, value: bytes) -> Reply:
        """Execute DELEX with the option IFEQ. Locks use no other option of DELEX."""
        return self._drop_if(key, value)

    def pttl(self, key: bytes) -> Reply:
        """Execute PTTL. The reply is −1 for a key without an end, and −2 if there is no key."""
        entry = self.entry(key)
        if entry is None:
            return -2
        return (
            -1
            if entry[1] == FAR_FUTURE_NS
            else int((entry[1] - self._now_ns()) * self._rate / NS_PER_MS)
        )

    def _incr(self, key: bytes) -> Reply:
        value = int(self.get(key) or 0) + 1
        self.put(key, b"%d" % value)
        return value

    def _hset(self, key: bytes, *pairs: bytes) -> Reply:
        table = self.get(key) or {}
        written = {**table, **dict(zip(pairs[::2], pairs[1::2], strict=True))}
        self.put(key, written)
        return len(written) - len(table)

    def _lpush(self, key: bytes, *values: bytes) -> Reply:
        self.put(key, values)
        return len(values)

    @property
    def _clock_us(self) -> int:
        return int(self._now_ns() * self._rate) // 1_000

    def _zadd(self, key: bytes, score: bytes, member: bytes) -> Reply:
        members = self.get(key) or {}
        self._keep(key, {**members, member: float(score)})
        return int(member not in members)

    def _zrem(self, key: bytes, member: bytes) -> Reply:
        return self._remove(key, lambda name, _score: name == member)

    def _zremrangebyscore(self, key: bytes, least: bytes, most: bytes) -> Reply:
        """Execute ZREMRANGEBYSCORE. Both ends are included."""
        return self._remove(key, lambda _name, score: float(least) <= score <= float(most))

    def _zcount(self, key: bytes, above: bytes, most: bytes) -> Reply:
        """Execute ZCOUNT. The lower end is excluded, and its text starts with "("."""
        least = float(above.removeprefix(b"("))
        members: Mapping[bytes, float] = self.get(key) or {}
        return sum(least < score <= float(most) for score in members.values())

    def _remove(self, key: bytes, is_chosen: Callable[[bytes, float], bool]) -> int:
        """Remove the chosen members of a sorted set. Return the number of removed members."""
        members = self.get(key) or {}
        left = {name: score for name, score in members.items() if not is_chosen(name, score)}
        if len(left) < len(members):
            self._keep(key, left)
        return len(members) - len(left)

    def _keep(self, key: bytes, members: Mapping[bytes, float]) -> None:
        """Store the members of a sorted set. The key's time of expiry does not change. An empty set
        is deleted.
        """
        entry = self.entry(key)
        if members:
            self.put(key, members, entry[1] if entry else FAR_FUTURE_NS)
        else:
            self.drop(key)

    def _script(self, what: bytes, source: bytes = b"") -> Reply:
        if what.upper() == b"FLUSH":
            self.scripts.clear()
            return OK
        name = sha1(source, usedforsecurity=False).hexdigest().encode()
        self.scripts[name] = source
        return name

    def _evalsha(self, name: bytes, count: bytes, *arguments: bytes) -> Reply:
        if name not in self.scripts:
            raise ReplyError("NOSCRIPT No matching script. Please use EVAL.")
        return run_lua(self, self.scripts[name], arguments[: int(count)], arguments[int(count) :])


_COMMANDS: dict[bytes, Callable[..., Reply]] = {
    b"SET": Keyspace._set,
    b"SETNX": lambda self, key, value: int(self._set(key, value, b"NX") is OK),
    b"GET": Keyspace.get,
    b"GETRANGE": Keyspace._getrange,
    b"GETSET": Keyspace._getset,
    b"DEL": lambda self, *keys: sum(map(self.drop, keys)),
    b"UNLINK": lambda self, *keys: sum(map(self.drop, keys)),
    b"EXISTS": lambda self, *keys: sum(self.get(key) is not None for key in keys),
    b"DELIFEQ": Keyspace._drop_if,
    b"DELEX": Keyspace._delex,
    b"PEXPIRE": Keyspace._pexpire,
    b"PTTL": Keyspace.pttl,
    b"INCR": Keyspace._incr,
    b"HGET": lambda self, key, name: (self.get(key) or {}).get(name),
    b"HSET": Keyspace._hset,
    b"ZADD": Keyspace._zadd,
    b"ZREM": Keyspace._zrem,
    b"ZREMRANGEBYSCORE": Keyspace._zremrangebyscore,
    b"ZCOUNT": Keyspace._zcount,
    b"TIME": lambda self: [b"%d" % part for part in divmod(self._clock_us, 1_000_000)],
    b"SCRIPT": Keyspace._script,
    b"EVAL": lambda self, source, *arguments: self._evalsha(
        self._script(b"LOAD", source), *arguments
    ),
    b"EVALSHA": Keyspace._evalsha,
    b"ROLE": lambda self: [self.role.encode(), 0, []],
    b"PING": lambda self: "PONG",
    # This server has no subscriptions. A client that waits for a message polls.
    b"PUBLISH": lambda self, *arguments: 0,
    b"LPUSH": Keyspace._lpush,
    b"CLIENT": lambda self, *arguments: OK,
    b"HELLO": lambda self, *arguments: [b"server", b"redis", b"proto", 2],
}


# -- Lua -------------------------------------------------------------------------------------------

# The keyspaces whose scripts are running now, the innermost last.
_CALLER: list[Keyspace] = []
# In tests, servers answer in several threads. All scripts share one Lua runtime and the list above.
# Without this lock, a script could run on another server's keys.
_ONE_AT_A_TIME = threading.RLock()


@cache
def _lua() -> Any:
    try:
        # Redis servers use this version of Lua.
        from lupa.lua51 import LuaRuntime
    except ImportError:
        raise EnvironmentNotReadyError(
            "scripts need the package lupa: pip install 'lockbench[explore]'"
        ) from None
    lua = LuaRuntime(encoding=None, unpack_returned_tuples=False)
    lua.globals()[b"redis"] = lua.table_from({b"call": _redis_call, b"pcall": _redis_pcall})
    return lua


def _redis_call(*words: bytes | float) -> object:
    reply = _CALLER[-1].call(
        [b"%d" % word if isinstance(word, int | float) else word for word in words]
    )
    if isinstance(reply, str):
        return _lua().table_from({b"ok": reply.encode()})
    if isinstance(reply, list):
        return _lua().table_from(reply)
    return False if reply is None else reply


def _redis_pcall(*words: bytes | float) -> object:
    try:
        return _redis_call(*words)
    except ReplyError as error:
        return _lua().table_from({b"err": str(error).encode()})


@cache
def _compiled(source: bytes) -> Any:
    return _lua().eval(b"function(KEYS, ARGV)\n" + source + b"\nend")


def run_lua(
    keyspace: Keyspace, source: bytes, keys: tuple[bytes, ...], arguments: tuple[bytes, ...]
) -> Reply:
    """Run a script in one step, and return its result.

    Raises EnvironmentNotReadyError if lupa is not installed.
    """
    with _ONE_AT_A_TIME:
        table_from = _lua().table_from
        _CALLER.append(keyspace)
        try:
            return _reply_of(_compiled(source)(table_from(keys), table_from(arguments)))
        finally:
            _CALLER.pop()


def _reply_of(value: Any) -> Reply:
    if value is None or value is False:
        return None
    if value is True:
        return 1
    if isinstance(value, int | float):
        return int(value)
    if isinstance(value, bytes):
        return value
    if b"err" in value:
        raise ReplyError(value[b"err"].decode())
    if b"ok" in value:
        return OK if value[b"ok"] == b"OK" else str(value[b"ok"].decode())
    return [_reply_of(value[index]) for index in range(1, len(value) + 1)]


# -- on real servers -------------------------------------------------------------------------------

REPLY_S = 5.0


class RealKeyspace:
    """Replaces the data of a simulated server, and executes each command on a real server."""

    def __init__(self, port: int) -> None:
        """Connect to an empty server. Raises OSError."""
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=REPLY_S)
        self._reader = Reader()
        self.role = "master"
        self.is_full = False
        self.scripts = SimpleNamespace(clear=lambda: self.run([b"SCRIPT", b"FLUSH"]))

    def run(self, command: Command) -> bytes:
        """Execute one command, and return its reply as bytes. Raises OSError."""
        return encoded(self._call(*command))

    def _call(self, *command: bytes) -> Any:
        self._socket.sendall(pack_command(command))  # type: ignore[arg-type]
        while (reply := self._reader.gets()) is False:
            if not (data := self._socket.recv(1 << 16)):
                raise ConnectionResetError("the server ended the connection")
            self._reader.feed(data)
        return reply

    @property
    def keys(self) -> Mapping[bytes, bytes]:
        """All keys that exist now, with the answer of GET for each."""
        return {name: self._call(b"GET", name) for name in self._call(b"KEYS", b"*")}

    def clear(self) -> None:
        """Remove all keys and scripts, as a restart without persistence does."""
        self.run([b"FLUSHALL"])
        self.scripts.clear()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
