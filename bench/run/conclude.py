"""What a run comes to: *history, notes, counters → the whole result*.

Rules
- Everything that qualifies a number stands in `warnings`, as a value; what is missing is None and said.
- Leaked keys are counted, then unlinked by their known names.
- The verdict is that of `bench.gates.run_verdict`, made from the finished sections: who reads the result gets the same.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from msgspec.structs import replace as replaced

from bench.gates.run_verdict import judge_limits, judge_result
from bench.measure import workers
from bench.measure.clocks import read_clocks
from bench.measure.environment import describe_environment
from bench.measure.facts import NO_DUE, Due, Window
from bench.measure.fold import Fold, Sections
from bench.measure.latency import COUNTED
from bench.measure.limits import NO_LIMITS, Limits
from bench.measure.record import history_parts, read_history, read_open
from bench.measure.run_result import (
    InfoDelta,
    InstanceReport,
    RunResult,
    SafetyReport,
    fields_of,
)
from bench.measure.verdict import Verdict
from bench.recipes.fencing import OWN_KEYS
from bench.recipes.registry import find_recipe
from bench.run.faults import FaultTimeline
from bench.run.follow import Course
from bench.run.hosts import Clocks, Told, host_warnings, leases_by_worker, load_workers, share_warning, unbounded
from bench.run.servers import Servers
from bench.safety.judge import Circumstances, Judge, holes
from bench.safety.rules import Holders
from bench.scenario import Scenario
from bench.topology.probe import leaked_keys
from bench.workloads.demand import due_between
from lockcore.clock import NS_PER_MS

_UNJUDGED = Verdict(status="inconclusive", reasons=())


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """All that a run left. `counters` and `server_cpu_s` as `counted` returns them."""

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


def conclude(evidence: RunEvidence, *, run_id: str, command: Sequence[str], started_at: str) -> RunResult:
    """Return the result."""
    scenario, course = evidence.scenario, evidence.course
    reports = workers.read_workers(evidence.workdir)
    clocks = read_clocks(evidence.workdir)
    told = Told.of(evidence.workdir)
    folded, used, leases = _judge(evidence, reports, clocks, told)
    known = course.orderly and told.whole  # a killed caller's last lock has no record
    asked = sorted(used) if known else range(scenario.resources)
    leaks = leaked_keys(evidence.servers.urls, key_names(evidence.key_prefix, asked))
    if scenario.fencing:  # the counter and what it protects: no leaks, and not left either
        leaked_keys(evidence.servers.urls, (evidence.key_prefix + name for name in OWN_KEYS))
    instances = _instances(evidence, workers.instances(reports), leaks)
    cost = replaced(folded.values.cost, beside_cpu_ratio=course.beside_ratio)
    measured = replaced(folded.values, cost=cost)
    breaks = (
        *course.deaths,
        *evidence.timeline.absences(),
        *evidence.servers.losses(),
        *evidence.limits.invalidities(),
    )
    result = RunResult(
        **fields_of(measured),
        id=run_id,
        command=tuple(command),
        started_at=started_at,
        scenario=scenario.shown(),
        seed=scenario.seed,
        interrupted=course.interrupted,
        environment=describe_environment(),
        fleet=evidence.servers.section(),
        instances=instances,
        limits=evidence.limits,
        workers=load_workers(reports, clocks, leases),
        faults=evidence.timeline.section(),
        breaks=breaks,
        thresholds=tuple(judge_limits(measured, breaks, scenario.thresholds)),
        warnings=(*folded.warnings, *_warnings(evidence, instances, reports, clocks, measured.safety)),
        verdict=_UNJUDGED,
    )
    return replaced(result, verdict=judge_result(result))


def _judge(
    evidence: RunEvidence, reports: Sequence[workers.WorkerNote], clocks: Clocks, told: Told
) -> tuple[Sections, set[int], Counter[int]]:
    """Fold and judge the history part by part; also return which resources were ever asked for, and how many leases
    each worker was granted."""
    total = Fold(evidence.scenario, evidence.window, _due(evidence), cut=evidence.course.interrupted)
    for fold in told.folds.values():
        total.sums.merge(fold)
    parts = history_parts(evidence.workdir)
    history = read_history(evidence.workdir, 0, parts)
    recorded = Counter(history.counts)
    recorded.update(told.left)
    circumstances = _circumstances(evidence, reports, recorded, clocks)
    oracle = Judge(evidence.scenario.ttl_ms, replace(circumstances, leases=total.sums.numbers["totals"]["acquired"]))
    holders = Holders(evidence.window, [begun for begun, _ in evidence.timeline.spans_ns()])
    used, leases = set[int](), Counter[int]()
    for part in range(parts):
        history = read_history(evidence.workdir, part, parts) if part else history
        (total.add_handoffs if told.folds else total.add)(history.records)
        oracle.add(history)
        holders.add(history.records, oracle.violated_resources)
        used.update(np.unique(history.records["resource"]).tolist())
        leases += leases_by_worker(history.records)
    ratio = told.ratio(leases.total())
    alone = bool(find_recipe(evidence.scenario.recipe).package) and len(reports) == 1
    safety = replaced(oracle.report(), holders=holders.section(), judged_ratio=ratio, within_one_process=alone)
    sections = total.sections(reports, evidence.server_cpu_s, safety)
    warnings = (*sections.warnings, *share_warning(ratio))
    return replace(sections, warnings=warnings), used, told.leases or leases


def _due(evidence: RunEvidence) -> Due:
    """What the schedule of an open loop wanted until the window's end, whoever was left to start it."""
    scenario, window = evidence.scenario, evidence.window
    if scenario.rate_per_s is None:
        return NO_DUE
    between = partial(due_between, scenario.rate_per_s, scenario.arrivals, scenario.seed)
    first_ns = int(scenario.warmup_ms * NS_PER_MS)
    last_ns = first_ns + window.stop_ns - window.start_ns
    return Due(between(first_ns, last_ns), between(0, last_ns))


