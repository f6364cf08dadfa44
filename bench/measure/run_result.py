"""The types that make up the result of one run. The result describes the load, the servers and the
figures. The result also contains facts that show whether the figures can be trusted.

The name of a field ends in its unit. `_s` means seconds, and `_us` means microseconds. `_ns` means
nanoseconds of CLOCK_MONOTONIC. `_ratio` means a ratio, in which 1 is 100 %. A field is null if its
value is unknown or does not apply. Users can set limits on the figures in `Measured`.
"""

from collections.abc import Callable, Iterator
from math import inf, isclose
from operator import eq, ge, gt, le, lt, ne
from typing import Annotated, Any, Literal

import msgspec

from bench.measure.fleet_facts import FleetFacts, InstanceReport
from bench.measure.latency import Latencies, Latency, OverTime, Waiting
from bench.measure.limits import Limits
from bench.measure.load_worker import LoadWorker
from bench.measure.outcomes import Outcomes, OutcomeShares, Releases, SplitVotes, Votes
from bench.measure.record import OperationFacts
from bench.measure.result import Document
from bench.measure.section import Amount, Count, Section, Share, says
from bench.measure.verdict import TESTED_LEAST
from bench.measure.words import Unit
from bench.scenario import Scenario

BrokenRule = Literal[
    "service_fault", "granted_invalid", "foreign_delete", "client_overstay", "spurious_refusal"
]
Operator = Literal["<", "<=", ">", ">=", "==", "!="]
EXAMPLES_PER_KIND = 5
OPERATORS: dict[Operator, Callable[[float, float], bool]] = {
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
    "==": eq,
    "!=": ne,
}
GeneratorWord = Literal["VALID", "LATE", "UNKNOWN", "INVALID"]
SafetyWord = Literal["SAFE", "VIOLATED", "UNKNOWN", "NOT TESTED"]


class Rate(Section, frozen=True, kw_only=True):
    """The requested rate and the achieved rate."""

    offered_per_s: Annotated[
        Amount | None,
        says(
            "operations per second that the schedule requests; null in a closed loop",
            label="offered",
            shown="beside",
        ),
    ]
    achieved_per_s: Annotated[
        Amount | None,
        says(
            "leases per second that were granted in the window",
            label="leases",
            shown="several compare",
            metric="rate",
            higher_is_better=True,
        ),
    ]
    completed_per_s: Annotated[
        Amount | None,
        says(
            "number of acquires that returned per second of the window, with or without a lease",
            higher_is_better=True,
        ),
    ]
    sustained: Annotated[
        bool | None,
        says("open loop: true if 99 % of the due acquires were completed in the window"),
    ]


class Attempts(Latency, frozen=True, kw_only=True):
    """The number of rounds that a lease took. Each sample is the number of rounds of one lease."""

    total: Annotated[
        Count, says("total number of rounds in the window, including rounds of failed acquires")
    ]


class Cost(Section, frozen=True, kw_only=True):
    """The average cost of a lease in the whole run. Each figure is a total divided by the number of
    all leases. The totals also include the cost of lost rounds, of clean-up and of releases."""

    commands_per_acquire: Annotated[
        Amount | None,
        says(
            "commands per lease, sent to all instances",
            label="commands",
            shown="line several compare",
        ),
    ]
    round_trips_per_acquire: Annotated[
        Amount | None,
        says(
            "number of rounds and releases per lease; a round asks all instances at the same time",
            label="trips",
            shown="line several",
        ),
    ]
    bytes_per_acquire: Annotated[
        Amount | None,
        says(
            "bytes sent and received per lease",
            label="bytes",
            shown="several",
        ),
    ]
    client_cpu_us_per_cycle: Annotated[
        Amount | None,
        says(
            "CPU time of the load processes per lease",
            label="client CPU",
            shown="line several compare",
        ),
    ]
    server_cpu_us_per_cycle: Annotated[
        Amount | None,
        says("CPU time of all servers per lease", label="server CPU", shown="line several compare"),
    ]
    beside_cpu_ratio: Annotated[
        Amount | None,
        says("CPU that lockbench itself used to follow and judge the run, in cores"),
    ] = None


