"""The module that makes the result of a run: *the history, the notes of the workers, the counters
of the servers → the whole result*.

Rules
- If a number is doubtful, `warnings` says so. A missing number is None, and a warning says why.
- lockbench first counts the leaked keys and then unlinks them by name.
- `bench.gates.run_verdict` makes the verdict from the finished sections. So the same verdict can be
  computed again from the stored result.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
from msgspec.structs import replace as replaced

from bench.gates.run_verdict import judge_limits, judge_result, judge_run
from bench.hosts.workers import (
    Clocks,
    FarCounts,
    host_warnings,
    leases_by_worker,
    load_workers,
    share_warning,
    unbounded,
)
from bench.measure import workers
from bench.measure.begun import read_open, torn_lost
from bench.measure.clocks import Who, read_clocks
from bench.measure.environment import describe_environment
from bench.measure.facts import NO_DUE, Due, Window
from bench.measure.fleet_facts import InfoDelta, InstanceReport
from bench.measure.fold import Fold, Sections
from bench.measure.gaps import (
    Gap,
    gap_warnings,
    pause_histograms,
    read_gaps,
    read_pauses,
    touched,
    with_gaps,
)
from bench.measure.histogram import Histogram
from bench.measure.history import history_parts, read_history
from bench.measure.latency import COUNTED
from bench.measure.limits import NO_LIMITS, Limits
from bench.measure.outcomes import acquired
from bench.measure.record import NEVER_NS, Records
from bench.measure.run_result import JudgedThreshold, Measured, RunResult, SafetyReport, fields_of
from bench.measure.section import Section
from bench.measure.verdict import Verdict
from bench.recipes.fencing import OWN_KEYS
from bench.recipes.registry import find_recipe
from bench.run.faults import FaultTimeline
from bench.run.follow import Course
from bench.run.servers import Servers
from bench.safety.holders import Holders
from bench.safety.judge import Circumstances, Judge, holes, without_seal
from bench.scenario import Scenario
from bench.topology.probe import leaked_keys
from bench.workloads.demand import due_between
from lockcore.clock import NS_PER_MS

_UNJUDGED = Verdict(status="inconclusive", reasons=())
# compare repeats the warnings that contain this text.
SHOWS_A_FLAW = "exists only to show a flaw"


@dataclass(frozen=True)
class RunEvidence:
    """The data from which lockbench makes the result of a run.

    `counters` and `server_cpu_s` are the two results of the function `counted`. `keys_before`: how
    many keys each of our servers had before the run. `seen_live`: for each kind of violation, the
    number of violations that were observed during the run.
    """

    scenario: Scenario
    servers: Servers
    workdir: Path
    key_prefix: str
    course: Course
    window: Window
    timeline: FaultTimeline
    counters: Sequence[InfoDelta]
    server_cpu_s: float | None
    limits: Limits = NO_LIMITS
    keys_before: Sequence[int | None] = ()
    seen_live: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def context(self) -> "Context":
        """Further facts for the judge, which the record of the run does not contain."""
        return Context.of(self)


class Context(Section, frozen=True, kw_only=True):
    """Facts for the judge of a run, which the record of the run does not contain.

    Times are in ns of CLOCK_MONOTONIC.
    """

    scenario: Scenario
    window_ns: tuple[int, int]
    interrupted: bool = False
    # True if every caller could release its lease
    orderly: bool = True
    # one sentence for each worker or Locust that ended early or did not end
    ended: tuple[str, ...] = ()
    # one sentence for each worker that a fault killed as ordered
    casualties: tuple[str, ...] = ()
    # reasons why no figure of the run counts
    breaks: tuple[str, ...] = ()
    fault_spans_ns: tuple[tuple[int, int], ...] = ()
    # samples of the wall clock
    clock: tuple[tuple[int, int], ...] = ()
    # the commands that the servers ran, and the CPU seconds that they used, during the run
    commands: int | None = None
    server_cpu_s: float | None = None
    beside_cpu_ratio: float | None = None
    # one sentence for each file of a kept record that has changed
    torn: tuple[str, ...] = ()
    # the time of the verdict; nothing in the record is later
    until_ns: int = NEVER_NS
    # the violations that were observed during the run, by kind
    seen_live: dict[str, int] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, evidence: RunEvidence) -> Self:
        """Return the context of a run that has ended."""
        course = evidence.course
        commands = [info.commands_processed for info in evidence.counters]
        return cls(
            scenario=evidence.scenario,
            window_ns=(evidence.window.start_ns, evidence.window.stop_ns),
            interrupted=course.interrupted,
            orderly=course.orderly,
            ended=tuple(course.deaths),
            casualties=tuple(course.casualties),
            breaks=(
                *course.deaths,
                *evidence.timeline.absences(),
                *evidence.servers.losses(),
                *evidence.limits.invalidities(),
            ),
            fault_spans_ns=tuple(evidence.timeline.spans_ns()),
            clock=tuple(course.clock),
            commands=None if None in commands else sum(filter(None, commands)),
            server_cpu_s=evidence.server_cpu_s,
            beside_cpu_ratio=course.beside_ratio,
            until_ns=time.monotonic_ns(),
            seen_live=dict(evidence.seen_live),
        )


@dataclass(frozen=True, slots=True)
class JudgedRecord:
    """The judged record of a run.

    `used`: the resources for which callers requested the lock. `leases`: how many leases each
    worker had. `whole`: True if the folder holds the records of all resources.
    """

    measured: Measured
    thresholds: tuple[JudgedThreshold, ...]
    verdict: Verdict
    warnings: tuple[str, ...]
    reports: Sequence[workers.WorkerNote]
    clocks: Clocks
    used: Collection[int]
    leases: Mapping[int, int]
    whole: bool


def judge_record(workdir: Path, context: Context) -> JudgedRecord:
    """Judge the record in `workdir`.

    `workdir`: the folder of a run that has just ended, or the folder of a kept record.
    """
    reports = workers.read_workers(workdir)
    clocks = read_clocks(workdir)
    counts = FarCounts.of(workdir)
    folded, used, leases = _judge(workdir, context, reports, clocks, counts)
    cost = replaced(folded.values.cost, beside_cpu_ratio=context.beside_cpu_ratio)
    measured = replaced(folded.values, cost=cost)
    thresholds = tuple(judge_limits(measured, context.breaks, context.scenario.thresholds))
    verdict = judge_run(measured, context.breaks, thresholds, interrupted=context.interrupted)
    return JudgedRecord(
        measured, thresholds, verdict, folded.warnings, reports, clocks, used, leases, counts.whole
    )


def conclude(
    evidence: RunEvidence, *, run_id: str, command: Sequence[str], started_at: str
) -> RunResult:
    """Judge a run that has ended, and return its result."""
    scenario = evidence.scenario
    context = evidence.context
    judged = judge_record(evidence.workdir, context)
    reports = judged.reports
    clocks = judged.clocks
    measured = judged.measured
    # The last lock of a killed caller has no record. So after a kill every resource is checked.
    is_complete = context.orderly and judged.whole
    resources = sorted(judged.used) if is_complete else range(scenario.resources)
    leaks = leaked_keys(evidence.servers.urls, key_names(evidence.key_prefix, scenario, resources))
    # The fencing counter and the registers are removed, too, but they do not count as leaks.
    if scenario.fencing:
        leaked_keys(evidence.servers.urls, (evidence.key_prefix + name for name in OWN_KEYS))
    others = evidence.servers.other_keys(evidence.keys_before)
    instances = _instances(evidence, workers.instances(reports), leaks, others)
    result = RunResult(
        **fields_of(measured),
        id=run_id,
        command=tuple(command),
        started_at=started_at,
        scenario=scenario.shown(),
        seed=scenario.seed,
        interrupted=context.interrupted,
        environment=describe_environment(),
        fleet=evidence.servers.section(),
        instances=instances,
        limits=evidence.limits,
        workers=load_workers(reports, clocks, judged.leases),
        faults=evidence.timeline.section(),
        breaks=context.breaks,
        thresholds=judged.thresholds,
        warnings=(
            *judged.warnings,
            *_warnings(evidence, instances, reports, clocks, measured.safety),
        ),
        verdict=_UNJUDGED,
    )
    return replaced(result, verdict=judge_result(result))


def _judge(
    workdir: Path,
    context: Context,
    reports: Sequence[workers.WorkerNote],
    clocks: Clocks,
    counts: FarCounts,
) -> tuple[Sections, set[int], Counter[int]]:
    """Judge the history part by part. Return the sections, the resources that callers requested,
    and the leases of each worker. If an error stops the judge, the report has the violations that
    were counted before it. The figures are then invalid, and the verdict is never SAFE."""
    scenario = context.scenario
    window = Window(*context.window_ns)
    gaps = read_gaps(workdir, clocks)
    total = Fold(scenario, window, _due(scenario, window), cut=context.interrupted)
    used = set[int]()
    leases = Counter[int]()
    away = Counter[str]()
    pauses = read_pauses(workdir, clocks)
    paused = dict[str, Histogram]()
    oracle = Judge(scenario.ttl_ms)
    failure = ""
    holders = Holders(
        window, [begun for begun, _ in context.fault_spans_ns], context.scenario.capacity
    )
    try:
        for fold in counts.folds.values():
            total.sums.merge(fold)
        parts = history_parts(workdir)
        history = read_history(workdir, 0, parts)
        recorded = Counter(history.counts)
        recorded.update(counts.left)
        granted = total.sums.numbers["totals"]["acquired"]
        gaps_ns = tuple((gap.begun_ns, gap.ended_ns) for gap in gaps)
        bare = _circumstances(workdir, context, reports, recorded, clocks, history.unsealed)
        oracle = Judge(scenario.ttl_ms, replace(bare, leases=granted, gaps_ns=gaps_ns))
        for part in range(parts):
            history = read_history(workdir, part, parts) if part else history
            oracle.add(history)
            records = history.believed(context.until_ns).records
            (total.add_handoffs if counts.folds else total.add)(records)
            holders.add(records, oracle.violated_resources)
            used.update(np.unique(records.resource).tolist())
            leases += leases_by_worker(records)
            away += _touched(records, window, gaps)
            intended = records[window.holds(records.intended_ns)]
            for name, histogram in pause_histograms(intended, pauses).items():
                paused.setdefault(name, Histogram()).merge(histogram)
    except Exception as error:  # noqa: BLE001 - no error may undo earlier findings
        oracle.fail(error)
        failure = f"the record could not be read to its end ({type(error).__name__}: {error})"
    oracle.see(context.seen_live)
    ratio = counts.ratio(leases.total())
    alone = bool(find_recipe(scenario.recipe).package) and len(reports) == 1
    report = replaced(oracle.report(), holders=holders.section())
    safety = replaced(report, judged_ratio=ratio, within_one_process=alone)
    sections = total.sections(reports, context.server_cpu_s, safety)
    cut = with_gaps(sections.values, gaps, window, away, scenario.processes)
    values = _with_paused(cut, paused, failure)
    warnings = (*sections.warnings, *gap_warnings(values.generator), *share_warning(ratio))
    return Sections(values, warnings), used, counts.leases or leases


def _with_paused(values: Measured, paused: Mapping[str, Histogram], failure: str) -> Measured:
    """Return a copy of `values` that also has the histograms of the planned pauses.

    `failure`: the reason why the record could not be read to its end, or "". If `failure` is not
    empty, the verdict about the load generator becomes INVALID.
    """
    shown = {name: histogram.encode() for name, histogram in paused.items()}
    values = replaced(values, histograms={**values.histograms, **shown})
    if not failure:
        return values
    generator = replaced(values.generator, verdict="INVALID", reason=failure)
    return replaced(values, generator=generator)


def _touched(records: Records, window: Window, gaps: Sequence[Gap]) -> Counter[str]:
    """Count the acquires of the measured window that a gap may have delayed. A gap is a time in
    which a load process did not run. Also count how many of these acquires failed."""
    if not gaps:
        return Counter()
    inside = records[window.holds(records.intended_ns)]
    near = touched(inside, gaps)
    return Counter(operations=int(near.sum()), failures=int((near & ~acquired(inside)).sum()))


def _due(scenario: Scenario, window: Window) -> Due:
    """Return how many operations the schedule of an open loop requires until the end of the window.

    A worker that ends early does not change this number.
    """
    if scenario.rate_per_s is None:
        return NO_DUE
    between = partial(due_between, scenario.rate_per_s, scenario.arrivals, scenario.seed)
    first_ns = int(scenario.warmup_ms * NS_PER_MS)
    last_ns = first_ns + window.stop_ns - window.start_ns
    return Due(between(first_ns, last_ns), between(0, last_ns))


def _circumstances(  # noqa: PLR0917 - the caller has read these already
    workdir: Path,
    context: Context,
    reports: Sequence[workers.WorkerNote],
    recorded: Mapping[Who, int],
    clocks: Clocks,
    unsealed: Mapping[Who, int],
) -> Circumstances:
    scenario = context.scenario
    about = find_recipe(context.scenario.recipe).about
    ended = (*context.ended, *context.casualties)
    missing = holes(reports, recorded, read_open(workdir), scenario.processes, "; ".join(ended))
    torn = torn_lost(workdir)
    torn_note = [f"{torn:,} rows of lost attempts are damaged or missing"] if torn else []
    reported = workers.added(report.misreports for report in reports)
    unsafe_recipe = None if about.safe else about.flaw
    return Circumstances(
        unsafe_recipe=unsafe_recipe,
        capacity=scenario.capacity,
        fault_spans_ns=context.fault_spans_ns,
        clock=context.clock,
        missing=(
            *ended,
            *context.torn,
            *missing,
            *unbounded(reports, clocks),
            *without_seal(reports, unsealed),
            *workers.torn_notes(workdir),
            *torn_note,
        ),
        commands=context.commands,
        releases_ask=True,
        until_ns=NEVER_NS if clocks else context.until_ns,
        misreports=tuple(
            f"the recipe {scenario.recipe} reported {number:,} × {what}, which is impossible; "
            "correct the recipe"
            for what, number in reported.items()
        ),
    )


def key_names(key_prefix: str, scenario: Scenario, resources: Iterable[int]) -> Iterator[str]:
    """Return the names of the recipe's keys for these resources. All instances use these names."""
    suffixes = find_recipe(scenario.recipe).about.suffixes(scenario.capacity)
    return (f"{key_prefix}r{index}{suffix}" for index in resources for suffix in suffixes)


