r"""Encodes the commands of the lock.

Input: a key, an owner token and a TTL. Output: the bytes of RESP requests.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. Constants are
`Final`, so machine code finds them without a look-up.

Rules: a command is encoded once for all N instances. In every command the owner token comes
directly after the key. So lockcore encodes the key and the token together, once per attempt. The
encoded pair is the `claim` (`$len\r\nkey\r\n$37\r\ntoken\r\n`). Every command consists of a head,
the claim and a tail.
lockcore uses the first of these commands that an instance understands:
  release: DELEX key IFEQ token (Redis ≥ 8.4) · DELIFEQ key token (Valkey ≥ 9.0) · EVALSHA
  extend:  SET key token IFEQ token PX ttl (Redis ≥ 8.4, Valkey ≥ 8.1; creates no key) · EVALSHA
Source: the commands' reference pages.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha1
from importlib.resources import files
from typing import Final

from lockcore.rounds.resp import bulk

# An owner token is 22 random characters (132 bits) and 15 digits of a counter.
OWNER_TOKEN_BYTES: Final = 37

# The counter begins with this number. So it has 15 digits for 285 years at 100,000 attempts/s.
FIRST_NUMBER: Final = 10**14


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script, with the hash that EVALSHA needs."""

    source: bytes
    sha: bytes


def _script(name: str) -> Script:
    source = files("lockcore.rounds").joinpath("lua", name).read_bytes()
    return Script(source, sha1(source, usedforsecurity=False).hexdigest().encode())


COMPARE_AND_DELETE = _script("compare_and_delete.lua")
COMPARE_AND_EXTEND = _script("compare_and_extend.lua")
COMPARE_AND_DELETE_MANY = _script("compare_and_delete_many.lua")


TOKEN_BULK_BYTES = len(bulk(b"x" * OWNER_TOKEN_BYTES))

# Where the owner token begins in a claim, which ends with \r\n.
OWNER_TOKEN_START: Final = -OWNER_TOKEN_BYTES - 2
_SET_HEAD = b"*6\r\n" + bulk(b"SET")
_IFEQ = bulk(b"IFEQ")

Encode = Callable[[bytes], bytes]


def set_nx_px(ttl_ms: int) -> tuple[bytes, bytes]:
    """The bytes before and after a claim in the command SET key token NX PX ttl_ms."""
    return _SET_HEAD, bulk(b"NX") + bulk(b"PX") + bulk(b"%d" % ttl_ms)


def _evalsha_head(script: Script, keys: int, arguments: int) -> bytes:
    return (
        b"*%d\r\n" % (3 + keys + arguments)
        + bulk(b"EVALSHA")
        + bulk(script.sha)
        + bulk(b"%d" % keys)
    )


def eval_of(script: Script, claim: bytes, *arguments: bytes) -> bytes:
    """Encode an EVAL with the whole source, for use after NOSCRIPT.

    The EVAL also loads the script again.
    """
    head = b"*%d\r\n" % (5 + len(arguments)) + bulk(b"EVAL") + bulk(script.source) + bulk(b"1")
    return head + claim + b"".join(map(bulk, arguments))


def _delex(claim: bytes) -> bytes:
    return b"*4\r\n$5\r\nDELEX\r\n" + claim[:-TOKEN_BULK_BYTES] + _IFEQ + claim[-TOKEN_BULK_BYTES:]


_ENCODE_RELEASE: dict[str, Encode] = {
    "delex": _delex,
    "delifeq": (b"*3\r\n" + bulk(b"DELIFEQ")).__add__,
    "evalsha": _evalsha_head(COMPARE_AND_DELETE, 1, 1).__add__,
}


@dataclass(frozen=True, slots=True)
class Dialect:
    """The forms of the commands that an instance understands.

    A release uses `delex`, `delifeq` or `evalsha`. An extension uses SET … IFEQ or a script.
    """

    release_command: str
    native_extend: bool

    @property
    def encode_release(self) -> Encode:
        """A function that encodes a claim as the compare-and-delete of this instance."""
        return _ENCODE_RELEASE[self.release_command]

    def encode_extend(self, claim: bytes, ttl_ms: int) -> bytes:
        """Encode a claim as the compare-and-extend of this instance. The new TTL is `ttl_ms`."""
        ttl = bulk(b"%d" % ttl_ms)
        if self.native_extend:
            return (
                b"*7\r\n"
                + bulk(b"SET")
                + claim
                + _IFEQ
                + claim[-TOKEN_BULK_BYTES:]
                + bulk(b"PX")
                + ttl
            )
        return _evalsha_head(COMPARE_AND_EXTEND, 1, 2) + claim + ttl


def merged_release(claims: Sequence[bytes]) -> bytes:
    """Encode one script call that releases many claims.

    The reply is a list with a 1 or a 0 for each claim, in the sequence of `claims`.
    """
    keys = b"".join([claim[:-TOKEN_BULK_BYTES] for claim in claims])
    tokens = b"".join([claim[-TOKEN_BULK_BYTES:] for claim in claims])
    return _evalsha_head(COMPARE_AND_DELETE_MANY, len(claims), len(claims)) + keys + tokens
