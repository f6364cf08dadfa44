"""Figures that can err to one side only: *a limit and a result → a doubt where that side decides, else nothing*.

Rules
- A generator that is LATE, or not known to be in time (UNKNOWN), only lengthens latencies: its own delay is in each.
- VALID says that of the p99: a timer too late for the very percentile of the limit puts that one in doubt, too.
- So an upper limit that holds holds. One that is broken is not known, unless it is also broken with the generator's
  delay taken off, or by failed acquires, which no delay explains.
- A lower limit on a latency is judged the other way round; `==` and `!=` are not known.
- What is not a latency is judged as it is: counts and rates are what was counted.

The delay is taken off without assuming that it falls on the fast or on the slow acquires: of acquires that took longer
than limit + d at most P(delay > d) owe it to the generator. The best d of a few percentiles decides.

Source: the union bound; README, "Gate your CI".
"""

from __future__ import annotations

from math import inf

import numpy as np

from bench.gates.metric import Metric
from bench.measure.generator import IN_DOUBT, LATENESS_SHARE
from bench.measure.histogram import HIGHEST_NS, Histogram, bucket_indices
from bench.measure.latency import PERCENTILES
from bench.measure.run_result import Figures

_AT = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9)  # percentiles of a delay that are tried as d


def one_sided_doubt(metric: Metric, operator: str, limit: float, result: Figures, *, kept: bool) -> str:
    """Return why a limit on `metric`, `kept` or broken as measured, is not decided; nothing where it is."""
    if metric.path[0] != "latency_s" or metric.unit != "s" or not (why := _delay(metric, result)):
        return ""
    if operator in ("<", "<="):
        decided = kept or metric.value(result) == inf or _is_broken_anyway(metric, limit, result)
    else:
        decided = operator in (">", ">=") and not kept
    return "" if decided else f"the latency is an upper bound: {why}"


def _delay(metric: Metric, result: Figures) -> str:
    """What the generator adds to this figure, in words; nothing when that is little."""
    figure, value = metric.path[-1], metric.value(result)
    if result.generator.verdict in IN_DOUBT:
        return str(result.generator.reason)
    lateness = result.histograms.get("timer_lateness")
    if result.rate.offered_per_s is None or not lateness or figure not in PERCENTILES or value is None:
        return ""
    late_s = (Histogram.decode(lateness).percentile(PERCENTILES[figure]) or 0) / 1e9
    return f"the timer was late by {late_s * 1e3:.3g} ms ({figure})" if late_s > LATENESS_SHARE * value else ""


def _is_broken_anyway(metric: Metric, limit: float, result: Figures) -> bool:
    """Whether the upper limit on a percentile is broken with the generator's own delay taken off."""
    section, figure = metric.path[1:]
    name = "acquire" if section == "acquire_all" else section
    if figure not in PERCENTILES or name not in result.histograms:
        return False
    took = Histogram.decode(result.histograms[name])
    failed = result.latency_s.acquire_failed.count if section == "acquire_all" else 0
    own = ["scheduler_lag", *(["timer_lateness"] if result.rate.offered_per_s is not None else [])]
    delays = [Histogram.decode(result.histograms[name]) for name in own if result.histograms.get(name)]
    known = [delay for delay in delays if delay.count]
    return any(
        _share_beyond(took, failed, limit * 1e9 + sum(_at(delay, percent) for delay in known))
        - len(known) * (1 - percent / 100)
        > 1 - PERCENTILES[figure] / 100
        for percent in _AT
        if known and took.count
    )


def _at(histogram: Histogram, percent: float) -> float:
    """The percentile, or the maximum where there are too few samples for it."""
    return histogram.percentile(percent) or histogram.max_ns


def _share_beyond(took: Histogram, failed: int, limit_ns: float) -> float:
    bucket = int(bucket_indices(np.array([min(round(limit_ns), HIGHEST_NS)], np.int64))[0])
    return float(took.counts[bucket + 1 :].sum() + failed) / (took.count + failed)
