"""Defines the data that `lockbench fsync` stores. The journal contains the visits. The result
contains the rows, the price of always, the findings and the planner's page. If a figure comes from
several repeats, its type is `Spread`. If a figure is null, it is unknown or it does not apply."""

import math
from collections.abc import Iterable
from typing import Annotated, Literal, Self, TypeVar

from bench.experiments.durability.loss_result import Losses
from bench.experiments.durability.policies import Policy, Restart, Way, disk_name
from bench.measure.latency import Latency
from bench.measure.result import Document
from bench.measure.section import Amount, Count, Section, says
from bench.measure.server_facts import InstanceFacts, ServerBinary, SyncLatency
from bench.measure.statistics import Spread, paired_shift
from bench.report.figures import MISSING, count, counted

LoadName = Literal["max", "80%"]
Word = Literal["as expected", "not shown", "not known", "violated", "not judged"]
Number = TypeVar("Number", int, float)
CONFIDENCE = 0.95


class Setup(Section, frozen=True, kw_only=True):
    """The load and the disk of a cell."""

    clients: Annotated[Count, says("connections per instance")]
    pipeline: Annotated[Count, says("callers that share one connection")]
    injected_ms: Annotated[
        Amount, says("time that lockbench added to every fsync; 0 means no added time")
    ]
    hold: Annotated[
        str, says("time for which each caller holds a lock, written as in a scenario file")
    ] = "0"

    @property
    def setup(self) -> "Setup":
        """The callers and the disk of this object, without the number of instances."""
        return Setup(**{name: getattr(self, name) for name in Setup.__struct_fields__})

    @property
    def callers(self) -> Annotated[int, says("of all clients")]:
        """The total number of callers of all clients."""
        return self.clients * self.pipeline

    @property
    def load_text(self) -> str:
        """The load in words, such as `64 callers on 16 connections, hold 5ms`."""
        callers = counted(self.callers, "caller")
        shared = ""
        if self.pipeline > 1:
            shared = f" on {counted(self.clients, 'connection')}"
        held = "" if self.hold == "0" else f", hold {self.hold.removeprefix('fixed:')}"
        return f"{callers}{shared}{held}"

    @property
    def held(self) -> Annotated[str, says("time for which each caller holds a lock", label="hold")]:
        """The time for which each caller holds a lock, in words."""
        text = self.hold.removeprefix("fixed:").replace("exp:", "≈")
        return MISSING if self.hold == "0" else text

    @property
    def disk(
        self,
    ) -> Annotated[
        str, says("the disk in words: raw disk, or the delay that lockbench adds to each fsync")
    ]:
        """The name of the disk. If lockbench adds a delay to each fsync, the name consists of this
        delay. Otherwise the name is `raw disk`."""
        return disk_name(self.injected_ms)


class MatrixPlace(Setup, frozen=True, kw_only=True):
    """The load, the disk and the number of instances of a cell."""

    instances: Annotated[Count, says("N", label="N")]

    @property
    def place(self) -> str:
        """The number of instances, the load and the disk, in words."""
        return f"N={self.instances}, {self.load_text}, {self.disk}"


class FsyncCell(MatrixPlace, frozen=True, kw_only=True):
    """One cell of the matrix, which is a load, a disk, a number of instances and a policy."""

    policy: Annotated[
        Policy,
        says(
            "appendfsync policy; none means no append-only file, and waitaof means "
            "everysec with WAITAOF"
        ),
    ]

    @property
    def file_disk(self) -> Annotated[str, says("of the append-only file", label="disk")]:
        """The name of the disk. If there is no append-only file, the name is "none"."""
        return self.policy if self.policy == "none" else self.disk

    @property
    def connections(self) -> int:
        """The number of connections to each instance. Under `waitaof` each caller has its own
        connection, because WAITAOF blocks a connection."""
        return self.callers if self.policy == "waitaof" else self.clients

    def __str__(self) -> str:
        return f"{self.policy}, {self.place}"


def rate_text(rate: Spread | None, *, bound: bool | None) -> str:
    """Return a rate as text. If `bound` is true, the load process limited the rate. The text then
    begins with ≥."""
    if rate is None:
        return MISSING
    return ("≥" if bound else "") + count(round(rate.median))


