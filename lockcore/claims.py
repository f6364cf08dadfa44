"""What is encoded once and used often: *a resource → the stem of its claims; a TTL → its terms*. Pure.

Rules: each cache is bounded, whatever its callers name: the oldest entry goes, one at a time, so that what is in use
comes back and no turn pays for all of it.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from lockcore.clock import NS_PER_MS, drift_ns
from lockcore.commands import claim_stem, set_nx_px
from lockcore.quorum import validity_ns
from lockcore.settings import Settings

STEMS_KEPT = 1 << 16
TERMS_KEPT = 1 << 10
K = TypeVar("K")
V = TypeVar("V")


class Terms:
    """What one TTL implies, computed once: `usable_ns` = TTL − drift, the per-instance timeout, the tail of its SET."""

    __slots__ = ("set_head", "set_tail", "timeout_ns", "ttl_ms", "usable_ns")

    def __init__(self, ttl_ms: int, drift_factor: float, timeout_ns: int) -> None:
        self.ttl_ms = ttl_ms
        self.usable_ns = validity_ns(ttl_ms * NS_PER_MS, 0, drift_ns(ttl_ms, drift_factor))
        self.timeout_ns = timeout_ns
        self.set_head, self.set_tail = set_nx_px(ttl_ms)


class Recent(Generic[K, V]):
    """The newest `most` entries of those that were kept."""

    __slots__ = ("get", "kept", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self.kept: OrderedDict[K, V] = OrderedDict()
        self.get: Callable[[K], V | None] = self.kept.get

    def keep(self, key: K, value: V) -> V:
        """Remember `value` for a while."""
        self.kept[key] = value
        if len(self.kept) > self.most:
            self.kept.popitem(last=False)
        return value


class Claims:
    """Of one Redlock. An owner token is 132 random bits, drawn here, and a counter, added per attempt."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.terms_of: Recent[int, Terms] = Recent(TERMS_KEPT)
        self.stems: Recent[str, bytes] = Recent(STEMS_KEPT)
        self._prefix = settings.key_prefix.encode()
        self._token_prefix = secrets.token_urlsafe(17)[:22].encode()

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
        return self.stems.keep(resource, claim_stem(self._prefix + resource.encode(), self._token_prefix))
