"""A SET round that records when each instance was sent the SET and when it replied.

Input: replies and their times. Output: an AttemptRecord.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. A watched round
is a subclass of `SetRound`, because the compiled code that counts votes needs the fields of
`SetRound`.

Rules: each round makes one record. The round waits for two events: the round closes, and its caller
reports an outcome or is gone. After both events it makes the record. Replies after the close are
not in the record.
"""

from collections.abc import Callable

from lockcore.facts.model import AttemptRecord, Outcome, Vote
from lockcore.facts.quorum import outcome_of
from lockcore.rounds.awaited import InstancePipe
from lockcore.rounds.claims import Terms
from lockcore.rounds.resp import UNEXPECTED, error_kind
from lockcore.rounds.rounds import RoundEngine, SetRound


class WatchedSetRound(SetRound):
    """A `SetRound` that reports to an observer."""

    watched = True

    def __init__(  # noqa: PLR0917 - made in one place
        self,
        engine: RoundEngine,
        resource: str,
        claim: bytes,
        terms: Terms,
        started_ns: int,
        listener: Callable[[AttemptRecord], None],
        attempt: int,
        acquire_ns: int,
    ) -> None:
        super().__init__(engine, resource, claim, terms, started_ns)
        self._listener: Callable[[AttemptRecord], None] | None = listener
        self.attempt = attempt
        self.acquire_ns = acquire_ns
        self.votes = [Vote.ABSENT] * engine.instances
        self.errors: list[str] = []
        self.sent_ns = [0] * engine.instances
        self.replied_ns = [0] * engine.instances
        self.closed_ns = self.decided_ns = 0
        self.decision: Outcome | None = None

    def sent(self, now_ns: int) -> None:
        """Record that the SET was sent to every voter."""
        for pipe in self.voters:
            self.sent_ns[pipe.index] = now_ns
            self.votes[pipe.index] = Vote.SILENT

    def reply(self, reply: object, pipe: InstancePipe) -> None:
        """Count the reply of one instance, and note the vote and the time of this reply."""
        if self.undecided:
            if reply == b"OK":
                self.stamp(pipe, Vote.GRANTED)
            elif reply is None:
                self.stamp(pipe, Vote.REFUSED)
            else:
                self.stamp(pipe, Vote.ERRORED)
                self._note_error(pipe.index, error_kind(reply))
        super().reply(reply, pipe)
        self.close()

    def _note_error(self, index: int, kind: str) -> None:
        # A reply may be neither an answer to a SET nor an error.
        if kind != UNEXPECTED:
            self.errors = self.errors or [""] * self.engine.instances
            self.errors[index] = kind

    def stamp(self, pipe: InstancePipe, vote: Vote = Vote.GRANTED) -> None:
        """Note the vote that an instance has just sent, and the time of this vote."""
        self.replied_ns[pipe.index] = self.engine.now_ns
        self.votes[pipe.index] = vote

    def silence(self, pipe: InstancePipe, kind: str = "CLOSED") -> None:
        """Count a SILENT vote, because the connection broke or the instance forgot its locks."""
        super().silence(pipe, kind)
        self.close()

    def expire(self) -> None:
        """Count missing votes as SILENT, because the timeout has come."""
        super().expire()
        self.close()

    def abandon(self) -> None:
        """Note that no decision will come, because the caller is gone."""
        super().abandon()
        self.decided(None, self.engine.now_ns)

    def decided(self, outcome: Outcome | None, now_ns: int) -> None:
        """Note that the caller decided at `now_ns` that the attempt has this `outcome`.

        `outcome` is None if the caller was cancelled.
        """
        if not self.decided_ns:
            self.decided_ns = now_ns
            self.decision = outcome
            self.close()

    def close(self) -> None:
        """Report the attempt once all votes are in and the caller has decided."""
        if self.undecided:
            return
        if not self.closed_ns:
            # Without voters nothing was sent, so the engine's clock may still show a time before
            # the start.
            self.closed_ns = max(self.engine.now_ns, self.started_ns)
        listener = self._listener
        if self.decided_ns and listener is not None:
            self._listener = None
            listener(self._record())

    def _record(self) -> AttemptRecord:
        tally = self.tally
        quorum = self.engine.quorum
        outcome = self.decision or outcome_of(tally.granted, tally.refused, quorum)
        return AttemptRecord(
            resource=self.resource,
            attempt=self.attempt,
            acquire_ns=self.acquire_ns,
            started_ns=self.started_ns,
            decided_ns=self.decided_ns,
            closed_ns=self.closed_ns,
            outcome=outcome,
            tally=tally,
            validity_ns=self.valid_until_ns - self.decided_ns,
            margin=tally.granted - quorum,
            votes=tuple(self.votes),
            sent_ns=tuple(self.sent_ns),
            replied_ns=tuple(self.replied_ns),
            errors=tuple(self.errors),
        )
