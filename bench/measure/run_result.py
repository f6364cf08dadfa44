"""The types of the result of one run: *load, servers, figures, facts about trust → sections*.

Rules: the name of a field ends in its unit (_s seconds, _ns nanoseconds of CLOCK_MONOTONIC, _us
microseconds, _ratio 1 = 100 %). A value of null is not known or not applicable. Users can set
limits on the fields of `Measured`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf, isclose
from operator import eq, ge, gt, le, lt, ne
from typing import Annotated, Any, Literal

import msgspec

from bench.measure.latency import Latencies, Latency, OverTime, Waiting
from bench.measure.limits import Limits
from bench.measure.load_worker import LoadWorker
from bench.measure.outcomes import Outcomes, OutcomeShares, Releases, SplitVotes, Votes
from bench.measure.record import OperationFacts
from bench.measure.result import Document
from bench.measure.section import Amount, Count, Section, Share, says
from bench.measure.server_facts import InstanceFacts, ServerBinary, SyncLatency, servers_text
from bench.measure.verdict import TESTED_LEAST
from bench.measure.words import Unit
from bench.scenario import Scenario

BrokenRule = Literal[
    "service_fault", "granted_invalid", "foreign_delete", "client_overstay", "spurious_refusal"
]
Operator = Literal["<", "<=", ">", ">=", "==", "!="]
_POLICIES = ("none", "no", "everysec", "always")
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
            "operations that the schedule requests; null in a closed loop",
            label="offered",
            shown="beside",
        ),
    ]
    achieved_per_s: Annotated[
        Amount | None,
        says(
            "leases granted in the window",
            label="leases",
            shown="several compare",
            metric="rate",
            higher_is_better=True,
        ),
    ]
    completed_per_s: Annotated[
        Amount | None,
        says("acquires that returned in the window, successful or not", higher_is_better=True),
    ]
    sustained: Annotated[
        bool | None,
        says("open loop: true if 99 % of the due acquires were completed in the window"),
    ]


class Attempts(Latency, frozen=True, kw_only=True):
    """How many rounds a lease took. The figures are rounds instead of seconds, and each sample is a
    lease."""

    total: Annotated[
        Count, says("total number of rounds in the window, with the rounds of failed acquires")
    ]


class Cost(Section, frozen=True, kw_only=True):
    """The cost of a lease over the whole run. Each figure is an amount divided by the number of all
    leases. The amounts include lost rounds, clean-up and releases."""

    commands_per_acquire: Annotated[
        Amount | None,
        says("commands sent to all instances", label="commands", shown="line several compare"),
    ]
    round_trips_per_acquire: Annotated[
        Amount | None,
        says(
            "rounds and releases per lease; a round asks all instances in parallel",
            label="trips",
            shown="line several",
        ),
    ]
    bytes_per_acquire: Annotated[
        Amount | None,
        says("bytes sent to and received from all instances", label="bytes", shown="several"),
    ]
    client_cpu_us_per_cycle: Annotated[
        Amount | None,
        says("CPU of the load processes", label="client CPU", shown="line several compare"),
    ]
    server_cpu_us_per_cycle: Annotated[
        Amount | None, says("CPU of all servers", label="server CPU", shown="line several compare")
    ]
    beside_cpu_ratio: Annotated[
        Amount | None, says("CPU that lockbench itself used to follow and judge the run, in cores")
    ] = None


class LoadGap(Section, frozen=True, kw_only=True):
    """A time in which a load process was away: it neither ran nor waited for a core."""

    worker: Annotated[Count, says("index of the load process")]
    pid: Annotated[Count, says("id of the load process")]
    at_s: Annotated[float, says("start of the gap, counted from the start of the measured window")]
    for_s: Annotated[Amount, says("length of the gap")]
    lost_s: Annotated[Amount, says("seconds during which this load process did not run")]


class GeneratorHealth(Section, frozen=True, kw_only=True):
    """The health of the load generator. It shows whether the load was as requested."""

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
        says("99 % of the timers fired at most this late", label="lag p99", shown="line"),
    ]
    timer_lateness_p99_s: Annotated[
        Amount | None, says("99 % of the waits for an operation's due time ended at most this late")
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
            "closed loop: average number of busy or thinking callers ÷ users; close to 1 if all "
            "is well",
            label="Little",
            unit="factor",
            shown="line",
        ),
    ]
    verdict: Annotated[
        GeneratorWord,
        says("INVALID means that no figure counts; LATE and UNKNOWN make latencies upper bounds"),
    ]
    reason: Annotated[str | None, says("why the generator is not VALID; null if it is VALID")]
    gap_s: Annotated[
        Amount, says("seconds of the window in which the most affected load process did not run")
    ] = 0.0
    gap_operations: Annotated[
        Count,
        says("number of acquires during or soon after a time in which a load process did not run"),
    ] = 0
    gap_failures: Annotated[
        Count,
        says("number of gap_operations that failed; no limit fails because of these acquires"),
    ] = 0
    gaps: Annotated[tuple[LoadGap, ...], says("the longest gaps in order of time, at most 50")] = ()

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence if VALID has a reason, or if any other verdict has none."""
        if (self.verdict == "VALID") != (self.reason is None):
            yield f"{self.verdict} beside the reason {self.reason!r}"


