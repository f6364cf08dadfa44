"""Counts the replies to all commands of a batch together.

Input: received bytes that equal the bytes of a perfect answer. Output: the won rounds.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. Because of the
compilation, constants are `Final`, `Flight` has slots, and the common part of rounds is a base
class (`InFlight`) instead of a Protocol.

Rules (docs/lockcore/rounds.md): a flight counts the replies of its rounds as long as every answer
is a success. If an instance answers a round without success, the flight sets this round *apart*.
The round then counts its own replies (rounds.py). The flight still counts the replies of the other
rounds. After a timeout or a broken connection, lockcore dissolves the flight. Each round of a
dissolved flight counts its own replies and begins with the count so far. The votes of a round are
the same in three cases: its flight counts the replies, the round is apart, or the flight was
dissolved. Tests compare the three cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lockcore.facts.model import RELEASED, Outcome
from lockcore.rounds.awaited import Asked, Core, InstancePipe, Settled
from lockcore.rounds.commands import COMPARE_AND_DELETE_MANY
from lockcore.rounds.resp import TRANSIENT, error_kind, request

# In a batch of fewer rounds than this, a flight would cost more than it saves. So each round counts
# its own replies.
SMALLEST: Final = 4  # rounds

# If more than one round in this many is apart, the flight is dissolved. Then it is cheaper if each
# round counts its own replies.
FEWEST_PER_ONE_APART: Final = 6  # rounds


class InFlight(Settled):
    """The common base class of rounds. A flight uses it, and a connection uses its base class
    `Awaited`.

    `flight` is None once the round counts its own replies. `success` contains the bytes of the
    expected answer. After a quorum of expected answers the outcome is `success_outcome`.
    """

    __slots__ = ("flight", "missing", "started_ns")
    flight: Flight | None
    missing: int
    started_ns: int
    success: bytes
    success_outcome: Outcome
    watched = False

    def reply(self, reply: object, pipe: InstancePipe) -> None:
        """Count the reply of one instance."""

    def silence(self, pipe: InstancePipe) -> None:
        """Note that the connection broke before the instance answered."""

    def send_alone(self, pipe: InstancePipe) -> None:
        """Send the round alone, because the merged call with this round failed as a whole."""


def _no_answer(success: bytes) -> bytes:
    """Make a line that is as long as `success`, but that no instance ever sends."""
    return b"?" * (len(success) - 1) + b"\n"


# The trick of a flight is that a comparison of bytes counts replies. Redis answers a connection's
# commands in order. So if all goes well, an instance answers the whole batch with exactly the bytes
# `expected`: `+OK` for each SET, `:1` for each release. N instances × R rounds then cost N
# comparisons of bytes, and nothing is parsed. During the flight, `round_.flight` is set and the
# rounds' own counts do not change. The counts are computed from `done` on demand, or when the
# flight is over.
#
# At the place of a round that is apart, `expected` has a line that no instance sends. So the
# comparison ends there, and the reply goes to the round.
#
# The plain way reads every reply and calls its round. A flight saves 1.8 µs of the client's CPU per
# cycle (N = 5, 200 callers). Without flights the votes are the same, so a flight is like a cache.
# But `done` and `expected` must agree at all times. If a reply counted twice, a round would have a
# grant that no server gave.
class Flight:
    """A flight contains the rounds of one batch, and counts the replies of these rounds together.

    `done[i]` is the number of replies from instance i. If the batch was not sent to instance i,
    `done[i]` is −1. `carried` is a number of rounds. A quorum of instances has answered the first
    `carried` rounds of the batch. `apart` contains the indexes of the rounds that count their own
    replies. `open` is the number of instances that have not sent all replies, or 0 once the flight
    is dissolved.
    """

    __slots__ = ("apart", "carried", "done", "engine", "expected", "open", "rounds", "started_ns")

    def __init__(self, engine: Core, rounds: Sequence[InFlight]) -> None:
        self.engine = engine
        self.rounds = rounds
        self.started_ns = rounds[0].started_ns
        self.done = [-1] * engine.instances
        for pipe in engine.voters:
            self.done[pipe.index] = 0
        self.open = len(engine.voters)
        self.carried = 0
        self.apart = set[int]()
        for round_ in rounds:
            round_.flight = self
        # A watched round notes the time of each vote, so it counts its own replies.
        for index, round_ in enumerate(rounds):
            if round_.watched:
                round_.flight = None
                self.apart.add(index)
        self.expected = b"".join(
            [_no_answer(one.success) if one.watched else one.success for one in rounds]
        )

    def count(self, index: int, replies: int) -> None:
        """Count `replies` more replies of the instance `index`.

        Each of these replies is a success, or it belongs to a round that is apart.
        """
        done = self.done
        done[index] += replies
        carried = sorted(done)[-self.engine.quorum]
        if carried > self.carried:
            winners = self._together(self.carried, carried)
            for round_ in winners:
                round_.outcome = round_.success_outcome
            self.engine.ready += winners
            self.carried = carried
        if done[index] == len(self.rounds):
            self.open -= 1
            if not self.open:
                self._close()

    def next_of(self, index: int) -> InFlight:
        """The round that the instance answers next."""
        return self.rounds[self.done[index]]

    def set_apart(self, index: int, start: int) -> None:
        """Let the next round of the instance `index` count its own replies, because its answer is
        not a success.

        In the bytes `expected`, the expected answer to this round begins at `start`.
        """
        number = self.done[index]
        if number in self.apart:
            return
        round_ = self.rounds[number]
        self._hand_back([round_], number)
        self.apart.add(number)
        end = start + len(round_.success)
        line = _no_answer(round_.success)
        self.expected = self.expected[:start] + line + self.expected[end:]

    @property
    def is_scattered(self) -> bool:
        """True if too many rounds of the flight are apart, so the flight should be dissolved."""
        return len(self.apart) * FEWEST_PER_ONE_APART > len(self.rounds)

    def _hand_back(self, rounds: Sequence[InFlight], index: int) -> None:
        """Let `rounds` count their own replies.

        Each of these rounds begins with the counts of the round at `index`.
        """
        successes, undecided = self._counts_at(index)
        for round_ in rounds:
            round_.missing = self.engine.quorum - successes
            round_.undecided = undecided
            round_.flight = None

    def _counts_at(self, index: int) -> tuple[int, int]:
        """Return two numbers for the round at `index`. The first number counts the answers, and the
        second number counts the missing answers."""
        answered = undecided = 0
        for count in self.done:
            if count > index:
                answered += 1
            elif count >= 0:
                undecided += 1
        return answered, undecided

    def _close(self) -> None:
        voters = sum(count >= 0 for count in self.done)
        missing = self.engine.quorum - voters
        for round_ in self._together(0, len(self.rounds)):
            round_.undecided = 0
            round_.missing = missing
            round_.flight = None

    def _together(self, start: int, end: int) -> Sequence[InFlight]:
        """Return those rounds from `start` to `end` whose replies the flight still counts."""
        apart = self.apart
        if not apart:
            return self.rounds[start:end]
        return [self.rounds[index] for index in range(start, end) if index not in apart]

    def counts_of(self, round_: InFlight) -> tuple[int, int]:
        """Return the number of successes and the number of undecided votes of a round that is not
        apart."""
        return self._counts_at(self.rounds.index(round_))

    def dissolve(self) -> None:
        """Let every round count its own replies.

        Each connection keeps the dissolved flight in `pending`. When the flight is the oldest entry
        of `pending`, pipeline.py replaces the flight with its rounds.
        """
        if not self.open:
            return
        self.open = 0
        start = 0
        for edge in sorted({count for count in self.done if count > 0} | {len(self.rounds)}):
            self._hand_back(self._together(start, edge), start)
            start = edge

    def left(self, index: int) -> Sequence[InFlight]:
        """The rounds that the instance `index` has not answered yet."""
        return self.rounds[self.done[index] :]


class MergedReply(InFlight):
    """The header of the reply to a merged release.

    After the header, one line with an answer follows for each of the `parts`.

    The header is the line `*n` for n parts. The flight compares the header with the expected bytes.
    It counts the line of each part as a reply of its own. An error in place of a part's line is the
    answer to this part only. Any other reply in place of the header is the answer to the whole
    call. Then no part has an answer, and lockcore sends each part again alone. If the instance
    cannot run commands now, lockcore sends the parts later (owed.py).
    """

    __slots__ = ("engine", "parts", "success")
    success_outcome = RELEASED

    def __init__(self, engine: Core, parts: Sequence[InFlight]) -> None:
        self.engine = engine
        self.parts = parts
        self.started_ns = parts[0].started_ns
        self.success = b"*%d\r\n" % len(parts)
        self.undecided = 0
        self.missing = 0
        self.outcome = self.waiter = self.flight = None

    def reply(self, reply: object, pipe: InstancePipe) -> None:
        """Take a reply to the whole call.

        Pass this reply on to the parts, or send the parts alone.
        """
        kind = error_kind(reply)
        pipe.skip(len(self.parts))
        if kind == "NOSCRIPT":
            load = request(b"SCRIPT", b"LOAD", COMPARE_AND_DELETE_MANY.source)
            self.engine.unicast(pipe, load, Asked(self.engine.now_ns))
        for release in self.parts:
            if kind == "NOSCRIPT" or kind in TRANSIENT:
                release.reply(reply, pipe)
            else:
                release.send_alone(pipe)

    def silence(self, pipe: InstancePipe) -> None:
        """Do nothing, because the connection calls `silence` for each part, too."""
