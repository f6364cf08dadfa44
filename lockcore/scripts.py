"""Scripts with more, or less, behind them than one release: *one reply to all, or none → each told by itself*. Pure.

Rules: one error concerns one part. Releases that share a call share its fate on the wire only; a script that is
unknown is sent again with its source, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockcore.model import Outcome
from lockcore.owed import TRANSIENT, OwedRelease
from lockcore.resp import error_kind

if TYPE_CHECKING:
    from lockcore.engine import Engine
    from lockcore.flight import Flight
    from lockcore.pipeline import Pipeline
    from lockcore.rounds import ReleaseRound


class SentAgain:
    """A script sent again with its source, on behalf of `awaited`: if that is not known either, it is an error."""

    __slots__ = ("awaited", "started_ns")
    undecided, success = 0, b""

    def __init__(self, awaited: ReleaseRound | OwedRelease, started_ns: int) -> None:
        self.awaited = awaited
        self.started_ns = started_ns

    def reply(self, reply: object, pipe: Pipeline) -> None:
        """The answer to both."""
        self.awaited.last_reply(reply, pipe)

    def silence(self, pipe: Pipeline) -> None:
        """The connection broke."""
        self.awaited.silence(pipe)


class MergedReply:
    """The header of a merged release's reply: the answers to `parts` releases follow it, line by line.

    Its own line (`*parts`) and theirs are read like any other. Any other reply is to the whole call, so it answers
    no part: each is sent again alone, or is owed where the instance can do nothing now.
    """

    __slots__ = ("engine", "flight", "missing", "outcome", "parts", "started_ns", "success", "undecided", "waiter")
    success_outcome = Outcome.RELEASED

    def __init__(self, engine: Engine, parts: int, started_ns: int) -> None:
        self.engine = engine
        self.parts = parts
        self.started_ns = started_ns
        self.success = b"*%d\r\n" % parts
        self.undecided, self.missing = -len(engine.voters), 0
        self.outcome: Outcome | None = None
        self.waiter: Any = None
        self.flight: Flight | None = None

    def reply(self, reply: object, pipe: Pipeline) -> None:
        """A reply to the whole call."""
        kind = error_kind(reply)
        pipe.awaited -= self.parts
        releases: list[Any] = [pipe.pending.popleft() for _ in range(self.parts)]
        if kind == "NOSCRIPT":
            self.engine.teach_merged(pipe)
        for release in releases:
            if kind == "NOSCRIPT" or kind in TRANSIENT:
                release.reply(reply, pipe)
            else:
                self.engine.send_alone(release, pipe)

    def silence(self, pipe: Pipeline) -> None:
        """The parts are told themselves."""
