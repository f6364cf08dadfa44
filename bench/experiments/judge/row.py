"""What a row of a judged lock is: *a stage → what came of it*."""

from collections.abc import Callable
from dataclasses import dataclass

from bench.experiments.judge.judge import CONTENTION
from bench.experiments.judge.result import RowFigure
from bench.experiments.judge.stage import JudgeStage

EXCLUSION = "mutual exclusion"
OWNER = "owner check"
RENEWAL = "renewal"
TAKEOVER = "takeover"
SERVERS = "servers"
ENDS = "cancellation and crash"


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


Play = Callable[[JudgeStage], RowFinding]


@dataclass(frozen=True, slots=True)
class JudgeRow:
    """A row of the table. `least`: the fewest instances that it needs. `is_safety`: a fault means
    that two clients had the lock. `may_wait`: a client that waits for the end of the other's lease
    does right. `only_tells`: nothing can be right or wrong. `for_one_holder`: a second client that
    gets the lock shows something, so a semaphore cannot be asked."""

    group: str
    name: str
    question: str
    play: Play
    least: int = 1
    is_safety: bool = False
    may_wait: bool = False
    only_tells: bool = False

    @property
    def for_one_holder(self) -> bool:
        """Whether only a mutex can be asked."""
        return self.name in ("restart", "failover", "eviction") or (
            self.group in (EXCLUSION, OWNER, TAKEOVER) and self.name != CONTENTION
        )
