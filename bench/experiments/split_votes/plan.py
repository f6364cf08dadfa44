"""Defines the plan of a measurement, and the messages between the experiment and the contenders.

This module defines only data, because both the experiment and the contenders import it.
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

    `trials` is the number of trials with these settings. Each contender starts at a uniformly
    random time within `spread_ms` after the start of the trial.
    """

    contenders: int
    order: str
    spread_ms: float = 0.0
    trials: int = 0
    retry: RetrySettings = RetrySettings("none", 0.0)


class SplitVotesPlan(Section, frozen=True, kw_only=True):
    """The plan of a measurement. The rows of the measurement are combinations of the plan's
    values.
    """

    instances: Annotated[Count, says("N")]
    contenders: Annotated[
        tuple[int, ...],
        says("the numbers of contenders (K) in the calibration and contention rows"),
    ]
    spreads_ms: Annotated[
        tuple[float, ...],
        says("spreads of the starts; each contender starts at a random time within the spread"),
    ]
    orders: Annotated[
        tuple[str, ...], says("the orders in which an attempt sends its commands to the instances")
    ]
    retries: Annotated[tuple[RetrySettings, ...], says("policies side by side")]
    rounds: Annotated[
        Count,
        says(
            "number of trials per row; a row with parallel retries has four times this number, "
            "and a calibration row has at least 2,000 trials"
        ),
    ]
    seed: Annotated[int, says("seed of every random choice")]

    @property
    def contests(self) -> list[Contest]:
        """Return the contests of the section "contention"."""
        contenders = sorted({*self.contenders, max(LEAST_PROCESSES, *self.contenders)})
        return [
            Contest(count, order, spread_ms, self.rounds)
            for count in contenders
            for spread_ms in self.spreads_ms
            for order in self.orders
        ]

    @property
    def retried(self) -> list[Contest]:
        """Return the contests of the section "retries". The contests with sequential requests are
        left out, unless the plan has no other order.

        All contenders start at once. If the contenders ask the instances in random order, most
        rounds have no winner. If the contenders ask the instances in parallel, few rounds have no
        winner. So contests with parallel requests get more trials.
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
    """The first message to a contender process.

    `seat` is the contender's number, counted from 0. `won` is the path of the file with the shared
    integer (contenders.py).
    """

    urls: Sequence[str]
    key_prefix: str
    won: str
    seat: int
    seed: int


class Trial(Struct, frozen=True):
    """One trial of a contest, on its own resource. `number` counts the trials from 1."""

    number: int
    start_ns: int
    contest: Contest


class Attempt(Struct, frozen=True, array_like=True):
    """One attempt of a contender. In an attempt, the contender sends one round of SETs.

    Times are in ns of CLOCK_MONOTONIC. The contender reads the clock immediately before and after
    its call. `valid_until_ns` is the end of the lease, or 0 if the attempt gave no lease.
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