def _circumstances(
    evidence: RunEvidence,
    reports: Sequence[workers.WorkerNote],
    recorded: Mapping[tuple[int, int], int],
    clocks: Clocks,
) -> Circumstances:
    about, course = find_recipe(evidence.scenario.recipe).about, evidence.course
    commands = [info.commands_processed for info in evidence.counters]
    ended = (*course.deaths, *course.casualties)
    missing = holes(reports, recorded, read_open(evidence.workdir), evidence.scenario.processes, "; ".join(ended))
    return Circumstances(
        unsafe_recipe=None if about.safe else about.flaw,
        fault_spans_ns=evidence.timeline.spans_ns(),
        clock=course.clock,
        missing=(*ended, *missing, *unbounded(reports, clocks)),
        commands=None if None in commands else sum(filter(None, commands)),
    )


def key_names(key_prefix: str, resources: Iterable[int]) -> Iterator[str]:
    """The names that the keys of these resources have on every instance."""
    return (f"{key_prefix}r{index}" for index in resources)


def _instances(
    evidence: RunEvidence, seen: Sequence[InstanceReport], leaks: Sequence[int | None]
) -> tuple[InstanceReport, ...]:
    """What the load saw of each instance, beside what the instance says itself."""
    rows = []
    for fact, info, leak in zip(evidence.servers.facts, evidence.counters, leaks, strict=True):
        unknown = InstanceReport(index=fact.index, address=fact.address, state="unknown")
        row = seen[fact.index] if fact.index < len(seen) else unknown
        cpu_s, commands = info.cpu_s, info.commands_processed
        cpu_us = cpu_s * 1e6 / commands if cpu_s is not None and commands else None
        server = f"{fact.server} {fact.version}" if fact.server else row.server
        rows.append(replaced(row, server=server, cpu_us_per_command=cpu_us, info=info, leaked_keys=leak))
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
        yield f"a caller failed {number} times: {text}"
    about = find_recipe(evidence.scenario.recipe).about
    if safety.within_one_process and safety.verdict == "SAFE":
        yield "all callers were of one process: a lock that holds only within it looks the same; --processes 2 tells"
    if not about.safe:
        yield f"{evidence.scenario.recipe} is here to show its flaw, do not use it: {about.flaw}"
    for name, number in workers.added(report.figures for report in reports).items():
        if name not in COUNTED:
            yield f"{evidence.scenario.recipe} counted {number} × {name.replace('_', ' ')}"
    if safety.verdict == "UNKNOWN" and not evidence.course.deaths:  # deaths stand in the verdict
        yield f"safety is unknown: {safety.reason}"
    yield from host_warnings(reports, clocks, evidence.scenario.processes)
    for name in workers.late_workers(evidence.workdir):
        yield f"a worker on {name} came when the run had begun, and was sent away: meanwhile others had fewer callers"
    yield from evidence.timeline.absences(allowed=True)
    yield from evidence.limits.warnings()
    yield from evidence.servers.warnings()


def _instance_warnings(instance: InstanceReport) -> Iterator[str]:
    left, silence = instance.leaked_keys, instance.info.warning if instance.info else None
    said = []
    if instance.info and instance.info.evicted_keys:
        said.append(eviction_text(instance.info.evicted_keys))
    if instance.state != "voting":
        said.append(f"{instance.state} at the end" + (f" ({instance.reason})" if instance.reason else ""))
    if silence and not (left is None and instance.reason):  # one cause, said once
        said.append(silence)
    if left is None:
        said.append("whether keys were left could not be checked")
    elif left:
        said.append(f"keys of this run left behind, now unlinked: {left}")
    if said:
        yield f"instance #{instance.index} ({instance.address}): {'; '.join(said)}"


def eviction_text(keys: int) -> str:
    """What it means for a lock that a server evicted keys while the run lasted."""
    return f"it evicted {keys:,} keys for want of memory: a lock that it evicts is free for the next caller"