class LoadGap(Section, frozen=True, kw_only=True):
    """A span of time in which a load process neither ran nor waited for a core."""

    worker: Annotated[Count, says("index of the load process")]
    pid: Annotated[Count, says("id of the load process")]
    at_s: Annotated[float, says("start of the gap, counted from the start of the measured window")]
    for_s: Annotated[Amount, says("length of the gap")]
    lost_s: Annotated[Amount, says("seconds during which this load process did not run")]


class GeneratorHealth(Section, frozen=True, kw_only=True):
    """Facts about the load generator. These facts show whether the generator made the requested
    load."""

    cpu_ratio: Annotated[
        Amount | None,
        says(
            "CPU share of the busiest load process; at 0.9 or more, the rate is a lower bound",
            label="CPU",
            shown="line",
        ),
    ]
    scheduler_lag_p99_s: Annotated[
        Amount | None,
        says(
            "delay that 99 % of the timers did not exceed; the timers fire every 10 ms",
            label="lag p99",
            shown="line",
        ),
    ]
    timer_lateness_p99_s: Annotated[
        Amount | None,
        says(
            "delay that 99 % of the operation timers did not exceed; an operation timer fires "
            "when an operation is due"
        ),
    ] = None
    late_starts: Annotated[
        Count,
        says("open loop: number of operations that the load generator began late", shown="line"),
    ]
    queued_starts: Annotated[
        Count,
        says("open loop: number of operations that were due when no caller was free", shown="line"),
    ]
    littles_law_ratio: Annotated[
        Amount | None,
        says(
            "closed loop: average number of busy or thinking callers, divided by the number "
            "of users; a healthy load has a ratio close to 1",
            label="Little",
            unit="factor",
            shown="line",
        ),
    ]
    verdict: Annotated[
        GeneratorWord,
        says(
            "verdict on the load generator; if it is INVALID, no figure of the run counts; if it "
            "is LATE or UNKNOWN, each latency is an upper bound"
        ),
    ]
    reason: Annotated[str | None, says("why the generator is not VALID; null if it is VALID")]
    gap_s: Annotated[
        Amount, says("seconds of the window in which the most affected load process did not run")
    ] = 0.0
    gap_operations: Annotated[
        Count,
        says(
            "number of acquires that a gap of a load process affected: acquires during the gap "
            "or soon after the gap"
        ),
    ] = 0
    gap_failures: Annotated[
        Count,
        says("number of gap_operations that failed; no limit fails because of these acquires"),
    ] = 0
    gaps: Annotated[
        tuple[LoadGap, ...], says("the longest gaps, in order of time; at most 50")
    ] = ()

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence if the verdict is VALID although there is a reason. Also yield a
        sentence if the verdict is not VALID and there is no reason."""
        if (self.verdict == "VALID") != (self.reason is None):
            yield f"the verdict is {self.verdict}, but the reason is {self.reason!r}"


class Example(Section, frozen=True, kw_only=True):
    """One broken rule that the oracle found."""

    kind: Annotated[BrokenRule, says("the rule that was broken")]
    at_ns: Annotated[
        int, says("time at which the rule was broken, in nanoseconds of CLOCK_MONOTONIC")
    ]
    blame: Annotated[
        str | None,
        says(
            "cause of the violation: unsafe recipe, injected fault or unexplained; null without one"
        ),
    ]
    operations: Annotated[
        tuple[OperationFacts, ...],
        says("the operations that broke the rule; the culprit comes first, if there is a culprit"),
    ]


class Holder(Section, frozen=True, kw_only=True):
    """The holders of one resource and the times of their leases. All times are in µs from the start
    of the measured window."""

    resource: Annotated[Count, says("index of the resource")]
    leases: Annotated[Count, says("number of leases of this resource in the whole run")]
    spans_us: Annotated[
        tuple[tuple[int, int], ...],
        says("the time spans (begin, end) for which `rows` is complete"),
    ]
    rows: Annotated[
        tuple[tuple[int, int, int, int, int, int], ...],
        says(
            "one row per lease: granted_us, end_us, valid_until_us, work_end_us, caller, fault "
            "(1 if the lease overlaps another lease)"
        ),
    ]


class SafetyReport(Section, frozen=True):
    """The safety verdict on the whole run. `reason` explains the verdict, and is null if the
    verdict is SAFE."""

    verdict: Annotated[
        SafetyWord, says("the safety verdict: SAFE, VIOLATED, UNKNOWN or NOT TESTED")
    ]
    reason: Annotated[str | None, says("the reason for the verdict; null if the verdict is SAFE")]
    violations: Annotated[
        Count, says("the same number as service_faults; thresholds use this name", shown="beside")
    ] = 0
    service_faults: Annotated[
        Count,
        says(
            "number of leases that were granted although `capacity` valid leases held all "
            "places of the resource",
            shown="table",
        ),
    ] = 0
    client_overstays: Annotated[
        Count,
        says(
            "number of clients that kept working after their own lease had ended, while another "
            "client held a lease",
            shown="table",
        ),
    ] = 0
    granted_invalid: Annotated[
        Count, says("number of leases that had already ended when they were granted", shown="table")
    ] = 0
    foreign_deletes: Annotated[
        Count, says("number of releases that deleted the lease of another client", shown="table")
    ] = 0
    spurious_refusals: Annotated[
        Count,
        says(
            "number of acquires that were refused although the resource had a free place; a place "
            "is free if fewer than `capacity` other clients can have a key",
            shown="table",
        ),
    ] = 0
    unexplained: Annotated[
        Count,
        says(
            "number of violations whose cause is unknown: the recipe is not a known unsafe "
            "recipe, and no fault was in force",
            shown="table",
        ),
    ] = 0
    contested_leases: Annotated[
        Count,
        says(
            "number of leases during which another caller wanted the same resource",
            shown="table",
        ),
    ] = 0
    tested_leases: Annotated[
        Count,
        says(
            "number of tested leases: during such a lease, all `capacity` places were taken "
            "and another attempt was sent",
            shown="table beside",
        ),
    ] = 0
    misreports: Annotated[
        tuple[str, ...],
        says("impossible values that the recipe reported, each with its count"),
    ] = ()
    judged_ratio: Annotated[
        Share,
        says(
            "share of all leases that the oracle judged; the oracle chooses resources, and judges "
            "all leases of a chosen resource"
        ),
    ] = 1.0
    upper_bound_95: Annotated[
        Share | None,
        says(
            "upper bound of the share of violated leases, with 95 % certainty (3 / "
            "tested_leases); null if the verdict is not SAFE"
        ),
    ] = None
    within_one_process: Annotated[
        bool,
        says(
            "true if a recipe of another package ran in only one process; such a run cannot "
            "show that the lock works between processes"
        ),
    ] = False
    examples: Annotated[tuple[Example, ...], says("up to five examples of each broken rule")] = ()
    holders: Annotated[
        tuple[Holder, ...],
        says(
            "resources and their holders; resources with violations come first, then the "
            "resources with the most leases"
        ),
    ] = ()

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each contradiction between the verdict and the counts."""
        broken = self.service_faults + self.granted_invalid + self.foreign_deletes
        if self.violations != self.service_faults:
            yield f"violations is {self.violations}, but service_faults is {self.service_faults}"
        if self.verdict == "VIOLATED" and not broken:
            yield "the verdict is VIOLATED, but every count of broken rules is 0"
        if self.verdict != "VIOLATED" and broken:
            yield f"the verdict is {self.verdict}, but the counts show {broken} broken rules"
        if self.verdict == "SAFE" and self.tested_leases < TESTED_LEAST:
            yield (
                f"the verdict is SAFE with {self.tested_leases} tested leases, but SAFE needs "
                f"{TESTED_LEAST}"
            )
        if self.verdict == "NOT TESTED" and self.tested_leases >= TESTED_LEAST:
            yield f"the verdict is NOT TESTED, although {self.tested_leases} leases were tested"
        if (self.verdict == "SAFE") != (self.reason is None):
            yield f"the verdict is {self.verdict}, but the reason is {self.reason!r}"
        bound = 3 / self.tested_leases if self.verdict == "SAFE" else None
        if (bound is None) != (self.upper_bound_95 is None) or not isclose(
            bound or 0.0, self.upper_bound_95 or 0.0
        ):
            yield (
                f"the upper bound is {self.upper_bound_95}, but {self.tested_leases} tested "
                f"leases give {bound}"
            )


