"""Counts the replies to one command that all instances got.

Input: replies. Output: a settled outcome.

Pure. This file is compiled, so it follows the rules of docs/lockcore/compiled.md. Because of the
compilation, rounds share base classes, each attribute is declared in only one class, and constants
are `Final`.

Rules: a round counts each reply exactly once, and replies may come in any order. A round is
*settled* when its outcome can no longer change. A round is *closed* when no vote is undecided,
because all replies are in or the timeout has come. A lost SET round starts its clean-up at once,
before its outcome is fixed. Replies after the close count as late. `missing` is the quorum minus
the grants so far. So the vote margin of a closed round is −missing. docs/lockcore/rounds.md
explains the states of a round.
"""

from __future__ import annotations

from hiredis import ReplyError

from lockcore.clock import FAR_FUTURE_NS
from lockcore.facts.arguments import check_lease
from lockcore.facts.model import ACQUIRED, RELEASED, Lease, Outcome, Tally
from lockcore.facts.quorum import (
    is_lost,
    is_owned_settled,
    is_settled,
    outcome_of,
    owned_outcome_of,
)
from lockcore.rounds.awaited import Core, InstancePipe
from lockcore.rounds.claims import Terms
from lockcore.rounds.commands import COMPARE_AND_DELETE, COMPARE_AND_EXTEND, Dialect, eval_of
from lockcore.rounds.flight import InFlight, MergedReply
from lockcore.rounds.owed import is_owed
from lockcore.rounds.resp import error_kind


class RoundEngine(Core):
    """The part of the engine that rounds use.

    `unreleased` is the number of sent attempts whose release has not begun. `unanimous` is the
    tally of a round that every instance granted. `unanimous` is made only once, because it is the
    most frequent tally.
    """

    def __init__(self, instances: int) -> None:
        super().__init__(instances)
        self.unreleased = 0
        self.unanimous = Tally(granted=instances)

    def clean_up(self, round_: SetRound) -> None:
        """Release a lost or abandoned attempt on each instance that was sent its SET."""

    def send_again(self, round_: ReleaseRound, pipe: InstancePipe, *, whole: bool) -> None:
        """Send a release to one instance again.

        If `whole` is True, the command has the script's source.
        """

    def owe(self, pipe: InstancePipe, round_: ReleaseRound) -> None:
        """Keep a release that an instance did not take, and send it again later (owed.py)."""


class Counting(InFlight):
    """A round that counts votes. `InFlight` declares the other counts."""

    __slots__ = ("engine", "errored", "refused", "silent")
    engine: RoundEngine
    errored: int
    refused: int
    silent: int

    @property
    def tally(self) -> Tally:
        """The votes so far. `undecided` is 0 once the round is closed."""
        engine = self.engine
        granted = engine.quorum - self.missing
        refused = self.refused
        undecided = self.undecided
        if granted == engine.instances:
            return engine.unanimous
        # The flight is read once, because a caller may read the tally while the I/O thread counts.
        flight = self.flight
        if flight is not None:
            granted, undecided = flight.counts_of(self)
        absent = engine.instances - (granted + refused + self.errored + self.silent + undecided)
        return Tally(granted, refused, self.errored, self.silent, absent, undecided)

    def judge(self) -> None:
        """Settle the outcome once no missing reply can change it."""

    def expire(self) -> None:
        """Count the undecided votes as SILENT, because the timeout has come."""
        self.silent += self.undecided
        self.undecided = 0
        self.judge()

    def abandon(self) -> None:
        """Note that the caller is gone (cancelled, killed, interrupted)."""
        self.waiter = None


