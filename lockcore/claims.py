"""What is encoded of a resource and of a TTL: *a resource and a number → its claim; a TTL → its
terms*. Pure.

Rules: a claim is made anew each time, of parts that are there: looking a name up among many costs
more, as they are in no cache of the processor. Terms are kept, a bounded number of them: at its
bound it is emptied, and what is in use comes back.
"""

import secrets
from typing import Final, TypeVar

from lockcore.arguments import check_key
from lockcore.clock import NS_PER_MS, drift_ns
from lockcore.commands import OWNER_TOKEN_BYTES, set_nx_px
from lockcore.settings import Settings

_LENGTHS: Final = 256  # of resources, in bytes, whose head is there
_LAST: Final = 1_000
_ENDINGS: Final = [
    b"%03d\r\n" % last for last in range(_LAST)
]  # formatting a number costs five times as much
TERMS_KEPT = 1 << 10
K = TypeVar("K")
V = TypeVar("V")


class Terms:
    """What one TTL implies, computed once: `usable_ns` = TTL − drift, the per-instance timeout, the
    tail of its SET."""

    __slots__ = ("set_head", "set_tail", "timeout_ns", "ttl_ms", "usable_ns")

    def __init__(self, ttl_ms: int, drift_factor: float, timeout_ns: int) -> None:
        self.ttl_ms = ttl_ms
        self.usable_ns = ttl_ms * NS_PER_MS - drift_ns(
            ttl_ms, drift_factor
        )  # the Redlock text, step 4
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
    """Of one Redlock. An owner token is 132 random bits, drawn here, and a number of 15 digits,
    another per attempt."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._terms_of: Recent[int, Terms] = Recent(TERMS_KEPT)
        self.process = secrets.token_urlsafe(17)[:22].encode()  # begins every owner token
        self.prefix = settings.key_prefix.encode()
        self._heads = [self._head(length) for length in range(_LENGTHS)]
        self._middle = (-1, b"")  # between key and ending, and for which thousand

    def terms(self, ttl_ms: int) -> Terms:
        """The terms of a TTL, checked once. Raises ValueError or TypeError when the fleet does not
        grant it."""
        terms = self._terms_of.get(ttl_ms)
        if terms is None:
            settings = self.settings
            settings.check_ttl(ttl_ms)
            terms = Terms(ttl_ms, settings.drift_factor, settings.timeout_ns(ttl_ms))
            self._terms_of.keep(ttl_ms, terms)
        return terms

    def claim(self, resource: str, number: int) -> bytes:
        """Key and owner token of attempt `number` on `resource`, as every command has them
        (commands.py)."""
        if not isinstance(resource, str) or not resource:
            raise ValueError(f"resource must be a text that is not empty, not {resource!r}")
        try:
            key = resource.encode()
        except UnicodeEncodeError:  # half of a surrogate pair
            raise ValueError(
                f"resource must be a text that UTF-8 can carry, not {resource!r}"
            ) from None
        length = len(key)
        head = self._heads[length] if length < _LENGTHS else self._head(length)
        thousand, middle = self._middle  # at once: other threads make claims, too
        if thousand != number // _LAST:
            thousand = number // _LAST
            middle = b"\r\n$%d\r\n%b%012d" % (OWNER_TOKEN_BYTES, self.process, thousand)
            self._middle = (thousand, middle)
        return head + key + middle + _ENDINGS[number % _LAST]

    def _head(self, length: int) -> bytes:
        """What comes before a resource of so many bytes. Raises ValueError when they are too many.

        Only a resource whose head is not there yet can have too many, so the check costs the others
        nothing."""
        check_key(len(self.prefix) + length)
        return b"$%d\r\n%b" % (len(self.prefix) + length, self.prefix)
