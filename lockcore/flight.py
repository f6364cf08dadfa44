r"""A batch on its way to all voters, as long as everything in it succeeds: *bytes that were expected → rounds
carried*. Pure.

Rules: one order per connection makes replies predictable: if all goes well, an instance answers a batch with exactly
`expected` (`+OK\r\n` for a SET, `:1\r\n` for a release, in order). As long as what comes in is byte for byte that,
counting is comparing: no reply is parsed, and a round is carried once q instances have come past it. The first reply
that is anything else, a timeout or a broken connection dissolves the flight into its rounds, with the counts they
have by then; from there on each is counted by itself (rounds.py). Both ways end in the same votes: tested side by
side. Measured: 1.8 µs less client CPU per N=5 cycle at 200 callers than parsing every reply.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockcore.engine import Engine
    from lockcore.pipeline import Pipeline
    from lockcore.rounds import Part
    from lockcore.watched import WatchedSetRound

SMALLEST = 4  # rounds: below, a flight costs more than it saves


class Flight:
    """The rounds of one batch. `done[i]`: replies of instance i so far (−1: it was not asked); `carried`: rounds won
    so far;
    `open`: instances still to finish, 0 also once dissolved."""

    __slots__ = ("carried", "done", "engine", "expected", "open", "rounds", "started_ns", "watched")
    undecided = -1  # its replies are never counted by the connection's parser

    def __init__(self, engine: Engine, rounds: list[Part], watched: list[WatchedSetRound]) -> None:
        self.engine = engine
        self.rounds = rounds
        self.started_ns = rounds[0].started_ns
        self.expected = b"".join([round_.success for round_ in rounds])
        self.watched = [(rounds.index(round_), round_) for round_ in watched]
        self.done = [-1] * engine.instances
        for pipe in engine.voters:
            self.done[pipe.index] = 0
        self.open = len(engine.voters)
        self.carried = 0
        for round_ in rounds:
            round_.flight = self

    def count(self, pipe: Pipeline, replies: int) -> None:
        """`replies` more successes of one instance."""
        rounds, done = self.rounds, self.done
        before = done[pipe.index]
        done[pipe.index] = after = before + replies
        for index, watched in self.watched:
            if before <= index < after:
                watched.stamp(pipe)
        carried = sorted(done)[-self.engine.quorum]
        if carried > self.carried:
            won = rounds[self.carried : carried]
            for round_ in won:
                round_.outcome = round_.success_outcome
            self.engine.ready += won
            self.carried = carried
        if after == len(rounds):
            self.open -= 1
            if not self.open:
                self._close()

    def _close(self) -> None:
        missing = self.engine.quorum - sum(count >= 0 for count in self.done)
        for round_ in self.rounds:
            round_.undecided = 0
            round_.missing = missing
            round_.flight = None
        for _, watched in self.watched:
            watched.close()

    def counts_of(self, round_: Part) -> tuple[int, int]:
        """(successes, undecided) of one of the rounds, now."""
        index = self.rounds.index(round_)
        return sum(count > index for count in self.done), sum(0 <= count <= index for count in self.done)

    def dissolve(self) -> None:
        """Give every round its own counts. The flight keeps its place in each connection's order until it is
        reached."""
        if not self.open:
            return
        self.open = 0
        quorum, size, start = self.engine.quorum, len(self.rounds), 0
        for edge in sorted({count for count in self.done if count > 0} | {size}):
            successes = sum(count > start for count in self.done)
            undecided = sum(0 <= count <= start for count in self.done)
            for round_ in self.rounds[start:edge]:
                round_.missing = quorum - successes
                round_.undecided = -undecided if round_.undecided < 0 else undecided
                round_.flight = None
            start = edge
        for _, watched in self.watched:
            watched.close()

    def left(self, pipe: Pipeline) -> list[Part]:
        """The rounds that an instance has still to answer."""
        return self.rounds[self.done[pipe.index] :]

    def reply(self, reply: object, pipe: Pipeline) -> None:
        """A reply that was parsed: from here on its connection awaits the rounds one by one."""
        self.dissolve()
        pipe.seen = 0
        first, *others = self.left(pipe)
        pipe.pending.extendleft(reversed(others))
        first.reply(reply, pipe)