class Example(Section, frozen=True, kw_only=True):
    """One broken rule that the oracle found."""

    kind: Annotated[BrokenRule, says("the rule that was broken")]
    at_ns: Annotated[int, says("time of the fault, in nanoseconds of CLOCK_MONOTONIC")]
    blame: Annotated[
        str | None,
        says(
            "cause of the violation: unsafe recipe, injected fault or unexplained; null without one"
        ),
    ]
    operations: Annotated[
        tuple[OperationFacts, ...],
        says("the operations that broke the rule; the first one is the culprit, if there is one"),
    ]


class Holder(Section, frozen=True, kw_only=True):
    """The holders of one resource, with their times in µs from the start of the measured window."""

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
    """The safety verdict on the whole run. `reason` explains every verdict except SAFE."""

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
            "leases granted although all `capacity` places of the resource were validly taken",
            shown="table",
        ),
    ] = 0
    client_overstays: Annotated[
        Count,
        says("clients that worked past their validity while another had the lease", shown="table"),
    ] = 0
    granted_invalid: Annotated[
        Count, says("leases that were granted at or after their own end", shown="table")
    ] = 0
    foreign_deletes: Annotated[
        Count, says("releases that deleted the lease of another client", shown="table")
    ] = 0
    spurious_refusals: Annotated[
        Count,
        says("refusals while at most `capacity` − 1 others can have held a key", shown="table"),
    ] = 0
    unexplained: Annotated[
        Count,
        says(
            "violations that neither an unsafe recipe nor an injected fault explains", shown="table"
        ),
    ] = 0
    contested_leases: Annotated[
        Count, says("leases that another caller requested while they were valid", shown="table")
    ] = 0
    tested_leases: Annotated[
        Count,
        says(
            "leases during which another attempt was sent while all `capacity` places were taken",
            shown="table beside",
        ),
    ] = 0
    misreports: Annotated[
        tuple[str, ...], says("impossible values that the recipe reported, each with its number")
    ] = ()
    judged_ratio: Annotated[
        Share, says("share of the leases that were judged, chosen by resource; 1 means all")
    ] = 1.0
    upper_bound_95: Annotated[
        Share | None,
        says("3 / tested_leases: 95 % sure, a smaller share is violated; null unless SAFE"),
    ] = None
    within_one_process: Annotated[
        bool,
        says(
            "true if a recipe of another package ran in one process only; an in-process lock "
            "then looks safe"
        ),
    ] = False
    examples: Annotated[tuple[Example, ...], says("up to five examples of each broken rule")] = ()
    holders: Annotated[
        tuple[Holder, ...], says("some resources: violated ones first, then the hottest")
    ] = ()

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each contradiction between the verdict and the counts."""
        broken = self.service_faults + self.granted_invalid + self.foreign_deletes
        if self.violations != self.service_faults:
            yield f"violations is {self.violations}, but service_faults is {self.service_faults}"
        if self.verdict == "VIOLATED" and not broken:
            yield "the word is VIOLATED, but no rule is counted as broken"
        if self.verdict != "VIOLATED" and broken:
            yield f"the word is {self.verdict}, but {broken} broken rules are counted"
        if self.verdict == "SAFE" and self.tested_leases < TESTED_LEAST:
            yield f"SAFE with {self.tested_leases} tested leases: NOT TESTED below {TESTED_LEAST}"
        if self.verdict == "NOT TESTED" and self.tested_leases >= TESTED_LEAST:
            yield f"the word is NOT TESTED with {self.tested_leases} tested leases"
        if (self.verdict == "SAFE") != (self.reason is None):
            yield f"{self.verdict} beside the reason {self.reason!r}"
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
        Count, says("number of exceptions in acquires, in releases and in tasks that they started")
    ] = 0
    operations: Annotated[Count, says("number of acquires that began")] = 0
    first: Annotated[str, says('the first one with file and line; "" if there is none')] = ""

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence if the count and the first exception contradict each other."""
        if bool(self.raised) != bool(self.first):
            yield f"{self.raised} exceptions, but the first exception is {self.first!r}"


