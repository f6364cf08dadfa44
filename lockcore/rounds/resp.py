r"""Encodes requests and reads single lines of RESP2.

Arguments become the bytes of a request. A line of a peer becomes a reply.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. Because of the
compilation, constants are `Final`.

Rules: each answer to a command of the lock is a single line. An answer is either an error or one of
the lines in `ANSWERS`. These lines are `+OK`, `$-1`, `:1`, `:0` and `_` (RESP3's form of `$-1`).
Any other reply is UNEXPECTED, for example `#t`, `,1` or a bulk string `OK`. An UNEXPECTED reply
grants, refuses and confirms nothing. hiredis parses every reply that is not an answer, as soon as
this reply is whole (framing.py). An error is a `ReplyError` value and is never raised. Source: the
Redis serialization protocol, RESP2 and RESP3.
"""

from typing import Final

from hiredis import ProtocolError, Reader, ReplyError

UNEXPECTED: Final = "UNEXPECTED"

# NOT_YET is a separate object, because False may be the value of a reply (RESP3).
NOT_YET: Final = object()
LONGEST_KIND = 24

# These errors end by themselves, or when somebody repairs the server. The command changed nothing.
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
)
ANSWERS: dict[bytes, object] = {b"+OK": b"OK", b"$-1": None, b"_": None, b":1": 1, b":0": 0}
exact_answer = ANSWERS.get


def bulk(argument: bytes) -> bytes:
    """Encode one argument as a bulk string."""
    return b"$%d\r\n%b\r\n" % (len(argument), argument)


def request(*arguments: bytes) -> bytes:
    """A whole command. Hot paths build their commands from templates instead."""
    return b"*%d\r\n" % len(arguments) + b"".join(map(bulk, arguments))


def error_of(line: bytes) -> ReplyError:
    """The error that `line` reports. `line` begins with `-` and has no line end."""
    return ReplyError(line[1:].decode(errors="replace"))


def error_kind(reply: object) -> str:
    """The first word of an error reply (`NOSCRIPT`, …), or UNEXPECTED for any other reply.

    The result is `ERR` if the first word does not look like the name of an error.
    """
    if not isinstance(reply, ReplyError):
        return UNEXPECTED
    kind = str(reply).split(" ", 1)[0]
    is_word = kind.isascii() and kind.isalpha() and kind.isupper()
    return kind if is_word and len(kind) <= LONGEST_KIND else "ERR"


def reply_reader() -> Reader:
    """A parser for all replies of one connection.

    `gets()` returns NOT_YET while the next reply is incomplete.
    """
    return Reader(protocolError=ProtocolError, replyError=ReplyError, notEnoughData=NOT_YET)
