"""The URL of one instance: *text → checked text*.

Rules: its secrets are learned before anything is said of it; what redis-py takes is taken. Source: `from_url`.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from bench.errors import secrets
from lockcore.mask import shown

SCHEMES = ("redis", "rediss", "unix")


def parse_target(raw: object) -> str:
    """Return the URL as written. Raises ValueError with one sentence, without secrets, if it names no instance."""
    if not isinstance(raw, str):
        raise ValueError(f"{raw!r} is not a URL (write it like redis://127.0.0.1:6379)")
    secrets().learn(raw)
    told = shown(raw)
    if "://" not in raw:
        raise ValueError(f"{told!r} has no scheme (write redis://host:port, rediss://host:port or unix:///path)")
    try:
        parts = urlsplit(raw)
        port = parts.port
    except ValueError:
        raise ValueError(
            f"{told!r} has no port from 1 to 65535 (in a password, write / ? # @ as %2F %3F %23 %40)"
        ) from None
    if parts.scheme not in SCHEMES:
        raise ValueError(f"{told!r} has the scheme {parts.scheme!r}; take redis, rediss (TLS) or unix")
    if parts.scheme == "unix" and not parts.path:
        raise ValueError(f"{told!r} names no socket (write unix:///path/to/redis.sock)")
    if parts.scheme != "unix" and not parts.hostname:
        raise ValueError(f"{told!r} names no host (write {parts.scheme}://host:port)")
    if port == 0:
        raise ValueError(f"{told!r} has port 0; an instance listens on 1 to 65535")
    return raw
