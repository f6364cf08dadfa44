"""One instance's URL, read once: *redis://, rediss:// or unix:// → an address to show and a client to ask*.

Rules: the URL holds secrets, so only `address` (host:port or path) may be shown, and every text that comes from a
server or a library goes through the mask first. A URL that can be read two ways (an unescaped `#`, `?`, `/` or `@` in
a password) is refused, because its parts would be shown as a host. Clients never retry; our time-outs win.
Source: redis-py's `parse_url`, the same options as lockcore takes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, SSLConnection, parse_url
from redis.exceptions import ConnectionError as BrokenConnectionError
from redis.retry import Retry

from bench.errors import UsageError, secrets

_NO_LIMIT = 1 << 31


class TlsConnection(SSLConnection):
    """A TLS connection that "can be read" when it holds bytes of a reply, and not because its socket is readable.

    A TLS 1.3 server sends session tickets after the handshake. A pool takes a connection that can be read for one with
    an unread reply and refuses it, so whether a connection could be used was a matter of when the tickets came.
    """

    def can_read(self, timeout: float = 0) -> bool:
        """Whether bytes of a reply are there within `timeout` (s). Raises redis-py's ConnectionError."""
        if not super().can_read(timeout):
            return False
        parser = self._parser
        if not hasattr(parser, "_reader"):  # redis-py's own parser has read what there was
            return True
        try:
            parser.read_from_socket(timeout=0, raise_on_timeout=False)  # tickets are swallowed, a reply is kept
        except OSError as error:
            self.disconnect()  # type: ignore[no-untyped-call]
            raise BrokenConnectionError(f"Error while reading from the server: {error}") from error
        return bool(parser._reader.has_data())


def connection_pool(options: Mapping[str, Any], *, timeout_s: float, connect_timeout_s: float) -> ConnectionPool:
    """A pool that connects on first use. `options`: redis-py's `parse_url`; both time-outs in s, > 0.

    Raises TypeError, ValueError or RedisError for options that redis-py does not take, some at the first connection.
    """
    kind = options.get("connection_class")
    tls = {"connection_class": TlsConnection} if kind is SSLConnection else {}
    ours = {
        "protocol": 2,
        "driver_info": None,
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": timeout_s,
        "socket_connect_timeout": connect_timeout_s,
    }
    return ConnectionPool(**{"max_connections": _NO_LIMIT, **options, **tls, **ours})


_FORM = "redis://[user:password@]host[:port][/database], rediss://… or unix://[user:password@]/path"


@dataclass(frozen=True, slots=True)
class Target:
    """Where one instance listens; `options` are redis-py's, never to be shown."""

    address: str
    tls: bool
    options: dict[str, Any] = field(repr=False)

    def client(self, timeout_s: float) -> redis.Redis:
        """A client that connects on first use, waits `timeout_s` (> 0) for each step and never retries.

        A context manager, which closes its connections.
        """
        pool = connection_pool(self.options, timeout_s=timeout_s, connect_timeout_s=timeout_s)
        return redis.Redis.from_pool(pool)


def parse_targets(urls: Sequence[str]) -> tuple[Target, ...]:
    """Read all URLs. Raises UsageError, naming a wrong one by its position and showing nothing that may be secret."""
    if not urls:
        raise UsageError(f"no target given: write at least one as {_FORM}")
    return tuple(_parse(url, position) for position, url in enumerate(urls, 1))


def _parse(url: str, position: int) -> Target:
    secrets().learn(url)
    if not url.startswith(("redis://", "rediss://", "unix://")):
        raise UsageError(f"target {position} has an unknown scheme; write it as {_FORM}")
    try:
        parts = urlsplit(url)
        options: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
    except ValueError:
        raise _unreadable(position) from None
    local = parts.scheme == "unix"
    if "#" in url or "@" in parts.query or "@" in parts.path or parts.netloc.count("@") > 1 or local > bool(parts.path):
        raise _unreadable(position)
    database = "" if local else parts.path.strip("/")
    if database and not database.isdecimal():
        raise UsageError(f"target {position}: after the address comes a database number, as in redis://host:6379/0")
    try:
        connection_pool(options, timeout_s=1.0, connect_timeout_s=1.0).make_connection()
    except (TypeError, ValueError, redis.RedisError) as error:
        option = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        what = f"the unknown option {option[1]}" if option else "an option with a wrong value"
        raise UsageError(f"target {position} has {what} behind its '?'; redis-py's options are allowed there") from None
    return Target(_address(parts.scheme, options), parts.scheme == "rediss", options)


def _address(scheme: str, options: dict[str, Any]) -> str:
    if scheme == "unix":
        return str(options["path"])
    host = str(options.get("host", "localhost"))
    return f"{f'[{host}]' if ':' in host else host}:{options.get('port', 6379)}"


def _unreadable(position: int) -> UsageError:
    return UsageError(
        f"target {position} cannot be read: write it as {_FORM}, special characters of a password as %XX (# is %23)"
    )
