"""Encodes the parts of commands.

A resource and a number become a claim. A TTL becomes `Terms`.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. Tables are
`Final`, because machine code then finds them without a look-up by name.

Rules: each claim is made from prepared parts. The `Terms` of each TTL are kept in a bounded table.
A full table is cleared, and each TTL in use then gets new `Terms`.
"""

import secrets
from itertools import count
from typing import Final, TypeVar

from lockcore.clock import NS_PER_MS, drift_ns
from lockcore.facts.arguments import check_key
from lockcore.rounds.commands import FIRST_NUMBER, OWNER_TOKEN_BYTES, set_nx_px
from lockcore.settings import Settings

# For a resource of fewer bytes than this, the head is prepared.
_LENGTHS: Final = 256

# The prepared last three digits of owner tokens. To format a number would cost five times as much.
_LAST: Final = 1_000
_ENDINGS: Final = [b"%03d\r\n" % last for last in range(_LAST)]
TERMS_KEPT = 1 << 10
K = TypeVar("K")
V = TypeVar("V")


# Each TTL in use has one `Terms` object, so other code can compare terms by identity. A batch notes
# a timeout only if the terms differ from the terms of the command before (`Engine.submit`). The hot
# paths of greenlets and tasks check a TTL only if it is not the same object as the TTL before
# (arguments.py, `NO_WAIT`).
class Terms:
    """The values that follow from one TTL. lockcore computes the values once and keeps them in this
    object.

    `usable_ns` is TTL − drift. `timeout_ns` is the timeout per instance. A SET consists of
    `set_head`, the claim and `set_tail`.
    """

    __slots__ = ("set_head", "set_tail", "timeout_ns", "ttl_ms", "usable_ns")

    def __init__(self, ttl_ms: int, drift_factor: float, timeout_ns: int) -> None:
        self.ttl_ms = ttl_ms
        # Source: the Redlock text, step 4.
        self.usable_ns = ttl_ms * NS_PER_MS - drift_ns(ttl_ms, drift_factor)
        self.timeout_ns = timeout_ns
        self.set_head, self.set_tail = set_nx_px(ttl_ms)


class Recent(dict[K, V]):
    """A cache of at most `most` entries. A full cache is cleared before it gets a new entry."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def keep(self, key: K, value: V) -> V:
        """Keep `value` until the cache is cleared."""
        if len(self) >= self.most:
            self.clear()
        self[key] = value
        return value


# A claim is made by three additions of prepared bytes. The head depends only on the length of the
# resource. The middle has the line end, the length and process of the owner token, and all digits
# but the last three. It changes once in a thousand attempts. The ending is in a table.
# The plain way is one `%` for all parts, with a cache of encoded names in front. That cache of
# 2,048 names was slower, because with many names its entries are not in the processor's caches.
# Without the cache, the compiled `Engine.set_round` fell from 0.36 to 0.33 µs for 200 names, and
# from 0.76 to 0.45 µs for 100,000 names (docs/lab/lockcore.md).
# `_middle` is read and written as one tuple, because other threads make claims, too. A thread with
# the middle of another thousand would use an owner token twice.
class Claims:
    """Makes the claims and the `Terms` of one Redlock.

    An owner token has 132 random bits and a number of 15 digits. The random bits are drawn once,
    when this object is created. Each attempt gets the next number of `numbers`. `process` is the
    first part of every owner token, and it names this process.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.numbers = count(FIRST_NUMBER)
        self._terms_of: Recent[int, Terms] = Recent(TERMS_KEPT)
        self.process = secrets.token_urlsafe(17)[:22].encode()
        self.prefix = settings.key_prefix.encode()
        self._heads = [self._head(length) for length in range(_LENGTHS)]
        # The number of the present thousand, and the bytes between the key and the ending.
        self._middle = (-1, b"")

    def terms(self, ttl_ms: int) -> Terms:
        """The `Terms` of a TTL. If the table does not contain the TTL, the TTL is checked first.

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
        """Encode the claim: the key and the owner token of attempt `number` (commands.py)."""
        if not isinstance(resource, str) or not resource:
            raise ValueError(f"resource must be a non-empty text, not {resource!r}")
        try:
            key = resource.encode()
        except UnicodeEncodeError:
            # The text has only one half of a surrogate pair.
            raise ValueError(
                f"resource must be a text that UTF-8 can encode, not {resource!r}"
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
        """The bytes that precede the resource in a claim. The resource has `length` bytes.

        Raises ValueError if the key is too long.

        `__init__` prepares heads only for short resources, whose keys are never too long.
        """
        check_key(len(self.prefix) + length)
        return b"$%d\r\n%b" % (len(self.prefix) + length, self.prefix)