class Measured(Section, frozen=True, kw_only=True):
    """The measured figures and the oracle's report. Users can set limits on all of these fields."""

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


class FleetFacts(Section, frozen=True, kw_only=True):
    """The servers that the run started or targeted, and the durability of their data."""

    started: Annotated[bool, says("by lockbench; false if the user named them")]
    server: Annotated[
        ServerBinary | None, says("the program that was started; null for named targets")
    ]
    fsync: Annotated[str | None, says("the AOF policy it was started with; null for named targets")]
    fdatasync_s: Annotated[
        SyncLatency | None, says("the time of a sync on the servers' disk; null for named targets")
    ]
    instances: Annotated[tuple[InstanceFacts, ...], says("facts about each instance")]

    @property
    def servers_text(self) -> str:
        """The names and versions of the servers, such as `redis 7.0.15`. If no server is known, the
        text is empty."""
        return servers_text(self.instances)

    @property
    def policy(self) -> str | None:
        """The AOF policy that all instances have. If the policies differ or one policy is unknown,
        this is None."""
        policies = {one.fsync for one in self.instances}
        return self.fsync or (policies.pop() if len(policies) == 1 else None)

    @property
    def policies(self) -> str:
        """The instances' AOF policies, such as `everysec and always`, or "" if none is known."""
        if self.fsync is not None:
            return self.fsync
        present = {one.fsync for one in self.instances}
        names = " and ".join(name for name in _POLICIES if name in present)
        silent = sum(one.fsync is None for one in self.instances)
        return f"{names} (of {silent} not known)" if names and silent else names

    @property
    def text(self) -> str:
        """A text about how the servers sync: `fsync everysec`. If the servers are the user's own,
        the text is `own targets, fsync everysec`."""
        policies = f"fsync {self.policies or 'not known'}"
        return policies if self.started else f"own targets, {policies}"


class OwnFleet(Section, frozen=True, kw_only=True):
    """The servers of an experiment that starts all its servers. If the servers differ in a value,
    or the experiment did not read it, the value is null."""

    started: Annotated[Literal[True], says("they were started for it")] = True
    server: Annotated[ServerBinary, says("the server program that was started")]
    fsync: Annotated[str | None, says("AOF fsync policy of the started servers")] = None
    fdatasync_s: Annotated[
        SyncLatency | None, says("duration of an append with fdatasync on the servers' disk")
    ] = None
    instances: Annotated[tuple[InstanceFacts, ...], says("what each of them is")] = ()


@dataclass(frozen=True, slots=True)
class InfoDelta:
    """The difference between two readings of an instance's INFO."""

    address: Annotated[str, says("host:port or socket path, without secrets")]
    warning: Annotated[str | None, says("why there are no counters; null if there are")]
    elapsed_s: Annotated[float, says("seconds between the two readings of INFO")]
    cpu_s: Annotated[
        float | None, says("CPU time of the server (system and user), without forked children")
    ] = None
    commands_processed: Annotated[int | None, says("all commands")] = None
    calls: Annotated[dict[str, int], says("calls by command; sub-commands like config|get")] = (
        field(default_factory=dict)
    )
    expired_keys: Annotated[int | None, says("number of keys that expired")] = None
    evicted_keys: Annotated[int | None, says("keys that it evicted because memory was full")] = None
    aof: Annotated[
        dict[str, int | str],
        says("increase of aof_delayed_fsync and aof_rewrites, and sizes and states at the end"),
    ] = field(default_factory=dict)

    @property
    def delayed_fsyncs(self) -> int | None:
        """How many AOF writes waited for an fsync, or None if INFO does not have this count."""
        count = self.aof.get("aof_delayed_fsync")
        return count if isinstance(count, int) else None