class SetRound(Counting):
    """The SET of one attempt. `voters` contains the instances that get the SET.

    A round with the outcome ACQUIRED may be too late. So the woken caller must check the validity.
    If `cleaned` is True, lockcore must not start a release of this attempt. Either the SET was not
    sent, or its release has already begun.

    `denied_by` has a bit for each instance that answered with an error. `newest` is the lease after
    its last successful extension. lockcore computes `asked_until_ns` when it sends an extension. It
    is the end of the lease if this extension succeeds.
    """

    __slots__ = (
        "asked_until_ns",
        "claim",
        "cleaned",
        "denied_by",
        "newest",
        "resource",
        "terms",
        "voters",
    )

    # The next three attributes have no value at first, so code reads them with `getattr` and a
    # default. Few rounds need them, because few rounds have an error or are extended. A value at
    # the start would cost every round.
    denied_by: int
    newest: Lease
    asked_until_ns: int
    success = b"+OK\r\n"
    success_outcome = ACQUIRED

    def __init__(
        self, engine: RoundEngine, resource: str, claim: bytes, terms: Terms, started_ns: int
    ) -> None:
        self.engine = engine
        self.resource = resource
        self.claim = claim
        self.terms = terms
        self.started_ns = started_ns
        self.voters = voters = engine.voters
        self.undecided = len(voters)
        self.missing = engine.quorum
        self.refused = self.errored = self.silent = 0
        self.cleaned = True
        self.outcome = None
        self.waiter = None
        self.flight = None

    @property
    def valid_until_ns(self) -> int:
        """The end of this round's lease, which is start + TTL − drift."""
        return self.started_ns + self.terms.usable_ns

    @property
    def lease_end_ns(self) -> int:
        """The end of this round's newest lease. Each successful extension makes a newer lease."""
        newest: SetRound | Lease = getattr(self, "newest", self)
        return newest.valid_until_ns

    def reply(self, reply: object, pipe: InstancePipe) -> None:
        """Count the reply of one instance."""
        if isinstance(reply, ReplyError):
            self.denied_by = self._denied_by() | 1 << pipe.index
        if not self.undecided:
            pipe.count_late()
            return
        self.undecided -= 1
        if reply == b"OK":
            self.missing -= 1
        elif reply is None:
            self.refused += 1
        else:
            self.errored += 1
            pipe.count_error(error_kind(reply))
        self.judge()

    def _denied_by(self) -> int:
        return getattr(self, "denied_by", 0)

    def may_hold(self, pipe: InstancePipe) -> bool:
        """False if the instance answered the SET with an error.

        In this case nothing changed on the instance, so the instance needs no release.
        """
        return not self._denied_by() >> pipe.index & 1

    def silence(self, pipe: InstancePipe, kind: str = "CLOSED") -> None:
        """Count a SILENT vote, because the connection broke or the instance forgot its locks.

        The instance may have executed the SET.
        """
        if self.undecided:
            self.undecided -= 1
            self.silent += 1
            pipe.count_error(kind)
            self.judge()

    def expire(self) -> None:
        """Count a TIMEOUT for each instance that has not answered, because the timeout has come."""
        for pipe in self.voters:
            if pipe.awaits_since(self.started_ns):
                pipe.count_error("TIMEOUT")
        super().expire()

    def judge(self) -> None:
        """Release the attempt if it is lost. Settle the outcome if no missing vote can change
        it."""
        quorum = self.engine.quorum
        granted = quorum - self.missing
        undecided = self.undecided
        if granted < quorum and not self.cleaned and is_lost(granted, undecided, quorum):
            self.clean_up()
        if self.outcome is None and is_settled(granted, self.refused, undecided, quorum):
            self.outcome = outcome_of(granted, self.refused, quorum)
            self.engine.ready.append(self)

    def clean_up(self) -> None:
        """Release this attempt once, on the instances that were sent its SET."""
        if not self.cleaned:
            self.cleaned = True
            self.engine.unreleased -= 1
            self.engine.clean_up(self)

    def abandon(self) -> None:
        """Release this attempt, because its caller is gone."""
        super().abandon()
        self.clean_up()

    def decided(self, outcome: Outcome | None, now_ns: int) -> None:
        """Note the caller's `outcome`. `now_ns` is the time when the caller ran again and decided.

        Here this method does nothing. A `WatchedSetRound` overrides it and notes the decision.
        """


def round_of(lease: object, engine: RoundEngine) -> SetRound:
    """The round that won `lease`.

    Raises TypeError if `lease` is not a lease, and ValueError if another engine made it.
    """
    checked = check_lease(lease)
    won = checked.round
    if not isinstance(won, SetRound) or won.engine is not engine:
        raise ValueError(f"the lease on {checked.resource!r} was not made by this Redlock")
    return won


