"""Assigns the replies of one connection to rounds.

Input: received bytes. Output: replies. Each reply goes to the round that waits for it.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. Because of the
compilation, constants are `Final`, and the classes on hot paths have slots.

Rules: Redis answers a connection's commands in order. So the awaited replies form a FIFO, and
commands need no identifiers. A flight compares the received bytes with the bytes that it expects.
If the bytes differ, replies.py reads the reply, and the oldest round gets it. Bytes from one
instance never affect another instance.
"""

from collections.abc import Callable, Sequence

from lockcore.clock import NS_PER_MS
from lockcore.errors import ProtocolError
from lockcore.facts.membership import Membership
from lockcore.facts.model import InstanceStatus
from lockcore.rounds.awaited import Asked, Awaited, InstancePipe, Transmit, nothing
from lockcore.rounds.commands import Dialect
from lockcore.rounds.flight import Flight, InFlight, MergedReply
from lockcore.rounds.replies import Replies, Unasked
from lockcore.rounds.resp import NOT_YET
from lockcore.rounds.rounds import Part, SetRound
from lockcore.settings import LagCap


class Pipeline(InstancePipe):
    """The unanswered commands to one instance.

    If the client connects to the instance again, it keeps the same Pipeline. `matched` is the
    number of received bytes that belong to the oldest flight. `backlog` is the number of bytes that
    the socket did not take at the last send. `heard` is called with each message and the index of
    the instance that brought the message.
    """

    __slots__ = (
        "_cap",
        "_looked_ns",
        "_progress",
        "address",
        "backlog",
        "heard",
        "lag_ns",
        "matched",
        "replies",
    )

    def __init__(self, index: int, address: str, cap: LagCap) -> None:
        super().__init__(index)
        self.address = address
        self._cap = cap
        self.lag_ns = int(cap.age_ms * NS_PER_MS)
        self.heard: Callable[[object, int], object] = nothing
        self.matched = 0
        self.backlog = 0
        self.replies = Replies(address)
        # The number of bytes in whole replies at the last check, and the time when this number was
        # new.
        self._progress: int | None = None
        self._looked_ns = 0

    # -- out ---------------------------------------------------------------------------------------

    def open(self, transmit: Transmit, dialect: Dialect) -> None:
        """Use a new connection.

        The handshake is over. After the handshake, no bytes have been sent or received on this
        connection.
        """
        self.transmit = transmit
        self.dialect = dialect
        self.replies.begin()
        self._progress = None
        self._looked_ns = 0

    def break_off(self) -> list[Awaited]:
        """Drop the connection. Returns the receivers of open replies, oldest first."""
        losses = self._take_pending()
        self.queue.clear()
        self.awaited = 0
        self.transmit = None
        return losses

    def _take_pending(self) -> list[Awaited]:
        """Remove and return the receivers of open replies, oldest first. Flights are dissolved."""
        rounds: list[Awaited] = []
        for awaited in self.pending:
            if isinstance(awaited, Flight):
                awaited.dissolve()
                rounds += awaited.left(self.index)
            else:
                rounds.append(awaited)
        self.pending.clear()
        self.matched = 0
        return rounds

    def void_sets(self) -> None:
        """Count a SILENT vote for each open SET of the instance, because the instance has forgotten
        locks.

        If these SETs still counted, two callers could get this instance's grant for the same lock.
        """
        awaited = self._take_pending()
        self.pending += [
            Asked(each.started_ns) if isinstance(each, SetRound) else each for each in awaited
        ]
        for each in awaited:
            if isinstance(each, SetRound):
                each.silence(self, "FORGOT")

    def expect_batch(self, flight: Flight | None, rounds: list[Part]) -> None:
        """Await the replies of a batch. A flight counts them together, or each round counts its own
        reply."""
        if flight is None:
            self.pending.extend(rounds)
        else:
            self.pending.append(flight)
        self.awaited += len(rounds)

    def send(self, data: bytes, commands: int) -> None:
        """Send `data`, which contains `commands` encoded commands."""
        traffic = self.traffic
        traffic.commands += commands
        traffic.bytes_sent += len(data)
        traffic.writes += 1
        if self.transmit is not None:
            self.backlog = self.transmit(data)

    # -- in ----------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Give every reply that `data` completes to its round.

        Raises ProtocolError on bytes that are not a reply to a command.
        """
        self.traffic.reads += 1
        self.traffic.bytes_received += len(data)
        replies = self.replies
        replies.feed(data)
        # A reply may make its round send a command, and this may break the connection. Then
        # `transmit` is None, and all open replies are SILENT by now.
        while self.transmit is not None:
            if self._compare():
                continue
            reply = replies.next()
            if reply is NOT_YET:
                return
            if isinstance(reply, Unasked):
                self._unasked(reply)
            else:
                self._give(reply)

    def _compare(self) -> bool:
        """Take the replies that equal the expected bytes.

        The result is False if the next reply is different or incomplete.
        """
        oldest = self.pending[0] if self.pending else None
        if isinstance(oldest, MergedReply):
            if not self.replies.match(oldest.success, 0):
                return False
            self.pending.popleft()
            self.awaited -= 1
            return True
        if not isinstance(oldest, Flight):
            return False
        if not oldest.open:
            # The flight was dissolved. From here on its rounds get their replies one by one.
            self._unfold(oldest)
            return True
        start = self.matched
        size = self.replies.match(oldest.expected, start)
        if not size:
            return False
        self._counted(oldest, oldest.expected.count(b"\n", start, start + size), size)
        return True

    def _counted(self, flight: Flight, replies: int, size: int) -> None:
        """Count `replies` more replies to the oldest flight.

        `size` is the length of these replies in the flight's expected bytes.
        """
        self.awaited -= replies
        if flight.done[self.index] + replies == len(flight.rounds):
            self.matched = 0
            self.pending.popleft()
        else:
            self.matched += size
        flight.count(self.index, replies)

    def _unfold(self, flight: Flight) -> None:
        self.matched = 0
        self.pending.popleft()
        self.pending.extendleft(reversed(flight.left(self.index)))

    def _give(self, reply: object) -> None:
        """Give a reply to the oldest round."""
        oldest = self.pending[0] if self.pending else None
        if isinstance(oldest, Flight):
            round_ = oldest.next_of(self.index)
            if isinstance(round_, MergedReply):
                # A reply to the whole call answers no part, so each part now waits for a reply of
                # its own.
                oldest.dissolve()
                self._unfold(oldest)
            else:
                oldest.set_apart(self.index, self.matched)
                self._counted(oldest, 1, len(round_.success))
                round_.reply(reply, self)
                if oldest.is_scattered:
                    oldest.dissolve()
                return
        if not self.pending:
            raise ProtocolError(f"{self.address} sent a reply without a request")
        awaited = self.pending.popleft()
        self.awaited -= 1
        if isinstance(awaited, InFlight):
            # Machine code calls a class's method directly, but a Protocol's method by its name.
            awaited.reply(reply, self)
        elif not isinstance(awaited, Flight):
            awaited.reply(reply, self)

    def _unasked(self, push: Unasked) -> None:
        if push.kind == b"invalidate":
            self.forgot(self, "keys were flushed")
        elif push.kind == b"message":
            self.heard(push.content, self.index)

    # -- state -------------------------------------------------------------------------------------

    def over_size(self) -> str:
        """The reason why unanswered commands or unsent bytes exceed the lag cap.

        The result is "" if both numbers are within the lag cap.
        """
        if self.awaited > self._cap.operations:
            return (
                f"{self.awaited:,} commands wait for a reply, more than the limit of "
                f"{self._cap.operations:,}"
            )
        if self.backlog > self._cap.bytes:
            return (
                f"{self.backlog:,} bytes wait to be sent, more than the limit of "
                f"{self._cap.bytes:,}"
            )
        return ""

    def over_age(self, now_ns: int) -> str:
        """The reason why the oldest command exceeds the lag cap.

        The result is "" if the oldest command is within the lag cap.
        """
        if self.pending and self.pending[0].started_ns < now_ns - self.lag_ns:
            return (
                f"the oldest of {self.awaited:,} unanswered commands has waited over "
                f"{self.lag_ns / NS_PER_MS:g} ms"
            )
        return ""

    def is_silent(self, now_ns: int, limit_ns: int) -> bool:
        """True if the instance has unanswered commands and has answered nothing for `limit_ns`.

        This method must be called regularly, because each call compares the number of received
        bytes with the number at the last call. Only whole replies to commands count. Parts of
        replies and push messages do not count.
        """
        if not self.pending:
            self._progress = None
            return False
        replies = self.replies
        progress = self.traffic.bytes_received - replies.unasked_bytes - replies.unread_bytes
        if progress != self._progress:
            self._progress = progress
            self._looked_ns = now_ns
        return now_ns - self._looked_ns >= limit_ns

    def status(self, member: Membership, owed_releases: int) -> InstanceStatus:
        """The current status of the instance, for people."""
        hello = member.hello
        traffic = self.traffic
        run_id = server = release_command = ""
        if hello:
            run_id = hello.run_id
            server = hello.server
            release_command = self.dialect.release_command
        return InstanceStatus(
            index=self.index,
            address=self.address,
            state=member.state.value,
            reason=member.reason,
            run_id=run_id,
            server=server,
            release_command=release_command,
            commands=traffic.commands - traffic.aside[0],
            bytes_sent=traffic.bytes_sent - traffic.aside[1],
            bytes_received=traffic.bytes_received - traffic.aside[2],
            writes=traffic.writes,
            reads=traffic.reads,
            late_replies=traffic.late_replies,
            pending=self.awaited,
            owed_releases=owed_releases,
            reconnects=traffic.reconnects,
            errors=dict(traffic.errors),
        )


def await_few(pipes: Sequence[Pipeline], most: int) -> bool:
    """True when none of the connections awaits more than `most` replies."""
    return not [pipe for pipe in pipes if pipe.awaited > most]
