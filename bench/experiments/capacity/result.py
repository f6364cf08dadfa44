"""Defines the result of `capacity`: *the probes and closed loops of each point → the capacity of
the point and the resource that limits it*.

The sections of this result follow the rules in `bench.measure.section`. All rates are in operations
per second. The complete result of every run is stored in a folder below probes/.
"""

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Annotated, Literal

from bench.measure.fleet_facts import FleetFacts
from bench.measure.latency import Latency
from bench.measure.result import Document
from bench.measure.section import Amount, Count, Section, Share, says
from bench.measure.verdict import Status
from bench.scenario import Scenario

# A probe is near the capacity if the two rates differ by at most this factor. Such a probe shows
# what limits the capacity.
NEAR_BY = 2.0


class Seen(Enum):
    """The outcome of one probe."""

    HELD = "held"
    MISSED = "missed"
    # The probe missed its limit, and the generator may be the cause.
    SATURATED = "saturated"
    # The machine kept the load process from running.
    PAUSED = "paused"


class Attainment(Section, frozen=True, kw_only=True):
    """The share of acquires that got their lease within the SLO's limit, with its 95 % interval
    (Wilson)."""

    within: Annotated[Count, says("acquires within the limit")]
    operations: Annotated[Count, says("all acquires")]
    limit_s: Annotated[Amount, says("the SLO's limit")]
    rate: Annotated[Share | None, says("within ÷ operations", label="within")]
    low: Annotated[Share | None, says("lower end of its interval")]
    high: Annotated[Share | None, says("upper end of its interval")]


class ResourceUse(Section, frozen=True):
    """The measured use of one resource. Examples of resources are the CPU and the callers."""

    name: Annotated[
        str | None, says("name of the resource; null if no resource was measured", label="")
    ]
    text: Annotated[str, says("what that means")]
    ratio: Annotated[
        Amount | None,
        says(
            "share of the resource that the load used; 1 means the whole resource; null if unknown"
        ),
    ] = None
    full_per_s: Annotated[
        Amount | None,
        says(
            "rate in leases per second at which the load would use the whole resource; null if "
            "unknown"
        ),
    ] = None


class ProbedInstance(Section, frozen=True, kw_only=True):
    """The figures of one Redis instance during a probe."""

    address: Annotated[str, says("host and port", label="instance", shown="table")]
    index: Annotated[Count, says("position among the instances", label="#", shown="table")]
    cpu_ratio: Annotated[Amount | None, says("its share of a core", label="CPU", shown="table")]
    cpu_us_per_command: Annotated[
        Amount | None, says("its CPU time", label="CPU/cmd", shown="table")
    ]
    reply_p50_s: Annotated[
        Amount | None, says("half of the sampled replies took at most this time", shown="table")
    ]
    reply_p99_s: Annotated[
        Amount | None, says("99 % of the sampled replies took at most this time", shown="table")
    ]
    delayed_fsyncs: Annotated[
        int | None,
        says("AOF writes that waited for an fsync", label="waited for fsync", shown="table"),
    ]


class ProbeGenerator(Section, frozen=True, kw_only=True):
    """The figures of the load generator during a probe."""

    cpu_ratio: Annotated[
        Amount | None,
        says("CPU use of the busiest load process, as a share of one core", label="CPU"),
    ]
    late_s: Annotated[
        Amount | None,
        says(
            "delay of the load generator's timer, at the percentile that `figure` names",
            label="timer delay",
        ),
    ] = None
    figure: Annotated[str, says("the percentile of acquire that the SLO limits")] = "p99"


class Probe(Section, frozen=True, kw_only=True):
    """One probe, which is one open-loop run of the search."""

    step: Annotated[
        str,
        says(
            "origin of this rate: target if the user set the rate, search if the search chose "
            "the rate",
            shown="table",
        ),
    ]
    rate_per_s: Annotated[Amount, says("offered", label="offered", shown="table data")]
    completed_per_s: Annotated[
        Amount | None, says("acquires that returned", label="done", shown="table")
    ]
    acquire_s: Annotated[Latency, says("acquires that got a lease", shown="table:p50,p99 data:p99")]
    attainment: Annotated[
        Attainment | None,
        says(
            "acquires that kept the SLO's time limit; null if the SLO does not limit a "
            "percentile of the acquire time",
            label="share",
            shown="table:rate",
        ),
    ]
    users: Annotated[Count, says("callers", label="callers", shown="table")]
    generator: Annotated[
        ProbeGenerator,
        says(
            "figures that show whether the load process delivered the requested load",
            label="load",
            shown="table:late_s,cpu_ratio",
        ),
    ]
    seen: Annotated[
        Seen,
        says(
            "the probe's outcome; `saturated` means that the load generator may have caused a "
            "miss; `paused` means that the machine may have caused a miss",
            label="result",
            shown="table data",
        ),
    ]
    uses: Annotated[tuple[ResourceUse, ...], says("the use of each resource")]
    instances: Annotated[tuple[ProbedInstance, ...], says("one entry per instance")]
    left_out: Annotated[
        Count,
        says(
            "number of acquires that overlap a pause of the load process; the verdict on the "
            "SLO ignores these acquires"
        ),
    ] = 0
    others_ratio: Annotated[
        Share | None, says("share of this machine's CPU time that other work used; null if unknown")
    ] = None


