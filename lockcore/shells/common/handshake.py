"""Opens a connection for pipelining.

Input: the address and the credentials of an instance. Output: a socket and the facts about the
server.

Rules: redis-py does TLS, AUTH, ACL users, SELECT and unix sockets. The retries of redis-py are off.
If redis-py repeated a successful SET NX, the instance would refuse the second SET. The handshake
asks the instance to report flushes of keys (RESP3, CLIENT TRACKING). Such a report arrives on the
same connection before all later replies. So the client gets the report of a flush before it gets
any vote from after this flush. The handshake also reads the facts about the instance. `failure.py`
explains failures, and no message contains a password. The whole handshake takes at most
`connect_timeout_s`, except for the resolver, which cannot be interrupted. If the first contact
fails and the peer gives no reason, `peer.py` may take one more second. The handshake blocks. So a
shell runs the handshake in a thread, in an executor, or in a greenlet of a patched process. In
these places code may block.
"""

import _socket
import asyncio
import os
import socket
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any

from redis.exceptions import NoPermissionError, RedisError, ResponseError

from lockcore.errors import InstanceClosedError, InstanceError, InstanceRefusedError
from lockcore.facts.membership import (
    NO_IDENTITY,
    NOT_COUNTED,
    Hello,
    fields_of,
    identity_of,
    swaps_of,
)
from lockcore.rounds.commands import (
    COMPARE_AND_DELETE,
    COMPARE_AND_DELETE_MANY,
    COMPARE_AND_EXTEND,
    Dialect,
)
from lockcore.shells.common.failure import CLUSTER, REPLICA, SENTINEL, failure_of, is_unexplained
from lockcore.shells.common.peer import look
from lockcore.shells.common.target import DeadlineSocket, HandshakeConnection, InstanceTarget

TCP_USER_TIMEOUT_MS = 10_000

# The second replication id of a server that never was a replica.
NEVER = "0" * 40
UNUSABLE = (
    "unknown command",
    "syntax error",
    "wrong number of arguments",
    "unknown subcommand",
    "can't run this",
)


@dataclass(frozen=True, slots=True)
class Connected:
    """A finished handshake."""

    sock: _socket.socket
    hello: Hello
    dialect: Dialect


Shaken = Connected | InstanceError


def shake(target: InstanceTarget) -> Connected:
    """Connect and inspect one instance.

    Raises InstanceError, or its subclass InstanceRefusedError if the instance must not take part.
    """
    connection = target.connection()
    try:
        connection.connect()
        hello = _inspect(target, connection)
        if database := target.options.get("db"):
            _ask(connection, "SELECT", str(database))
        dialect = _dialect(target, connection)
        if target.inbox and hello.tells:
            hello = replace(hello, hears=_hears(connection, target))
        return Connected(_take_over(connection), hello, dialect)
    except (
        RedisError,
        OSError,
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
    ) as error:
        # The server has sent nonsense.
        heard = bytes(connection.heard)
        connection.disconnect()
        raise _explained(target, error, heard) from None
    except BaseException:
        connection.disconnect()
        raise


def shaken(target: InstanceTarget) -> Shaken:
    """Call `shake`, and return any failure as a value.

    If an unexpected error left this function as an exception, lockcore would never connect to the
    instance again.
    """
    try:
        return shake(target)
    except InstanceError as error:
        return error
    except Exception as error:  # noqa: BLE001 - a bug or nonsense: tried again later
        return InstanceClosedError(
            target.address, f"{type(error).__name__} in the handshake: {target.mask(error)}"
        )


def discard(job: asyncio.Future[Shaken] | Future[Shaken]) -> None:
    """Close the socket of a finished handshake, because no code waits for it any more."""
    if not job.cancelled() and isinstance(result := job.result(), Connected):
        result.sock.close()


def _explained(target: InstanceTarget, error: Exception, heard: bytes) -> InstanceError:
    """The exception that lockcore raises for `error`.

    If the peer gave no reason at the first contact, `peer.py` examines the peer.
    """
    peer = look(target) if target.look_closer and is_unexplained(target, error, heard) else None
    failure = failure_of(target, error, heard, peer)
    return failure.kind(target.address, str(failure))


def _ask(connection: HandshakeConnection, *arguments: str | bytes) -> Any:
    connection.send_command(*arguments, check_health=False)
    return connection.read_response()


def _tells(connection: HandshakeConnection) -> bool:
    """Ask the server to report flushes of keys on this connection. Return True if the server
    agrees.

    The option OPTIN prevents reports about other changes of keys.
    """
    try:
        if not isinstance(_ask(connection, "HELLO", "3"), dict):
            return False
        return bool(_ask(connection, "CLIENT", "TRACKING", "ON", "OPTIN") == b"OK")
    except ResponseError:
        # The server does not know the command, or this user may not run it.
        return False


def _hears(connection: HandshakeConnection, target: InstanceTarget) -> bool:
    """True if this connection can carry messages of other processes.

    The user must have the right to publish, to subscribe to its own inbox, and to read a key's
    holder (GETRANGE).
    """
    inbox = target.inbox
    try:
        _ask(connection, "PUBLISH", inbox, b"")
    except ResponseError:
        return False
    if not _works(connection, "GETRANGE", _probe(target), "0", "0"):
        return False
    connection.send_command("SUBSCRIBE", inbox, check_health=False)
    # A successful SUBSCRIBE brings a push message and no reply, but a refused SUBSCRIBE brings a
    # reply. So another command follows the SUBSCRIBE.
    connection.send_command("INFO", "server", check_health=False)
    try:
        connection.read_response()
    except ResponseError:
        connection.read_response()
        return False
    return True


