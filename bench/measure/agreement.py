"""Checks whether the sections of a stored result agree, and describes each contradiction in a
sentence.

Rules
- Many counts follow from other figures of the same result. For example, the total of all acquires
  is the sum of the acquires in all time slices. This module checks that each such count agrees with
  the other figures. If someone changes only one of these counts in a stored result, this module
  finds a contradiction.
- Most rates, percentiles and costs are not checked, because no safety verdict depends on them.
  Also, a common way to test `gate` and `compare` is to change one rate or percentile of a stored
  run.
- tests/bench/report/test_leaves.py lists every number that is not checked.
- An unchanged result passes every check. If a run ended early or lost a part of its data, fewer
  checks apply to its result.
"""

from collections.abc import Iterator
from functools import lru_cache
from math import inf
from typing import NamedTuple

from msgspec.structs import astuple

from bench.measure.gaps import MOST_GAPS, MOST_SHARE
from bench.measure.histogram import Histogram
from bench.measure.outcomes import KINDS
from bench.measure.run_result import EXAMPLES_PER_KIND, Holder, RunResult, fields_of
from bench.measure.section import builtins_of, leaves
from bench.measure.workers import LITTLE_TOLERANCE, LITTLE_USERS, judge_delays

CLOSE = 1e-6
# The relative error that a percentile from a histogram may have.
DIGITS = 2e-3
# The measured window may last this much longer than the scenario requests.
GRACE_S = 2e-3


class Bound(NamedTuple):
    """A figure of a result, and the range in which the figure must lie. The range follows from the
    other figures of the result. If `value` is None, the figure is unknown."""

    place: str
    value: float | None
    low: float
    high: float
    source: str
    slack: float = CLOSE

    @property
    def sentence(self) -> str:
        """A sentence that describes the contradiction. It is "" if the figure is unknown or lies in
        its range."""
        value = self.value
        low = self.low
        high = self.high
        if value is None or low - abs(low) * self.slack <= value <= high + abs(high) * self.slack:
            return ""
        end, side = (low, " or more") if value < low else (high, " or less")
        return (
            f"{self.place} is {value:,.6g}, but a calculation from {self.source} gives "
            f"{end:,.6g}{'' if low == high else side}"
        )


def disagreements(result: RunResult) -> Iterator[str]:
    """Yield a sentence for each contradiction between figures of the result."""
    histograms = dict[str, Histogram]()
    for name, text in result.histograms.items():
        try:
            histograms[name] = _decoded(text)
        except ValueError as error:
            yield f"histograms.{name}: {error}"
            return
    for place, value in leaves(builtins_of(result.scenario), "scenario"):
        if isinstance(value, int | float) and value < 0 and place != "scenario.seed":
            yield f"{place} is {value:,.6g}, but this value is not possible in a scenario"
    for name, histogram in histograms.items():
        section = getattr(result.latency_s, name, None)
        if section is not None and section.count != histogram.count:
            yield (
                f"histograms.{name} has {histogram.count} samples, but latency_s.{name} has "
                f"{section.count}"
            )
    for bounds in (_order, _counts, _times, _votes, _instances, _waiting, _generator, _safety):
        yield from filter(None, (bound.sentence for bound in bounds(result)))
    yield from _unlike_slices(result)
    yield from _unlike_generator(result, histograms)
    yield from _unlike_safety(result)
    for holder in result.safety.holders:
        yield from _unlike_holder(holder, result)


@lru_cache(64)
def _decoded(text: str) -> Histogram:
    return Histogram.decode(text)


def _is_whole(result: RunResult) -> bool:
    """Return True if nothing interrupted the run, no part of it ended early, and no fault was
    injected."""
    return not (result.interrupted or result.breaks or result.faults)


