"""One connection's bytes, read: *pieces of bytes in → one reply at a time, each of them whole*.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md: constants are
`Final`, and no slice may end before it begins.

Rules: bytes are never changed before they are read. From the beginning of a reply on there are two
ways: the bytes are compared with what is expected (`match`), or `next` reads the reply. Only the
exact lines of resp.py are answers to rounds. Every other reply is an `Other`, so that a text that
looks like an answer is none. Without being asked (RESP3), an instance says that keys were flushed,
and brings what other clients publish: that is `Unasked`. What an instance sends is bounded in size.
"""

from typing import Final

from hiredis import ProtocolError as HiredisProtocolError
from hiredis import PushNotification, Reader

from lockcore.errors import ProtocolError
from lockcore.rounds.framing import LONGEST_REPLY, NOT_WHOLE, PUSH, Framing
from lockcore.rounds.resp import NOT_YET, UNEXPECTED, error_of, exact_answer, reply_reader

# A message is recognised by comparing only if its length, with the line end, is no longer.
LONGEST_LENGTH: Final = 8  # bytes

# One piece of data may hold so many pushes that have to be parsed. A server parts from its pushes
# one by one, and everything that clients publish is recognised by comparing. So only a server that
# floods sends hundreds of other pushes at once. To parse 64 KiB of the smallest ones would hold the
# loop for 25 ms (from source 72 ms). That is longer than many an instance timeout, and it would
# come again in each pass. With this bound such a server loses its connection, and nobody waits.
MOST_UNASKED: Final = 256


