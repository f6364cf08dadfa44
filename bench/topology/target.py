"""One instance's URL, read once: *redis://, rediss:// or unix:// → an address to show and a client to ask*.

Rules: the URL holds secrets, so only `address` (host:port or path) may be shown, and every text that comes from a
server or a library goes through the mask first. A URL that can be read two ways (an unescaped `#`, `?`, `/` or `@` in
a password) is refused, because its parts would be shown as a host. Clients never retry; our time-outs win.
Source: redis-py's `parse_url`, the same options as lockcore takes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.connection import parse_url

from bench.errors import UsageError, secrets
from bench.topology.connections import connection_pool

_FORM = "redis://[user:password@]host[:port][/database], rediss://… or unix://[user:password@]/path"


@dataclass(frozen=True, slots=True)
class Target:
    """Where one instance listens; `options` are redis-py's, never to be shown."""

    address: str
    tls: bool
    options: dict[str, Any] = field(repr=False)

    def client(self, timeout_s: float) -> redis.Redis:
        """A client that connects on first use, waits `timeout_s` (> 0) for each step and never retries."""
        return redis.Redis(
            connection_pool=connection_pool(self.options, timeout_s=timeout_s, connect_timeout_s=timeout_s)
        )


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
