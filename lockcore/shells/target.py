"""Which instance to connect to: *redis://, rediss://, unix:// URL → a target whose address may be shown*.

Rules: URLs are as redis-py takes them; retries, protocol and time-outs are ours whatever they say. What
others say of it goes through its mask (lockcore/mask.py).
"""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, parse_url
from redis.exceptions import RedisError
from redis.retry import Retry

from lockcore.mask import Mask, shown

SCHEMES = ("redis://", "rediss://", "unix://")


@dataclass(frozen=True, slots=True)
class InstanceTarget:
    """One instance to connect: `address` (host:port or a path) is all that may be shown of it; `mask` takes what is
    secret of it out of a text. `inbox`: the channel on which words of other processes come; empty for none."""

    address: str
    options: Mapping[str, Any] = field(repr=False)
    key_prefix: str
    mask: Mask = field(default_factory=Mask, repr=False, compare=False)
    inbox: bytes = b""

    @property
    def is_tls(self) -> bool:
        """True when its URL asks for TLS."""
        return issubclass(self.options["connection_class"], SSLConnection)

    def connection(self) -> Any:
        """A redis-py connection, not yet connected, whose handshake as a whole ends in time. Of no pool: those end."""
        options = dict(self.options)
        return _timed(options.pop("connection_class"))(**options)


class _DeadlineSocket:
    """A socket whose reads and writes all end at one deadline: a byte now and then does not keep it open."""

    def __init__(self, inner: Any, end_s: float) -> None:
        self.inner, self._end_s = inner, end_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def recv_into(self, *arguments: Any) -> Any:
        self.inner.settimeout(_left_s(self._end_s))
        return self.inner.recv_into(*arguments)

    def sendall(self, data: bytes) -> None:
        self.inner.settimeout(_left_s(self._end_s))
        self.inner.sendall(data)


def _left_s(end_s: float) -> float:
    if (left_s := end_s - time.monotonic()) <= 0:
        raise TimeoutError("Timeout in the handshake")
    return left_s


@cache
def _timed(kind: Any) -> Any:
    """redis-py's connection of this kind, with one deadline over all steps from `connect` on."""

    class TimedConnection(kind):  # type: ignore[misc]
        _end_s = 0.0

        def _connect(self) -> _DeadlineSocket:
            self._end_s = time.monotonic() + self._socket_timeout
            return _DeadlineSocket(super()._connect(), self._end_s)

        @property
        def socket_timeout(self) -> float:
            return _left_s(self._end_s) if self._end_s else self._socket_timeout

        @socket_timeout.setter
        def socket_timeout(self, value: float) -> None:
            self._socket_timeout = value

        socket_connect_timeout = socket_timeout

    return TimedConnection


def target_of(url: str, timeout_s: float, key_prefix: str) -> InstanceTarget:
    """Check one URL as redis-py takes them. Raises ValueError with one sentence, without its password."""
    if not isinstance(url, str) or not url.startswith(SCHEMES):
        raise ValueError(f"{shown(url)!r} is not an instance URL; use redis://host:port (TLS: rediss) or unix://path")
    if wrong := _wrong(url):
        raise ValueError(f"{shown(url)!r} is not a usable instance URL: {wrong}")
    mask = Mask(url)
    try:
        options: dict[str, Any] = {
            "connection_class": Connection,
            **parse_url(url),  # type: ignore[no-untyped-call]
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            "retry": Retry(NoBackoff(), 0),
            "retry_on_error": [],
            "protocol": 2,
            "driver_info": None,
            "decode_responses": False,
        }
        host = str(options.get("host", "localhost"))
        host = f"[{host}]" if ":" in host else host
        address = str(options.get("path") or f"{host}:{options.get('port', 6379)}")
        target = InstanceTarget(address, options, key_prefix, mask)
        target.connection()
    except (ValueError, TypeError, RedisError) as error:
        raise ValueError(f"{shown(url)!r} is not a usable instance URL: {mask(error)}") from None
    return target


def _wrong(url: str) -> str:
    """What is wrong with it that redis-py would read otherwise; empty for nothing."""
    scheme, _, after = url.partition("://")
    place = re.split("[/?#]", after, maxsplit=1)[0]
    rest = after[len(place) :]
    ambiguous = "@" in rest and (scheme != "unix" or (bool(place) and "@" not in place))  # a path may have an @
    if ambiguous:
        return "percent-encode the special characters of its user name and password"
    host = place.rpartition("@")[2]
    if host.startswith(":") and "@" not in place:
        return "it names no host; behind a password there is an @"
    if re.search(":0+$", host):
        return "an instance listens on a port from 1 to 65535"
    if scheme == "unix" and not re.split("[?#]", rest)[0]:
        return "it names no socket"
    database = re.split("[?#]", rest)[0].removeprefix("/")
    if scheme != "unix" and database and not database.isdigit():
        return "the database after the slash must be a number"
    return ""
