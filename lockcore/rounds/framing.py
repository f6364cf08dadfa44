"""Finds the end of a reply in a connection's bytes.

Input: bytes that begin with a reply. Output: the position of the reply's end.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. Because of the
compilation, the first bytes of replies are `Final` numbers, and no slice of bytes may end before it
begins.

Rules: this file reads bytes and never changes them. The parser (hiredis) gets a reply only once the
reply is whole. A header announces the length of its reply. The parser never allocates memory for
this length before the whole reply is there. For example, this file refuses a list of 10⁹ replies
after the 13 bytes of its header. This file also refuses forms that never appear in a valid reply to
lockcore: streamed types, attributes, signs and leading zeros in a length, and lists that are nested
too deeply. A reply that is too long ends its connection, except for a message that another client
published. If a published message is too long, lockcore skips it. Source: the specification of RESP2
and RESP3.
"""

from typing import Final

from lockcore.errors import ProtocolError

# The longest reply of a healthy server is its INFO commandstats. If this reply is longer than
# LONGEST_STATISTICS, lockcore does not ask for it again (facts/membership.py). LONGEST_STATISTICS
# is half of the limit here.
LONGEST_REPLY: Final = 1 << 16  # bytes

# The longest message. If a server must keep more bytes for a subscriber, it drops the subscriber
# (Redis: 32 MiB).
LONGEST_MESSAGE: Final = 1 << 25  # bytes

# The shortest reply, which is `_\r\n`.
SHORTEST_REPLY: Final = 3  # bytes

# Lists may be nested this deep.
DEEPEST: Final = 8

# A length with more digits is refused and not read as a number.
MOST_DIGITS: Final = 9
NOT_WHOLE: Final = -1

# The character `>`, which is the first byte of a push message, and the character `0`.
PUSH: Final = 62
_ZERO: Final = 48

# The first bytes of three kinds of replies. A reply of the first kind is one line. In the second
# kind the line has the number of bytes that follow. In the third kind the line has the number of
# replies that follow (`%` has two for each).
_LINES: Final = b"+-:_#,("
_TEXTS: Final = b"$="
_LISTS: Final = b"*~>%"


class Framing:
    """The replies of one connection.

    `_read` is the number of checked bytes of the current reply. `_open` has one number for each
    incomplete list. This number counts the elements that the list still needs. The first number
    belongs to the outermost list.
    """

    __slots__ = ("_address", "_open", "_read")

    def __init__(self, address: str) -> None:
        self._address = address
        self._open = [1]
        self._read = 0

    def restart(self) -> None:
        """Begin with the next reply, because other code has read the current reply."""
        if self._read:
            self._open = [1]
            self._read = 0

    def end_of(self, data: bytes, start: int) -> int:
        """The end of the reply that begins at `start`, or NOT_WHOLE while bytes are missing.

        After NOT_WHOLE, the next call must pass the same reply from its beginning, with more bytes
        at the end. If a message is longer than LONGEST_REPLY, this method returns the end as soon
        as the length of the message has arrived. The returned end may then be beyond the bytes in
        `data`. Raises ProtocolError.
        """
        at = start + self._read
        while self._open:
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                self._check_room(len(data) - start)
                self._read = at - start
                return NOT_WHOLE
            stop = line_end + 2
            kind = data[at : at + 1]
            # An empty line must not reach the slice below. If a slice of bytes ends before it
            # begins, the result is empty in the source, but machine code raises SystemError.
            if line_end == at:
                raise self._nonsense("an empty line")
            content = data[at + 1 : line_end]
            # The number of replies within this one, or −1 for a kind that cannot have any.
            within = -1
            if kind in _TEXTS:
                if kind != b"$" or content != b"-1":
                    stop += self._length(content) + 2
                    self._check_text(data, start, stop)
                if stop > len(data) and stop - start <= LONGEST_REPLY:
                    self._read = at - start
                    return NOT_WHOLE
                if stop <= len(data) and data[stop - 2 : stop] != b"\r\n":
                    raise self._nonsense(
                        "it sent a text that is longer than the length in its header"
                    )
            elif kind in _LISTS:
                if kind != b"*" or content != b"-1":
                    within = self._length(content)
                    if kind == b"%":
                        within *= 2
                    self._check_room(stop - start + SHORTEST_REPLY * (within + sum(self._open) - 1))
            elif kind not in _LINES:
                raise self._nonsense(f"it sent a reply that begins with {data[at : at + 1]!r}")
            else:
                self._check_room(stop - start)
            self._count(within)
            at = stop
        self._open = [1]
        self._read = 0
        return at

    def _count(self, within: int) -> None:
        """Count one more reply.

        `within` is the number of replies in a list, or −1 if the reply is no list.
        """
        opened = self._open
        opened[-1] -= 1
        if within >= 0:
            opened.append(within)
            if len(opened) > DEEPEST + 1:
                raise self._nonsense(f"lists nested more than {DEEPEST} deep")
        while opened and not opened[-1]:
            opened.pop()

    def _check_text(self, data: bytes, start: int, stop: int) -> None:
        """Check that a text is not too long.

        The text ends at `stop`. If a message is too long for a reply, replies.py skips the message.
        For this reason, the last part of a message has a higher limit (LONGEST_MESSAGE).
        """
        left = sum(self._open) - 1
        if (
            left == 0
            and data[start] == PUSH
            and len(self._open) == 2
            and stop - start <= LONGEST_MESSAGE
        ):
            return
        self._check_room(stop - start + SHORTEST_REPLY * left)

    def _check_room(self, size: int) -> None:
        if size > LONGEST_REPLY:
            raise ProtocolError(
                f"{self._address} sent a reply of more than {LONGEST_REPLY:,} bytes"
            )

    def _length(self, digits: bytes) -> int:
        if not digits.isdigit() or (digits[0] == _ZERO and len(digits) > 1):
            raise self._nonsense(f"{digits[:MOST_DIGITS]!r} is not a length")
        if len(digits) > MOST_DIGITS:
            self._check_room(LONGEST_REPLY + 1)
        return int(digits)

    def _nonsense(self, what: str) -> ProtocolError:
        return ProtocolError(f"{self._address} does not speak RESP2 or RESP3: {what}")