class ReleaseRound(Counting):
    """A release of the keys of the round `won`.

    The release goes to the instances that were sent the SET of `won`. Each instance answers whether
    the key was still ours. `refused` is the number of instances that answered no. `never` is the
    number of instances that were not sent the SET. The key cannot be ours on these instances.
    """

    __slots__ = ("won",)
    success = b":1\r\n"
    success_outcome = RELEASED
    script = COMPARE_AND_DELETE
    script_arguments: tuple[bytes, ...] = ()

    def __init__(self, won: SetRound, started_ns: int) -> None:
        self.won = won
        self.engine = engine = won.engine
        self.started_ns = started_ns
        self.missing = engine.quorum
        self.undecided = self.refused = self.errored = self.silent = 0
        self.outcome = None
        self.waiter = None
        self.flight = None

    @property
    def terms(self) -> Terms:
        """The `Terms` with the timeout of this round."""
        return self.won.terms

    @property
    def never(self) -> int:
        """The number of instances that did not get the SET. These instances do not get the
        release."""
        return self.engine.instances - len(self.won.voters)

    def encode(self, dialect: Dialect) -> bytes:
        """The command for an instance of this dialect."""
        encode = dialect.encode_release
        return encode(self.won.claim)

    @property
    def source(self) -> bytes:
        """The full script, for an instance that does not know the script."""
        return eval_of(self.script, self.won.claim, *self.script_arguments)

    def reply(self, reply: object, pipe: InstancePipe) -> None:
        """Count the reply of one instance, or send the script with its source after NOSCRIPT."""
        if error_kind(reply) == "NOSCRIPT":
            self.engine.send_again(self, pipe, whole=True)
        else:
            self.last_reply(reply, pipe)

    def last_reply(self, reply: object, pipe: InstancePipe) -> None:
        """Count any reply.

        If the instance did not take the release, the release is sent again later.
        """
        kind = error_kind(reply)
        if is_owed(reply):
            self.put_off(pipe)
        if not self.undecided:
            pipe.count_late()
            return
        self.undecided -= 1
        yes, no = self.answers(pipe.dialect)
        if reply == yes:
            self.missing -= 1
        elif reply == no:
            self.refused += 1
        else:
            self.errored += 1
            pipe.count_error(kind)
        self.judge()

    def answers(self, dialect: Dialect) -> tuple[object, object]:
        """Return two replies. The first reply means that the key was ours, and the second reply
        means that the key was not ours."""
        return 1, 0

    def send_alone(self, pipe: InstancePipe) -> None:
        """Send the release alone, because the merged call with this release failed as a whole."""
        self.engine.send_again(self, pipe, whole=False)

    def put_off(self, pipe: InstancePipe) -> None:
        """Send the release again later if the instance may hold the key."""
        if self.won.may_hold(pipe):
            self.engine.owe(pipe, self)

    def silence(self, pipe: InstancePipe) -> None:
        """Note that the connection broke before the reply. A release is sent again later."""
        self.put_off(pipe)
        if self.undecided:
            self.undecided -= 1
            self.silent += 1
            pipe.count_error("CLOSED")
            self.judge()

    def judge(self) -> None:
        """Settle the outcome once no missing reply can change it."""
        if self.outcome is not None:
            return
        engine = self.engine
        ours = engine.quorum - self.missing
        elsewhere = self.refused + self.never
        if is_owned_settled(ours, elsewhere, self.undecided, engine.instances, engine.quorum):
            self.outcome = owned_outcome_of(ours, elsewhere, engine.instances, engine.quorum)
            engine.ready.append(self)


class ExtendRound(ReleaseRound):
    """Extends the lease of the round `won`. `to` is the `Terms` of the new lease.

    Here the outcome RELEASED means that a quorum extended the key. `timeout_due_ns` is the time at
    which the round's own timeout ends. Before the round is sent, `timeout_due_ns` is FAR_FUTURE_NS.
    The round also ends when the lease ends.
    """

    __slots__ = ("script_arguments", "timeout_due_ns", "to")
    script = COMPARE_AND_EXTEND

    def __init__(self, won: SetRound, to: Terms, started_ns: int) -> None:
        super().__init__(won, started_ns)
        self.to = to
        self.script_arguments = (b"%d" % to.ttl_ms,)
        self.timeout_due_ns = FAR_FUTURE_NS

    @property
    def due_ns(self) -> int:
        """The time at which the round ends. This is the end of its timeout or the end of the newest
        lease, whichever comes first."""
        return min(self.timeout_due_ns, self.won.lease_end_ns)

    @property
    def never(self) -> int:
        """The number is 0, because an extension is sent to every instance that can answer."""
        return 0

    @property
    def terms(self) -> Terms:
        """The `Terms` with the timeout of this round."""
        return self.to

    def encode(self, dialect: Dialect) -> bytes:
        """The command for an instance of this dialect."""
        return dialect.encode_extend(self.won.claim, self.to.ttl_ms)

    def answers(self, dialect: Dialect) -> tuple[object, object]:
        """Return the reply that means "the key was ours", and the reply that means "it was not".

        SET … IFEQ answers like a SET, and the script answers 1 or 0.
        """
        return (b"OK", None) if dialect.native_extend else (1, 0)

    def put_off(self, pipe: InstancePipe) -> None:
        """Do nothing, because an extension is not sent again."""


Round = SetRound | ReleaseRound
Part = Round | MergedReply
