"""Where a reply ends in a connection's bytes: *bytes from a reply's beginning on → its end*.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md: first bytes are
numbers that are `Final`, and no slice of bytes may end before it begins.

Rules: bytes are read, never changed. A reply is given to the parser (hiredis) only once it is
whole. So the parser never makes room for what a header merely announces: a list of 10⁹ is refused
when its header has come, which is 13 bytes. The same holds for everything else that no reply to
this library can be: streamed types, attributes, signs and leading zeros in a length, and lists
nested too deeply. Only one kind of reply may be too long without ending its connection: a message
that another client published. It is passed over. Source: the specification of RESP2 and RESP3.
"""

from typing import Final

from lockcore.errors import ProtocolError

# The longest reply of a sane server is an error's line, and it is far shorter.
LONGEST_REPLY: Final = 1 << 16  # bytes

# A server gives up a subscriber for whom it has to keep more (Redis: 32 MiB).
LONGEST_MESSAGE: Final = 1 << 25  # bytes

# This is `_\r\n`.
SHORTEST_REPLY: Final = 3  # bytes

# So many lists may stand within one another.
DEEPEST: Final = 8

# A length with more digits is refused and not read as a number.
MOST_DIGITS: Final = 9
NOT_WHOLE: Final = -1

# The character `>`, the first byte of what nobody asked for, and the character `0`.
PUSH: Final = 62
_ZERO: Final = 48

# The first bytes of replies of one line; of replies with so many bytes behind their line; and of
# replies with so many other replies behind their line (of `%` two for each).
_LINES: Final = b"+-:_#,("
_TEXTS: Final = b"$="
_LISTS: Final = b"*~>%"


class Framing:
    """The replies of one connection.

    `_read` is the number of bytes of the reply under way that have been looked at. `_open` has, for
    each list that has begun, how many replies of it are still to come, from the outermost list on.
    """

    __slots__ = ("_address", "_open", "_read")

    def __init__(self, address: str) -> None:
        self._address = address
        self._open = [1]
        self._read = 0

    def restart(self) -> None:
        """The reply under way has been read by other means."""
        if self._read:
            self._open = [1]
            self._read = 0

    def end_of(self, data: bytes, start: int) -> int:
        """Where the reply ends that begins at `start`; NOT_WHOLE while bytes of it are missing.

        Until then, the next call must bring the same reply from its beginning, with more behind it.
        The end of a message longer than LONGEST_REPLY is returned as soon as its length is known:
        it may lie behind the data. Raises ProtocolError.
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
            # An empty line must not come to the slice below. A slice of bytes that ends before it
            # begins is empty in the source, and a SystemError in machine code.
            if line_end == at:
                raise self._nonsense("an empty line")
            content = data[at + 1 : line_end]
            # How many replies are within this one; −1 if it is none that could have any.
            within = -1
            if kind in _TEXTS:
                if kind != b"$" or content != b"-1":
                    stop += self._length(content) + 2
                    self._check_text(data, start, stop)
                if stop > len(data) and stop - start <= LONGEST_REPLY:
                    self._read = at - start
                    return NOT_WHOLE
                if stop <= len(data) and data[stop - 2 : stop] != b"\r\n":
                    raise self._nonsense("a text is longer than its length says")
            elif kind in _LISTS:
                if kind != b"*" or content != b"-1":
                    within = self._length(content)
                    if kind == b"%":
                        within *= 2
                    self._check_room(stop - start + SHORTEST_REPLY * (within + sum(self._open) - 1))
            elif kind not in _LINES:
                raise self._nonsense(f"a reply that begins with {data[at : at + 1]!r}")
            else:
                self._check_room(stop - start)
            self._count(within)
            at = stop
        self._open = [1]
        self._read = 0
        return at

    def _count(self, within: int) -> None:
        """Count one more reply, or the header of a list of `within` replies."""
        opened = self._open
        opened[-1] -= 1
        if within >= 0:
            opened.append(within)
            if len(opened) > DEEPEST + 1:
                raise self._nonsense(f"lists nested more than {DEEPEST} deep")
        while opened and not opened[-1]:
            opened.pop()

    def _check_text(self, data: bytes, start: int, stop: int) -> None:
        """Check that a text does not end too far away.

        It ends at `stop`. If it is the last part of a message, it may be passed over.
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