def _counts(result: RunResult) -> Iterator[Bound]:
    inside = result.outcomes
    times = result.latency_s
    totals = result.totals
    acquired = inside.acquired
    acquires = inside.total
    for name, count, due in (
        ("latency_s.acquire", times.acquire.count, acquired),
        ("latency_s.acquire_service", times.acquire_service.count, acquired),
        ("latency_s.acquire_failed", times.acquire_failed.count, acquires - acquired),
        ("latency_s.acquire_all", times.acquire_all.count, acquires),
        ("attempts", result.attempts.count, acquired),
    ):
        yield Bound(f"{name}.count", count, due, due, "outcomes")
    yield Bound(
        "latency_s.acquire_all.failed",
        times.acquire_all.failed,
        acquires - acquired,
        acquires - acquired,
        "outcomes",
    )
    yield Bound("latency_s.hold.count", times.hold.count, 0, acquired, "outcomes")
    yield Bound(
        "latency_s.release.count", times.release.count, 0, times.hold.count, "those of hold"
    )
    yield Bound("latency_s.handoff.count", times.handoff.count, 0, totals.acquired, "totals")
    for name, number in fields_of(inside).items():
        share = getattr(result.outcome_shares, name)
        due_share = number / acquires if acquires else 0.0
        yield Bound(f"outcome_shares.{name}", share or 0.0, due_share, due_share, "outcomes")
        yield Bound(f"totals.{name}", getattr(totals, name), number, inf, "outcomes")
    released = sum(astuple(result.releases))
    raised = result.exceptions
    least_released = (
        totals.acquired - raised.raised - result.scenario.users if _is_whole(result) else 0
    )
    yield Bound("releases", released, least_released, totals.acquired, "totals")
    if raised.operations:
        yield Bound("exceptions.operations", raised.operations, totals.total, inf, "totals")


def _order(result: RunResult) -> Iterator[Bound]:
    scenario = result.scenario
    disk = result.fleet.fdatasync_s
    for name in ("users", "resources", "processes", "instances"):
        yield Bound(f"scenario.{name}", getattr(scenario, name), 1, inf, "a load and its servers")
    for number, facts in enumerate(result.fleet.instances):
        yield Bound(
            f"fleet.instances.{number}.index", facts.index, number, number, "places in the list"
        )
    if disk:
        yield Bound("fleet.fdatasync_s.p50_s", disk.p50_s, 0, disk.max_s, "the largest sample")
        yield Bound(
            "fleet.fdatasync_s.p99_s",
            disk.p99_s,
            disk.p50_s,
            disk.max_s,
            "the p50 and the largest sample",
        )


def _times(result: RunResult) -> Iterator[Bound]:
    scenario = result.scenario
    seconds = result.duration_s
    due_s = scenario.duration_ms / 1000
    yield Bound("duration_s", seconds, 0, due_s + GRACE_S, "the scenario")
    yield Bound("seed", result.seed, scenario.seed, scenario.seed, "the scenario")
    if over := result.over_time:
        inside = sum(start >= 0 for start in over.start_s)
        yield Bound(
            "over_time.slice_s", over.slice_s * inside, seconds, seconds, "the window's length"
        )
        for number, start in enumerate(over.start_s, inside - len(over.start_s)):
            due_s = number * over.slice_s
            yield Bound(
                f"over_time.start_s.{number}",
                start,
                due_s - 1e-5,
                due_s + 1e-5,
                "slices of equal width",
            )
    if scenario.hold.kind == "fixed" and _is_whole(result):
        hold_s = scenario.hold.ms / 1000
        yield Bound(
            "latency_s.hold.p50", result.latency_s.hold.p50, hold_s, inf, "the scenario", DIGITS
        )
    for instance in result.instances:
        if instance.info:
            place = f"instances.{instance.index}.info.elapsed_s"
            yield Bound(
                place,
                instance.info.elapsed_s,
                0 if instance.info.warning else seconds,
                inf,
                "the window",
            )


