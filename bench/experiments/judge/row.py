"""What a row of a judged lock is: *a stage → what came of it*."""

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
    """What came of a row.

    `wrong`: what went wrong, "" for nothing; `remark`: what was seen, or what the caller was told.
    `tested`: leases that another process asked for while they were held.
    """

    wrong: str = ""
    remark: str = ""
    tested: int = 0
    figures: tuple[RowFigure, ...] = ()


class UnmetError(Exception):
    """What did not come about, without which a row says nothing."""


class OutlivedError(UnmetError):
    """A client had its answer only when the lease of the other one had ended."""


def need(met: object, sentence: str) -> None:
    """Raise UnmetError unless it is so."""
    if not met:
        raise UnmetError(sentence)


@dataclass(frozen=True, slots=True)
class JudgeRow(Generic[Stage_contra]):
    """A row of the table. `least`: the fewest instances that it needs. `is_safety`: a fault means
    that two clients had the lock. `may_wait`: a client that waits for the end of the other's lease
    does right. `only_tells`: nothing can be right or wrong. `for_one_holder`: a second client that
    gets the lock shows something, so a semaphore cannot be asked. `about`: the course of events;
    `source`: who says that it matters. `only_of`: "many", of locks that several may hold; "shared",
    of those with a readers' side."""

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
        """Whether it is asked of a lock that so many may hold at once, or readers together."""
        return {"": True, "many": shared or capacity > 1, "shared": shared}[self.only_of]

    @property
    def for_one_holder(self) -> bool:
        """Whether only a mutex can be asked."""
        return self.name in ("restart", "failover", "eviction") or (
            self.group in (EXCLUSION, OWNER, TAKEOVER) and self.name != CONTENTION
        )
