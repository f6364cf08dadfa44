"""Defines the data types of the stored result of `lockbench split-votes`."""

from typing import Annotated, Literal

from bench.experiments.split_votes.plan import RetrySettings, SplitVotesPlan
from bench.measure.fleet_facts import OwnFleet
from bench.measure.latency import Latency
from bench.measure.result import Document
from bench.measure.section import Amount, Count, Section, Share, says
from bench.measure.statistics import Interval


class Endings(Section, frozen=True, kw_only=True):
    """The number of rounds with each ending."""

    won: Annotated[Count, says("somebody was granted a lease")] = 0
    nobody: Annotated[
        Count, says("rounds that nobody won although a quorum of instances answered")
    ] = 0
    unreachable: Annotated[
        Count,
        says(
            "number of rounds without an answer from a quorum of instances; votes did not "
            "decide these rounds"
        ),
    ] = 0


class CalibrationRow(Section, frozen=True, kw_only=True):
    """The calibration with K contenders. The votes depend only on chance."""

    contenders: Annotated[Count, says("K", label="K", shown="table")]
    rounds: Annotated[Count, says("made", shown="table")]
    endings: Annotated[Endings, says("number of rounds for each result")]
    split_rate: Annotated[
        Interval,
        says(
            "share of rounds that nobody won", label="nobody won, 95%", unit="factor", shown="table"
        ),
    ]
    closed_form: Annotated[Share, says("1 − K·P(Bin(N,1/K) ≥ q)", unit="factor", shown="table")]
    misses: Annotated[
        tuple[str, ...],
        says(
            "sentences about deviations; the split-vote rate may differ from the closed form by "
            "at most 0.05"
        ),
    ]

    @property
    def came_out(self) -> Annotated[str, says("whether that is as expected", shown="table")]:
        """Return a verdict word that says whether the measured rate is as expected."""
        return "NOT AS EXPECTED" if self.misses else "as expected"


class ContestRow(Section, frozen=True, kw_only=True):
    """The trials of one contest. The contenders start together, and each contender is a process."""

    contenders: Annotated[Count, says("K, each a process", label="K", shown="table data")]
    order: Annotated[
        Literal["parallel", "sequential", "random"],
        says(
            "the order in which an attempt sends its commands to the instances", shown="table data"
        ),
    ]
    spread_s: Annotated[Amount, says("each contender starts at a random time within the spread")]
    trials: Annotated[Count, says("made")]
    double_grants: Annotated[Count, says("leases granted while another lease was valid; must be 0")]
    attempt_s: Annotated[Latency, says("of one attempt, in seconds")]


class ContentionRow(ContestRow, frozen=True, kw_only=True):
    """The trials of one contest. In each trial, each contender makes one attempt. The row states
    the share of rounds without a winner.
    """

    spread_s: Annotated[
        Amount, says("each contender starts at a random time within the spread", shown="table")
    ]
    attempt_s: Annotated[Latency, says("of one attempt, in seconds", shown="table:p50")]
    contention_rounds: Annotated[
        Count,
        says(
            "contention rounds: at least two attempts overlap on a resource that has "
            "no valid holder",
            label="rounds",
            shown="table",
        ),
    ]
    endings: Annotated[Endings, says("how they ended")]
    nobody_won_rate: Annotated[
        Interval,
        says(
            "share of rounds that nobody won although a quorum of instances answered",
            label="nobody won, 95%",
            unit="factor",
            shown="table data:rate",
        ),
    ]
    closed_form: Annotated[
        Share,
        says("the split-vote rate that pure chance would give", unit="factor", shown="table data"),
    ]


class RetryRow(ContestRow, frozen=True, kw_only=True):
    """The trials of one contest. In each trial, the contenders make attempts until one contender
    wins."""

    retry: Annotated[
        RetrySettings, says("when the next attempt starts", shown="table:policy,window_ms")
    ]
    granted: Annotated[Count, says("trials that somebody won")]
    first_attempts_lost: Annotated[Count, says("trials in which no contender's first attempt won")]
    attempts_per_grant: Annotated[
        Amount | None,
        says("attempts of all contenders until one contender gets the lock", shown="table"),
    ]
    first_grant_s: Annotated[
        Latency,
        says(
            "time from the first contender's start to the first grant, in seconds",
            label="first",
            shown="table:p50,p99,max",
        ),
    ]
    dead_time_s: Annotated[
        Latency,
        says(
            "time from the first start to the first grant, over the trials in which every "
            "first attempt failed",
            label="dead",
            shown="table:p50",
        ),
    ]

    @property
    def all_lost(
        self,
    ) -> Annotated[
        str,
        says("trials in which no first attempt won / all trials", shown="table"),
    ]:
        """Return a text such as 3/300. In this example, there were 300 trials, and no first attempt
        won in 3 of these trials.
        """
        return f"{self.first_attempts_lost}/{self.trials}"


class SplitVotesResult(Document, frozen=True, kw_only=True):
    """The result of `lockbench split-votes`."""

    kind: Annotated[Literal["split-votes"], says("the command that made it")] = "split-votes"
    fleet: Annotated[OwnFleet, says("the servers")]
    conditions: Annotated[SplitVotesPlan, says("what was asked for")]
    calibration: Annotated[
        tuple[CalibrationRow, ...],
        says("the split-vote rate of randomly ordered votes, and the closed form for comparison"),
    ]
    contention: Annotated[tuple[ContentionRow, ...], says("one attempt each")]
    retries: Annotated[tuple[RetryRow, ...], says("until somebody wins")]
    losses: Annotated[tuple[str, ...], says("servers that stopped during the measurement")] = ()