class Capacity(Section, frozen=True, kw_only=True):
    """The range of rates that contains the capacity. All probes together determine this range."""

    low: Annotated[
        Amount | None,
        says("lower end of the capacity's range; null if too few probes kept the SLO"),
    ]
    high: Annotated[
        Amount | None,
        says("upper end of the capacity's range; null if too few probes missed the SLO"),
    ]
    at_least: Annotated[
        bool,
        says("true if the capacity has a lower end and no upper end"),
    ]
    likely: Annotated[
        Amount | None, says("middle of the capacity's range; null if one end is unknown")
    ] = None
    sure: Annotated[Share, says("how sure the interval is")] = 0.95
    as_it_is: Annotated[
        bool,
        says(
            "true if misses during pauses of this machine count as misses; the result is then "
            "the capacity of the machine in its present state"
        ),
    ] = False

    @property
    def width(self) -> float:
        """Half of the interval's relative width. A value of 0.1 means ±10 %. If one end of the
        interval is unknown, the width is infinite."""
        return float((self.high / self.low) ** 0.5) - 1 if self.low and self.high else math.inf


class Knee(Section, frozen=True, kw_only=True):
    """The best rate, which has the highest ratio of throughput to latency. lockbench considers only
    rates at which a probe held."""

    rate_per_s: Annotated[Amount, says("offered")]
    acquire_s: Annotated[Latency, says("at that rate")]


class Estimate(Section, frozen=True):
    """The mean of a figure, with its 95 % interval."""

    value: Annotated[Amount, says("its geometric mean")]
    low: Annotated[Amount, says("lower end")]
    high: Annotated[Amount, says("upper end")]


class Headroom(Section, frozen=True, kw_only=True):
    """The distance between the capacity and the user's target rate."""

    ratio: Annotated[
        float | None,
        says(
            "capacity ÷ target rate − 1. The capacity is capacity.likely, or capacity.low if "
            "capacity.likely is null. The ratio is null if both capacities are null"
        ),
    ]
    acquire_s: Annotated[
        Estimate | None,
        says(
            "acquire time at the target rate, as the percentile that the SLO limits; null if too "
            "few probes measured this percentile"
        ),
    ] = None
    holds: Annotated[
        bool | None,
        says(
            "true if the fleet keeps the SLO at the target rate with 95 % certainty; false "
            "if it certainly misses the SLO; null if unknown"
        ),
    ] = None


class ClosedLoop(Section, frozen=True, kw_only=True):
    """One closed-loop run."""

    users: Annotated[Count, says("callers", label="callers", shown="table")]
    achieved_per_s: Annotated[Amount | None, says("leases granted", label="leases", shown="table")]
    acquire_s: Annotated[Latency, says("acquires that got a lease", shown="table:p50,p99")]
    generator_cpu_ratio: Annotated[
        Amount | None,
        says(
            "CPU use of the busiest load process, as a share of one core",
            label="load CPU",
            shown="table",
        ),
    ]


class CapacityPoint(Section, frozen=True, kw_only=True):
    """The capacity for one point of a sweep. A point is a combination of a fleet and a load."""

    variables: Annotated[dict[str, str], says("what --sweep has set")]
    scenario: Annotated[Scenario, says("as in a run's result")]
    fleet: Annotated[
        FleetFacts | None, says("the servers, as in a run's result; null if no server was found")
    ]
    status: Annotated[Status, says("the point's own verdict")]
    reasons: Annotated[tuple[str, ...], says("sentences that explain it")]
    capacity: Annotated[Capacity, says("between which rates it lies")]
    knee: Annotated[Knee | None, says("null: nothing held")]
    headroom: Annotated[Headroom | None, says("null: no target was named")]
    next_limit: Annotated[
        ResourceUse,
        says(
            "the resource with the smallest reserve. lockbench looks at the probe whose rate is "
            "nearest to the capacity, if possible a probe that kept the SLO"
        ),
    ]
    probes: Annotated[tuple[Probe, ...], says("the search, in order")]
    callers: Annotated[tuple[ClosedLoop, ...], says("closed loops, by callers")]
    agreement: Annotated[
        str | None, says("sentence that compares the rate of the closed loop with the capacity")
    ] = None

    @property
    def near(self) -> Annotated[Probe | None, says("the probe at the capacity", label="")]:
        """The probe nearest to the capacity."""
        return at_capacity(self.probes, self.capacity)


class CapacityResult(Document, frozen=True, kw_only=True):
    """The result of a capacity search. For each point, the result has the highest rate that keeps
    the SLO, and the resource that limits this rate."""

    kind: Annotated[Literal["capacity"], says("the command")] = "capacity"
    slo: Annotated[tuple[str, ...], says("expressions that must all hold")]
    target_rate_per_s: Annotated[
        Amount | None, says("the rate that the user plans for; null if the user named no rate")
    ]
    points: Annotated[tuple[CapacityPoint, ...], says("as many as were begun")]
    stopped: Annotated[
        str, says("why some probes are missing; empty if nothing stopped the search")
    ] = ""


def point_name(variables: Mapping[str, str]) -> str:
    """Return the name that a sweep gives to a point, such as `instances=3 fsync=always`."""
    return " ".join(f"{name}={value}" for name, value in variables.items())


def at_capacity(probes: Sequence[Probe], capacity: Capacity) -> Probe | None:
    """Return the probe whose rate is nearest to the capacity. The rate of this probe and the
    capacity differ by a factor of two at most. If there is no such probe, the function returns
    None. If two probes are equally near, the function returns the probe with the higher rate. If
    any of these probes held, the function considers only the probes that held. A missed probe uses
    all callers and keys, so it does not show which resource is the limit."""
    edge = capacity.likely or capacity.low or capacity.high

    def far(probe: Probe) -> tuple[float, float]:
        return abs(math.log(probe.rate_per_s / edge)) if edge else 0.0, -probe.rate_per_s

    near = [probe for probe in probes if far(probe)[0] <= math.log(NEAR_BY)]
    held = [probe for probe in near if probe.seen is Seen.HELD]
    return min(held or near, key=far, default=None)
