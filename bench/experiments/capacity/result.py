"""The result of `capacity`: *probes and closed loops, one fleet per point → what each bears, and what limits it*.

Rules: those of `bench.measure.section`; a rate is one of operations. The whole result of every run lies below probes/.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Literal

from bench.experiments.capacity.usl import Law
from bench.measure.generator import BUSY_CORE, GeneratorWord
from bench.measure.latency import Latency
from bench.measure.result import Document
from bench.measure.run_result import FleetFacts
from bench.measure.section import Amount, Count, Section, Share, says
from bench.measure.verdict import Status
from bench.scenario import Scenario


class Seen(Enum):
    """What a probe at one rate showed."""

    HELD = "held"
    MISSED = "missed"
    CLEARLY_MISSED = "missed by far"
    SATURATED = "saturated"  # the generator


class Step(Enum):
    """Why a rate is tried."""

    DOUBLING = "doubling"
    BISECTING = "bisecting"
    CONFIRMING = "confirming"


class Attainment(Section, frozen=True, kw_only=True):
    """Acquires that got their lease within the SLO's limit, of all; the share with its 95 % Wilson interval."""

    within: Annotated[Count, says("acquires that did")]
    operations: Annotated[Count, says("all of them")]
    limit_s: Annotated[Amount, says("the SLO's limit")]
    rate: Annotated[Share | None, says("within ÷ operations")]
    low: Annotated[Share | None, says("lower end of its interval")]
    high: Annotated[Share | None, says("upper end of its interval")]


class Use(Section, frozen=True):
    """How far a resource was used."""

    name: Annotated[str, says("the resource")]
    ratio: Annotated[float | None, says("1 = all of it; null: not known")]
    text: Annotated[str, says("what that means")]


class NextLimit(Section, frozen=True):
    """The resource that is used up first."""

    name: Annotated[str | None, says("the resource; null: none was near its limit")]
    text: Annotated[str, says("what was seen")]
    uses: Annotated[tuple[Use, ...], says("every resource at the largest rate that held")] = ()


class ProbedInstance(Section, frozen=True, kw_only=True):
    """One instance while it was loaded."""

    index: Annotated[Count, says("position among the instances")]
    address: Annotated[str, says("host and port")]
    server: Annotated[str | None, says("program and version")]
    state: Annotated[str, says("how it ended")]
    cpu_ratio: Annotated[float | None, says("its share of a core")]
    cpu_us_per_command: Annotated[float | None, says("its CPU time")]
    reply_p50_s: Annotated[float | None, says("half of the sampled replies took no longer")]
    reply_p99_s: Annotated[float | None, says("99 % of the sampled replies took no longer")]
    delayed_fsyncs: Annotated[int | None, says("AOF writes that waited for an fsync")]


class KeptLimit(Section, frozen=True, kw_only=True):
    """One expression of the SLO."""

    expression: Annotated[str, says("as written")]
    value: Annotated[float | None, says("what was measured")]
    limit: Annotated[float, says("in the unit of the value")]
    kept: Annotated[bool, says("a limit on a percentile of acquire: by the share of all acquires, failed ones too")]
    reason: Annotated[str | None, says("why it cannot be answered, or is infinite")]


class ProbeGenerator(Section, frozen=True, kw_only=True):
    """Of the section `generator` of the probe's run."""

    cpu_ratio: Annotated[float | None, says("CPU of the busiest load process ÷ one core")]
    scheduler_lag_p99_s: Annotated[float | None, says("how late its own loop ran")]
    verdict: Annotated[GeneratorWord, says("whether the load was what it claims")]
    reason: Annotated[str | None, says("why it was not")]


class Probe(Section, frozen=True, kw_only=True):
    """One open-loop run of the search."""

    rate_per_s: Annotated[Amount, says("offered")]
    step: Annotated[Step, says("why that rate was tried")]
    seen: Annotated[Seen, says("saturated: the generator may be why it missed")]
    achieved_per_s: Annotated[float | None, says("leases granted")]
    completed_per_s: Annotated[float | None, says("acquires that returned")]
    sustained: Annotated[bool | None, says("whether at least 0.99 of what was due was completed in time")]
    users: Annotated[Count, says("callers")]
    duration_s: Annotated[Amount, says("of the measured window")]
    acquire_s: Annotated[Latency, says("of those that got a lease")]
    attainment: Annotated[Attainment | None, says("null: the SLO has no upper limit on a percentile of acquire")]
    slo: Annotated[tuple[KeptLimit, ...], says("every expression")]
    generator: Annotated[ProbeGenerator, says("whether the load can be trusted")]
    uses: Annotated[tuple[Use, ...], says("how far each resource was used")]
    instances: Annotated[tuple[ProbedInstance, ...], says("one entry per instance")]

    @property
    def is_bound(self) -> bool:
        """Whether the generator had no more to give."""
        return is_busy(self.generator.cpu_ratio)


