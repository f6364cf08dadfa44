"""One server's connections through redis-py: *a URL's options → a pool whose fresh TLS connections are usable*.

Rules: no retries (a retried SET NX reads its own success as a refusal) and no limit but the URL's own: redis-py 8 ends
at a hundred. Our time-outs win over the URL's. Every client of an instance that a user named is made here.
Source: redis-py's ConnectionPool.get_connection; RFC 8446, 4.6.1 (session tickets).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, SSLConnection
from redis.exceptions import ConnectionError as BrokenConnectionError
from redis.retry import Retry

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
