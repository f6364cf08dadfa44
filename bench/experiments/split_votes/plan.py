"""The plan of the contests: *options → rows → trials, which the contenders receive; attempts*.

This module holds only values, because both sides of a contender's pipe import it.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Struct

from bench.measure.section import Amount, Count, Section, says
from lockcore.bench import Outcome

ORDERS = ("parallel", "sequential", "random")
TTL_MS = 10_000
# At least one row has this many processes or more, because a single event loop never splits votes.
LEAST_PROCESSES = 4
RETRY_CONTENDERS = 20
# Retries in parallel order get this many times as many trials. A p99 needs a thousand trials, and a
# trial in parallel order is short.
PARALLEL_TIMES = 4
# After this time (ms) all contenders of a trial give up.
PATIENCE_MS = 5000.0


class RetrySettings(Section, frozen=True):
    """A retry policy of lockcore."""

    policy: Annotated[Literal["full-jitter", "fixed", "none"], says("how the wait is drawn")]
    window_ms: Annotated[
        Amount, says("each wait before a retry is drawn at random from this window")
    ]


class Contest(Struct, frozen=True):
    """The settings of one row.

    `trials`: how many trials have these settings. `spread_ms`: each contender starts U(0, spread)
    after the start of the trial.
    """

    contenders: int
    order: str
    spread_ms: float = 0.0
    trials: int = 0
    retry: RetrySettings = RetrySettings("none", 0.0)


class SplitVotesPlan(Section, frozen=True, kw_only=True):
    """The plan of a measurement. Its rows are combinations of these values."""

    instances: Annotated[Count, says("N")]
    contenders: Annotated[
        tuple[int, ...],
        says("the numbers of contenders (K) in the calibration and contention rows"),
    ]
    spreads_ms: Annotated[
        tuple[float, ...],
        says("the spreads; each contender starts at a random time within the spread"),
    ]
    orders: Annotated[
        tuple[str, ...], says("the orders in which an attempt sends its commands to the instances")
    ]
    retries: Annotated[tuple[RetrySettings, ...], says("policies side by side")]
    rounds: Annotated[
        Count,
        says(
            "trials per row; calibration has at least 2,000 trials, and parallel "
            "retries have four times as many trials"
        ),
    ]
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

    @property
    def retried(self) -> list[Contest]:
        """The rows of the section retries, in parallel order and in random order.

        All contenders start at once. In random order most rounds have no winner. In parallel order
        few rounds have no winner, so parallel order gets more trials.
        """
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

    `seat`: the contender's number, from 0. `won`: the file with the shared integer (contenders.py).
    """

    urls: Sequence[str]
    key_prefix: str
    won: str
    seat: int
    seed: int


class Trial(Struct, frozen=True):
    """One trial of a contest, on its own resource. `number`: 1 for the first trial. Each trial adds
    one."""

    number: int
    start_ns: int
    contest: Contest


class Attempt(Struct, frozen=True, array_like=True):
    """One contender's round of SETs.

    Times are in ns of CLOCK_MONOTONIC. The contender reads the clock immediately before and after
    its call. `valid_until_ns`: the end of the lease (0: the attempt was not won).
    """

    contender: int
    started_ns: int
    decided_ns: int
    outcome: Outcome
    valid_until_ns: int = 0

    @property
    def is_won(self) -> bool:
        """True if the attempt gave a lease."""
        return self.outcome is Outcome.ACQUIRED