class Other:
    """A reply that is neither an exact answer nor an error. `value` is what it says."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class Unasked:
    """What nobody asked for. `content` is the message, where `kind` is `message`."""

    __slots__ = ("content", "kind")

    def __init__(self, kind: object, content: object) -> None:
        self.kind = kind
        self.content = content


class Replies:
    """The replies of one connection.

    `message_head` are the bytes with which a message of the inbox begins, up to its length; they
    are empty where there is no inbox. `unasked_bytes` is how many bytes have come that nobody asked
    for. `_data` has what has come, and all before `_at` has been read. `_passing` bytes are still
    to come of a message that is too long to be ours. `_pushes` were parsed of this piece.
    """

    __slots__ = (
        "_address",
        "_at",
        "_data",
        "_framing",
        "_parser",
        "_passing",
        "_pushes",
        "message_head",
        "unasked_bytes",
    )

    def __init__(self, address: str) -> None:
        self._address = address
        self.message_head = b""
        self.begin()

    def begin(self) -> None:
        """There is a new connection."""
        self._data = b""
        self._at = 0
        self._framing = Framing(self._address)
        # It is made late, because most connections never need it.
        self._parser: Reader | None = None
        self._passing = 0
        self._pushes = 0
        self.unasked_bytes = 0

    @property
    def unread_bytes(self) -> int:
        """How many bytes have come of a reply that is not whole."""
        return len(self._data) - self._at

    def feed(self, data: bytes) -> None:
        """Take the next piece."""
        self._pushes = 0
        if self._passing:
            passed = min(self._passing, len(data))
            self._passing -= passed
            self.unasked_bytes += passed
            data = data[passed:]
        if self._at < len(self._data):
            data = self._data[self._at :] + data
        self._data = data
        self._at = 0

    def match(self, expected: bytes, start: int) -> int:
        """Take the lines that are exactly the next ones of `expected[start:]`.

        Returns how many bytes they have.
        """
        at = self._at
        part = self._data[at : at + len(expected) - start]
        if not part.endswith(b"\n"):
            part = part[: part.rfind(b"\n") + 1]
        same = len(part)
        if not expected.startswith(part, start):
            same = _lines_in_common(part, expected, start)
        self._at = at + same
        return same

    def next(self) -> object:
        """The next reply, once it is whole; NOT_YET before.

        It is one of the exact answers (resp.py), a ReplyError, an `Other` or `Unasked`. Raises
        ProtocolError on bytes that are no reply.
        """
        data = self._data
        at = self._at
        if at == len(data):
            return NOT_YET
        if data[at] == PUSH:
            message = self._message()
            if message is not None:
                return message
        end = data.find(b"\r\n", at)
        if end > at:
            line = data[at:end]
            reply = exact_answer(line, UNEXPECTED)
            if reply is UNEXPECTED and line.startswith(b"-"):
                reply = error_of(line)
            if reply is not UNEXPECTED:
                self._at = end + 2
                return reply
        return self._parsed()

    # A message of the inbox always begins with the same bytes, so it is recognised by comparing
    # them. Any client may publish, so a flood of messages must not hold the loop. Comparing takes a
    # quarter of what parsing takes (from source 2.0 µs a message beside 8.5). A length with a
    # leading zero, a text without its line end, and a message that is too long are left to the
    # parser, which refuses or passes over them. Without this way nothing breaks, but a flood of
    # messages costs four times as much.
    def _message(self) -> Unasked | None:
        """A message of the inbox that is recognised by its first bytes, and is whole."""
        head = self.message_head
        data = self._data
        at = self._at
        if not head or not data.startswith(head, at):
            return None
        start = at + len(head)
        line_end = data.find(b"\r\n", start, start + LONGEST_LENGTH)
        digits = data[start:line_end] if line_end > start else b""
        if not digits.isdigit() or (digits != b"0" and digits.startswith(b"0")):
            return None
        text = line_end + 2
        end = text + int(digits)
        if end + 2 > len(data) or data[end : end + 2] != b"\r\n" or end + 2 - at > LONGEST_REPLY:
            return None
        self._framing.restart()
        self.unasked_bytes += end + 2 - at
        self._at = end + 2
        return Unasked(b"message", data[text:end])

    def _parsed(self) -> object:
        """The next reply, parsed as soon as it is whole."""
        data = self._data
        at = self._at
        stop = self._framing.end_of(data, at)
        if stop == NOT_WHOLE:
            if len(data) - at > LONGEST_REPLY:
                raise ProtocolError(
                    f"{self._address} sent a reply of more than {LONGEST_REPLY:,} bytes"
                )
            return NOT_YET
        is_push = data[at] == PUSH
        self._at = min(stop, len(data))
        if is_push:
            self._count_push()
            self.unasked_bytes += self._at - at
            if stop - at > LONGEST_REPLY:
                self._passing = stop - self._at
                return Unasked(None, None)
        value = self._value_of(data[at:stop])
        if isinstance(value, PushNotification):
            return Unasked(value[0], value[-1]) if value else Unasked(None, None)
        return Other(value)

    def _count_push(self) -> None:
        self._pushes += 1
        if self._pushes > MOST_UNASKED:
            raise ProtocolError(
                f"{self._address} sent more than {MOST_UNASKED} pushes at once that nobody asked "
                "for"
            )

    def _value_of(self, reply: bytes) -> object:
        if self._parser is None:
            self._parser = reply_reader()
        parser = self._parser
        try:
            parser.feed(reply)
            value: object = parser.gets()
        except HiredisProtocolError as error:
            raise ProtocolError(
                f"{self._address} does not speak RESP2 or RESP3: {error}"
            ) from error
        if value is NOT_YET or parser.has_data():
            raise ProtocolError(
                f"{self._address} does not speak RESP2 or RESP3: it says where a reply ends in two "
                "ways"
            )
        return value


def _lines_in_common(part: bytes, expected: bytes, start: int) -> int:
    """How many bytes at the beginning of `part` are whole lines of `expected[start:]`, too.

    The first byte that differs is found by halving.
    """
    low = 0
    high = len(part)
    while low < high:
        middle = (low + high + 1) // 2
        if expected.startswith(part[:middle], start):
            low = middle
        else:
            high = middle - 1
    return part.rfind(b"\n", 0, low) + 1