def _instances(
    evidence: RunEvidence,
    observed: Sequence[InstanceReport],
    leaks: Sequence[int | None],
    others: Sequence[int | None],
) -> tuple[InstanceReport, ...]:
    """Return the figures of each instance, as the load observed them and as the instance reports
    them."""
    rows = []
    for fact, info, leak, other in zip(
        evidence.servers.facts, evidence.counters, leaks, others, strict=True
    ):
        unknown = InstanceReport(index=fact.index, address=fact.address, state="unknown")
        row = observed[fact.index] if fact.index < len(observed) else unknown
        cpu_s = info.cpu_s
        commands = info.commands_processed
        cpu_us = cpu_s * 1e6 / commands if cpu_s is not None and commands else None
        server = f"{fact.server} {fact.version}" if fact.server else row.server
        left = {"leaked_keys": leak, "other_keys": other}
        rows.append(replaced(row, server=server, cpu_us_per_command=cpu_us, info=info, **left))
    return tuple(rows)


def _warnings(
    evidence: RunEvidence,
    instances: Sequence[InstanceReport],
    reports: Sequence[workers.WorkerNote],
    clocks: Clocks,
    safety: SafetyReport,
) -> Iterator[str]:
    for instance in instances:
        yield from _instance_warnings(instance)
    for text, number in workers.added(report.errors for report in reports).items():
        yield f"the recipe raised {number:,} × {text}"
    about = find_recipe(evidence.scenario.recipe).about
    if safety.within_one_process and safety.verdict == "SAFE":
        yield (
            "all callers ran in one process, so this run cannot detect a lock that works "
            "only within one process; test with --processes 2"
        )
    if not about.safe:
        yield f"{evidence.scenario.recipe} {SHOWS_A_FLAW}; do not use this lock: {about.flaw}"
    for name, number in workers.added(report.figures for report in reports).items():
        if name not in COUNTED:
            yield (
                f"the recipe {evidence.scenario.recipe} counted {number} × {name.replace('_', ' ')}"
            )
    # The verdict already names the deaths.
    if safety.verdict == "UNKNOWN" and not evidence.course.deaths:
        yield f"safety is unknown: {safety.reason}"
    yield from host_warnings(reports, clocks, evidence.scenario.processes)
    for name in workers.late_workers(evidence.workdir):
        yield (
            f"a worker on {name} connected after the run began and was sent away; during its "
            "connection, other workers had fewer callers"
        )
    yield from evidence.timeline.absences(allowed=True)
    yield from evidence.limits.warnings()
    yield from evidence.servers.warnings()


