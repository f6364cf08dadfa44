"""One command to all instances and its count, while replies come in: *reply after reply → a settled outcome*. Pure.

Rules: a round counts a reply exactly once, whatever order they come in; it is *settled* when its name can no longer change
and *closed* when nothing is undecided (all replies, or the timeout). A lost SET round asks for its clean-up at once, before
its name is known. Replies after the close are read and counted as late. `missing` counts grants down to zero, so that the
hot path needs one comparison; the vote margin of a closed round is −missing.
Source: quorum.py for every decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockcore.clock import NS_PER_MS, drift_ns
from lockcore.commands import owner_token_of, set_nx_px
from lockcore.model import Outcome, Tally
from lockcore.quorum import is_lost, is_owned_settled, is_settled, outcome_of, owned_outcome_of
from lockcore.resp import ReplyError, error_kind

if TYPE_CHECKING:
    from lockcore.engine import Engine
    from lockcore.pipeline import Pipeline


class Terms:
    """What one TTL implies, computed once: `usable_ns` = TTL − drift, the per-instance timeout, the tail of its SET."""

    __slots__ = ("set_head", "set_tail", "timeout_ns", "ttl_ms", "usable_ns")

    def __init__(self, ttl_ms: int, drift_factor: float, timeout_ns: int) -> None:
        self.ttl_ms = ttl_ms
        self.usable_ns = ttl_ms * NS_PER_MS - drift_ns(ttl_ms, drift_factor)
        self.timeout_ns = timeout_ns
        self.set_head, self.set_tail = set_nx_px(ttl_ms)


class SetRound:
    """One attempt's SET on all voting instances.

    `voters`: the pipelines it was sent to. `outcome`: None until settled (ACQUIRED still has to pass its validity check,
    made by the caller when it runs again). `waiter`: what wakes the caller; None when nobody waits (any more).
    """

    __slots__ = (
        "claim", "cleaned", "engine", "errored", "missing", "outcome", "refused", "resource", "silent", "started_ns",
        "terms", "undecided", "voters", "waiter",
    )  # fmt: skip

    watched = False

    def __init__(self, engine: Engine, resource: str, claim: bytes, terms: Terms, started_ns: int) -> None:
        self.engine = engine
        self.resource = resource
        self.claim = claim
        self.terms = terms
        self.started_ns = started_ns
        self.voters = voters = engine.voters
        self.undecided = len(voters)
        self.missing = engine.quorum
        self.refused = self.errored = self.silent = 0
        self.cleaned = False
        self.outcome: Outcome | None = None
        self.waiter: Callable[[None], Any] | None = None

    @property
    def owner_token(self) -> bytes:
        return owner_token_of(self.claim)

    @property
    def valid_until_ns(self) -> int:
        return self.started_ns + self.terms.usable_ns

    @property
    def tally(self) -> Tally:
        engine = self.engine
        granted = engine.quorum - self.missing
        known = granted + self.refused + self.errored + self.silent + self.undecided
        return Tally(granted, self.refused, self.errored, self.silent, engine.instances - known, self.undecided)

    def reply(self, reply: object, pipe: Pipeline) -> None:
        """Count what one instance said."""
        if not self.undecided:
            pipe.late_replies += 1
            return
        self.undecided -= 1
        if reply == b"OK":
            self.missing -= 1
            if self.missing:
                if self.cleaned:
                    self._judge()
            elif self.outcome is None:
                self.outcome = Outcome.ACQUIRED
                self.engine.ready.append(self)
            return
        if reply is None:
            self.refused += 1
        else:
            self.errored += 1
            pipe.count_error(error_kind(reply) if isinstance(reply, ReplyError) else "UNEXPECTED")
        self._judge()

    def silence(self, pipe: Pipeline) -> None:
        """The connection broke with this reply outstanding: the SET may have happened."""
        if self.undecided:
            self.undecided -= 1
            self.silent += 1
            self._judge()

    def expire(self) -> None:
        """The timeout: whatever is undecided stays SILENT."""
        for pipe in self.voters:
            if pipe.pending and pipe.pending[0].started_ns <= self.started_ns:
                pipe.count_error("TIMEOUT")
        self.silent += self.undecided
        self.undecided = 0
        self._judge()

    def _judge(self) -> None:
        quorum = self.engine.quorum
        granted = quorum - self.missing
        if granted < quorum and not self.cleaned and is_lost(granted, self.undecided, quorum):
            self.clean_up()
        if self.outcome is None and is_settled(granted, self.refused, self.undecided, quorum):
            self.outcome = outcome_of(granted, self.refused, quorum)
            self.engine.ready.append(self)

    def clean_up(self) -> None:
        """Release whatever this attempt may hold, on every instance that was sent its SET. Once."""
        if not self.cleaned:
            self.cleaned = True
            self.engine.clean_up(self)

    def abandon(self) -> None:
        """The caller is gone (cancelled, killed, interrupted): nobody may hold what this attempt gets."""
        self.waiter = None
        self.clean_up()

    def decided(self, outcome: Outcome | None, now_ns: int) -> None:
        """The caller ran again at `now_ns` and made `outcome` of it: news for watched rounds only."""


class OwnedRound:
    """One release or extension on the instances it concerns: is the key still ours there?

    `targets`: the instances that were sent the SET of `won`, the round whose claim it is. `never` instances were not sent the SET, so the key cannot be ours there. `outcome` is None until settled; an extension's
    RELEASED is read as "found ours on a quorum" by its caller.
    """

    __slots__ = (
        "claim", "engine", "errored", "extend_ttl_ms", "never", "not_ours", "outcome", "ours", "resource",
        "silent", "started_ns", "targets", "terms", "undecided", "waiter",
    )  # fmt: skip

    def __init__(self, engine: Engine, won: SetRound, terms: Terms, started_ns: int) -> None:
        self.engine = engine
        self.resource = won.resource
        self.claim = won.claim
        self.targets = won.voters
        self.terms = terms
        self.started_ns = started_ns
        self.undecided = self.ours = self.not_ours = self.never = self.errored = self.silent = 0
        self.extend_ttl_ms = 0  # 0: a release
        self.outcome: Outcome | None = None
        self.waiter: Callable[[None], Any] | None = None

    @property
    def tally(self) -> Tally:
        known = self.ours + self.not_ours + self.errored + self.silent + self.undecided
        absent = self.engine.instances - known
        return Tally(self.ours, self.not_ours, self.errored, self.silent, absent, self.undecided)

    def reply(self, reply: object, pipe: Pipeline) -> None:
        """Count what one instance said; an unknown script is sent again with its source."""
        if reply.__class__ is ReplyError and error_kind(reply) == "NOSCRIPT":  # type: ignore[arg-type]
            self.engine.send_script(self, pipe)
            return
        if not self.undecided:
            pipe.late_replies += 1
            return
        self.undecided -= 1
        if reply == 1 or reply == b"OK":
            self.ours += 1
            if self.ours == self.engine.quorum and self.outcome is None:
                self.outcome = Outcome.RELEASED
                self.engine.ready.append(self)
                return
        elif reply == 0 or reply is None:
            self.not_ours += 1
        else:
            self.errored += 1
            pipe.count_error(error_kind(reply) if isinstance(reply, ReplyError) else "UNEXPECTED")
        self.judge()

    def silence(self, pipe: Pipeline) -> None:
        """The connection broke: a release is owed to the instance until its key has expired."""
        if not self.extend_ttl_ms:
            self.engine.owe(pipe, self)
        if self.undecided:
            self.undecided -= 1
            self.silent += 1
            self.judge()

    def expire(self) -> None:
        """The timeout: whatever is undecided stays SILENT (a release is still in its connection's order)."""
        self.silent += self.undecided
        self.undecided = 0
        self.judge()

    def judge(self) -> None:
        """Settle the name once no reply still out can change it."""
        if self.outcome is not None:
            return
        engine = self.engine
        elsewhere = self.not_ours + self.never
        if is_owned_settled(self.ours, elsewhere, self.undecided, engine.instances, engine.quorum):
            self.outcome = owned_outcome_of(self.ours, elsewhere, engine.instances, engine.quorum)
            engine.ready.append(self)

    def abandon(self) -> None:
        """The caller is gone; the command goes on."""
        self.waiter = None


class Ignored:
    """A command whose reply does not matter."""

    __slots__ = ("started_ns",)
    undecided = 0

    def __init__(self, started_ns: int) -> None:
        self.started_ns = started_ns

    def reply(self, reply: object, pipe: Pipeline) -> None:
        """Nobody asked."""

    def silence(self, pipe: Pipeline) -> None:
        """Nobody asked."""


Round = SetRound | OwnedRound
Awaited = SetRound | OwnedRound | Ignored
