"""One limit on one figure: *`acquire.p99 < 5ms` and a result → pass, fail or inconclusive, with value and margin*.

Rules
- No value is INCONCLUSIVE, never a pass: no samples, too few for a percentile.
- Percentiles of acquire are over all acquires, a failed one took for ever: with 2 % failed the p99 is infinite.
- A figure of safety is inconclusive while safety is UNKNOWN; NOT TESTED, it can fail, but not pass.
- The latency of a rate that was not sustained is that of a growing queue: it can fail, but not pass.
- A generator that is LATE, or not known to be in time (UNKNOWN), only lengthens latencies, as its own delay is in each:
  an upper limit that holds holds. One that is broken is not known, unless it is also broken with the generator's delay
  taken off, or by failed acquires, which no delay explains. A lower limit the other way round; `==` and `!=` are not
  known. VALID says that of the p99: a timer too late for the very percentile of the limit puts that one in doubt, too.
- Of an invalid run nothing is judged but broken limits of safety: a violation is certain.

The delay is taken off without assuming that it falls on the fast or on the slow acquires: of acquires that took longer
than limit + d at most P(delay > d) owe it to the generator. The best d of a few percentiles decides. Source: the union
bound.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import inf
from operator import eq, ge, gt, le, lt, ne
from typing import cast

import numpy as np

from bench.errors import UsageError
from bench.gates.metric import OVER_ALL, Metric, find_metric
from bench.measure.generator import IN_DOUBT, LATENESS_SHARE
from bench.measure.histogram import HIGHEST_NS, Histogram, bucket_indices
from bench.measure.latency import PERCENTILES
from bench.measure.run_result import Figures, JudgedThreshold, Operator
from bench.scenario.quantity import parse_threshold

OPERATORS: dict[Operator, Callable[[float, float], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge, "==": eq, "!=": ne}
_PARTS = re.compile(r"(?P<name>[a-z0-9_.]+)\s*(?P<operator>[<>=!]+)\s*(?P<number>[\d.]+)\s*(?P<unit>\S*)")
_SECONDS = {"us": Decimal("1e-6"), "µs": Decimal("1e-6"), "ms": Decimal("1e-3"), "s": Decimal(1)}
_SCALES: dict[str, dict[str, Decimal]] = {  # what may be written for a figure stored in this unit
    "s": _SECONDS,
    "us": {unit: seconds * 10**6 for unit, seconds in _SECONDS.items()},
    "per_s": {"": Decimal(1), "/s": Decimal(1)},
    "ratio": {"": Decimal(1), "%": Decimal("0.01")},
    "count": {"": Decimal(1)},
}
_EXAMPLES = {"s": "5ms", "us": "30us", "per_s": "2000/s", "ratio": "99.9%", "count": "0"}
_AT = (50.0, 75.0, 90.0, 95.0, 99.0, 99.9)  # percentiles of a delay that are tried as d


@dataclass(frozen=True, slots=True)
class Threshold:
    """`limit` is in the metric's own unit; `expression` as it was written."""

    expression: str
    metric: Metric
    operator: Operator
    limit: float

    def judge(self, result: Figures, void: Sequence[str] = ()) -> JudgedThreshold:
        """Return what this result says of the limit. `void`: why no figure of the run means anything, if so."""
        value = self.metric.value(result)
        kept = value is not None and OPERATORS[self.operator](value, self.limit)
        doubt = self._void(void, kept=kept) or self._doubt(result, value, kept=kept)
        endless = f"∞: {_failed_share(result)} of acquires failed" if value == inf else ""
        value = None if value == inf else value
        room = None if value is None else self._room(value)
        return JudgedThreshold(
            expression=self.expression,
            metric=self.metric.name,
            path=".".join(self.metric.path),
            operator=self.operator,
            limit=self.limit,
            unit=self.metric.unit,
            value=value,
            infinite=bool(endless),
            margin=room,
            margin_ratio=room / self.limit if room is not None and self.limit else None,
            status="inconclusive" if doubt else "pass" if kept else "fail",
            reason=doubt or endless or None,
        )

    def _room(self, value: float) -> float:
        """How far the value may still go until the limit; negative: how far beyond it is."""
        if self.operator in ("<", "<="):
            return self.limit - value
        if self.operator in (">", ">="):
            return value - self.limit
        away = abs(value - self.limit)
        return away if self.operator == "!=" else -away

    def _void(self, void: Sequence[str], *, kept: bool) -> str:
        certain = self.metric.path[0] == "safety" and not kept
        return "" if certain or not void else f"no figure of this run counts: {void[0]}"

    def _doubt(self, result: Figures, value: float | None, *, kept: bool) -> str:
        """Why this cannot be answered from `result`; nothing when it can."""
        section, figure, safety = self.metric.path[0], self.metric.path[-1], result.safety
        if section == "safety" and safety.verdict == "UNKNOWN":
            return f"safety is unknown: {safety.reason}"
        if value is None:
            samples = self.metric.samples(result)
            return f"{samples:,} samples are too few for it" if samples else "there are no samples"
        if section == "safety" and kept and safety.verdict == "NOT TESTED":
            return f"safety was not tested: {safety.reason}"
        if section == "latency_s" and kept and result.rate.sustained is False:
            return "the offered rate was not sustained"
        if section == "latency_s" and kept and self._hides_failures(result):
            return f"it is of successes only, and {_failed_share(result)} of acquires failed: see acquire.{figure}"
        return _one_sided_doubt(self.metric, self.operator, self.limit, result, kept=kept)

    def _hides_failures(self, result: Figures) -> bool:
        """Whether this percentile of acquired ones would be infinite over all."""
        _, section, figure = self.metric.path
        over_all = section in ("acquire_service", "wait") and figure in OVER_ALL
        return over_all and find_metric(f"acquire.{figure}").value(result) == inf