def known_sum(values: Iterable[Number | None]) -> Number | None:
    """Return the sum of the values. Return None if there are no values, or if one of the values is
    None."""
    items = list(values)
    numbers = [value for value in items if value is not None]
    return sum(numbers[1:], numbers[0]) if numbers and len(numbers) == len(items) else None


class PhaseFigures(Section, frozen=True, kw_only=True):
    """The results of one load, as the load process counted them."""

    seconds: Annotated[Amount, says("of the window")]
    granted: Annotated[Count, says("in the window, whenever due")]
    due: Annotated[Count | None, says("acquires that were due in the window; null in closed loop")]
    histogram: Annotated[
        str,
        says(
            "histogram of the acquire times in ns, counted from the intended start; it "
            "contains all acquires that were due in the window"
        ),
    ]
    max_ns: Annotated[Count, says("the longest of them, exact")]
    sum_ns: Annotated[Count, says("of all of them, exact")]
    leases: Annotated[Count, says("leases granted in the whole load, including warm-up and drain")]
    denied: Annotated[
        dict[str, Count], says("number of acquires without a lease, for each outcome")
    ]
    release_failures: Annotated[Count, says("releases with an outcome other than RELEASED")]
    wanted_ratio: Annotated[
        Amount, says("share of the time in which the load process ran or waited for a core")
    ]
    littles_law_ratio: Annotated[
        Amount | None, says("share of the callers that were at work; null in open loop")
    ]
    lateness_p99_ns: Annotated[
        Count | None,
        says("p99 of the delay with which the timer started operations; null in closed loop"),
    ]


class LoadSeen(PhaseFigures, frozen=True, kw_only=True):
    """The results of one load, with the counters of the servers and of the shim. The counters cover
    the whole load, with its warm-up and its drain."""

    rate_per_s: Annotated[Amount | None, says("requested rate; null in closed loop")]
    fsyncs: Annotated[Count | None, says("of all instances")]
    elapsed_s: Annotated[Amount, says("time between the two snapshots of the servers")]
    server_cpu_s: Annotated[Amount | None, says("CPU of all instances")]
    aof_delayed_fsync: Annotated[Count | None, says("delayed fsyncs that the servers counted")]


class VisitSeen(Section, frozen=True, kw_only=True):
    """One visit of a cell. During a visit, lockbench measures all loads of the cell once. The
    journal has one line per visit."""

    repeat: Annotated[
        Count,
        says(
            "number of the repetition; all visits of a repetition ran one after the other on the "
            "same servers"
        ),
    ]
    cell: Annotated[FsyncCell, says("what was visited")]
    disk: Annotated[
        SyncLatency | None, says("sync latency of the disk; null if it cannot be measured")
    ]
    loads: Annotated[dict[LoadName, LoadSeen], says("by name")]


class DiskFigures(Section, frozen=True, kw_only=True):
    """The duration of an fdatasync in seconds, without an added delay. lockbench measures this
    duration before each visit."""

    p50: Annotated[Amount, says("median of the visits' medians, in seconds")]
    p99: Annotated[
        Amount | None,
        says(
            "median of the visits' p99, in seconds; a visit with fewer than 100 writes "
            "contributes its longest write"
        ),
    ]
    max: Annotated[Amount, says("s, the longest")]


class LoadProcessFigures(Section, frozen=True, kw_only=True):
    """The figures that show whether the load process delivered the planned load."""

    wanted_ratio: Annotated[
        Amount,
        says("share of the time in which the load process ran or waited for a core (median)"),
    ]
    bound: Annotated[
        bool, says("true if wanted_ratio is at least 0.9, which makes the rate a lower bound")
    ]
    reason: Annotated[
        str | None,
        says("why the load was not delivered as planned; null if the load was delivered"),
    ]


class VisitRate(Section, frozen=True, kw_only=True):
    """The rate of one visit. If two visits have the same number but different policies, they form a
    pair."""

    repeat: Annotated[Count, says("its number")]
    acquired_per_s: Annotated[Amount, says("granted in the window")]


