"""A connection read the plain way: *bytes → one reply at a time → whatever awaits it*. What
`Pipeline` is held against.

Written from the specification of RESP alone. Nothing is compared with what is expected, and no
batch is counted together: the oldest command in flight gets the next reply.
"""

from collections import deque
from typing import Any

from hiredis import ReplyError

from lockcore.engine.engine import Engine
from lockcore.rounds.awaited import Asked
from lockcore.rounds.flight import Flight, MergedReply
from lockcore.rounds.resp import UNEXPECTED

EXACT: dict[bytes, object] = {b"+OK": b"OK", b"$-1": None, b"_": None, b":1": 1, b":0": 0}


class IncompleteError(Exception):
    """Bytes are missing."""


class Push(list[Any]):
    """A reply that nobody asked for."""


def value_at(data: bytes, at: int) -> tuple[Any, int]:
    """The reply that begins there, and where it ends. Raises IncompleteError."""
    line_end = data.find(b"\r\n", at)
    if line_end < 0:
        raise IncompleteError
    kind = data[at : at + 1]
    content = data[at + 1 : line_end]
    end = line_end + 2
    if kind in b"$=" and content != b"-1":
        stop = end + int(content)
        if len(data) < stop + 2:
            raise IncompleteError
        return data[end:stop].removeprefix(b"txt:" if kind == b"=" else b""), stop + 2
    if kind in b"*~>%" and content != b"-1":
        parts: list[Any] = Push() if kind == b">" else []
        for _ in range(int(content) * (2 if kind == b"%" else 1)):
            part, end = value_at(data, end)
            parts.append(part)
        return parts, end
    if kind == b"-":
        return ReplyError(content.decode()), end
    if kind in b":(":
        return int(content), end
    if kind in b"#,":
        return float(content.replace(b"t", b"1")), end
    return (None if kind in b"_$*" else content), end


class PlainReader:
    """One connection of an engine, in place of `Engine.received`."""

    def __init__(self, engine: Engine, index: int) -> None:
        self.engine = engine
        self.pipe = engine.pipes[index]
        self.data = b""

    def receive(self, data: bytes) -> None:
        """Give each reply that is complete now to what awaits it."""
        self.data += data
        while self.data:
            try:
                self._one()
            except IncompleteError:
                return

    def _one(self) -> None:
        pipe = self.pipe
        self._dissolve()
        oldest: Any = pipe.pending[0] if pipe.pending else None
        if isinstance(oldest, MergedReply) and not self.data.startswith(b">"):
            line_end = self.data.find(b"\r\n") + 2
            if line_end < 2:
                raise IncompleteError
            # its parts' answers follow one by one
            if self.data[:line_end] == b"*%d\r\n" % len(oldest.parts):
                self._next()
                self.data = self.data[line_end:]
                return
        value, end = value_at(self.data, 0)
        said = self.data[:end]
        self.data = self.data[end:]
        if isinstance(value, Push):
            if value[0] == b"invalidate":
                pipe.forgot(pipe, "keys were flushed")
            elif value[0] == b"message":
                pipe.heard(value[-1], pipe.index)
            return
        awaited = self._next()
        if not isinstance(awaited, Asked):
            value = value if isinstance(value, ReplyError) else EXACT.get(said[:-2], UNEXPECTED)
        awaited.reply(value, pipe)

    def _next(self) -> Any:
        self.pipe.awaited -= 1
        return self.pipe.pending.popleft()

    def _dissolve(self) -> None:
        """Every round counts for itself."""
        alone = deque[Any]()
        for awaited in self.pipe.pending:
            if isinstance(awaited, Flight):
                awaited.dissolve()
                alone += awaited.left(self.pipe.index)
            else:
                alone.append(awaited)
        self.pipe.pending = alone
