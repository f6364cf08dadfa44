"""A row of a judged lock: *a stage → a finding*."""

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
    """The result of playing a row.

    `wrong` is the fault, or "" for no fault. `remark` is an observation, or the caller's message.
    `tested` is the number of leases that another process wanted during the lease. `holders` are the
    leases of the worst moment.
    """

    wrong: str = ""
    remark: str = ""
    tested: int = 0
    figures: tuple[RowFigure, ...] = ()
    holders: tuple[HeldSpan, ...] = ()


class UnmetError(Exception):
    """A precondition was not met. Without this precondition the row proves nothing."""


class OutlivedError(UnmetError):
    """The other client's lease ended before the client got its answer."""


def need(met: object, sentence: str) -> None:
    """Raise UnmetError if `met` is false."""
    if not met:
        raise UnmetError(sentence)


@dataclass(frozen=True, slots=True)
class JudgeRow(Generic[Stage_contra]):
    """A row of the table. `least` is the smallest number of instances for the row. `is_safety`
    means that a fault lets two clients have the lock. `may_wait` means that a client may rightly
    wait for the end of another client's lease. `about` is the course of events. `source` names the
    text that explains why the row matters."""

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
        """True if the row only informs."""
        return self.name in INFORMATIVE