class Exceptions(Section, frozen=True, kw_only=True):
    """The exceptions of the recipe over the whole run. A recipe must never raise."""

    raised: Annotated[
        Count,
        says(
            "number of exceptions in acquires, in releases and in tasks that an acquire or a "
            "release started"
        ),
    ] = 0
    operations: Annotated[Count, says("number of acquires that began")] = 0
    first: Annotated[
        str, says('the first exception, with its file and line; "" if there is none')
    ] = ""

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence if the count and the first exception contradict each other."""
        if bool(self.raised) != bool(self.first):
            yield f"{self.raised} exceptions, but the first exception is {self.first!r}"


class Measured(Section, frozen=True, kw_only=True):
    """The measured figures and the safety report. Users can set limits on all numbers in these
    fields, except on `duration_s` and the numbers in `over_time`."""

    duration_s: Amount
    rate: Rate
    outcomes: Outcomes
    outcome_shares: OutcomeShares
    totals: Outcomes
    releases: Releases
    latency_s: Latencies
    over_time: OverTime
    attempts: Attempts
    votes: Votes
    split_votes: SplitVotes
    cost: Cost
    generator: GeneratorHealth
    safety: SafetyReport
    exceptions: Exceptions = Exceptions()
    waiting: Waiting = Waiting()
    histograms: dict[str, str]


class InjectedFault(Section, frozen=True, kw_only=True):
    """The outcome of one fault on one target.

    Each time in seconds is the time since the start of the measured window.
    """

    kind: Annotated[str, says("kind of the fault, such as stop, as the scenario names it")]
    target: Annotated[str, says("target of the fault, such as instance:0 or worker:0")]
    params: Annotated[dict[str, Any], says("the params of the fault, as the scenario gives them")]
    phase: Annotated[
        Literal["fixed", "random"],
        says("if the phase is random, the seed delays the fault by up to 1 s"),
    ]
    at_s: Annotated[float, says("due time of the fault, including the random delay")]
    for_s: Annotated[
        float | None, says("planned duration of the fault; null means until the end of the window")
    ]
    begun_s: Annotated[
        float | None, says("time at which the fault began; null if the fault did not begin")
    ]
    ended_s: Annotated[
        float | None, says("time at which the fault was undone; null if the fault was not undone")
    ]
    begun_ns: Annotated[
        int | None,
        says(
            "time just before the fault began, in ns of CLOCK_MONOTONIC; null if it did not begin"
        ),
    ]
    in_force_ns: Annotated[
        int | None,
        says("monotonic time from which the fault was in force; null if it was never in force"),
    ]
    ended_ns: Annotated[
        int | None,
        says(
            "time at which the fault was undone, in ns of CLOCK_MONOTONIC; null if it was not "
            "undone"
        ),
    ]
    skipped: Annotated[str | None, says("why the fault did not begin; null if the fault began")]
    failed: Annotated[
        str | None,
        says("error at the start or the end of the fault; null if there was no error"),
    ]
    detail: Annotated[
        dict[str, Any], says("more facts about the fault, such as lost_bytes of a power cut")
    ]


class JudgedThreshold(Section, frozen=True, kw_only=True):
    """One requested limit, its measured value and its verdict."""

    expression: Annotated[str, says("the limit as the user wrote it")]
    metric: Annotated[str, says("name of the figure in thresholds, such as acquire.p99")]
    path: Annotated[str, says("path of the figure in this document, such as attempts.p99")]
    operator: Annotated[Operator, says("comparison operator between the value and the limit")]
    limit: Annotated[float, says("the limit as a number, in the unit of the figure")]
    unit: Annotated[Unit, says("unit of the value, the limit and the margin")]
    value: Annotated[
        float | None,
        says("measured value; null if the value is infinite or if there are no samples"),
    ]
    infinite: Annotated[
        bool, says("true if the value is infinite, because too many acquires failed")
    ] = False
    margin: Annotated[
        float | None,
        says("distance from the value to the limit; negative if the value is beyond the limit"),
    ]
    status: Annotated[
        Literal["pass", "fail", "inconclusive"],
        says("verdict on the limit; inconclusive means that the run cannot judge the limit"),
    ]
    reason: Annotated[
        str | None,
        says("why the limit is inconclusive or the value is infinite; null in all other cases"),
    ]

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence if the status does not follow from the value and the limit."""
        value = inf if self.infinite else self.value
        if self.status == "inconclusive":
            return
        if value is None:
            yield f"{self.expression}: {self.status} without a value"
        elif OPERATORS[self.operator](value, self.limit) != (self.status == "pass"):
            yield f"{self.expression}: the status is {self.status}, but the value is {value:.6g}"


