"""A row of a judged lock: *a stage → a finding*."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from bench.experiments.judge.judge import CONTENTION
from bench.experiments.judge.result import RowFigure

Stage_contra = TypeVar("Stage_contra", contravariant=True)

EXCLUSION = "mutual exclusion"
MANY = "more than one holder"
OWNER = "owner check"
RENEWAL = "renewal"
TAKEOVER = "takeover"
SERVERS = "servers"
ENDS = "cancellation and crash"
CALLER = "what one caller may do"


@dataclass(frozen=True, slots=True)
class RowFinding:
    """The result of playing a row.

    `wrong`: the fault, "" for none. `remark`: an observation, or the caller's message. `tested`:
    the number of leases that another process wanted while they were held.
    """

    wrong: str = ""
    remark: str = ""
    tested: int = 0
    figures: tuple[RowFigure, ...] = ()


class UnmetError(Exception):
    """A precondition that was not met. Without it the row proves nothing."""


class OutlivedError(UnmetError):
    """A client got its answer only after the other client's lease had ended."""


def need(met: object, sentence: str) -> None:
    """Raise UnmetError if `met` is false."""
    if not met:
        raise UnmetError(sentence)


@dataclass(frozen=True, slots=True)
class JudgeRow(Generic[Stage_contra]):
    """A row of the table. `least`: the fewest instances that the row needs. `is_safety`: a fault
    means that two clients had the lock. `may_wait`: a client may rightly wait for the end of
    another client's lease. `only_tells`: the row informs, and nothing in it can be wrong. `about`:
    the course of events. `source`: the text that explains why the row matters. `only_of`: "many"
    for locks that several clients may hold, "shared" for locks with a readers' side."""

    group: str
    name: str
    question: str
    play: Callable[[Stage_contra], RowFinding]
    least: int = 1
    is_safety: bool = False
    may_wait: bool = False
    only_tells: bool = False
    about: str = ""
    source: str = ""
    only_of: Literal["", "many", "shared"] = ""

    def suits(self, capacity: int, *, shared: bool) -> bool:
        """Whether the row applies to a lock that `capacity` clients, or `shared` readers, may hold
        at once."""
        return {"": True, "many": shared or capacity > 1, "shared": shared}[self.only_of]

    @property
    def for_one_holder(self) -> bool:
        """Whether the row applies only to a mutex. In such a row a second client that gets the lock
        is a sign of a fault, which it is not with a semaphore."""
        return self.name in ("restart", "failover", "eviction") or (
            self.group in (EXCLUSION, OWNER, TAKEOVER) and self.name != CONTENTION
        )
