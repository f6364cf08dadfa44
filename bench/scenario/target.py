"""The URL of one instance: *text → checked text, and the same without its secrets*.

Rules: a message or a record never holds a password; what redis-py takes is taken. Source: redis-py's `from_url`.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

SCHEMES = ("redis", "rediss", "unix")
_SECRET_OPTION = re.compile(
    r"((?:^|[?&])(?:[a-z_]*pass(?:word|wd|phrase)?|[a-z_]*secret|[a-z_]*token)=)[^&#]*", re.IGNORECASE
)
_MASK = r"\1***"


def redacted(url: str) -> str:
    """Return `url` with its password, and any password-like option, replaced by `***`."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        return "***@" + url.rpartition("@")[2] if "@" in url else url
    credentials, at, place = rest.rpartition("@")  # the last @, so that a ? or @ inside a password stays hidden
    user = credentials.partition(":")[0]
    shown = f"{user}:***@" if ":" in credentials else f"{credentials}@" if at else ""
    return f"{scheme}://{shown}{_SECRET_OPTION.sub(_MASK, place)}"


def parse_target(raw: object) -> str:
    """Return the URL as written. Raises ValueError with one sentence, without secrets, if it names no instance."""
    if not isinstance(raw, str):
        raise ValueError(f"{raw!r} is not a URL (write it like redis://127.0.0.1:6379)")
    shown = redacted(raw)
    if "://" not in raw:
        raise ValueError(f"{shown!r} has no scheme (write redis://host:port, rediss://host:port or unix:///path)")
    try:
        parts = urlsplit(raw)
        port = parts.port
    except ValueError:
        raise ValueError(
            f"{shown!r} has no port from 1 to 65535 (in a password, write / ? # @ as %2F %3F %23 %40)"
        ) from None
    if parts.scheme not in SCHEMES:
        raise ValueError(f"{shown!r} has the scheme {parts.scheme!r}; take redis, rediss (TLS) or unix")
    if parts.scheme == "unix" and not parts.path:
        raise ValueError(f"{shown!r} names no socket (write unix:///path/to/redis.sock)")
    if parts.scheme != "unix" and not parts.hostname:
        raise ValueError(f"{shown!r} names no host (write {parts.scheme}://host:port)")
    if port == 0:
        raise ValueError(f"{shown!r} has port 0; an instance listens on 1 to 65535")
    return raw