class FsyncRow(FsyncCell, frozen=True, kw_only=True):
    """The figures of one cell under one load."""

    load: Annotated[
        LoadName,
        says(
            "name of the load; `max` means a closed loop; `80%` means an open loop at 80 % of "
            "the visit's maximum rate"
        ),
    ]
    offered_per_s: Annotated[Spread | None, says("requested rate; null in closed loop")]
    acquired_per_s: Annotated[
        Spread,
        says(
            "leases granted per second in the window; each lease appends two writes to the "
            "AOF: its acquire and its release"
        ),
    ]
    sustained: Annotated[
        bool | None,
        says(
            "false if more than 1 % of the due acquires got no lease, and chance cannot explain "
            "the missing leases; null in closed loop"
        ),
    ]
    acquire_s: Annotated[Latency, says("acquire times from the intended start, over all repeats")]
    fsyncs_per_s: Annotated[
        Spread | None, says("fsyncs per second of each instance, counted by the shim")
    ]
    locks_per_fsync: Annotated[
        Spread | None,
        says("number of leases for each fsync of one instance", label="locks /fsync", unit="count"),
    ]
    server_cpu_us_per_lock: Annotated[Spread | None, says("CPU of all instances per lease, µs")]
    aof_delayed_fsync: Annotated[
        Count | None, says("number of delayed fsyncs in all repeats, as counted by the servers")
    ]
    leases: Annotated[Count, says("leases granted in the whole load, including warm-up and drain")]
    denied: Annotated[
        dict[str, Count], says("number of acquires without a lease, for each outcome")
    ]
    release_failures: Annotated[Count, says("releases with an outcome other than RELEASED")]
    disk_fdatasync_s: Annotated[
        DiskFigures | None, says("fdatasync times of the servers' disk; null if unknown")
    ]
    generator: Annotated[LoadProcessFigures, says("the load process")]
    visits: Annotated[tuple[VisitRate, ...], says("each by itself, for pairs")]

    @property
    def rate(self) -> float:
        """The median of leases per second."""
        return self.acquired_per_s.median

    @property
    def rate_text(self) -> Annotated[str, says("locks", label="locks", unit="per_s")]:
        """The rate as text. If the load process was the limit, the text begins with ≥."""
        return rate_text(self.acquired_per_s, bound=self.generator.bound)

    @property
    def kept_up(self) -> bool:
        """True if the latency of this open loop may be shown. The latency may be shown if no queue
        grew and no operation started late."""
        return bool(self.sustained) and not self.generator.reason

    @property
    def rate_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the rate (acquires/s), computed from the visits. If there are too
        few visits, the interval is None."""
        logs = [math.log(visit.acquired_per_s) for visit in self.visits if visit.acquired_per_s]
        return paired_shift(logs, CONFIDENCE).ratios if logs else None

    @property
    def interval(self) -> Annotated[str, says("of the rate", label="95 % sure", unit="count")]:
        """The interval of the servers' rate, as text. If there are too few visits, the text is a
        dash. The text is also a dash if the load process was the limit, because the rate then shows
        nothing about the servers."""
        if self.rate_interval is None or self.generator.bound:
            return MISSING
        return "–".join(count(round(end)) for end in self.rate_interval)

    @property
    def refusals(self) -> int:
        """The number of acquires that were denied because of another caller."""
        return self.denied.get("contended", 0) + self.denied.get("split_vote", 0)


class AlwaysCost(MatrixPlace, frozen=True, kw_only=True):
    """The price of `always`, which is the rate under `everysec` divided by the rate under `always`.
    lockbench computes this price from pairs of consecutive visits."""

    ratio: Annotated[Amount, says("everysec's maximum ÷ always's")]
    generator_bound: Annotated[
        bool,
        says(
            "true if the load process limited one of the two rates; the real ratio is then larger"
        ),
    ]
    low: Annotated[
        Amount | None,
        says("lower end of the ratio's 95 % interval; null if there are too few pairs"),
    ] = None
    high: Annotated[
        Amount | None,
        says("upper end of the ratio's 95 % interval; null if there are too few pairs"),
    ] = None
    pairs: Annotated[Count, says("number of pairs of visits from which the ratio was computed")] = 0

    @property
    def is_known(self) -> bool:
        """True if the ratio has an interval and the load process was not the limit. Only then may a
        text quote the ratio."""
        return self.low is not None and not self.generator_bound

    @property
    def interval(self) -> Annotated[str, says("of the ratio", label="95 % sure", unit="count")]:
        """The interval of the ratio, as text. If the ratio may not be quoted, this text is a
        dash."""
        if not self.is_known or self.low is None or self.high is None:
            return MISSING
        return f"{_digits(self.low)}–{_digits(self.high)}"

    @property
    def times(self) -> Annotated[str, says("the ratio", label="always costs", unit="count")]:
        """The ratio without its interval, as text. If the ratio may not be quoted, the text is a
        dash."""
        return f"{_digits(self.ratio)}×" if self.is_known else MISSING

    @property
    def price(self) -> str:
        """The ratio with its interval, as text. If the interval does not lie completely above 1,
        the text contains "nothing measurable" instead of the ratio."""
        is_sure = self.low is not None and self.low > 1
        return f"{self.times if is_sure else 'nothing measurable'} ({self.interval})"


def _digits(ratio: float) -> str:
    """Return a ratio with two or three significant digits, such as 1.25, 2.5 or 12."""
    digits = 1 if ratio < 9.95 else 0
    if ratio < 1.995:
        digits = 2
    return f"{ratio:.{digits}f}"


class FsyncFinding(Section, frozen=True):
    """One expectation about the policies, with a verdict word that says whether the measurement met
    the expectation."""

    name: Annotated[str, says("of the expectation")]
    cell: Annotated[str, says("where")]
    text: Annotated[str, says("expected against seen")]
    verdict: Annotated[Word, says("what it comes to")]


class PlannerOption(Section, frozen=True, kw_only=True):
    """One option of the planner. An option has four settings. They are the number of instances, the
    policy, the time of a crashed instance's restart, and the behaviour of clients. Clients either
    trust a restarted instance or let it abstain."""

    instances: Annotated[Count, says("N", label="N")]
    policy: Annotated[Policy, says("of the servers")]
    restart: Annotated[
        Restart | None, says("how a crashed instance restarts; null if no crash was made")
    ] = None
    abstention: Annotated[
        bool, says("true if clients ignore a restarted instance's votes for the longest TTL")
    ] = False
    acquired_per_s: Annotated[Spread | None, says("maximum at the reference load")] = None
    generator_bound: Annotated[bool | None, says("limited by the load process")] = None
    p99_s: Annotated[
        Amount | None,
        says(
            "p99 of the acquire time at 80 % of the maximum; null if operations waited for a free "
            "caller or started late"
        ),
    ] = None
    sustained: Annotated[bool | None, says("of that open load")] = None
    crash: Annotated[Losses | None, says("what a crash loses", label="")] = None
    rate_interval: Annotated[
        tuple[Amount, Amount] | None,
        says("95 % interval of acquired_per_s; null if there are too few visits"),
    ] = None

    @property
    def way(self) -> Way | None:
        """The policy, the restart and the abstention of the option. The property is None if the
        crash result has no crash of this option."""
        return Way(self.policy, self.restart, self.abstention) if self.restart else None

    @property
    def back(
        self,
    ) -> Annotated[str, says("how a crashed server restarts, in words", label="restart")]:
        """A text that describes how a crashed instance restarts."""
        return self.way.back if self.way else MISSING

    @property
    def rate_text(self) -> Annotated[str, says("locks", label="locks", unit="per_s")]:
        """The rate as text. If the load process was the limit, the text begins with ≥."""
        return rate_text(self.acquired_per_s, bound=self.generator_bound)


class CostRange(Section, frozen=True, kw_only=True):
    """The lowest and the highest measured price of `always`. A single price would be wrong on other
    loads and disks."""

    least: Annotated[AlwaysCost, says("where always costs least")]
    most: Annotated[AlwaysCost, says("where it costs most")]

    @classmethod
    def of(cls, costs: Iterable[AlwaysCost]) -> Self:
        """Return the range of `costs`, which must contain at least one cost."""
        ordered = sorted(costs, key=lambda cost: cost.ratio)
        return cls(least=ordered[0], most=ordered[-1])

    def __str__(self) -> str:
        least = self.least.price
        most = self.most.price
        return most if least == most else f"between {least} and {most}"


class PlannerPage(Section, frozen=True, kw_only=True):
    """The planner's page. For each option, the page shows the speed and the losses."""

    reference: Annotated[
        Setup | None,
        says(
            "the load and the disk for which the options have figures; p99_s was measured at 80 "
            "% of the maximum rate"
        ),
    ]
    options: Annotated[tuple[PlannerOption, ...], says("N × policy × restart")]
    always_costs: Annotated[
        CostRange | None,
        says("range of the cost of `always` over all loads; null if no loads can be compared"),
    ]
    disk_fdatasync_s: Annotated[
        DiskFigures | None, says("fdatasync times of the disk over all rows; null if unknown")
    ]
    always_here: Annotated[
        AlwaysCost | None,
        says(
            "cost of the policy always for the reference load and the N that is shown; null if "
            "unknown"
        ),
    ] = None
    shown_instances: Annotated[
        Count | None,
        says("the N in the pictures; more figures exist for this N than for any other N"),
    ] = None
    ttl_ms: Annotated[
        Amount | None, says("TTL of the crash result, in ms; null without a crash result")
    ]
    longest_ttl_ms: Annotated[
        Amount | None, says("the user's longest TTL in ms, from --ttl; null without --ttl")
    ] = None
    crash_locks_per_s: Annotated[Amount | None, says("offered while it crashed servers")]
    warnings: Annotated[
        tuple[str, ...], says("warnings about combining the results of fsync and crash")
    ] = ()
    unmeasured: Annotated[
        tuple[str, ...],
        says("each missing measurement, with the command that makes the measurement"),
    ] = ()
    advice: Annotated[tuple[str, ...], says("sentences, the recommendation first")] = ()


