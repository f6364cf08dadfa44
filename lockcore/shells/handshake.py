"""From a URL to a connection ready for pipelining: *redis://, rediss://, unix:// → a socket and what the server said*.

Rules: TLS, AUTH, ACL users, SELECT and unix sockets are redis-py's work, without its retries (a retried SET NX reads its own
success as a refusal). Then the instance is asked what it is. Refused, with one sentence: a cluster node, a replica, a wrong
password, a failed TLS handshake, no way to compare and delete. No message holds a password.
Blocking: a shell runs it where it may block (a thread, an executor, a greenlet of a patched process).
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, parse_url
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from lockcore.commands import COMPARE_AND_DELETE, COMPARE_AND_DELETE_MANY, COMPARE_AND_EXTEND, Dialect
from lockcore.errors import InstanceClosedError, InstanceError, InstanceRefusedError, InstanceTimeoutError
from lockcore.membership import Hello
from lockcore.shells.wire import Sock, plain_socket

TCP_USER_TIMEOUT_MS = 10_000


@dataclass(frozen=True, slots=True)
class Connected:
    """A finished handshake."""

    sock: Sock
    hello: Hello
    dialect: Dialect


@dataclass(frozen=True, slots=True)
class Target:
    """One instance to connect: `address` (host:port or a path) is all that may be shown of it."""

    address: str
    pool: ConnectionPool
    key_prefix: str


def target_of(url: str, timeout_s: float, key_prefix: str) -> Target:
    """Check one URL as redis-py takes them. Raises ValueError with one sentence, without its password."""
    shown = re.sub(r"//[^@/]*@", "//", url)
    if not isinstance(url, str) or not url.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError(f"{shown!r} is not an instance URL; use redis://host:port, rediss://… or unix://path")
    path = re.sub(r"[?#].*", "", url.split("//", 1)[1].rpartition("@")[2])
    database = path.partition("/")[2]
    if not url.startswith("unix://") and database and not database.isdigit():
        raise ValueError(f"{shown!r}: the database after the slash must be a number, not {database!r}")
    try:
        options = parse_url(url)
        pool = ConnectionPool.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
            protocol=2,
            driver_info=None,
        )
        pool.make_connection()
    except (ValueError, TypeError, RedisError) as error:
        reason = str(error).replace(url, shown)
        raise ValueError(f"{shown!r} is not a usable instance URL: {reason}") from None
    host = options.get("host", "localhost")
    host = f"[{host}]" if ":" in host else host
    address = options.get("path") or f"{host}:{options.get('port', 6379)}"
    return Target(address, pool, key_prefix)


def shake(target: Target) -> Connected:
    """Connect and inspect one instance. Raises InstanceError: InstanceRefusedError when it must not take part."""
    connection: Any = target.pool.make_connection()
    try:
        connection.connect()
        hello = _inspect(target, connection)
        dialect = _dialect(target, connection)
        return Connected(_take_over(connection), hello, dialect)
    except InstanceError:
        connection.disconnect()
        raise
    except (RedisError, OSError) as error:
        connection.disconnect()
        raise _failure(target, error) from None


Shaken = Connected | InstanceError


def shaken(target: Target) -> Shaken:
    """`shake` with its failure as a value."""
    try:
        return shake(target)
    except InstanceError as error:
        return error


def _failure(target: Target, error: Exception) -> InstanceError:
    text = str(error)
    if isinstance(error, AuthenticationError):
        return InstanceRefusedError(target.address, "wrong user name or password")
    if isinstance(error, NoPermissionError):
        return InstanceRefusedError(target.address, f"this user's ACL is too narrow ({text}); the README lists the minimum")
    if "SSL" in text or "certificate" in text.lower():
        return InstanceRefusedError(target.address, f"the TLS handshake failed: {text}")
    if isinstance(error, RedisTimeoutError):
        return InstanceTimeoutError(target.address, text)
    if "NOAUTH" in text or "Authentication required" in text:
        return InstanceRefusedError(target.address, "it asks for a password")
    return InstanceClosedError(target.address, text)


def _ask(connection: Any, *arguments: str | bytes) -> Any:
    connection.send_command(*arguments, check_health=False)
    return connection.read_response()


def _fields(info: bytes | str) -> dict[str, str]:
    text = info.decode() if isinstance(info, bytes) else info
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _inspect(target: Target, connection: Any) -> Hello:
    fields: dict[str, str] = {}
    for section in ("server", "replication", "cluster"):
        fields |= _fields(_ask(connection, "INFO", section))
    if fields.get("cluster_enabled") == "1" or fields.get("redis_mode") == "cluster":
        raise InstanceRefusedError(target.address, "it is a cluster node; Redlock needs independent instances")
    if fields.get("role", "master") != "master":
        raise InstanceRefusedError(target.address, "it is a replica; connect to independent, writable instances")
    if "run_id" not in fields:
        raise InstanceRefusedError(target.address, "INFO gives no run_id, so a restart could not be noticed")
    valkey = fields.get("valkey_version")
    server = f"valkey {valkey}" if valkey else f"redis {fields.get('redis_version', '?')}"
    try:
        client_id = int(_ask(connection, "CLIENT", "ID"))
    except ResponseError:
        client_id = 0  # not allowed or not known: an old connection then cannot be killed by its id
    return Hello(fields["run_id"], int(fields.get("uptime_in_seconds", "0")), server, client_id)


def _works(connection: Any, *arguments: str | bytes) -> bool:
    """True when this user may run the command here. It concerns a key that does not exist."""
    try:
        _ask(connection, *arguments)
    except ResponseError as error:
        text = str(error).lower()
        unusable = ("unknown command", "syntax error", "no permissions", "wrong number of arguments", "unknown subcommand")
        return not (isinstance(error, NoPermissionError) or any(phrase in text for phrase in unusable))
    return True


def _dialect(target: Target, connection: Any) -> Dialect:
    key = f"{target.key_prefix}probe-{token_hex(8)}".encode()
    native_extend = _works(connection, "SET", key, b"x", "IFEQ", b"x", "PX", "1")
    if _works(connection, "DELEX", key, "IFEQ", b"x"):
        release = "delex"
    elif _works(connection, "DELIFEQ", key, b"x"):
        release = "delifeq"
    else:
        release = "evalsha"
    if release == "evalsha" or not native_extend:
        scripts = [COMPARE_AND_DELETE, COMPARE_AND_DELETE_MANY, COMPARE_AND_EXTEND]
        if not _works(connection, "EVAL", "return 0", "1", key):
            raise InstanceRefusedError(
                target.address, "neither a native compare-and-delete (DELEX, DELIFEQ) nor EVAL can be used here"
            )
        for script in scripts:
            _works(connection, "SCRIPT", "LOAD", script.source)  # else the first EVALSHA falls back to EVAL
    return Dialect(release, native_extend)


def _take_over(connection: Any) -> Sock:
    """The connected socket of a redis-py connection, which forgets it. `_sock` is private there: this is the one place."""
    sock = connection._sock
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_MS)
    except OSError:
        pass  # a unix socket
    if hasattr(sock, "do_handshake"):
        connection._sock = None
        sock.settimeout(0.0)
        return sock  # type: ignore[no-any-return]
    bare = plain_socket(sock)
    connection._sock = None
    sock.close()
    return bare
