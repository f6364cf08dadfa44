"""Who contends for what, and how often: *options → rows → trials, which the contenders receive;
attempts*. This module holds values only, because both sides of a contender's pipe import it."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Struct

from bench.measure.section import Amount, Count, Section, says
from lockcore.bench import Outcome

ORDERS = ("parallel", "sequential", "random")
TTL_MS = 10_000
# At least one row has this number of processes, because one event loop alone never splits votes.
LEAST_PROCESSES = 4
RETRY_CONTENDERS = 20
# Retries in parallel order get this many times as many trials. A p99 needs a thousand trials, and
# each trial takes only a moment.
PARALLEL_TIMES = 4
# All contenders give up if no one has won after this time.
PATIENCE_MS = 5000.0


class RetrySettings(Section, frozen=True):
    """A retry policy of lockcore."""

    policy: Annotated[Literal["full-jitter", "fixed", "none"], says("how the wait is drawn")]
    window_ms: Annotated[Amount, says("from which the wait is drawn")]


class Contest(Struct, frozen=True):
    """The settings that all `trials` of a row share.

    `spread_ms`: each contender starts U(0, spread) after the start.
    """

    contenders: int
    order: str
    spread_ms: float = 0.0
    trials: int = 0
    retry: RetrySettings = RetrySettings("none", 0.0)


class SplitVotesPlan(Section, frozen=True, kw_only=True):
    """The values that a sweep combines."""

    instances: Annotated[Count, says("N")]
    contenders: Annotated[tuple[int, ...], says("the Ks of calibration and contention")]
    spreads_ms: Annotated[tuple[float, ...], says("starts are spread over so much")]
    orders: Annotated[tuple[str, ...], says("in which attempts ask the instances")]
    retries: Annotated[tuple[RetrySettings, ...], says("policies side by side")]
    rounds: Annotated[
        Count,
        says("trials per row; calibration: at least 2,000; parallel retries: four times as many"),
    ]
    seed: Annotated[int, says("seed of every random choice")]

    @property
    def contests(self) -> list[Contest]:
        """Return the rows of the section contention."""
        contenders = sorted({*self.contenders, max(LEAST_PROCESSES, *self.contenders)})
        return [
            Contest(count, order, spread_ms, self.rounds)
            for count in contenders
            for spread_ms in self.spreads_ms
            for order in self.orders
        ]

    @property
    def retried(self) -> list[Contest]:
        """Return the rows of the section retries. All contenders start at once, in parallel order
        and in random order. In random order most rounds have no winner. In parallel order few
        rounds have no winner, so this order gets more trials."""
        orders = [order for order in self.orders if order != "sequential"] or self.orders
        count = max(RETRY_CONTENDERS, *self.contenders)
        return [
            Contest(
                count,
                order,
                0.0,
                self.rounds * (PARALLEL_TIMES if order == "parallel" else 1),
                retry,
            )
            for order in orders
            for retry in self.retries
        ]


class Enrolment(Struct, frozen=True):
    """The first message to a contender.

    `seat`: its number, from 0; `won`: the file of the shared word (see contenders.py).
    """

    urls: Sequence[str]
    key_prefix: str
    won: str
    seat: int
    seed: int


class Trial(Struct, frozen=True):
    """One trial of a contest, on its own resource. `number` ≥ 1 grows with each trial."""

    number: int
    start_ns: int
    contest: Contest


class Attempt(Struct, frozen=True, array_like=True):
    """One contender's round of SETs. Times are in ns of CLOCK_MONOTONIC. The contender read them
    immediately before and after its call. `valid_until_ns` is meaningful if the attempt was won."""

    contender: int
    started_ns: int
    decided_ns: int
    outcome: Outcome
    valid_until_ns: int = 0

    @property
    def is_won(self) -> bool:
        """True if the attempt gave a lease."""
        return self.outcome is Outcome.ACQUIRED