def _inspect(target: InstanceTarget, connection: HandshakeConnection) -> Hello:
    fields = fields_of(_ask(connection, "INFO", "server"))
    if fields.get("redis_mode") == "sentinel":
        raise InstanceRefusedError(target.address, SENTINEL)
    # Tracking starts before the replication id is read, so no later change is missed.
    tells = _tells(connection)
    for section in ("replication", "cluster"):
        fields |= fields_of(_ask(connection, "INFO", section))
    if fields.get("cluster_enabled") == "1" or fields.get("redis_mode") == "cluster":
        raise InstanceRefusedError(target.address, str(CLUSTER))
    if fields.get("role", "master") != "master":
        raise InstanceRefusedError(target.address, REPLICA)
    identified = identity_of(fields, time.monotonic())
    if identified is None:
        raise InstanceRefusedError(target.address, f"INFO gives {NO_IDENTITY}")
    identity, run_id, started_s = identified
    valkey = fields.get("valkey_version")
    server = f"valkey {valkey}" if valkey else f"redis {fields.get('redis_version', '?')}"
    try:
        client_id = int(_ask(connection, "CLIENT", "ID"))
    except ResponseError:
        # The command is forbidden or unknown. So the client cannot kill an old connection by its
        # id.
        client_id = 0
    return Hello(
        run_id,
        int(fields.get("uptime_in_seconds", "0")),
        server,
        client_id,
        replid=fields.get("master_replid", ""),
        identity=identity,
        started_s=started_s,
        was_replica=fields.get("master_replid2", NEVER).strip("0") != "",
        tells=tells,
        swaps=_swaps(connection),
    )


def _swaps(connection: HandshakeConnection) -> int:
    """The number of database swaps so far, or NOT_COUNTED if INFO commandstats is not available."""
    try:
        return swaps_of(_ask(connection, "INFO", "commandstats"))
    except ResponseError:
        return NOT_COUNTED


def _works(connection: HandshakeConnection, *arguments: str | bytes) -> bool:
    """True if this user may run the command here.

    The result is also True if the command's key does not exist, or if only this key is forbidden.
    """
    try:
        _ask(connection, *arguments)
    except ResponseError as error:
        text = str(error).lower()
        return not (_is_forbidden(error) or any(phrase in text for phrase in UNUSABLE))
    return True


def _is_forbidden(error: ResponseError) -> bool:
    """True if the user may not run the command on any key.

    If the user may not use the key of the probe, the result is False. This user may have the right
    to run the command on other keys.
    """
    return isinstance(error, NoPermissionError) and " run " in str(error)


def _probe(target: InstanceTarget) -> bytes:
    """The name of a key that does not exist on the server."""
    return f"{target.key_prefix}probe-{token_hex(8)}".encode()


def dialect_of(target: InstanceTarget) -> Dialect | None:
    """The commands for release and extension that a lock would use on this instance.

    The result is None if the instance cannot be used or reached.
    """
    connection = target.connection()
    try:
        connection.connect()
        return _dialect(target, connection)
    except (InstanceError, RedisError, OSError, ValueError, TypeError, AttributeError, LookupError):
        return None
    finally:
        connection.disconnect()


def _dialect(target: InstanceTarget, connection: HandshakeConnection) -> Dialect:
    key = _probe(target)
    if _works(connection, "DELEX", key, "IFEQ", b"x"):
        release = "delex"
    elif _works(connection, "DELIFEQ", key, b"x"):
        release = "delifeq"
    else:
        release = "evalsha"
    native_extend = _extends(connection, key, default=release != "evalsha")
    if release == "evalsha" or not native_extend:
        _check_scripts(target, connection, key)
    return Dialect(release, native_extend)


def _extends(connection: HandshakeConnection, key: bytes, *, default: bool) -> bool:
    """True if SET … IFEQ exists.

    A full or read-only instance refuses the SET and does not look at the option IFEQ. For such an
    instance the result is `default`.
    """
    try:
        _ask(connection, "SET", key, b"x", "IFEQ", b"x", "PX", "1")
    except ResponseError as error:
        if _is_forbidden(error):
            raise
        return default and "syntax error" not in str(error).lower()
    return True


def _check_scripts(target: InstanceTarget, connection: HandshakeConnection, key: bytes) -> None:
    for script in (COMPARE_AND_DELETE, COMPARE_AND_DELETE_MANY, COMPARE_AND_EXTEND):
        # If the loading fails, the first EVALSHA falls back to EVAL.
        _works(connection, "SCRIPT", "LOAD", script.source)
    forms = (("EVAL", COMPARE_AND_DELETE.source), ("EVALSHA", COMPARE_AND_DELETE.sha))
    if not all(_works(connection, command, script, "1", key, b"x") for command, script in forms):
        raise InstanceRefusedError(
            target.address,
            "this user can run neither a native compare-and-delete (DELEX, DELIFEQ) nor EVAL",
        )


def _take_over(connection: Any) -> _socket.socket:
    """Take the connected socket from a redis-py connection.

    redis-py's `_sock` is private, and only this function uses it.
    """
    deadline_socket: DeadlineSocket | None = getattr(connection, "_sock", None)
    if deadline_socket is None:
        raise RuntimeError(
            "this version of redis-py has no Connection._sock; install one that lockbench supports"
        )
    sock = deadline_socket.inner
    # A unix socket does not have these options.
    with suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_MS)
    if hasattr(sock, "do_handshake"):
        connection._sock = None
        sock.settimeout(0.0)
        return sock
    # Frameworks patch the methods of `socket.socket`, so the hot path uses a bare socket.
    bare = _socket.socket(fileno=os.dup(sock.fileno()))
    bare.setblocking(False)
    connection._sock = None
    sock.close()
    return bare