class RunFigures(Document, frozen=True, kw_only=True):
    """A part of the result of a run. This part describes the load and the servers, and it contains
    the figures of the operations."""

    kind: Annotated[Literal["run"], says("the kind of this result")] = "run"
    name: Annotated[str, says("the name that the user gave to the run (--name)")] = ""
    seed: Annotated[int, says("the seed of all random choices of the load")]
    duration_s: Annotated[
        Amount,
        says("length of the measured window, which excludes the warm-up and the drain"),
    ]
    scenario: Annotated[
        Scenario,
        says("every key of the scenario with its final value; passwords in targets are masked"),
    ]
    fleet: Annotated[FleetFacts, says("the servers of the run")]
    rate: Annotated[Rate, says("the requested rate and the achieved rate")]
    outcomes: Annotated[
        Outcomes,
        says("number of acquires by outcome, for acquires that were due in the measured window"),
    ]
    outcome_shares: Annotated[
        OutcomeShares, says("share of each outcome in the acquires of the measured window")
    ]
    totals: Annotated[
        Outcomes,
        says(
            "number of acquires by outcome in the whole run; Locust's table and telemetry show "
            "the same numbers"
        ),
    ]
    releases: Annotated[Releases, says("number of releases by outcome in the whole run")]
    latency_s: Annotated[Latencies, says("durations of the operations in the measured window")]
    over_time: Annotated[OverTime | None, says("figures of each time slice of the run")] = None
    attempts: Annotated[Attempts, says("number of rounds per lease")]
    votes: Annotated[Votes, says("votes in the last round of each acquire in the window")]
    split_votes: Annotated[
        SplitVotes,
        says("split votes in the window; a split vote is a round that nobody can win"),
    ]
    waiting: Annotated[Waiting, says("how long and how evenly callers waited")] = Waiting()
    cost: Annotated[Cost, says("cost of a lease in commands, bytes and CPU time")]