def _votes(result: RunResult) -> Iterator[Bound]:
    votes = result.votes
    inside = result.outcomes
    attempts = result.attempts
    split = result.split_votes
    instances = len(result.scenario.targets) or result.scenario.instances
    shown = {int(margin) + instances // 2 + 1: number for margin, number in votes.margin.items()}
    leases = sum(shown.values())
    yield Bound(
        "votes.margin",
        leases,
        0 if votes.undecided else inside.acquired,
        inside.acquired,
        "outcomes",
    )
    granted = sum(each * number for each, number in shown.items())
    other = instances * (inside.total - leases)
    yield Bound("votes.granted", votes.granted, granted, granted + other, "margins and outcomes")
    counted = sum(getattr(votes, kind) for kind in KINDS)
    yield Bound("votes", counted, votes.granted, instances * inside.total, "outcomes and instances")
    ratio = split.count / attempts.total if attempts.total else 0.0
    yield Bound("split_votes.ratio", split.ratio or 0.0, ratio, ratio, "count and rounds")
    yield Bound("split_votes.count", split.count, 0, attempts.total, "the rounds of attempts")
    rounds = (attempts.mean or 0.0) * attempts.count
    most = rounds if inside.total == inside.acquired else inf
    yield Bound("attempts.total", attempts.total, rounds, most, "mean and count of attempts")
    if attempts.count:
        yield Bound(
            "attempts.mean",
            attempts.mean,
            1,
            attempts.max or inf,
            "attempts.max and the least number of rounds (1)",
        )
        yield Bound("attempts.max", attempts.max, 1, attempts.total, "all rounds")


def _instances(result: RunResult) -> Iterator[Bound]:
    scenario = result.scenario
    # A semaphore has one key for each place, and `semaphore-off-by-one` has one key more. A lock
    # with readers has an additional key for the readers.
    keys_each = scenario.capacity + (scenario.capacity > 1 or scenario.shared)
    for number, row in enumerate(result.instances):
        place = f"instances.{number}"
        yield Bound(f"{place}.index", row.index, number, number, "places in the list")
        most = scenario.resources * keys_each
        yield Bound(f"{place}.leaked_keys", row.leaked_keys, 0, most, "resources")
        yield Bound(f"{place}.late_replies", row.late_replies, 0, row.commands, "its commands")
        yield Bound(f"{place}.pending", row.pending, 0, row.commands, "its commands")


def _waiting(result: RunResult) -> Iterator[Bound]:
    waiting = result.waiting
    users = result.scenario.users
    if waiting.asked is not None and waiting.unserved is not None:
        closed = result.scenario.rate_per_s is None
        served = waiting.asked - waiting.unserved
        yield Bound("waiting.asked", waiting.asked, users if closed else 0, inf, "users")
        leases = result.outcomes.acquired
        yield Bound(
            "waiting.unserved",
            waiting.unserved,
            waiting.asked - leases,
            waiting.asked,
            "callers and leases",
        )
        callers = max(users, waiting.asked)
        yield Bound(
            "waiting.jain",
            waiting.jain,
            1 / callers,
            max(served, 0) / callers,
            "callers that were served",
        )
        again = result.attempts.total - result.outcomes.total
        yield Bound("waiting.polls", waiting.polls, again, inf, "rounds and acquires")


def _generator(result: RunResult) -> Iterator[Bound]:
    own = result.generator
    acquires = result.outcomes.total
    scenario = result.scenario
    scheduled = (
        result.totals.total + result.exceptions.raised + scenario.users
        if scenario.rate_per_s
        else 0
    )
    yield Bound("generator.late_starts", own.late_starts, 0, scheduled, "starts of a schedule")
    yield Bound("generator.queued_starts", own.queued_starts, 0, scheduled, "starts of a schedule")
    failed = acquires - result.outcomes.acquired
    yield Bound(
        "generator.gap_operations",
        own.gap_operations,
        0,
        acquires if own.gap_s else 0,
        "outcomes and gaps",
    )
    yield Bound(
        "generator.gap_failures",
        own.gap_failures,
        0,
        min(own.gap_operations, failed),
        "outcomes and gaps",
    )
    # The result lists only the longest gaps, but `gap_s` includes all gaps.
    is_all = len(own.gaps) < MOST_GAPS
    lost = sum(gap.lost_s for gap in own.gaps) if is_all else inf
    yield Bound("generator.gap_s", own.gap_s, 0, lost, "gaps")
    for number, gap in enumerate(own.gaps):
        yield Bound(f"generator.gaps.{number}.lost_s", gap.lost_s, 0, gap.for_s, "begin and end")
    if result.workers:
        busiest = max((one.cpu_ratio or 0.0 for one in result.workers), default=0.0)
        yield Bound("generator.cpu_ratio", own.cpu_ratio or 0.0, busiest, busiest, "workers")
        leases = sum(one.leases for one in result.workers)
        yield Bound("workers", leases, 0, result.totals.acquired, "totals")


def _safety(result: RunResult) -> Iterator[Bound]:
    safety = result.safety
    totals = result.totals
    leases = totals.acquired
    refused = totals.contended
    broken = safety.service_faults + safety.granted_invalid + safety.foreign_deletes
    yield Bound(
        "safety.tested_leases", safety.tested_leases, 0, safety.judged_ratio * leases + 1, "totals"
    )
    yield Bound("safety.contested_leases", safety.contested_leases, 0, leases, "totals")
    for name in ("service_faults", "client_overstays", "granted_invalid", "foreign_deletes"):
        yield Bound(f"safety.{name}", getattr(safety, name), 0, leases, "totals")
    yield Bound("safety.spurious_refusals", safety.spurious_refusals, 0, refused, "totals")
    yield Bound("safety.unexplained", safety.unexplained, 0, broken, "violations")
    drawn = [holder.resource for holder in safety.holders]
    yield Bound("safety.holders", len(drawn), 0, len(set(drawn)), "their resources")
    yield Bound(
        "safety.holders",
        sum(holder.leases for holder in safety.holders),
        0,
        leases,
        "leases in totals",
    )
    if not result.workers:
        yield Bound("safety.judged_ratio", safety.judged_ratio, 1, 1, "load processes of one host")
        yield Bound(
            "safety.contested_leases",
            safety.contested_leases,
            safety.tested_leases,
            leases,
            "tested leases",
        )
    command_counts = [row.info.commands_processed if row.info else None for row in result.instances]
    if safety.tested_leases and None not in command_counts:
        commands = sum(filter(None, command_counts))
        yield Bound(
            "the servers' count of commands", commands, leases, inf, "leases that were tested"
        )


def _unlike_slices(result: RunResult) -> Iterator[str]:
    """Compare the figures of the time slices with the totals and with each other. Yield a sentence
    for each contradiction."""
    over = result.over_time
    if over is None:
        return
    rows = [
        over.granted,
        over.split_votes,
        *over.outcomes.values(),
        *over.margin.values(),
        *astuple(over.acquire),
    ]
    if any(len(row) != len(over.start_s) for row in rows):
        yield "some rows of over_time do not have one value for each time slice"
        return
    lead = sum(start < 0 for start in over.start_s)
    sums = {
        f"outcomes.{name}": (sum(row[lead:]), getattr(result.outcomes, name))
        for name, row in over.outcomes.items()
    }
    sums["split_votes"] = sum(over.split_votes[lead:]), result.split_votes.count
    for margin in {*over.margin, *result.votes.margin}:
        row = over.margin.get(margin, ())
        sums[f"margin.{margin}"] = sum(row[lead:]), result.votes.margin.get(margin, 0)
    for name, (total, due) in sums.items():
        if total != due:
            yield f"over_time.{name} sums to {total:,} in the window, but the run has {due:,}"
    acquire = over.acquire
    for number, times in enumerate(
        zip(acquire.p50_s, acquire.p90_s, acquire.p99_s, acquire.max_s, strict=True)
    ):
        percentiles = [one for one in times if one is not None]
        if percentiles != sorted(percentiles):
            yield f"over_time.acquire: in slice {number}, a percentile is above a higher percentile"


def _unlike_generator(result: RunResult, histograms: dict[str, Histogram]) -> Iterator[str]:
    """Yield a sentence if the generator's figures require a worse verdict than the stored
    verdict."""
    own = result.generator
    scenario = result.scenario
    if own.verdict == "INVALID":
        return
    if own.gap_s > MOST_SHARE * result.duration_s * (1 + CLOSE):
        yield (
            f"the verdict on the generator is {own.verdict}, although a load process did not run "
            f"for {own.gap_s:.2f} s"
        )
    ratio = own.littles_law_ratio
    callers = scenario.users >= LITTLE_USERS and scenario.rate_per_s is None
    if callers and ratio is not None and abs(ratio - 1) > 2 * LITTLE_TOLERANCE:
        yield (
            f"the verdict on the generator is {own.verdict}, although Little's ratio is {ratio:.3f}"
        )
    if own.verdict == "VALID" and all(
        name in histograms for name in ("acquire", "scheduler_lag", "timer_lateness")
    ):
        word, reason = judge_delays(histograms, own.queued_starts, scenario, 1 + DIGITS)
        if word != "VALID":
            yield f"the verdict on the generator is VALID, but its histograms give {word}: {reason}"


def _unlike_safety(result: RunResult) -> Iterator[str]:
    """Yield a sentence for each contradiction between the safety verdict and other facts: the
    examples, the recipe's false reports and the number of processes."""
    safety = result.safety
    if safety.misreports and safety.verdict in ("SAFE", "NOT TESTED"):
        yield (
            f"the safety verdict is {safety.verdict}, although the recipe reported impossible "
            "values"
        )
    if safety.within_one_process and result.scenario.processes > 1 and _is_whole(result):
        yield (
            f"safety.within_one_process is true, but the load had {result.scenario.processes} "
            "processes"
        )
    for kind in (
        "service_fault",
        "granted_invalid",
        "foreign_delete",
        "client_overstay",
        "spurious_refusal",
    ):
        count = getattr(safety, f"{kind}s", None)
        shown = sum(one.kind == kind for one in safety.examples)
        count = safety.granted_invalid if count is None else count
        due = min(count, EXAMPLES_PER_KIND)
        if shown > due or (shown < due and safety.verdict in ("SAFE", "NOT TESTED")):
            yield f"safety.examples has {shown} × {kind}, but the count is {count:,}"


def _unlike_holder(holder: Holder, result: RunResult) -> Iterator[str]:
    """Yield a sentence for each impossible fact in the drawing of one resource. Examples of
    impossible facts are too many leases, leases in the wrong order, and an overlap of two leases
    without a mark."""
    place = f"safety.holders, resource {holder.resource}"
    rows = holder.rows
    safety = result.safety
    if holder.resource >= result.scenario.resources:
        yield f"{place}: there are {result.scenario.resources} resources"
    if len(rows) > holder.leases:
        yield (
            f"{place}: the drawing has {len(rows):,} leases, but the oracle counted "
            f"{holder.leases:,}"
        )
    if any(row[0] > row[1] and row[0] > row[2] for row in rows) or list(rows) != sorted(
        rows, key=lambda row: row[0]
    ):
        yield f"{place}: the leases are not sorted by time"
    if not all(any(begun <= row[0] <= ended for begun, ended in holder.spans_us) for row in rows):
        yield f"{place}: some leases in `rows` are outside the time spans in `spans_us`"
    if any(one.clock_error_s is not None for one in result.workers):
        # The drawing shows the time of each lease on its own worker's clock. If workers have
        # different clocks, an overlap in the drawing proves nothing.
        return
    marked = sum(row[5] != 0 for row in rows)
    if marked > 2 * safety.service_faults:
        yield (
            f"{place}: {marked} leases are marked as overlapping, but service_faults is "
            f"{safety.service_faults}"
        )
    if result.scenario.shared:
        # A row does not say whether its lease belongs to a reader. Readers may overlap, so overlaps
        # are not checked.
        return
    capacity = result.scenario.capacity
    valid_ends: list[int] = []
    unmarked = False
    for row in rows:
        valid_ends = [end for end in valid_ends if end > row[0]]
        unmarked |= len(valid_ends) >= capacity and row[0] <= row[1] and not row[5]
        valid_ends.append(row[1])
    if unmarked:
        others = "another lease" if capacity == 1 else f"{capacity} other leases"
        yield f"{place}: a lease overlaps {others}, but has no mark as a fault"
