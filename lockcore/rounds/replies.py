"""Reads the replies of one connection.

Input: received bytes in pieces. Output: one whole reply at a time.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. Because of the
compilation, constants are `Final`, and no slice of bytes may end before it begins.

Rules: bytes are never changed before they are read. Two methods read replies. `match` compares a
reply with the expected bytes, and `next` parses a reply. Only the exact lines of resp.py are
answers to rounds. Every other reply is an `Other`, so a text that only looks like an answer does
not count. With RESP3 an instance also sends push messages (`Unasked`), which are not replies. A
push message reports a flush of keys, or it brings the message of another client. The size of all
input is bounded.
"""

from typing import Final

from hiredis import ProtocolError as HiredisProtocolError
from hiredis import PushNotification, Reader

from lockcore.errors import ProtocolError
from lockcore.rounds.framing import LONGEST_REPLY, NOT_WHOLE, PUSH, Framing
from lockcore.rounds.resp import NOT_YET, UNEXPECTED, error_of, exact_answer, reply_reader

# `_message` takes a message only if the length field of the message, with its line end, has at most
# this many characters.
LONGEST_LENGTH: Final = 8  # bytes

# One piece of data may have at most this number of pushes that need the parser. A normal server
# sends its pushes one by one, and clients' messages do not need the parser. So only a flooding
# server sends hundreds of other pushes at once. The parsing of 64 KiB of the smallest pushes would
# hold the loop for 25 ms (from source 72 ms) in each pass. This is longer than many an instance
# timeout. With the bound, lockcore drops the connection to such a server, and no caller waits.
MOST_UNASKED: Final = 256


class Other:
    """A reply that is neither an exact answer nor an error. `value` is the parsed reply."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


class Unasked:
    """A push message. If `kind` is `message`, `content` is the text of the message."""

    __slots__ = ("content", "kind")

    def __init__(self, kind: object, content: object) -> None:
        self.kind = kind
        self.content = content


class Replies:
    """The replies of one connection.

    Each inbox message begins with the bytes `message_head`, which end before the length field.
    `message_head` is empty if there is no inbox. `unasked_bytes` is the number of bytes in push
    messages so far. `_data` contains received bytes, and the bytes before `_at` have been read. If
    a message is too long, `_passing` is the number of its bytes that must still be skipped.
    `_pushes` is the number of pushes that were parsed in the current piece of data.
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
        """Forget the bytes of the last connection, and begin a new connection."""
        self._data = b""
        self._at = 0
        self._framing = Framing(self._address)
        # The parser is made late, because most connections never need it.
        self._parser: Reader | None = None
        self._passing = 0
        self._pushes = 0
        self.unasked_bytes = 0

    @property
    def unread_bytes(self) -> int:
        """The number of received bytes of an incomplete reply."""
        return len(self._data) - self._at

    def feed(self, data: bytes) -> None:
        """Take the next piece of received bytes."""
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
        """Read the whole lines that are equal to the beginning of `expected[start:]`.

        Returns the number of bytes that were read.
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
        """The next reply, or NOT_YET while it is incomplete.

        A reply is one of the exact answers (resp.py), a ReplyError, an `Other` or an `Unasked`.
        Raises ProtocolError on bytes that are not a reply.
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

    # A message of the inbox always begins with the same bytes, so a comparison recognises it. Any
    # client may publish, so a flood of messages must not hold the loop. A comparison takes a
    # quarter of the parser's time (from source 2.0 µs a message instead of 8.5). The slow path
    # (`_parsed`) gets all other messages, for example with a leading zero in a length, without a
    # line end, or too long. It refuses or skips such messages. Without this method nothing breaks,
    # but a flood of messages costs four times as much.
    def _message(self) -> Unasked | None:
        """Return the next reply if it is a whole message of the inbox. Otherwise return None."""
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
        """Parse the next reply. The result is NOT_YET while the reply is incomplete."""
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
                f"{self._address} sent more than {MOST_UNASKED} unrequested pushes at once"
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
                f"{self._address} does not speak RESP2 or RESP3: the end of its reply is ambiguous"
            )
        return value


def _lines_in_common(part: bytes, expected: bytes, start: int) -> int:
    """Compare `part` with `expected[start:]`, and count the bytes of the whole lines that are equal
    at the beginning.

    A binary search finds the first byte that differs.
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