class RunResult(RunFigures, frozen=True, kw_only=True):
    """One run with its figures, and with facts that show whether the figures can be trusted."""

    instances: Annotated[tuple[InstanceReport, ...], says("state and figures of each instance")]
    generator: Annotated[GeneratorHealth, says("whether the load was as requested")]
    workers: Annotated[
        tuple[LoadWorker, ...],
        says("load processes on other hosts; empty if all load processes ran on this host"),
    ] = ()
    limits: Annotated[
        Limits,
        says("CPU time that this machine lost because of a CPU quota, steal or suspension"),
    ] = Limits()
    safety: Annotated[SafetyReport, says("verdict on the safety of the lock")]
    exceptions: Annotated[Exceptions, says("exceptions that the recipe raised")] = Exceptions()
    faults: Annotated[
        tuple[InjectedFault, ...], says("injected faults, one entry for each target")
    ] = ()
    breaks: Annotated[
        tuple[str, ...],
        says("sentences about parts of the run that ended early or did not take place"),
    ] = ()
    thresholds: Annotated[
        tuple[JudgedThreshold, ...], says("the requested limits, each with its verdict")
    ] = ()
    histograms: Annotated[
        dict[str, str],
        says(
            "histograms of the times in latency_s and generator, and of each instance's reply "
            "times (reply_<index>); each one is an HDR histogram (V2, compressed) as base64 text"
        ),
    ]


# This function returns the fields of a section by name.
fields_of = msgspec.structs.asdict
# The gates compare limits with the figures of one of these types.
Figures = Measured | RunResult
