r"""RESP2 on the wire: *arguments → a request's bytes; a peer's bytes → replies*. Pure.

Rules: requests are arrays of bulk strings; replies are parsed by hiredis (0.06 µs each), fed in any pieces. A reply is
bytes, int, None (nil), a list, or a `ReplyError` value (never raised). Source: the Redis serialization protocol, RESP2.
"""

from __future__ import annotations

from typing import Any

from hiredis import ProtocolError as HiredisProtocolError
from hiredis import PushNotification, Reader, ReplyError

from lockcore.errors import ProtocolError

__all__ = [
    "RESP3_NIL", "HiredisProtocolError", "PushNotification", "Replies", "ReplyError", "bulk", "error_kind", "request",
]  # fmt: skip
RESP3_NIL = b"_\r\n", b"$-1\r\n"  # and what it is in RESP2: as long as `+OK`, which it stands in for


def bulk(argument: bytes) -> bytes:
    """One argument as a bulk string."""
    return b"$%d\r\n%b\r\n" % (len(argument), argument)


def request(*arguments: bytes) -> bytes:
    """A whole command. For commands off the hot path: those on it are built from templates."""
    return b"*%d\r\n" % len(arguments) + b"".join(map(bulk, arguments))


def error_kind(reply: object) -> str:
    """The first word of an error reply (`NOSCRIPT`, `MISCONF`, …), or UNEXPECTED for any other reply: a countable
    set."""
    if not isinstance(reply, ReplyError):
        return "UNEXPECTED"
    return str(reply).split(" ", 1)[0] or "ERR"


class Replies:
    """The replies of one connection, in order. `next()` returns False while the next one is incomplete."""

    __slots__ = ("feed", "has_data", "next")

    def __init__(self) -> None:
        reader = Reader(protocolError=HiredisProtocolError, replyError=ReplyError)
        self.feed = reader.feed
        self.next = reader.gets
        self.has_data = reader.has_data

    def all(self, data: bytes) -> list[Any]:
        """Feed `data` and return the replies it completed. Raises ProtocolError on bytes that are not RESP."""
        try:
            self.feed(data)
            replies = []
            while (reply := self.next()) is not False:
                replies.append(reply)
        except HiredisProtocolError as error:
            raise ProtocolError(f"the peer does not speak RESP2: {error}") from error
        return replies
