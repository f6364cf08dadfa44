"""One instance that a lock connects to.

Input: a URL. Output: a target. A target opens connections to the instance. Its address contains no
secrets.

Rules: `url.py` reads the URL. lockcore itself decides on the retries, the protocol and the
time-outs, even if the URL has options for them. Foreign texts about the instance pass through the
mask of its target (lockcore/mask.py). A connection keeps the first bytes that it received. A server
that refuses a client sends its reason and closes the connection. So after a failed send, the
connection first reads the received bytes.
"""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from redis.backoff import NoBackoff
from redis.connection import (
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.exceptions import InvalidResponse, RedisError
from redis.retry import Retry

from lockcore.errors import ProtocolError
from lockcore.mask import Mask, Transport, shown
from lockcore.rounds.framing import NOT_WHOLE, Framing
from lockcore.shells.common.url import UrlOptions, address_of

# A connection keeps this many of the first bytes that it received.
HEARD_BYTES = 512
ConnectionClass = type[Connection] | type[UnixDomainSocketConnection]
_CLASSES: dict[Transport, ConnectionClass] = {
    Transport.TCP: Connection,
    Transport.TLS: SSLConnection,
    Transport.UNIX: UnixDomainSocketConnection,
}


class TargetOptions(UrlOptions, total=False):
    """The keyword arguments of redis-py's connections to one instance."""

    connection_class: ConnectionClass
    socket_timeout: float
    socket_connect_timeout: float
    retry: Retry
    retry_on_error: list[type[Exception]]
    protocol: int
    driver_info: None
    decode_responses: bool


class HandshakeConnection(Protocol):
    """A connection of redis-py for the handshake. `heard` contains the peer's first bytes."""

    heard: bytearray

    def connect(self) -> None:
        """Connect. The options decide on TLS, AUTH and the client's name."""

    def disconnect(self) -> None:
        """Close the connection."""

    def send_command(self, *arguments: str | bytes, check_health: bool) -> None:
        """Send one command."""

    def read_response(self) -> Any:
        """Wait for the next reply, and return it. Raises RedisError for an error reply."""


@dataclass(frozen=True, slots=True)
class InstanceTarget:
    """One instance to connect.

    Only the `address` (host:port or a path) may appear in texts. `mask` removes the secrets of the
    URL from a text. `inbox` is the name of the channel for messages of other processes, or empty.
    `ignored` contains a sentence for each option of the URL that has no effect. A connection may
    fail without a reason. If `look_closer` is True, lockcore then opens one or two more connections
    to find the protocol of the peer.
    """

    address: str
    options: TargetOptions = field(repr=False)
    key_prefix: str
    mask: Mask = field(default_factory=Mask, repr=False, compare=False)
    inbox: bytes = b""
    ignored: tuple[str, ...] = ()
    look_closer: bool = field(default=True, compare=False)

    @property
    def is_tls(self) -> bool:
        """True if the URL requests TLS."""
        return issubclass(self.options["connection_class"], SSLConnection)

    def connection(self) -> HandshakeConnection:
        """Make a redis-py connection with one deadline for its whole handshake. This method does
        not open the connection.

        The connection is made without a pool of redis-py. lockcore must first recognise a Sentinel
        or a proxy, so this connection does not select the database of the URL.
        """
        options: TargetOptions = {**self.options, "db": 0}
        return _TIMED[options.pop("connection_class")](**options)


class DeadlineSocket:
    """A socket with one deadline for all reads and writes.

    A peer that sends single bytes cannot extend the deadline. `heard` contains the first bytes of
    the peer. The socket refuses a reply that is too long as soon as it has the reply's header
    (framing.py). Without this check, the header of a list of 10⁹ replies would make redis-py's
    parser (hiredis) allocate memory for the whole list. The allocation would stop the process for
    seconds.
    """

    def __init__(self, inner: socket.socket, end_s: float, heard: bytearray) -> None:
        self._framing = Framing("the server")
        # The beginning of an incomplete reply.
        self._begun = b""
        self.inner = inner
        self._end_s = end_s
        self._heard = heard

    def __getattr__(self, name: str) -> object:
        attribute: object = getattr(self.inner, name)
        return attribute

    def recv_into(self, buffer: bytearray | memoryview, *arguments: int) -> int:
        """As `socket.recv_into`. Raises TimeoutError after the deadline."""
        self.inner.settimeout(_left_s(self._end_s))
        count = self.inner.recv_into(buffer, *arguments)
        self._hear(buffer[:count])
        self._check(bytes(buffer[:count]))
        return count

    def sendall(self, data: bytes) -> None:
        """As `socket.sendall`. Raises TimeoutError after the deadline."""
        self.inner.settimeout(_left_s(self._end_s))
        try:
            self.inner.sendall(data)
        except OSError:
            # A server in protected mode writes one line and closes, maybe before we have sent
            # anything. Then our send fails, and redis-py would close the connection without reading
            # the server's line. But this line is the only explanation of the failure.
            with suppress(OSError, ValueError):
                self.inner.settimeout(0.0)
                self._hear(self.inner.recv(HEARD_BYTES))
            raise

    def _check(self, data: bytes) -> None:
        self._begun += data
        try:
            while self._begun and (end := self._framing.end_of(self._begun, 0)) != NOT_WHOLE:
                self._begun = self._begun[end:]
        except ProtocolError as error:
            raise InvalidResponse(str(error)) from None

    def _hear(self, data: bytes | bytearray | memoryview) -> None:
        room = HEARD_BYTES - len(self._heard)
        if room > 0:
            self._heard += data[:room]


def _left_s(end_s: float) -> float:
    if (left_s := end_s - time.monotonic()) <= 0:
        raise TimeoutError("Timeout in the handshake")
    return left_s


def _timed(kind: Any) -> Callable[..., HandshakeConnection]:
    """Make a subclass of a connection class of redis-py. In this subclass, `connect` and all later
    steps share one deadline."""

    class TimedConnection(kind):  # type: ignore[misc]
        _end_s = 0.0
        # Each connection replaces this with its own bytes.
        heard = bytearray()

        def _connect(self) -> DeadlineSocket:
            self._end_s = time.monotonic() + self._socket_timeout
            self.heard = bytearray()
            return DeadlineSocket(super()._connect(), self._end_s, self.heard)

        @property
        def socket_timeout(self) -> float:
            return _left_s(self._end_s) if self._end_s else self._socket_timeout

        @socket_timeout.setter
        def socket_timeout(self, value: float) -> None:
            self._socket_timeout = value

        socket_connect_timeout = socket_timeout

    return TimedConnection


_TIMED = {kind: _timed(kind) for kind in _CLASSES.values()}


def target_of(url: str, timeout_s: float, key_prefix: str) -> InstanceTarget:
    """Read one URL. All steps of a connection together take at most `timeout_s`.

    Raises ValueError with one sentence, without the URL's password.
    """
    address = address_of(url)
    mask = Mask(url)
    options: TargetOptions = {
        "connection_class": _CLASSES[address.transport],
        **address.options,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "protocol": 2,
        "driver_info": None,
        "decode_responses": False,
    }
    if "ssl_certfile" in options:
        # Without a password option, OpenSSL asks for the password on the terminal.
        options.setdefault("ssl_password", "")
    target = InstanceTarget(address.place, options, key_prefix, mask, ignored=address.ignored)
    try:
        target.connection()
    except (ValueError, TypeError, RedisError) as error:
        raise ValueError(f"{shown(url)!r} is not a usable instance URL: {mask(error)}") from None
    return target