class InstanceSeen(Section, frozen=True, kw_only=True):
    """One instance as a load process sees it."""

    index: Annotated[Count, says("position of the instance in the list of targets, from 0")]
    address: Annotated[str, says("host:port or socket path, without secrets")]
    state: Annotated[
        str,
        says("the worst final state at a load process: voting, abstaining, lagging, refused, down"),
    ]
    reason: Annotated[str, says('why the instance does not vote; "" if the instance votes')] = ""
    run_id: Annotated[str, says("an id that changes at each start of the server")] = ""
    server: Annotated[str | None, says("name and version of the server")] = None
    release_command: Annotated[str, says("the command that released locks on this instance")] = ""
    commands: Annotated[Count, says("number of commands sent to the instance")] = 0
    bytes_sent: Annotated[Count, says("bytes sent to the instance")] = 0
    bytes_received: Annotated[Count, says("bytes received from the instance")] = 0
    writes: Annotated[Count, says("number of system calls that sent data to the instance")] = 0
    reads: Annotated[Count, says("number of system calls that received data from the instance")] = 0
    late_replies: Annotated[Count, says("replies that came after their round was decided")] = 0
    pending: Annotated[Count, says("number of commands that had no reply at the end")] = 0
    owed_releases: Annotated[Count, says("releases that were still unsent at the end")] = 0
    reconnects: Annotated[Count, says("number of reconnects to the instance")] = 0
    errors: Annotated[dict[str, Count], says("number of errors by kind of error")] = msgspec.field(
        default_factory=dict
    )

    @property
    def is_well(self) -> bool:
        """True if the instance voted until the end without an error."""
        return self.state == "voting" and not self.errors


class InstanceReport(InstanceSeen, frozen=True, kw_only=True):
    """One instance as all load processes together saw it, and figures from its own INFO."""

    reply_s: Annotated[
        Latency | None, says("reply times of sampled attempts", shown="line:p50,p99")
    ] = None
    cpu_us_per_command: Annotated[
        Amount | None,
        says("CPU time of the server per processed command", label="CPU/cmd", shown="line"),
    ] = None
    info: Annotated[InfoDelta | None, says("change of its INFO counters in the run")] = None
    leaked_keys: Annotated[
        Count | None, says("keys of the run that were left and then unlinked; null if not checked")
    ] = None
    other_keys: Annotated[
        Count | None,
        says("keys left behind under names that lockbench does not unlink; null if not counted"),
    ] = None


class InjectedFault(Section, frozen=True, kw_only=True):
    """The outcome of one fault on one target.

    Seconds count from the start of the measured window.
    """

    kind: Annotated[str, says("as in the scenario")]
    target: Annotated[str, says("target of the fault, such as instance:0 or worker:0")]
    params: Annotated[dict[str, Any], says("as in the scenario")]
    phase: Annotated[Literal["fixed", "random"], says("random: up to 1 s later, by the seed")]
    at_s: Annotated[float, says("when the fault was due, its random delay included")]
    for_s: Annotated[float | None, says("duration; null: to the end of the window")]
    begun_s: Annotated[float | None, says("when the fault began; null if the fault did not begin")]
    ended_s: Annotated[float | None, says("when it was undone")]
    begun_ns: Annotated[int | None, says("monotonic, before the first step; null if never")]
    in_force_ns: Annotated[int | None, says("monotonic, when it was in force; null if never")]
    ended_ns: Annotated[int | None, says("monotonic, after the last step of undoing")]
    skipped: Annotated[str | None, says("why the fault did not begin; null if the fault began")]
    failed: Annotated[str | None, says("what failed at the start or at the undoing of the fault")]
    detail: Annotated[
        dict[str, Any], says("more facts about the fault, such as lost_bytes of a power cut")
    ]


