r"""RESP2 on the wire: *arguments → a request's bytes; a peer's bytes → replies*. Pure.

Rules: what the lock awaits are single lines, and only the exact line is the answer: `+OK`, `$-1`
(RESP3: `_`), `:1`, `:0` (`ANSWERS`), or an error. Whatever else a peer says, `#t` and `,1` or a
bulk string `OK`, is UNEXPECTED: it grants, refuses and confirms nothing. Every other reply is
parsed by hiredis, once it is whole (framing.py); an error is a `ReplyError` value, never raised.
Source: the Redis serialization protocol, RESP2 and RESP3.
"""

from typing import Final

from hiredis import ProtocolError, Reader, ReplyError

UNEXPECTED: Final = "UNEXPECTED"
NOT_YET: Final = object()  # not a value: RESP3's false is one
LONGEST_KIND = 24
TRANSIENT = frozenset(
    [
        "BUSY",
        "LOADING",
        "MISCONF",
        "OOM",
        "READONLY",
        "MASTERDOWN",
        "NOREPLICAS",
        "TRYAGAIN",
        "CLUSTERDOWN",
        "NOAUTH",
    ]
)  # errors that pass by themselves, or when somebody mends the server; nothing was changed
ANSWERS: dict[bytes, object] = {b"+OK": b"OK", b"$-1": None, b"_": None, b":1": 1, b":0": 0}
exact_answer = ANSWERS.get
exact_line = {line + b"\r\n": answer for line, answer in ANSWERS.items()}.get


def bulk(argument: bytes) -> bytes:
    """One argument as a bulk string."""
    return b"$%d\r\n%b\r\n" % (len(argument), argument)


def request(*arguments: bytes) -> bytes:
    """A whole command. For commands off the hot path: those on it are built from templates."""
    return b"*%d\r\n" % len(arguments) + b"".join(map(bulk, arguments))


def error_of(line: bytes) -> ReplyError:
    """The error that a line (`-…`, without its end) says."""
    return ReplyError(line[1:].decode(errors="replace"))


def error_kind(reply: object) -> str:
    """The first word of an error reply (`NOSCRIPT`, …), `ERR` where that is none; UNEXPECTED for
    any other reply."""
    if not isinstance(reply, ReplyError):
        return UNEXPECTED
    kind = str(reply).split(" ", 1)[0]
    return (
        kind
        if kind.isascii() and kind.isalpha() and kind.isupper() and len(kind) <= LONGEST_KIND
        else "ERR"
    )


def reply_reader() -> Reader:
    """For the replies of one connection, in order: `gets()` returns NOT_YET while the next one is
    incomplete."""
    return Reader(protocolError=ProtocolError, replyError=ReplyError, notEnoughData=NOT_YET)
