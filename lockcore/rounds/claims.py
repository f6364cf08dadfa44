"""What is encoded once: *a resource and a number → its claim; a TTL → its terms*.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md: tables are
`Final`, so that it costs nothing to find them.

Rules: a claim is made anew each time, of parts that are there. Terms are kept, a bounded number of
them: at its bound the table is emptied, and what is in use comes back.
"""

import secrets
from itertools import count
from typing import Final, TypeVar

from lockcore.clock import NS_PER_MS, drift_ns
from lockcore.facts.arguments import check_key
from lockcore.rounds.commands import FIRST_NUMBER, OWNER_TOKEN_BYTES, set_nx_px
from lockcore.settings import Settings

# A resource of fewer bytes than this has its head ready.
_LENGTHS: Final = 256

# The last three digits of every owner token, ready: to format a number costs five times as much.
_LAST: Final = 1_000
_ENDINGS: Final = [b"%03d\r\n" % last for last in range(_LAST)]
TERMS_KEPT = 1 << 10
K = TypeVar("K")
V = TypeVar("V")


# The terms of a TTL are one object for as long as they are in use, so whoever has seen them last
# knows them by identity: a batch takes note of a timeout only when the terms are others than those
# of the command before (`Engine.submit`), and the hot paths of greenlets and tasks check a TTL only
# when it is another object than the one before (arguments.py, `NO_WAIT`).
class Terms:
    """What one TTL implies, computed once.

    `usable_ns` is TTL − drift, `timeout_ns` the timeout per instance. `set_head` and `set_tail`
    stand around the claim in its SET.
    """

    __slots__ = ("set_head", "set_tail", "timeout_ns", "ttl_ms", "usable_ns")

    def __init__(self, ttl_ms: int, drift_factor: float, timeout_ns: int) -> None:
        self.ttl_ms = ttl_ms
        # Source: the Redlock text, step 4.
        self.usable_ns = ttl_ms * NS_PER_MS - drift_ns(ttl_ms, drift_factor)
        self.timeout_ns = timeout_ns
        self.set_head, self.set_tail = set_nx_px(ttl_ms)


class Recent(dict[K, V]):
    """A cache of at most `most` entries. When it is full it is emptied."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def keep(self, key: K, value: V) -> V:
        """Remember `value` for a while."""
        if len(self) >= self.most:
            self.clear()
        self[key] = value
        return value


# How a claim is made: three additions of bytes that are there. The head depends on the length of
# the resource only, the middle (line end, length and process of the owner token, and all digits but
# three) changes once in a thousand attempts, and the ending is in a table.
# The plain way is one `%` for all parts, and a cache of encoded names in front of it. The cache of
# 2,048 names lost: looked up among many names, what it finds is in no cache of the processor.
# `Engine.set_round`, compiled, with the cache and without: 0.36 → 0.33 µs where 200 names are in
# use, 0.76 → 0.45 µs over 100,000 names (docs/lab/lockcore.md).
# `_middle` is read and written as one tuple. Other threads make claims, too, and one that saw the
# middle of another thousand would use an owner token twice.
class Claims:
    """The claims and terms of one Redlock.

    An owner token is 132 random bits, which are drawn here, and a number of 15 digits, another for
    each attempt: the next of `numbers`. `process` is the part that begins every owner token.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.numbers = count(FIRST_NUMBER)
        self._terms_of: Recent[int, Terms] = Recent(TERMS_KEPT)
        self.process = secrets.token_urlsafe(17)[:22].encode()
        self.prefix = settings.key_prefix.encode()
        self._heads = [self._head(length) for length in range(_LENGTHS)]
        # For which thousand the middle is, and the bytes between key and ending.
        self._middle = (-1, b"")

    def terms(self, ttl_ms: int) -> Terms:
        """The terms of a TTL, which is checked once.

        Raises ValueError or TypeError when the fleet does not grant the TTL.
        """
        terms = self._terms_of.get(ttl_ms)
        if terms is None:
            settings = self.settings
            settings.check_ttl(ttl_ms)
            terms = Terms(ttl_ms, settings.drift_factor, settings.timeout_ns(ttl_ms))
            self._terms_of.keep(ttl_ms, terms)
        return terms

    def claim(self, resource: str, number: int) -> bytes:
        """Key and owner token of attempt `number`, as every command has them (commands.py)."""
        if not isinstance(resource, str) or not resource:
            raise ValueError(f"resource must be a text that is not empty, not {resource!r}")
        try:
            key = resource.encode()
        except UnicodeEncodeError:
            # The text has half of a surrogate pair.
            raise ValueError(
                f"resource must be a text that UTF-8 can carry, not {resource!r}"
            ) from None
        length = len(key)
        head = self._heads[length] if length < _LENGTHS else self._head(length)
        thousand, middle = self._middle
        if thousand != number // _LAST:
            thousand = number // _LAST
            middle = b"\r\n$%d\r\n%b%012d" % (OWNER_TOKEN_BYTES, self.process, thousand)
            self._middle = (thousand, middle)
        return head + key + middle + _ENDINGS[number % _LAST]

    def _head(self, length: int) -> bytes:
        """The bytes before a resource of so many bytes. Raises ValueError when they are too many.

        Only a resource whose head is not there yet can have too many bytes, so the check costs the
        others nothing.
        """
        check_key(len(self.prefix) + length)
        return b"$%d\r\n%b" % (len(self.prefix) + length, self.prefix)
