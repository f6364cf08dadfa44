r"""A batch on its way to all voters: *the bytes of each instance's answers → rounds carried*.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md: a constant is
`Final`, what rounds share is a base class (`InFlight`) and no Protocol, and `Flight` has slots.

Rules: a flight counts its rounds while every answer is the plainest one, a success or a refusal.
An instance that answers a round otherwise than the first instance did sets the round *apart*:
rounds.py counts it by itself, and the flight goes on with the others. Any other reply, a timeout
or a broken connection dissolves the flight into its rounds, with the counts they have by then.
Messages that others publish may come in between. All ways end in the same votes; tests compare
them side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lockcore.facts.model import RELEASED, Outcome
from lockcore.rounds.awaited import Core, Ignored, InstancePipe, Settled
from lockcore.rounds.commands import COMPARE_AND_DELETE_MANY
from lockcore.rounds.resp import TRANSIENT, error_kind, request

# A batch of fewer rounds than this is counted round by round. There a flight costs more than it
# saves.
SMALLEST: Final = 4  # rounds

# A flight with more than one round apart in this many is dissolved. Then it is cheaper to count
# all of its rounds by themselves.
FEWEST_PER_ONE_APART: Final = 6  # rounds

# The refusals that stand in the place of each success, in RESP3 and in RESP2.
_REFUSALS: Final = {
    b"+OK\r\n": (b"_\r\n", b"$-1\r\n"),
    b":1\r\n": (b":0\r\n",),
}


def _refusal(success: bytes, data: bytes, at: int) -> bytes:
    """The refusal that stands at `data[at]` in the place of `success`; empty if none does."""
    for refusal in _REFUSALS.get(success, ()):
        if data.startswith(refusal, at):
            return refusal
    return b""


class InFlight(Settled):
    """A round as its flight and its connections count it (`Awaited`).

    `flight` is None once the round counts by itself. `success` are the bytes of its plainest
    answer. Parsed they are `success_reply`, and a quorum of them makes `success_outcome`.
    """

    __slots__ = ("flight", "missing", "started_ns")
    flight: Flight | None
    missing: int
    started_ns: int
    success: bytes
    success_reply: object
    failure_reply: object
    success_outcome: Outcome

    def reply(self, reply: object, pipe: InstancePipe) -> None:
        """Count the reply of one instance."""

    def silence(self, pipe: InstancePipe) -> None:
        """The connection broke before the instance answered."""

    def carried(self) -> None:
        """A quorum has answered `success`."""

    def stamp(self, pipe: InstancePipe) -> None:
        """An instance has just voted for the round. Only watched rounds take note of it."""

    def close(self) -> None:
        """The round counts by itself again, or is over. Only watched rounds take note of it."""

    def refused_by(self, instances: int) -> None:
        """So many instances have refused the round, and none has granted it."""

    def turned_down(self) -> None:
        """A quorum of an odd number of voters has refused the round, and none has granted it."""

    def send_alone(self, pipe: InstancePipe) -> None:
        """The merged call that carried the round failed as a whole: send the round by itself."""


class Answers:
    """The answers of one instance that stand in one piece of data.

    There are so many `replies`. They end at `end` in the data, and behind `matched` bytes in what
    the flight expects. `refused` are the numbers of the rounds that were refused.
    """

    __slots__ = ("end", "matched", "refused", "replies")

    def __init__(self, replies: int, end: int, matched: int, refused: list[int]) -> None:
        self.replies = replies
        self.end = end
        self.matched = matched
        self.refused = refused


# The trick of a flight: counting is comparing. Redis answers a connection's commands in order. So
# if all goes well, an instance answers the whole batch with exactly the bytes `expected`: `+OK` for
# each SET, `:1` for each release. N instances × R rounds then cost N comparisons of bytes, and
# nothing is parsed. The rounds' own counts are not touched meanwhile (`round_.flight` says so).
# They are made from `done` when somebody asks for them, or when the flight is over.
#
# All instances refuse what somebody holds. So once the first instance has refused a round, the
# refusal is `expected` of the others.
#
# The plain way is to parse every reply and to call its round. The flight saves 1.8 µs of the
# client's CPU per cycle (N = 5, 200 callers). Counting refusals together saves 5 to 9 % per lease
# where callers meet, compared with setting every refused round apart (README, "Tried").
# Without the flight the votes are the same, so a reader may think of it as a cache. But `done`,
# `led` and `expected` must agree at all times: a round that is counted twice, or a refusal that is
# taken for a success, would be a grant that no server gave.
class Flight:
    """The rounds of one batch, counted together.

    `done[i]` is the number of replies that instance i has given, −1 if it was not asked. `led` is
    the number of bytes of `expected` before the first round that no instance has answered.
    `against` are the rounds that are expected to be refused. `carried` is the number of rounds that
    a quorum has answered. `apart` are the rounds that are counted by themselves. `open` is the
    number of instances that have not finished; it is 0, too, once the flight is dissolved.

    `alike` is True where only a quorum of refusals loses a round. With an even number of voters a
    refused round is set apart: it is lost, and cleaned up, before its outcome is fixed.
    """

    __slots__ = (
        "against",
        "alike",
        "apart",
        "carried",
        "done",
        "engine",
        "expected",
        "led",
        "open",
        "rounds",
        "started_ns",
        "watched",
    )

    # Always negative, so that no connection counts the flight inline (`Awaited` says how the sign
    # is used).
    undecided = -1

    def __init__(
        self, engine: Core, rounds: Sequence[InFlight], watched: Sequence[InFlight]
    ) -> None:
        self.engine = engine
        self.rounds = rounds
        self.started_ns = rounds[0].started_ns
        self.expected = b"".join([round_.success for round_ in rounds])
        self.alike = len(engine.voters) == 2 * engine.quorum - 1
        self.led = 0
        self.watched = [(rounds.index(round_), round_) for round_ in watched]
        self.done = [-1] * engine.instances
        for pipe in engine.voters:
            self.done[pipe.index] = 0
        self.open = len(engine.voters)
        self.carried = 0
        self.apart: dict[int, None] = {}
        self.against: dict[int, None] = {}
        for round_ in rounds:
            round_.flight = self

    def answers(self, data: bytes, at: int, index: int, matched: int) -> Answers:
        """The answers of the instance `index` from `data[at]` on.

        They end before the first reply that is neither the success nor a refusal of its round.
        `matched` bytes of `expected` have come from this instance before. Where this instance is
        the first to answer a round, the others are expected to give the same answer.
        """
        rounds = self.rounds
        expected = self.expected
        number = self.done[index]
        # The first round that no instance has answered. It is expected at `led`.
        frontier = max(self.done)
        news = at if number == frontier else -1
        replies = 0
        refused = list[int]()
        while number < len(rounds):
            success = rounds[number].success
            if data.startswith(success, at):
                at += len(success)
            else:
                refusal = _refusal(success, data, at)
                if not refusal:
                    break
                refused.append(number)
                at += len(refusal)
            replies += 1
            number += 1
            matched = expected.index(b"\n", matched) + 1
            if number == frontier:
                news = at
        if number > frontier:
            self.expected = expected[: self.led] + data[news:at] + expected[matched:]
            matched = self.led + at - news
        return Answers(replies, at, matched, refused)

    def count(
        self, pipe: InstancePipe, replies: int, matched: int, refused: Sequence[int] | None = None
    ) -> None:
        """Count `replies` more of one instance, `matched` bytes of `expected` in all.

        `refused` is None when the instance answered exactly what was expected.
        """
        rounds = self.rounds
        done = self.done
        before = done[pipe.index]
        after = before + replies
        if refused is not None:
            self._sort_out(before, after, refused)
        self.led = max(self.led, matched)
        done[pipe.index] = after
        for index, watched in self.watched:
            if before <= index < after:
                watched.stamp(pipe)
        carried = sorted(done)[-self.engine.quorum]
        losers: Sequence[InFlight] = ()
        if carried > self.carried:
            winners = self._together(self.carried, carried)
            losers = [rounds[index] for index in self._refused_within(self.carried, carried)]
            for round_ in winners:
                round_.outcome = round_.success_outcome
            self.engine.ready += winners
            self.carried = carried
        if after == len(rounds):
            self.open -= 1
            if not self.open:
                self._close()
        for round_ in losers:
            round_.turned_down()
        if self.apart:
            refusals = self.against if refused is None else dict.fromkeys(refused)
            self._count_apart(pipe, before, after, refusals)

    def _sort_out(self, before: int, after: int, refused: Sequence[int]) -> None:
        """An instance did not answer what was expected.

        Either it is the first instance to answer there, or it contradicts the first one.
        """
        led = max(self.done)
        against = self.against
        watched = dict(self.watched)
        refusals = dict.fromkeys(refused)
        contradicted = [
            index for index in against if before <= index < after and index not in refusals
        ]
        for index in contradicted:
            self._set_apart(index)
        for index in refused:
            if index >= led:
                against[index] = None
                if not self.alike or index in watched:
                    self._set_apart(index)
            elif index not in against:
                self._set_apart(index)

    def _count_apart(
        self, pipe: InstancePipe, before: int, after: int, refusals: dict[int, None]
    ) -> None:
        for index in self.apart:
            if before <= index < after:
                # The header of a merged release is never apart, so this is a round with replies.
                single: Any = self.rounds[index]
                reply = single.failure_reply if index in refusals else single.success_reply
                single.reply(reply, pipe)
        if len(self.apart) * FEWEST_PER_ONE_APART > len(self.rounds):
            self.dissolve()

    def _set_apart(self, index: int) -> None:
        if index not in self.apart:
            if self.watched:
                self.watched = [(at, watched) for at, watched in self.watched if at != index]
            self._hand_back_at(index)
            self.apart[index] = None

    def _hand_back_at(self, index: int) -> None:
        round_ = self.rounds[index]
        self._hand_back([round_], index)
        if index in self.against:
            round_.refused_by(self._counts_at(index)[0])

    def _hand_back(self, rounds: Sequence[InFlight], index: int) -> None:
        """Give rounds their own counts, which are the same as those of the round at `index`."""
        successes, undecided = self._counts_at(index)
        for round_ in rounds:
            round_.missing = self.engine.quorum - successes
            round_.undecided = -undecided if round_.undecided < 0 else undecided
            round_.flight = None

    def _counts_at(self, index: int) -> tuple[int, int]:
        """How many instances have answered a round, and how many have not."""
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
        for index in self._refused_within(0, len(self.rounds)):
            self._hand_back_at(index)
        for _, watched in self.watched:
            watched.close()

    def _together(self, start: int, end: int) -> Sequence[InFlight]:
        """The rounds from `start` to `end` that have been answered by successes alone."""
        if not self.apart and not self.against:
            return self.rounds[start:end]
        rounds = list[InFlight]()
        at = start
        for index in sorted({*self.apart, *self.against}):
            if start <= index < end:
                rounds += self.rounds[at:index]
                at = index + 1
        rounds += self.rounds[at:end]
        return rounds

    def _refused_within(self, start: int, end: int) -> list[int]:
        """The numbers of the rounds that have been answered by refusals alone."""
        return [index for index in self.against if start <= index < end and index not in self.apart]

    def counts_of(self, round_: InFlight) -> tuple[int, int, int]:
        """(successes, refusals, undecided) of one of the rounds that are not apart, now."""
        index = self.rounds.index(round_)
        answered, undecided = self._counts_at(index)
        return (0, answered, undecided) if index in self.against else (answered, 0, undecided)

    def dissolve(self) -> None:
        """Give every round its own counts.

        The flight keeps its place in each connection's queue until its replies are next.
        """
        if not self.open:
            return
        self.open = 0
        start = 0
        for edge in sorted({count for count in self.done if count > 0} | {len(self.rounds)}):
            self._hand_back(self._together(start, edge), start)
            start = edge
        for index in self._refused_within(0, len(self.rounds)):
            self._hand_back_at(index)
        for _, watched in self.watched:
            watched.close()

    def left(self, index: int) -> Sequence[InFlight]:
        """The rounds that the instance `index` has still to answer."""
        return self.rounds[self.done[index] :]


class MergedReply(InFlight):
    """The header of a merged release's reply; the answers to its `parts` follow it line by line.

    The header's line (`*parts`) and the lines of its parts are read like any other lines. An error
    in the place of a part concerns that part. Any other reply in the place of the header is a reply
    to the whole call, so it answers no part. Then each part is sent again alone, or it is owed
    where the instance can do nothing now.
    """

    __slots__ = ("engine", "parts", "success")
    success_outcome = RELEASED

    def __init__(self, engine: Core, parts: Sequence[InFlight]) -> None:
        self.engine = engine
        self.parts = parts
        self.started_ns = parts[0].started_ns
        self.success = b"*%d\r\n" % len(parts)
        self.undecided = -len(engine.voters)
        self.missing = 0
        self.outcome = self.waiter = self.flight = None

    def reply(self, reply: object, pipe: InstancePipe) -> None:
        """Count a reply to the whole call."""
        kind = error_kind(reply)
        pipe.skip(len(self.parts))
        if kind == "NOSCRIPT":
            load = request(b"SCRIPT", b"LOAD", COMPARE_AND_DELETE_MANY.source)
            self.engine.unicast(pipe, load, Ignored(self.engine.now_ns))
        for release in self.parts:
            if kind == "NOSCRIPT" or kind in TRANSIENT:
                release.reply(reply, pipe)
            else:
                release.send_alone(pipe)

    def silence(self, pipe: InstancePipe) -> None:
        """Do nothing: each part is told by itself that the connection broke."""
