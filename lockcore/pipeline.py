"""One connection's order: *commands out, replies in → each reply to the round that awaits it*. Pure.

Rules: successes are counted here, straight on the round (rounds.py says when that is enough). Redis answers a connection's commands in order, so the awaited replies are a FIFO and nothing is tagged. Acquire and
release of one lock share the connection of their instance, so a release always lands after its SET. Bytes leave through
`transmit`, which a shell provides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from lockcore.commands import Dialect
from lockcore.errors import ProtocolError
from lockcore.resp import HiredisProtocolError, Replies
from lockcore.rounds import Awaited

Transmit = Callable[[bytes], None]


class Pipeline:
    """The commands in flight to one instance, over however many connections it takes. Counters run since `connect`."""

    __slots__ = (
        "address", "bytes_received", "bytes_sent", "commands", "dialect", "errors", "index", "late_replies", "pending",
        "queue", "reads", "reconnects", "replies", "transmit", "writes",
    )  # fmt: skip

    def __init__(self, index: int, address: str) -> None:
        self.index = index
        self.address = address
        self.dialect = Dialect("evalsha", native_extend=False)
        self.pending: deque[Awaited] = deque()
        self.queue: list[bytes] = []
        self.replies = Replies()
        self.transmit: Transmit | None = None
        self.errors: dict[str, int] = {}
        self.commands = self.bytes_sent = self.bytes_received = self.writes = self.reads = 0
        self.late_replies = self.reconnects = 0

    @property
    def is_open(self) -> bool:
        """True while a connection carries it."""
        return self.transmit is not None

    def open(self, transmit: Transmit, dialect: Dialect) -> None:
        """A new connection, empty in both directions."""
        self.transmit, self.dialect, self.replies = transmit, dialect, Replies()

    def break_off(self) -> list[Awaited]:
        """The connection is gone: returns what was still awaited on it, oldest first."""
        lost = list(self.pending)
        self.pending.clear()
        self.queue.clear()
        self.transmit = None
        return lost

    def send(self, data: bytes, commands: int) -> None:
        """Hand `commands` encoded commands to the connection."""
        self.commands += commands
        self.bytes_sent += len(data)
        self.writes += 1
        if self.transmit is not None:
            self.transmit(data)

    def receive(self, data: bytes) -> None:
        """Give every reply that `data` completes to its round. Raises ProtocolError on anything else."""
        self.reads += 1
        self.bytes_received += len(data)
        replies = self.replies
        replies.feed(data)
        following = replies.next
        oldest = self.pending.popleft
        try:
            while (reply := following()) is not False:
                round_ = oldest()
                undecided = round_.undecided
                if undecided > 0 and (reply == b"OK" or reply == 1):
                    round_.undecided = undecided - 1
                    round_.missing = missing = round_.missing - 1
                    if not missing:
                        round_.carried()
                else:
                    round_.reply(reply, self)
        except IndexError:
            raise ProtocolError(f"{self.address} sent a reply nobody asked for") from None
        except HiredisProtocolError as error:
            raise ProtocolError(f"{self.address} does not speak RESP2: {error}") from error

    def count_error(self, kind: str) -> None:
        """One more vote lost to `kind` (an error reply's first word, or TIMEOUT)."""
        self.errors[kind] = self.errors.get(kind, 0) + 1
