"""One probe of a capacity search: *a run's result and the SLO → held, missed or saturated, with the figures*.

Rules
- Held: every expression of the SLO is true and at least 0.99 of the offered operations were completed in time. For an
  upper limit on a percentile of acquire, an operation that got no lease is a miss, however quickly it was refused.
- A miss is the generator's when it used 0.9 of a core or its timer was late by more than a tenth of the p99 shown:
  SATURATED, nothing is known of the servers at that rate. What held, held whatever the generator did.
- Attainment: the share of all operations that got their lease within the limit, with its 95 % Wilson interval.

Source: bench.measure.generator's rules; bench.experiments.capacity.search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bench.errors import UsageError
from bench.experiments.capacity.judge import server_use, uses_of
from bench.experiments.capacity.search import Bracket, Seen
from bench.gates.threshold import Threshold, read_thresholds
from bench.measure.facts import mean_of
from bench.measure.generator import BUSY_CORE, LATENESS_SHARE
from bench.measure.histogram import HIGHEST_NS, SAMPLES_BEYOND, Histogram, bucket_indices
from bench.measure.intervals import wilson
from bench.measure.run_result import RunResult
from bench.scenario import Scenario

LEAST_USERS, MOST_USERS = 64, 2048
CLEARLY_COMPLETED = 0.9  # of the offered rate; less is no bad moment of the machine
MISS_SHARES = {"p50": 0.5, "p90": 0.1, "p99": 0.01, "p999": 0.001, "p9999": 0.0001}  # what may be later
BOUNDED = ("latency_s", "outcome_shares", "split_votes", "attempts", "cost")  # figures that load makes worse

Result = RunResult
Section = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Slo:
    """The service level objective: thresholds that must all be kept."""

    thresholds: tuple[Threshold, ...]

    @property
    def text(self) -> str:
        """As one reads it."""
        return " and ".join(threshold.expression for threshold in self.thresholds)

    @property
    def acquire_limit(self) -> Threshold | None:
        """The first upper limit on a percentile of acquire, which attainment is about."""
        return next((threshold for threshold in self.thresholds if _is_acquire_limit(threshold)), None)

    @property
    def least_operations(self) -> int:
        """How many operations a probe needs so that its strictest percentile is one."""
        shares = [MISS_SHARES.get(threshold.metric.path[-1], 1.0) for threshold in self.thresholds]
        return int(1.2 * SAMPLES_BEYOND / min(shares))


def read_slo(texts: Sequence[str]) -> Slo:
    """The SLO written in `texts`. Raises UsageError for a wrong form, or a figure that a rate cannot be searched by."""
    thresholds = read_thresholds(texts)
    if not thresholds:
        raise UsageError("an SLO is needed, like --slo 'acquire.p99 < 10ms'")
    for threshold in thresholds:
        if threshold.metric.path[0] not in BOUNDED:
            raise UsageError(
                f"option --slo: {threshold.metric.name} is nothing that more load makes worse; "
                "name a latency or a share, like 'acquire.p99 < 10ms' or 'acquire.success >= 99.9%'"
            )
        if threshold.operator not in ((">", ">=") if threshold.metric.higher_is_better else ("<", "<=")):
            better, sign = ("more", ">=") if threshold.metric.higher_is_better else ("less", "<=")
            raise UsageError(
                f"option --slo: {threshold.expression!r} is not broken by more load, as {better} of "
                f"{threshold.metric.name} is better; an SLO on it is written with {sign}"
            )
    return Slo(thresholds)


@dataclass(frozen=True, slots=True)
class Probe:
    """What a probe at `rate` (operations/s) showed; `figures`: the section `probes` holds one of them."""

    rate: float
    seen: Seen
    figures: Section


def judge_probe(rate: float, step: str, result: Result, slo: Slo) -> Probe:
    """Judge the run `result`, which was offered `rate`. `step`: why that rate was tried."""
    judged = [_judged(threshold, result) for threshold in slo.thresholds]
    seen = _seen(judged, result)
    latency, generator = result["latency_s"]["acquire"], result["generator"]
    figures = {
        "rate_per_s": rate,
        "step": step,
        "seen": seen.value,
        "achieved_per_s": result["rate"]["achieved_per_s"],
        "completed_per_s": result["rate"]["completed_per_s"],
        "sustained": result["rate"]["sustained"],
        "users": result["scenario"]["users"],
        "duration_s": result["duration_s"],
        "acquire_s": {name: latency[name] for name in ("count", "mean", "p50", "p99", "p999", "max")},
        "attainment": attainment(slo, result),
        "slo": [{key: entry[key] for key in ("expression", "value", "limit", "kept", "reason")} for entry in judged],
        "generator": {key: generator[key] for key in ("cpu_ratio", "scheduler_lag_p99_s", "verdict", "reason")},
        "uses": [asdict(use) for use in uses_of(result)],
        "instances": [_instance(instance, result) for instance in result["instances"]],
    }
    return Probe(rate, seen, figures)


def attainment(slo: Slo, result: Result) -> Section | None:
    """The share of operations that got their lease within the SLO's limit on acquire; None without such a limit."""
    threshold = slo.acquire_limit
    if threshold is None:
        return None
    within, due = _within(threshold, result)
    return {"within": within, "operations": due, "limit_s": threshold.limit, **asdict(wilson(within, due))}


