"""What is contended for, by whom, how often: *options → rows → trials, as contenders are told;
attempts*. Values only: both sides of a contender's pipe import this."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Struct

from bench.measure.section import Count, Section, says
from lockcore.bench import Outcome

# How an attempt asks the instances.
Order = Literal["parallel", "sequential", "random"]
ORDERS: tuple[Order, ...] = ("parallel", "sequential", "random")
TTL_MS = 10_000
# At least one row has so many processes, because one event loop alone never splits votes.
LEAST_PROCESSES = 4


class Contest(Struct, frozen=True):
    """What is the same for all `trials` of a row.

    `spread_ms`: each contender starts U(0, spread) after the start.
    """

    contenders: int
    order: Order
    spread_ms: float = 0.0
    trials: int = 0


class SplitVotesPlan(Section, frozen=True, kw_only=True):
    """What is swept."""

    instances: Annotated[Count, says("N")]
    contenders: Annotated[tuple[int, ...], says("the Ks of calibration and contention")]
    spreads_ms: Annotated[tuple[float, ...], says("starts are spread over so much")]
    orders: Annotated[tuple[Order, ...], says("in which attempts ask the instances")]
    rounds: Annotated[Count, says("trials per row; calibration: at least 2,000")]
    seed: Annotated[int, says("seed of every random choice")]

    @property
    def contests(self) -> list[Contest]:
        """The rows of the section contention."""
        contenders = sorted({*self.contenders, max(LEAST_PROCESSES, *self.contenders)})
        return [
            Contest(count, order, spread_ms, self.rounds)
            for count in contenders
            for spread_ms in self.spreads_ms
            for order in self.orders
        ]


class Enrolment(Struct, frozen=True):
    """What a contender is told once.

    `seat`: its number, from 0.
    """

    urls: Sequence[str]
    key_prefix: str
    seat: int
    seed: int


class Trial(Struct, frozen=True):
    """One trial of a contest, of a resource of its own; `number` ≥ 1 grows with each trial."""

    number: int
    start_ns: int
    contest: Contest


class Attempt(Struct, frozen=True, array_like=True):
    """One contender's round of SETs. Times in ns of CLOCK_MONOTONIC, as the contender read them
    before and after its call; `valid_until_ns` counts if it was won."""

    contender: int
    started_ns: int
    decided_ns: int
    outcome: Outcome
    valid_until_ns: int = 0

    @property
    def is_won(self) -> bool:
        """Whether it gave a lease."""
        return self.outcome is Outcome.ACQUIRED