class JudgedThreshold(Section, frozen=True, kw_only=True):
    """One requested limit, its measured value and its verdict."""

    expression: Annotated[str, says("the limit as the user wrote it")]
    metric: Annotated[str, says("name of the figure in thresholds, such as acquire.p99")]
    path: Annotated[str, says("the path of the figure in this document")]
    operator: Annotated[Operator, says("value operator limit must hold")]
    limit: Annotated[float, says("the limit, in the unit of the figure")]
    unit: Annotated[Unit, says("unit of value, limit and margin")]
    value: Annotated[float | None, says("measured value; null if infinite or without samples")]
    infinite: Annotated[bool, says("whether too many acquires failed for a finite value")] = False
    margin: Annotated[
        float | None,
        says("distance from the value to the limit; negative if the value is beyond the limit"),
    ]
    status: Annotated[
        Literal["pass", "fail", "inconclusive"], says("inconclusive: this run has no answer")
    ]
    reason: Annotated[str | None, says("why it is inconclusive or infinite; otherwise null")]

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence if the value and the limit contradict the status."""
        value = inf if self.infinite else self.value
        if self.status == "inconclusive":
            return
        if value is None:
            yield f"{self.expression}: {self.status} without a value"
        elif OPERATORS[self.operator](value, self.limit) != (self.status == "pass"):
            yield f"{self.expression}: the status is {self.status}, but the value is {value:.6g}"


class RunFigures(Document, frozen=True, kw_only=True):
    """The first half of the result of a run: the load, the servers, and the figures of the
    operations."""

    kind: Annotated[Literal["run"], says("the kind of this result")] = "run"
    name: Annotated[str, says("the name that the user gave to the run (--name)")] = ""
    seed: Annotated[int, says("the seed of all random choices of the load")]
    duration_s: Annotated[Amount, says("length of the measured window, without warm-up and drain")]
    scenario: Annotated[
        Scenario, says("every key of the scenario with its final value; targets without secrets")
    ]
    fleet: Annotated[FleetFacts, says("the servers of the run")]
    rate: Annotated[Rate, says("the requested rate and the achieved rate")]
    outcomes: Annotated[Outcomes, says("acquires whose intended start lies in the measured window")]
    outcome_shares: Annotated[
        OutcomeShares, says("share of each outcome in the acquires of the measured window")
    ]
    totals: Annotated[
        Outcomes, says("acquires of the whole run; the same as in Locust's table and in telemetry")
    ]
    releases: Annotated[Releases, says("number of releases by outcome in the whole run")]
    latency_s: Annotated[Latencies, says("durations of the operations in the measured window")]
    over_time: Annotated[OverTime | None, says("figures of each time slice of the run")] = None
    attempts: Annotated[Attempts, says("number of rounds per lease")]
    votes: Annotated[Votes, says("the results of the last rounds of the operations in the window")]
    split_votes: Annotated[SplitVotes, says("rounds in the window in which nobody could win")]
    waiting: Annotated[Waiting, says("how long and how evenly callers waited")] = Waiting()
    cost: Annotated[Cost, says("cost of a lease in commands, bytes and CPU time")]


class RunResult(RunFigures, frozen=True, kw_only=True):
    """One run with its figures, and with facts that show whether to trust the figures."""

    instances: Annotated[tuple[InstanceReport, ...], says("state and figures of each instance")]
    generator: Annotated[GeneratorHealth, says("whether the load was as requested")]
    workers: Annotated[
        tuple[LoadWorker, ...], says("load processes on other hosts; empty if all ran on this host")
    ] = ()
    limits: Annotated[Limits, says("what kept this machine from running")] = Limits()
    safety: Annotated[SafetyReport, says("verdict on the safety of the lock")]
    exceptions: Annotated[Exceptions, says("exceptions that the recipe raised")] = Exceptions()
    faults: Annotated[
        tuple[InjectedFault, ...], says("injected faults, one entry for each target")
    ] = ()
    breaks: Annotated[tuple[str, ...], says("parts that ended early or did not take place")] = ()
    thresholds: Annotated[tuple[JudgedThreshold, ...], says("limits that were asked for")] = ()
    histograms: Annotated[
        dict[str, str], says("HDR V2, compressed, base64: latency_s, generator, reply_<index>")
    ]


# This function returns the fields of a section by name.
fields_of = msgspec.structs.asdict
# The gates compare limits with the figures of one of these types.
Figures = Measured | RunResult
