"""Which instance to connect to: *redis://, rediss://, unix:// URL → a target whose address may be shown*.

Rules: URLs are as redis-py takes them; retries, protocol and time-outs are ours whatever they say. No message holds a
password: a URL that could be read in two ways is not shown at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, SSLConnection, parse_url
from redis.exceptions import RedisError
from redis.retry import Retry

SCHEMES = ("redis://", "rediss://", "unix://")


@dataclass(frozen=True, slots=True)
class Target:
    """One instance to connect: `address` (host:port or a path) is all that may be shown of it."""

    address: str
    pool: ConnectionPool = field(repr=False)
    key_prefix: str

    @property
    def is_tls(self) -> bool:
        """True when its URL asks for TLS."""
        return issubclass(self.pool.connection_class, SSLConnection)


def target_of(url: str, timeout_s: float, key_prefix: str) -> Target:
    """Check one URL as redis-py takes them. Raises ValueError with one sentence, without its password."""
    if not isinstance(url, str) or not url.startswith(SCHEMES):
        raise ValueError(f"{shown(url)!r} is not an instance URL; use redis://host:port, rediss://… or unix://path")
    try:
        options = parse_url(url)  # type: ignore[no-untyped-call]
        _check_database(url)
        pool = ConnectionPool.from_url(url)
        pool.connection_kwargs.update(
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
            protocol=2,
            driver_info=None,
            decode_responses=False,
        )
        pool.make_connection()
    except (ValueError, TypeError, RedisError) as error:
        raise ValueError(f"{shown(url)!r} is not a usable instance URL: {_reason(url, error)}") from None
    host = options.get("host", "localhost")
    host = f"[{host}]" if ":" in host else host
    address = options.get("path") or f"{host}:{options.get('port', 6379)}"
    return Target(address, pool, key_prefix)


def shown(url: object) -> str:
    """A URL for people: without user, password and options; without anything where it cannot be told what is what."""
    if not isinstance(url, str):
        return str(url)
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url.rpartition("@")[2]
    return f"{scheme}://{'…' if _is_ambiguous(rest) else _path_of(rest)}"


def _is_ambiguous(rest: str) -> bool:
    """True when an @ stands behind the first /, ? or #: a password with such a character, or a path with an @?"""
    start = min((rest.find(mark) for mark in "/?#" if mark in rest), default=len(rest))
    return "@" in rest[start:]


def _path_of(rest: str) -> str:
    return rest.rpartition("@")[2].partition("?")[0].partition("#")[0]


def _check_database(url: str) -> None:
    scheme, _, rest = url.partition("://")
    database = _path_of(rest).partition("/")[2]
    if scheme != "unix" and database and not database.isdigit():
        raise ValueError("the database after the slash must be a number")


def _reason(url: str, error: Exception) -> str:
    if _is_ambiguous(url.partition("://")[2]):
        return "percent-encode the special characters of its user name and password"
    return str(error).replace(url, shown(url))