def _instance_warnings(instance: InstanceReport) -> Iterator[str]:
    left = instance.leaked_keys
    silence = instance.info.warning if instance.info else None
    warnings = []
    if instance.info and instance.info.evicted_keys:
        warnings.append(eviction_text(instance.info.evicted_keys))
    if instance.state != "voting":
        warnings.append(
            f"{instance.state} at the end" + (f" ({instance.reason})" if instance.reason else "")
        )
    # If several doubts have the same cause, there is only one warning.
    if silence and not (left is None and instance.reason):
        warnings.append(silence)
    if left is None:
        warnings.append("lockbench could not check whether keys were left behind")
    elif left:
        warnings.append(
            f"{left} keys of this run were left behind; lockbench has unlinked these keys"
        )
    if instance.other_keys:
        warnings.append(
            f"{instance.other_keys} keys with other names were left behind; lockbench does "
            "not unlink these keys"
        )
    if warnings:
        yield f"instance #{instance.index} ({instance.address}): {'; '.join(warnings)}"


def eviction_text(keys: int) -> str:
    """Return a warning that a server evicted `keys` keys.

    The warning also says that another caller can take an evicted lock.
    """
    return (
        f"the server evicted {keys:,} keys because its memory was full; another caller can take "
        "an evicted lock"
    )