class FsyncFleet(Section, frozen=True, kw_only=True):
    """The facts about the servers of the measurement."""

    started: Annotated[bool, says("by us")]
    server: Annotated[
        ServerBinary | None, says("the server program; null if the user named the servers")
    ]
    instances: Annotated[
        tuple[InstanceFacts, ...] | None,
        says("facts about the user's servers; null if lockbench started the servers"),
    ]


class FsyncTimes(Section, frozen=True, kw_only=True):
    """The number of visits of each cell, and the durations of the loads."""

    repeats: Annotated[Count, says("number of time slices of each cell, all on the same servers")]
    warmup_s: Annotated[Amount, says("before each load")]
    seconds: Annotated[Amount, says("of each load")]
    quick: Annotated[bool, says("--quick")]
    scenario: Annotated[
        str,
        says(
            "a note that says which settings of the scenario lockbench used, or which loads "
            "are too heavy for the cores of this machine"
        ),
    ] = ""


class FsyncConditions(FsyncTimes, frozen=True, kw_only=True):
    """The conditions under which the matrix was measured."""

    visits_planned: Annotated[
        Count, says("number of planned visits, summed over all cells that this machine can measure")
    ]
    visits_done: Annotated[Count, says("so far")]


class FsyncResult(Document, frozen=True, kw_only=True):
    """The result of `lockbench fsync`, which shows the price of each AOF fsync policy."""

    kind: Annotated[Literal["fsync"], says("of the result")] = "fsync"
    fleet: Annotated[FsyncFleet, says("who served")]
    conditions: Annotated[FsyncConditions, says("under which it was measured")]
    rows: Annotated[tuple[FsyncRow, ...], says("one per cell and load")]
    costs: Annotated[
        tuple[AlwaysCost, ...],
        says("cost of `always` for each N, load and disk latency"),
    ]
    findings: Annotated[
        tuple[FsyncFinding, ...], says("findings that show whether each policy behaves as expected")
    ]
    planner: Annotated[PlannerPage, says("the planner's page")]
