"""One connection's order: *commands out, replies in → each reply to the round that awaits it*. Pure.

Rules: bytes that were expected are counted by the flight (flight.py); of what is parsed, successes are counted here,
straight on the round (rounds.py says when that is enough). The one thing an instance says unasked (RESP3) is that keys
were flushed: exactly between the replies before and after it. Redis answers a connection's commands in order, so the
awaited replies are a FIFO and nothing is tagged. Acquire and release of one lock share the connection of their
instance, so a release always lands after its SET. Bytes leave through `transmit`, which a shell provides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from lockcore.clock import NS_PER_MS
from lockcore.commands import Dialect
from lockcore.errors import ProtocolError
from lockcore.flight import Flight
from lockcore.resp import RESP3_NIL, HiredisProtocolError, PushNotification, Replies
from lockcore.rounds import Awaited, Ignored, Part, SetRound
from lockcore.settings import LagCap

Transmit = Callable[[bytes], int]  # data → bytes still kept because the socket would not take them


class Pipeline:
    """The commands in flight to one instance, over however many connections it takes. Counters run since `connect`."""

    __slots__ = (
        "address",
        "awaited",
        "backlog",
        "bytes_received",
        "bytes_sent",
        "commands",
        "dialect",
        "errors",
        "forgot",
        "index",
        "late_replies",
        "parsing",
        "pending",
        "queue",
        "reads",
        "reconnects",
        "replies",
        "seen",
        "transmit",
        "writes",
    )  # fmt: skip

    def __init__(self, index: int, address: str, forgot: Callable[[int, str], None]) -> None:
        self.index = index
        self.address = address
        self.forgot = forgot  # it may have forgotten locks just now
        self.dialect = Dialect("evalsha", native_extend=False)
        self.pending: deque[Awaited | Flight] = deque()
        self.awaited = 0  # replies
        self.seen = 0  # bytes of the oldest flight's replies
        self.backlog = 0  # bytes not taken by the socket, when last sent
        self.parsing = False  # the parser holds the beginning of a reply
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
        self.parsing = False

    def break_off(self) -> list[Awaited]:
        """The connection is gone: returns what was still awaited on it, oldest first."""
        lost = self._take_pending()
        self.queue.clear()
        self.awaited = 0
        self.transmit = None
        return lost

    def _take_pending(self) -> list[Awaited]:
        """What is awaited, oldest first, flights dissolved: nothing is pending any more."""
        taken: list[Awaited] = []
        for awaited in self.pending:
            if isinstance(awaited, Flight):
                awaited.dissolve()
                taken += awaited.left(self)
            else:
                taken.append(awaited)
        self.pending.clear()
        self.seen = 0
        return taken

    def void_sets(self) -> None:
        """It has forgotten locks: SETs still out here are SILENT, because it would grant what it has forgotten."""
        awaited = self._take_pending()
        self.pending += [Ignored(each.started_ns) if isinstance(each, SetRound) else each for each in awaited]
        for each in awaited:
            if isinstance(each, SetRound):
                each.silence(self, "FORGOT")

    def expect(self, awaited: Awaited) -> None:
        """One more reply to await."""
        self.pending.append(awaited)
        self.awaited += 1

    def expect_batch(self, flight: Flight | None, rounds: list[Part]) -> None:
        """The replies of a batch to await, as one flight or one by one."""
        if flight is None:
            self.pending.extend(rounds)
        else:
            self.pending.append(flight)
        self.awaited += len(rounds)

    def send(self, data: bytes, commands: int) -> None:
        """Hand `commands` encoded commands to the connection."""
        self.commands += commands
        self.bytes_sent += len(data)
        self.writes += 1
        if self.transmit is not None:
            self.backlog = self.transmit(data)

    def receive(self, data: bytes) -> None:
        """Give every reply that `data` completes to its round. Raises ProtocolError on anything else."""
        self.reads += 1
        self.bytes_received += len(data)
        if self.pending and self.pending[0].__class__ is Flight and not self.parsing and data.endswith(b"\n"):
            data = self._predicted(data.replace(*RESP3_NIL) if b"_" in data else data)
        if data:
            self._parse(data)

    def _predicted(self, data: bytes) -> bytes:
        """Count what was expected, whole flights at a time; returns what was not."""
        pending = self.pending
        while data and pending:
            flight = pending[0]
            if not isinstance(flight, Flight) or not flight.open:
                break
            left = len(flight.expected) - self.seen
            part = data[:left]
            refused: Sequence[int] = ()
            if not flight.expected.startswith(part, self.seen):
                refused = flight.refusals(part, self.seen)
                if not refused:
                    flight.dissolve()
                    break
            replies = part.count(b"\n")
            self.awaited -= replies
            if len(part) == left:
                self.seen = 0
                pending.popleft()
            else:
                self.seen += len(part)
            flight.count(self, replies, refused)
            data = data[left:]
        return data

    def _parse(self, data: bytes) -> None:
        replies = self.replies
        replies.feed(data)
        following = replies.next
        oldest = self.pending.popleft
        count = 0
        try:
            while (reply := following()) is not False:
                if reply.__class__ is PushNotification:
                    if reply[:1] == [b"invalidate"]:
                        self.forgot(self.index, "keys were flushed")
                    continue
                round_: Any = oldest()
                count += 1
                undecided = round_.undecided
                if undecided > 0 and (reply == b"OK" or reply == 1):  # noqa: PLR1714 - a set would hash every reply
                    round_.undecided = undecided - 1
                    round_.missing = missing = round_.missing - 1
                    if not missing:
                        round_.carried()
                else:
                    round_.reply(reply, self)
        except IndexError:
            if self.is_open:
                raise ProtocolError(f"{self.address} sent a reply nobody asked for") from None
        except HiredisProtocolError as error:
            raise ProtocolError(f"{self.address} does not speak RESP2: {error}") from error
        finally:
            if self.is_open:  # else it broke in the middle: what was left is silent by now
                self.awaited -= count
        self.parsing = replies.has_data()

    def over_age(self, cap: LagCap, now_ns: int) -> str:
        """Why it lags by the age of its oldest command; empty when it does not."""
        if self.pending and self.pending[0].started_ns < now_ns - int(cap.age_ms * NS_PER_MS):
            return f"{self.awaited:,} commands not answered for {cap.age_ms:g} ms"
        return ""

    def count_error(self, kind: str) -> None:
        """One more vote lost to `kind` (an error reply's first word, TIMEOUT, or CLOSED or FORGOT)."""
        self.errors[kind] = self.errors.get(kind, 0) + 1
        if kind == "READONLY":
            self.forgot(self.index, "it is a replica")