class Capacity(Section, frozen=True, kw_only=True):
    """Between the largest rate that held and the smallest that did not, as far as no probe contradicts them."""

    low: Annotated[float | None, says("held; null: no rate did")]
    high: Annotated[float | None, says("did not hold; null: not known")]
    confirmed: Annotated[Count, says("how often low held again")]
    at_least: Annotated[bool, says("what bounds it above is the generator, or nothing: the capacity is at least low")]
    held: Annotated[Count | None, says("probes at low that held; null in results of before 2026-11-22")] = None
    probed: Annotated[Count | None, says("all probes at low; null as `held`")] = None


class Knee(Section, frozen=True, kw_only=True):
    """The rate with most throughput per latency among those that held."""

    rate_per_s: Annotated[Amount, says("offered")]
    acquire_s: Annotated[Latency, says("at that rate")]


class Headroom(Section, frozen=True, kw_only=True):
    """What is left beyond a target."""

    target_rate_per_s: Annotated[Amount, says("asked for")]
    ratio: Annotated[float | None, says("capacity.low ÷ target − 1; null: no rate holds")]
    kept: Annotated[bool, says("whether capacity.low reaches the target")]


class ClosedLoop(Section, frozen=True, kw_only=True):
    """One closed-loop run."""

    users: Annotated[Count, says("callers")]
    achieved_per_s: Annotated[float | None, says("leases granted")]
    acquire_s: Annotated[Latency, says("of those that got a lease")]
    generator_cpu_ratio: Annotated[float | None, says("CPU of the busiest load process ÷ one core")]

    @property
    def is_bound(self) -> bool:
        """Whether the generator had no more to give."""
        return is_busy(self.generator_cpu_ratio)


class CapacityPoint(Section, frozen=True, kw_only=True):
    """One fleet and load."""

    variables: Annotated[dict[str, str], says("what --sweep has set")]
    scenario: Annotated[Scenario, says("as in a run's result")]
    fleet: Annotated[FleetFacts | None, says("as in a run's result; null: no server was there")]
    status: Annotated[Status, says("the point's own verdict")]
    reasons: Annotated[tuple[str, ...], says("sentences that explain it")]
    capacity: Annotated[Capacity, says("low held, high did not")]
    attainment: Annotated[Attainment | None, says("at capacity.low")]
    knee: Annotated[Knee | None, says("null: nothing held")]
    headroom: Annotated[Headroom | None, says("null: no target was named")]
    next_limit: Annotated[NextLimit, says("at capacity.low")]
    instances: Annotated[tuple[ProbedInstance, ...], says("at capacity.low")]
    probes: Annotated[tuple[Probe, ...], says("the search, in order")]
    callers: Annotated[tuple[ClosedLoop, ...], says("closed loops, by callers")]
    law: Annotated[Law | None, says("how throughput grows with callers")]
    no_law: Annotated[str | None, says("why no law was fitted")]


class CapacityResult(Document, frozen=True, kw_only=True):
    """The largest rate that keeps an SLO, and what limits it next."""

    kind: Annotated[Literal["capacity"], says("the command")] = "capacity"
    slo: Annotated[tuple[str, ...], says("expressions that must all hold")]
    target_rate_per_s: Annotated[float | None, says("the rate whose headroom was asked for")]
    points: Annotated[tuple[CapacityPoint, ...], says("as many as were begun")]


RESULT = CapacityResult


def point_name(variables: Mapping[str, str]) -> str:
    """Return what a sweep calls a point: `instances=3 fsync=always`."""
    return " ".join(f"{name}={value}" for name, value in variables.items())


def is_busy(cpu_ratio: float | None) -> bool:
    """Whether a load process that used so much of a core had no more to give."""
    return (cpu_ratio or 0.0) >= BUSY_CORE
