"""Defines a row of the judgement and the finding of a play."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from bench.experiments.judge.holders import HeldSpan
from bench.experiments.judge.needs import INFORMATIVE
from bench.experiments.judge.result import RowFigure

Stage_contra = TypeVar("Stage_contra", contravariant=True)

EXCLUSION = "mutual exclusion"
MANY = "more than one holder"
OWNER = "owner check"
RENEWAL = "renewal"
# The figure of a lock that renews its leases.
RENEWAL_EVERY = "renewal every"
TAKEOVER = "takeover"
SERVERS = "servers"
ENDS = "cancellation and crash"
CALLER = "what one caller may do"


@dataclass(frozen=True, slots=True)
class RowFinding:
    """The result of one play of a row.

    `wrong` describes the fault, or is "" if there was no fault. `remark` describes an observation,
    or it is the message that the caller got. `tested` is the number of leases during which another
    process asked for the lock. `holders` are the leases at the worst moment of a load.
    """

    wrong: str = ""
    remark: str = ""
    tested: int = 0
    figures: tuple[RowFigure, ...] = ()
    holders: tuple[HeldSpan, ...] = ()


class UnmetError(Exception):
    """A precondition was not met. Without this precondition the row proves nothing."""


class OutlivedError(UnmetError):
    """A client got its answer only after the other client's lease had ended."""


def need(met: object, sentence: str) -> None:
    """Raise UnmetError if `met` is false. The message of the error is `sentence`."""
    if not met:
        raise UnmetError(sentence)


@dataclass(frozen=True, slots=True)
class JudgeRow(Generic[Stage_contra]):
    """A row of the judgement. The row needs at least `least` instances. If `is_safety` is true, a
    fault in this row means that two clients can have the lock at once. If `may_wait` is true, a
    client is allowed to wait for the end of another client's lease. `about` describes the course of
    events. `source` names the text that explains why the row matters.
    """

    group: str
    name: str
    question: str
    play: Callable[[Stage_contra], RowFinding]
    least: int = 1
    is_safety: bool = False
    may_wait: bool = False
    about: str = ""
    source: str = ""

    @property
    def only_tells(self) -> bool:
        """True if the row only informs the user. Such a row affects the verdict only if it shows a
        fault.
        """
        return self.name in INFORMATIVE
