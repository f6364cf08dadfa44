"""Where a reply ends in a connection's bytes: *bytes from the beginning of a reply on → the place
behind it*. Pure.

This file is compiled, so it follows the rules of README.md, "Compiled".

Rules: bytes are read, never changed. A reply is given to the parser (hiredis) only once it is
whole. So the parser never makes room for what a header merely announces: a list of 10⁹ is refused
when its header has come, which is 13 bytes. The same holds for everything else that no reply to
this library can be: streamed types, attributes, signs and leading zeros in a length, and lists
nested too deeply. Only one kind of reply may be too long without ending its connection: a message
that another client published. It is passed over. Source: the specification of RESP2 and RESP3.
"""

from typing import Final

from lockcore.errors import ProtocolError

LONGEST_REPLY: Final = 1 << 16  # bytes; the longest of a sane server is an error's line
LONGEST_MESSAGE: Final = (
    1 << 25
)  # bytes; a server gives up a subscriber for whom it has to keep more (Redis: 32 MiB)
SHORTEST_REPLY: Final = 3  # bytes: `_\r\n`
DEEPEST: Final = 8  # lists within lists
MOST_DIGITS: Final = 9  # of a length: more are refused without being read as a number
NOT_WHOLE: Final = -1
PUSH: Final = 62  # `>`, the first byte of what nobody asked for
_ZERO: Final = 48  # `0`
_LINES: Final = b"+-:_#,("  # first bytes of replies of one line
_TEXTS: Final = b"$="  # of replies with so many bytes behind their line
_LISTS: Final = b"*~>%"  # of replies with so many others behind their line, of `%` two for each


class Framing:
    """The replies of one connection. `_read`: bytes of the reply under way whose place is known
    already; `_open`: how many replies are still to come in each list that has begun, from the
    outermost on."""

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
            if line_end == at:  # machine code cannot cut a slice that ends before it begins
                raise self._nonsense("an empty line")
            content = data[at + 1 : line_end]
            within = -1  # replies within this one; −1: it is none that could have any
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
        """One more reply has been seen, or the header of a list of `within`."""
        opened = self._open
        opened[-1] -= 1
        if within >= 0:
            opened.append(within)
            if len(opened) > DEEPEST + 1:
                raise self._nonsense(f"lists nested more than {DEEPEST} deep")
        while opened and not opened[-1]:
            opened.pop()

    def _check_text(self, data: bytes, start: int, stop: int) -> None:
        """A text ends at `stop`: that must be near, or it is the last part of a message, which may
        be passed over."""
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