def sentence(entry: JudgedThreshold) -> str:
    """What a limit that was not kept adds to the reasons of a verdict."""
    if entry.status == "inconclusive":
        return f"{entry.expression}: {entry.reason}"
    return f"{entry.expression} does not hold" + (f" ({entry.reason})" if entry.reason else "")


def value_of(entry: JudgedThreshold) -> float:
    """The value that a decided limit was judged by, inf included."""
    return inf if entry.infinite or entry.value is None else entry.value


def _failed_share(result: Figures) -> str:
    return f"{100 * (1 - (result.outcome_shares.acquired or 0)):.1f} %"


def read_threshold(text: str) -> Threshold:
    """Return the threshold written in `text`. Raises UsageError for a wrong form, metric or unit."""
    try:
        expression = parse_threshold(text)
    except ValueError as error:
        raise UsageError(f"threshold: {error}") from None
    parts = _PARTS.fullmatch(expression)
    assert parts is not None  # parse_threshold takes nothing else
    try:
        metric = find_metric(parts["name"])
    except UsageError as error:
        raise UsageError(f"threshold {expression!r}: {error}") from None
    scale = _SCALES[metric.unit].get(parts["unit"])
    if scale is None:
        wanted = f"{metric.name} {parts['operator']} {_EXAMPLES[metric.unit]}"
        wrong = f"{parts['unit']!r} is not a unit of {metric.name}" if parts["unit"] else "the limit needs a unit"
        raise UsageError(f"threshold {expression!r}: {wrong} (write it like {wanted})")
    return Threshold(expression, metric, cast("Operator", parts["operator"]), float(Decimal(parts["number"]) * scale))


def read_thresholds(texts: Iterable[str]) -> tuple[Threshold, ...]:
    """Return each threshold once, in the order written. Raises UsageError as `read_threshold` does."""
    return tuple(dict.fromkeys(map(read_threshold, texts)))


def _one_sided_doubt(metric: Metric, operator: str, limit: float, result: Figures, *, kept: bool) -> str:
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