def callers_for(rate: float, scenario: Scenario, slo: Slo) -> int:
    """How many callers keep `rate` going while acquires take twice their limit (Little's law), a power of two."""
    limit = slo.acquire_limit
    busy_s = mean_of(scenario.hold) / 1000 + 2 * (limit.limit if limit else 0.01)
    users = LEAST_USERS
    while users < min(1.3 * rate * busy_s, MOST_USERS):
        users *= 2
    most = scenario.resources if scenario.skew.kind == "own" else users
    return max(min(users, most), scenario.processes)


def best_of(probes: Sequence[Probe], bracket: Bracket) -> Probe | None:
    """The last probe that held at the bracket's lower end."""
    return next((probe for probe in reversed(probes) if probe.seen is Seen.HELD and probe.rate == bracket.low), None)


def knee_of(probes: Sequence[Probe], bracket: Bracket) -> Section | None:
    """The rate with most throughput per latency (Kleinrock's power: rate ÷ mean acquire) among those that held, up to
    the bracket: what held above it did not hold again."""
    seen = [probe for probe in probes if probe.seen is Seen.HELD and probe.rate <= (bracket.low or 0.0)]
    held = [probe for probe in seen if probe.figures["acquire_s"]["mean"]]
    if not held:
        return None
    knee = max(held, key=lambda probe: probe.rate / probe.figures["acquire_s"]["mean"])
    return {"rate_per_s": knee.rate, "acquire_s": knee.figures["acquire_s"]}


def headroom_of(bracket: Bracket, target: float | None) -> Section | None:
    """How far the capacity lies above the `target` rate; None without one."""
    if target is None:
        return None
    ratio = None if bracket.low is None else bracket.low / target - 1
    return {"target_rate_per_s": target, "ratio": ratio, "kept": bracket.low is not None and bracket.low >= target}


def is_saturated(result: Result) -> bool:
    """Whether the load generator, not the servers, may be why this run was slow."""
    generator, p99 = result["generator"], result["latency_s"]["acquire"]["p99"]
    if (generator["cpu_ratio"] or 0.0) >= BUSY_CORE:
        return True
    late = generator.get("timer_lateness_p99_s")
    return generator["verdict"] != "VALID" and None not in (late, p99) and bool(late > LATENESS_SHARE * p99)


def _judged(threshold: Threshold, result: Result) -> Section:
    """The threshold's own entry, with `kept`: by the share of misses where it is a limit on a percentile of acquire."""
    entry = threshold.judge(result)
    if not _is_acquire_limit(threshold):
        return {**entry, "kept": entry["status"] == "pass"}
    within, due = _within(threshold, result)
    kept = due > 0 and due - within <= MISS_SHARES[threshold.metric.path[-1]] * due
    return {**entry, "kept": kept}


def _seen(judged: Sequence[Section], result: Result) -> Seen:
    rate = result["rate"]
    if all(entry["kept"] for entry in judged) and rate["sustained"] is not False:
        return Seen.HELD
    if is_saturated(result):
        return Seen.SATURATED
    behind = rate["completed_per_s"] < CLEARLY_COMPLETED * rate["offered_per_s"]
    return Seen.CLEARLY_MISSED if behind else Seen.MISSED


def _is_acquire_limit(threshold: Threshold) -> bool:
    path = threshold.metric.path
    return path[:2] == ("latency_s", "acquire_all") and path[-1] in MISS_SHARES and threshold.operator in ("<", "<=")


def _within(threshold: Threshold, result: Result) -> tuple[int, int]:
    """Operations of the window that got their lease within the limit, and all of them."""
    histogram = Histogram.decode(result["histograms"]["acquire"])
    limit_ns = min(round(threshold.limit * 1e9), HIGHEST_NS)
    bucket = int(bucket_indices(np.array([limit_ns], np.int64))[0])
    return int(histogram.counts[:bucket].sum()), result["outcomes"].total


def _instance(instance: Mapping[str, Any], result: Result) -> Section:
    reply = instance.get("reply_s") or {}
    return {
        "index": instance["index"],
        "address": instance["address"],
        "server": instance["server"],
        "state": instance["state"],
        "cpu_ratio": server_use(instance, result),
        "cpu_us_per_command": instance["cpu_us_per_command"],
        "reply_p50_s": reply.get("p50"),
        "reply_p99_s": reply.get("p99"),
        "delayed_fsyncs": instance["info"]["aof"].get("aof_delayed_fsync"),
    }
