"""This module makes a client for the URL of an instance: *a URL with redis://, rediss:// or unix://
→ an address for messages and a client for commands*.

Rules: lockcore parses the URL here, as it does everywhere in lockbench. The URL may hold secrets,
so messages may show only `address` (host:port or path). Clients never retry. Our time-outs override
the time-outs in the URL.
"""

import time
from collections.abc import Sequence

import redis
from redis.connection import ConnectionPool, SSLConnection
from redis.exceptions import ConnectionError as BrokenConnectionError

from bench.errors import UsageError, secrets
from lockcore.bench.sockets import InstanceTarget, TargetOptions, target_of

# The prefix of all keys and channels.
KEY_PREFIX = "lockbench:"
_NO_LIMIT = 1 << 31


class TlsConnection(SSLConnection):
    """A TLS connection that counts as readable only if bytes of a reply have arrived.

    A TLS 1.3 server sends session tickets after the handshake, and these tickets make the socket
    readable. The connection pool of redis-py mistakes these tickets for an unread reply, so it
    refuses the connection.
    """

    def can_read(self, timeout: float = 0) -> bool:
        """Return whether bytes of a reply arrive within `timeout` (s).

        Raises redis-py's ConnectionError.
        """
        until_s = time.monotonic() + timeout
        while super().can_read(max(until_s - time.monotonic(), 0.0)):
            if self._holds_a_reply():
                return True
            if time.monotonic() >= until_s:
                break
        return False

    def _holds_a_reply(self) -> bool:
        """Return True if the received bytes contain part of a reply. Return False if the received
        bytes are only session tickets."""
        parser = self._parser  # hiredis's
        try:
            # This drops tickets and keeps a reply.
            parser.read_from_socket(timeout=0, raise_on_timeout=False)
        except OSError as error:
            self.disconnect()  # type: ignore[no-untyped-call]
            raise BrokenConnectionError(f"Error while reading from the server: {error}") from error
        return bool(parser._reader.has_data())


def connection_pool(
    options: TargetOptions, *, timeout_s: float, connect_timeout_s: float
) -> ConnectionPool:
    """Return a pool that connects on first use.

    `options`: the connection options of a target that lockcore has parsed. Both time-outs are in
    seconds and must be greater than 0.
    """
    own: TargetOptions = {
        **options,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": connect_timeout_s,
    }
    if options["connection_class"] is SSLConnection:
        own["connection_class"] = TlsConnection
    return ConnectionPool(max_connections=_NO_LIMIT, **own)


def client_of(target: InstanceTarget, timeout_s: float) -> redis.Redis:
    """Return a client that connects on first use and never retries.

    The client waits at most `timeout_s` (> 0) for each step.
    """
    return redis.Redis.from_pool(
        connection_pool(target.options, timeout_s=timeout_s, connect_timeout_s=timeout_s)
    )


def parse_targets(urls: Sequence[str]) -> tuple[InstanceTarget, ...]:
    """Read all URLs.

    Raises UsageError if a URL is wrong. The error message gives the position of the wrong URL and
    contains no secrets.
    """
    targets = []
    for position, url in enumerate(urls, 1):
        secrets().learn(url)
        try:
            targets.append(target_of(url, 1.0, KEY_PREFIX))
        except ValueError as error:
            raise UsageError(f"target {position}: {error}") from None
    return tuple(targets)


def databases_of(urls: Sequence[str]) -> list[int]:
    """Return the index of the database that each URL selects.

    Raises UsageError for the same reasons as `parse_targets`.
    """
    return [target.options.get("db", 0) for target in parse_targets(urls)]


def emptied(urls: Sequence[str]) -> int:
    """Remove all keys of our throw-away servers. Return the number of removed keys."""
    left = 0
    for target in parse_targets(urls):
        with client_of(target, 5.0) as client:
            left += int(client.dbsize())
            client.flushall()
    return left
