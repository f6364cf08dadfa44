"""One connection's order: *commands out, replies in → each reply to the round that awaits it*.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md: constants are
`Final`, no slice may end before it begins, and hot paths call nothing by name.

Rules: Redis answers a connection's commands in order, so the awaited replies are a FIFO and nothing
is tagged. Bytes are never changed before they are read. From the beginning of a reply on they are
either compared with what is expected, or the reply is parsed once it is whole (framing.py). Without
being asked (RESP3), an instance says that keys were flushed, exactly between the replies before and
after it. It also brings what other clients publish (handoff.py). What an instance sends is bounded
in size and in kinds of errors, and concerns that instance only.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from hiredis import ProtocolError as HiredisProtocolError
from hiredis import PushNotification, Reader

from lockcore.clock import NS_PER_MS
from lockcore.errors import ProtocolError
from lockcore.facts.membership import Membership
from lockcore.facts.model import InstanceStatus
from lockcore.rounds.awaited import Awaited, Ignored, InstancePipe
from lockcore.rounds.commands import Dialect
from lockcore.rounds.flight import Flight
from lockcore.rounds.framing import LONGEST_REPLY, NOT_WHOLE, PUSH, Framing
from lockcore.rounds.resp import (
    NOT_YET,
    UNEXPECTED,
    error_of,
    exact_answer,
    exact_line,
    reply_reader,
)
from lockcore.rounds.rounds import Part, SetRound
from lockcore.settings import LagCap

# How bytes go out. It returns how many bytes are kept because the socket would not take them.
Transmit = Callable[[bytes], int]

LINES_AT_ONCE: Final = 256

# The first bytes of the lines that answer rounds.
_LINES: Final = b"+-:_"

# The longest of the exact answers (resp.py), with its line end.
LONGEST_ANSWER: Final = 5  # bytes

# A message is recognised by comparing only if its length, with the line end, is no longer.
LONGEST_LENGTH: Final = 8  # bytes

# An instance may bring so many kinds of errors. Further kinds are counted as OTHER.
MOST_KINDS: Final = 32

# One piece of data may hold so many pushes that have to be parsed.
MOST_UNASKED: Final = 256


def nothing(*_: object) -> None:
    """Do nothing: nobody has asked to hear of it."""


class Pipeline:
    """The commands in flight to one instance, over however many connections it takes.

    Counters run since `connect`. `awaited` is the number of replies that are still to come,
    `matched` the number of bytes that have come of the oldest flight's replies, `backlog` the
    number of bytes that the socket did not take when something was last sent.

    `forgot` is called when the instance may have forgotten locks just now. `heard` is called with a
    message and the index of the instance that brought it. `message_head` are the bytes with which a
    message of the inbox begins, up to its length; they are empty where there is no inbox.
    """

    __slots__ = (
        "_aside",
        "_framing",
        "_kept",
        "_looked_ns",
        "_passed",
        "_passing",
        "_progress",
        "_replies",
        "_unasked",
        "_unasked_read",
        "address",
        "awaited",
        "backlog",
        "bytes_received",
        "bytes_sent",
        "commands",
        "dialect",
        "errors",
        "forgot",
        "heard",
        "index",
        "lag_ns",
        "late_replies",
        "matched",
        "message_head",
        "most_awaited",
        "most_kept",
        "pending",
        "queue",
        "reads",
        "reconnects",
        "transmit",
        "writes",
    )

    def __init__(self, index: int, address: str, cap: LagCap) -> None:
        self.index = index
        self.address = address
        self.most_awaited = cap.operations
        self.most_kept = cap.bytes
        self.lag_ns = int(cap.age_ms * NS_PER_MS)
        self.forgot: Callable[[InstancePipe, str], object] = nothing
        self.heard: Callable[[object, int], object] = nothing
        self.message_head = b""
        self.dialect = Dialect("evalsha", native_extend=False)
        self.pending: deque[Awaited | Flight] = deque()
        self.awaited = 0
        self.matched = 0
        self.backlog = 0
        self.queue: list[bytes] = []
        self.transmit: Transmit | None = None
        self.errors: dict[str, int] = {}
        self.commands = self.bytes_sent = self.bytes_received = self.writes = self.reads = 0
        # Commands, bytes sent and bytes received that come by the clock, not with a lock.
        self._aside = [0, 0, 0]
        self.late_replies = self.reconnects = 0
        self._listen()

    @property
    def is_open(self) -> bool:
        """True while a connection carries it."""
        return self.transmit is not None

    def open(self, transmit: Transmit, dialect: Dialect) -> None:
        """Begin with a new connection, empty in both directions."""
        self.transmit = transmit
        self.dialect = dialect
        self._listen()

    def _listen(self) -> None:
        self._framing = Framing(self.address)
        # Parses the replies that comparing does not recognise. They are rare, so it is made late.
        self._replies: Reader | None = None
        # The beginning of a reply that is not whole.
        self._kept = b""
        # How many bytes are still to come of a message that is too long to be ours, and how many
        # have come in all that nobody asked for.
        self._passing = 0
        self._passed = 0
        # How many pushes were parsed in the read number `_unasked_read`.
        self._unasked = 0
        self._unasked_read = 0
        # How many bytes of whole replies had come at the last look, and when that was seen first.
        self._progress: int | None = None
        self._looked_ns = 0

    def break_off(self) -> list[Awaited]:
        """The connection is gone. Returns what was still awaited on it, oldest first."""
        losses = self._take_pending()
        self.queue.clear()
        self.awaited = 0
        self.transmit = None
        return losses

    def _take_pending(self) -> list[Awaited]:
        """What is awaited, oldest first, with flights dissolved. Nothing is pending afterwards."""
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
        """The instance has forgotten locks, so the SETs that are still out become SILENT.

        It would grant what it has forgotten.
        """
        awaited = self._take_pending()
        self.pending += [
            Ignored(each.started_ns) if isinstance(each, SetRound) else each for each in awaited
        ]
        for each in awaited:
            if isinstance(each, SetRound):
                each.silence(self, "FORGOT")

    def expect(self, awaited: Awaited) -> None:
        """Await one more reply."""
        self.pending.append(awaited)
        self.awaited += 1

    def skip(self, replies: int) -> None:
        """The next `replies` awaited ones will not come by themselves.

        The caller tells the rounds that awaited them.
        """
        self.awaited -= replies
        for _ in range(replies):
            self.pending.popleft()

    def awaits_since(self, started_ns: int) -> bool:
        """True when something begun at `started_ns` or before has not been answered."""
        return bool(self.pending) and self.pending[0].started_ns <= started_ns

    def expect_batch(self, flight: Flight | None, rounds: list[Part]) -> None:
        """Await the replies of a batch, as one flight or one by one."""
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

    def set_aside(self, commands: int, sent_bytes: int, received_bytes: int) -> None:
        """See `InstancePipe.set_aside`.

        The status leaves these out. Otherwise the cost of a lock would depend on the rate of locks.
        """
        self._aside[0] += commands
        self._aside[1] += sent_bytes
        self._aside[2] += received_bytes

    # The trick of `receive`: whatever can be compared is not parsed. It tries four ways, the
    # cheapest first, and each of them begins where a reply begins:
    #   - a piece that is exactly one short answer. Whoever has few callers gets little else.
    #   - the answers of a whole flight, one comparison for a batch (flight.py).
    #   - lines, which are looked up whole among the exact answers (resp.py) and counted straight
    #     on their round (`Awaited`).
    #   - everything else, which is parsed by hiredis once it is whole (`_read_whole`).
    # The plain way is to give all bytes to the parser and each reply to its round. Comparing saves
    # 1.8 µs of the client's CPU per cycle (N = 5, 200 callers). It is also stricter: only the exact
    # bytes `+OK` grant, so a text that looks like a reply grants nothing.
    # What must stay: the data is never edited before it is read. An earlier version rewrote RESP3's
    # nil in the whole piece. That changed the inside of texts, and a resource's name granted locks.
    def receive(self, data: bytes) -> None:
        """Give every reply that `data` completes to its round.

        Raises ProtocolError on bytes that are no reply to what was asked.
        """
        self.reads += 1
        self.bytes_received += len(data)
        if self._passing:
            data = self._pass_over(data)
        if self._kept:
            data = self._kept + data
            self._kept = b""
        pending = self.pending
        end = len(data)
        if end <= LONGEST_ANSWER and pending and pending[0].__class__ is not Flight:
            reply = exact_line(data, UNEXPECTED)
            if reply is not UNEXPECTED:
                self._answer(reply)
                return
        at = 0
        # A reply may make its round send something, and the connection may break by that. Then
        # `transmit` is None, and whatever was awaited is SILENT by now.
        while at < end and self.transmit is not None:
            oldest: Any = pending[0] if pending else None
            if data[at] == PUSH:
                stop = self._pushed(data, at)
            elif oldest.__class__ is Flight:
                stop = self._of_flight(oldest, data, at)
            else:
                is_line = data[at] in _LINES or data.startswith(b"$-1", at)
                stop = self._one_by_one(data, at) if is_line else at
                if stop == at:
                    stop = self._unusual(oldest, data, at)
            if stop == NOT_WHOLE:
                break
            at = stop
        if at < end:
            self._kept = data[at:]
            if end - at > LONGEST_REPLY:
                raise ProtocolError(
                    f"{self.address} sent a reply of more than {LONGEST_REPLY:,} bytes"
                )

    def _answer(self, reply: object) -> None:
        """Give one of the exact answers (resp.py) to the oldest round."""
        oldest: Any = self.pending.popleft()
        self.awaited -= 1
        undecided = oldest.undecided
        if undecided > 0 and reply == oldest.success_reply:
            oldest.undecided = undecided - 1
            oldest.missing = missing = oldest.missing - 1
            if not missing:
                oldest.carried()
        else:
            oldest.reply(reply, self)

    def _pass_over(self, data: bytes) -> bytes:
        """The data that comes behind a message that is too long."""
        passed = min(self._passing, len(data))
        self._passing -= passed
        self._passed += passed
        return data[passed:]

    def _one_by_one(self, data: bytes, at: int) -> int:
        """Give lines to the rounds that await them.

        Returns where the answers of a flight begin, or a reply that is neither an exact answer nor
        an error.
        """
        lines = data[at:].split(b"\r\n", LINES_AT_ONCE)
        rest = lines.pop()
        count = 0
        take_oldest = self.pending.popleft
        try:
            for line in lines:
                reply = exact_answer(line, UNEXPECTED)
                if reply is UNEXPECTED:
                    if not line.startswith(b"-"):
                        break
                    reply = error_of(line)
                try:
                    awaited: Any = take_oldest()
                except IndexError:
                    break
                undecided = awaited.undecided
                if undecided > 0 and reply == awaited.success_reply:
                    count += 1
                    awaited.undecided = undecided - 1
                    awaited.missing = missing = awaited.missing - 1
                    if not missing:
                        awaited.carried()
                elif awaited.__class__ is Flight:
                    self.pending.appendleft(awaited)
                    break
                else:
                    count += 1
                    awaited.reply(reply, self)
        finally:
            if self.transmit is not None:
                self.awaited -= count
        if count == len(lines):
            return len(data) - len(rest)
        return at + sum(map(len, lines[:count])) + 2 * count

    def _unusual(self, oldest: Awaited | None, data: bytes, at: int) -> int:
        """Read the header of a merged release, or a reply that is read as a whole.

        Returns where it ends, or NOT_WHOLE.
        """
        if oldest is None:
            raise ProtocolError(f"{self.address} sent a reply nobody asked for")
        if not oldest.success or not data.startswith(oldest.success, at):
            return self._read_whole(data, at)
        self.pending.popleft()
        self.awaited -= 1
        return at + len(oldest.success)

    def _of_flight(self, flight: Flight, data: bytes, at: int) -> int:
        """Count the answers to a flight. Any other reply makes it await its rounds one by one.

        Returns where its answers end, or NOT_WHOLE where even the next one does not.
        """
        if not flight.open:
            # The flight was dissolved. From here on its rounds are awaited one by one.
            self.matched = 0
            self.pending.popleft()
            self.pending.extendleft(reversed(flight.left(self.index)))
            return at
        matched = self.matched
        part = data[at : at + len(flight.expected) - matched]
        if not part.endswith(b"\n"):
            part = part[: part.rfind(b"\n") + 1]
        refused: Sequence[int] | None = None
        if part and flight.expected.startswith(part, matched):
            replies = part.count(b"\n")
            at += len(part)
            matched += len(part)
        else:
            answers = flight.answers(data, at, self.index, matched)
            replies = answers.replies
            if not replies:
                if data.find(b"\n", at) < 0:
                    return NOT_WHOLE
                flight.dissolve()
                return at
            at = answers.end
            matched = answers.matched
            refused = answers.refused
        self.awaited -= replies
        if flight.done[self.index] + replies == len(flight.rounds):
            self.matched = 0
            self.pending.popleft()
        else:
            self.matched = matched
        flight.count(self, replies, matched, refused)
        return at

    # A message of the inbox always begins with the same bytes, so it is recognised by comparing
    # them. Any client may publish, so a flood of messages must not hold the loop. Comparing takes a
    # quarter of what parsing takes (from source 2.0 µs a message beside 8.5). A length with a
    # leading zero, a text without its line end, and a message that is too long are left to the
    # parser, which refuses or passes over them. Without this way nothing breaks, but a flood of
    # messages costs four times as much.
    def _pushed(self, data: bytes, at: int) -> int:
        """Read what nobody asked for. Returns where it ends, or NOT_WHOLE."""
        head = self.message_head
        if head and data.startswith(head, at):
            start = at + len(head)
            line_end = data.find(b"\r\n", start, start + LONGEST_LENGTH)
            digits = data[start:line_end] if line_end > start else b""
            if digits.isdigit() and (digits == b"0" or not digits.startswith(b"0")):
                text = line_end + 2
                end = text + int(digits)
                is_whole = end + 2 <= len(data) and data[end : end + 2] == b"\r\n"
                if is_whole and end + 2 - at <= LONGEST_REPLY:
                    self._framing.restart()
                    self._passed += end + 2 - at
                    self.heard(data[text:end], self.index)
                    return end + 2
        return self._read_whole(data, at)

    def _read_whole(self, data: bytes, at: int) -> int:
        """Parse a reply as soon as it is whole. Returns where it ends, or NOT_WHOLE."""
        stop = self._framing.end_of(data, at)
        if stop == NOT_WHOLE:
            return NOT_WHOLE
        if data[at] == PUSH:
            self._count_unasked()
            end = min(stop, len(data))
            self._passed += end - at
            if stop - at > LONGEST_REPLY:
                self._passing = stop - end
                return end
        if self._replies is None:
            self._replies = reply_reader()
        replies = self._replies
        try:
            replies.feed(data[at:stop])
            reply = replies.gets()
        except HiredisProtocolError as error:
            raise ProtocolError(f"{self.address} does not speak RESP2 or RESP3: {error}") from error
        if reply is NOT_YET or replies.has_data():
            raise ProtocolError(
                f"{self.address} does not speak RESP2 or RESP3: it says where a reply ends in two "
                "ways"
            )
        self._give(reply)
        return stop

    # A server parts from its pushes one by one, and everything that clients publish is recognised
    # by comparing. So only a server that floods sends hundreds of other pushes at once. To parse
    # 64 KiB of the smallest ones would hold the loop for 25 ms (from source 72 ms). That is longer
    # than many an instance timeout, and it would come again in each pass. With this bound such a
    # server loses its connection, and nobody waits for it.
    def _count_unasked(self) -> None:
        """Count one more push that has to be parsed.

        Raises ProtocolError when a piece of data holds too many.
        """
        if self._unasked_read != self.reads:
            self._unasked_read = self.reads
            self._unasked = 0
        self._unasked += 1
        if self._unasked > MOST_UNASKED:
            raise ProtocolError(
                f"{self.address} sent more than {MOST_UNASKED} pushes at once that nobody asked for"
            )

    def _give(self, reply: object) -> None:
        if isinstance(reply, PushNotification):
            if reply[:1] == [b"invalidate"]:
                self.forgot(self, "keys were flushed")
            elif reply[:1] == [b"message"]:
                self.heard(reply[-1], self.index)
            return
        if not self.pending:
            raise ProtocolError(f"{self.address} sent a reply nobody asked for")
        awaited: Any = self.pending.popleft()
        self.awaited -= 1
        awaited.reply(reply if isinstance(awaited, Ignored) else UNEXPECTED, self)

    def over_size(self) -> str:
        """Why it lags by what it has not answered or taken; empty when it does not."""
        if self.awaited > self.most_awaited:
            return f"{self.awaited:,} commands not answered, more than {self.most_awaited:,}"
        if self.backlog > self.most_kept:
            return f"{self.backlog:,} bytes not taken, more than {self.most_kept:,}"
        return ""

    def over_age(self, now_ns: int) -> str:
        """Why it lags by the age of its oldest command; empty when it does not."""
        if self.pending and self.pending[0].started_ns < now_ns - self.lag_ns:
            return f"{self.awaited:,} commands not answered for {self.lag_ns / NS_PER_MS:g} ms"
        return ""

    def is_silent(self, now_ns: int, limit_ns: int) -> bool:
        """True when nothing that it was asked has been answered for `limit_ns`.

        Regular looks compare the progress between them. Bytes that complete no reply are no
        progress, nor is what nobody asked for.
        """
        if not self.pending:
            self._progress = None
            return False
        progress = self.bytes_received - self._passed - len(self._kept)
        if progress != self._progress:
            self._progress = progress
            self._looked_ns = now_ns
        return now_ns - self._looked_ns >= limit_ns

    def count_error(self, kind: str) -> None:
        """Count one more vote that was lost to `kind`.

        The kind is an error reply's first word, TIMEOUT, CLOSED or FORGOT. A server that makes up
        words gets MOST_KINDS of them. Further words are counted as OTHER.
        """
        errors = self.errors
        if kind not in errors and len(errors) >= MOST_KINDS:
            kind = "OTHER"
        errors[kind] = errors.get(kind, 0) + 1
        if kind == "READONLY":
            self.forgot(self, "it is a replica")

    def status(self, member: Membership, owed_releases: int) -> InstanceStatus:
        """A snapshot of its instance, for people."""
        hello = member.hello
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
            commands=self.commands - self._aside[0],
            bytes_sent=self.bytes_sent - self._aside[1],
            bytes_received=self.bytes_received - self._aside[2],
            writes=self.writes,
            reads=self.reads,
            late_replies=self.late_replies,
            pending=self.awaited,
            owed_releases=owed_releases,
            reconnects=self.reconnects,
            errors=dict(self.errors),
        )


def await_few(pipes: Sequence[Pipeline], most: int) -> bool:
    """True when none of the connections awaits more than `most` replies."""
    return not [pipe for pipe in pipes if pipe.awaited > most]
