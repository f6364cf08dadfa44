"""What is encoded once and used often: *a resource → the stem of its claims; a TTL → its terms*. Pure.

Rules: each cache is bounded, whatever its callers name: at its bound it is emptied, and what is in use comes back. It
is small, so that a turn can pay for that (0.1 ms) and names in the hundred thousands do not drive what is hot out of
the processor's caches.
"""

import secrets
from typing import Final, TypeVar

from lockcore.clock import NS_PER_MS, drift_ns
from lockcore.commands import OWNER_TOKEN_BYTES, set_nx_px
from lockcore.quorum import validity_ns
from lockcore.settings import Settings

_HEADS: Final = [b"$%d\r\n" % length for length in range(256)]  # of bulk strings: formatting costs five times as much
_TOKEN_HEAD: Final = b"\r\n$%d\r\n" % OWNER_TOKEN_BYTES
STEMS_KEPT = 1 << 11
TERMS_KEPT = 1 << 10
K = TypeVar("K")
V = TypeVar("V")


def claim_stem(key: bytes, token_prefix: bytes) -> bytes:
    """A claim without the counter of its owner token (and the line's end), which follows per attempt."""
    length = len(key)
    head = _HEADS[length] if length < 256 else b"$%d\r\n" % length
    return b"%b%b%b%b" % (head, key, _TOKEN_HEAD, token_prefix)


class Terms:
    """What one TTL implies, computed once: `usable_ns` = TTL − drift, the per-instance timeout, the tail of its SET."""

    __slots__ = ("set_head", "set_tail", "timeout_ns", "ttl_ms", "usable_ns")

    def __init__(self, ttl_ms: int, drift_factor: float, timeout_ns: int) -> None:
        self.ttl_ms = ttl_ms
        self.usable_ns = validity_ns(ttl_ms * NS_PER_MS, 0, drift_ns(ttl_ms, drift_factor))
        self.timeout_ns = timeout_ns
        self.set_head, self.set_tail = set_nx_px(ttl_ms)


class Recent(dict[K, V]):
    """What was kept since it was emptied, at most `most` entries."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def keep(self, key: K, value: V) -> V:
        """Remember `value` for a while."""
        if len(self) >= self.most:
            self.clear()
        self[key] = value
        return value


class Claims:
    """Of one Redlock. An owner token is 132 random bits, drawn here, and a counter, added per attempt."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.terms_of: Recent[int, Terms] = Recent(TERMS_KEPT)
        self.stems = dict[str, bytes]()  # as a Recent, which machine code would call by name
        self._prefix = settings.key_prefix.encode()
        self.process = secrets.token_urlsafe(17)[:22].encode()  # begins every owner token

    def terms(self, ttl_ms: int) -> Terms:
        """The terms of a TTL, checked once. Raises ValueError or TypeError when the fleet does not grant it."""
        terms = self.terms_of.get(ttl_ms)
        if terms is None:
            settings = self.settings
            settings.check_ttl(ttl_ms)
            terms = Terms(ttl_ms, settings.drift_factor, settings.timeout_ns(ttl_ms))
            self.terms_of.keep(ttl_ms, terms)
        return terms

    def stem(self, resource: str) -> bytes:
        """A claim on `resource` up to the counter of its owner token."""
        if not isinstance(resource, str) or not resource:
            raise ValueError(f"resource must be a text that is not empty, not {resource!r}")
        if len(self.stems) >= STEMS_KEPT:
            self.stems.clear()
        self.stems[resource] = stem = claim_stem(self._prefix + resource.encode(), self.process)
        return stem
