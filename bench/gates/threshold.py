"""Reads a limit on one figure, such as `acquire.p99 < 5ms`, and judges it. A limit passes, fails or
is inconclusive.

Rules. The README has more rules in its section "Which side is judged".
- The name of a figure is its path in `Measured`, so every figure has a name. The user may leave out
  `latency_s.` and may write p99.9 for p999. A field may define a shorter name.
- If the offered rate was not sustained, the measured latency is the latency of a growing queue. In
  this case, a limit on a latency can fail, but it cannot pass.
- The load generator can be VALID although its lateness beyond the p99 is high. A limit may be on a
  higher percentile, such as the p99.9. If the generator's timer was too late at that percentile,
  the limit is inconclusive.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Decimal
from functools import cache
from math import inf
from typing import Literal, cast, get_args

import numpy as np

from bench.errors import UsageError
from bench.measure.histogram import SAMPLES_BEYOND, Histogram, highest_of_bucket
from bench.measure.latency import PERCENTILES, AllAcquires, Figure, Latency
from bench.measure.run_result import OPERATORS, Figures, JudgedThreshold, Measured, Operator
from bench.measure.section import Section
from bench.measure.words import Field, fields_in
from bench.measure.workers import IN_DOUBT, LATENESS_SHARE
from bench.scenario.quantity import THRESHOLD, nearest, parse_threshold

OF_ACQUIRED = (("latency_s", "acquire_service"), ("latency_s", "wait"))
# These figures of `acquire` are read from `acquire_all`.
OVER_ALL = get_args(Figure)
# In a ratio, this value replaces infinity. It is the longest time (s) that a histogram can hold.
FOREVER_S = 3600.0
# A field of a result that is a number.
Metric = Field


def find_metric(name: str) -> Metric:
    """Return the metric called `name`.

    Raises UsageError if there is no such metric. The message suggests the most similar metric or
    names some metrics.
    """
    by_name = {metric.name: metric for metric in metrics().values()}
    written = name.replace("p99.99", "p9999").replace("p99.9", "p999").removeprefix("latency_s.")
    # `acquire` and `acquire_all` both mean the percentiles over all acquires.
    for one in (written, written.replace("acquire_all.", "acquire.")):
        if metric := by_name.get(one) or metrics().get(one):
            return metric
    some = (
        "; every number in result.json is a metric, such as rate, acquire.success, "
        "safety.violations, acquire.p99, release.p99"
    )
    hint = nearest(name, by_name) or some
    raise UsageError(f"there is no metric {name}{hint}")


@cache
def metrics(kind: type[Section] = Measured) -> Mapping[str, Metric]:
    """Return every metric of a section, as a mapping from full paths to metrics.

    Every number in the section and in its inner sections is a metric. There are two exceptions:
    `duration_s` and the fields of `over_time` are not metrics.
    """
    by_path = {}
    for field in fields_in(kind):
        name = field.name.removeprefix("latency_s.")
        if field.path[-1] in OVER_ALL:
            if field.path[:2] == ("latency_s", "acquire"):
                continue
            name = name.replace("acquire_all.", "acquire.")
        if field.is_number and field.path[0] not in ("duration_s", "over_time"):
            by_path[".".join(field.path)] = replace(field, name=name)
    return by_path


def shown_at(*places: str, kind: type[Section] = Measured) -> list[Metric]:
    """Return the metrics that lockbench shows in at least one of `places`. An example of a place is
    "several", which means each comparison of several runs.
    """
    return [metric for metric in metrics(kind).values() if set(places) & set(metric.shown)]


def finite(value: float | None) -> float | None:
    """Return the value, or `FOREVER_S` if the value is infinite. A ratio needs a finite value."""
    return FOREVER_S if value == inf else value


# -- limits ----------------------------------------------------------------------------------------

_SECONDS = {"us": Decimal("1e-6"), "µs": Decimal("1e-6"), "ms": Decimal("1e-3"), "s": Decimal(1)}
# For each unit in which a figure is stored: the units that a user may write.
_RATIO = {"": Decimal(1), "%": Decimal("0.01")}
_SCALES: dict[str, dict[str, Decimal]] = {
    "s": _SECONDS,
    "us": {unit: seconds * 10**6 for unit, seconds in _SECONDS.items()},
    "per_s": {"": Decimal(1), "/s": Decimal(1)},
    "ratio": _RATIO,
    "factor": _RATIO,
    "count": {"": Decimal(1)},
}
# A limit on any other figure is written as a plain number.
_EXAMPLES = {"s": "5ms", "us": "30us", "per_s": "2000/s", "ratio": "99.9%"}


@dataclass(frozen=True, slots=True)
class Threshold:
    """A limit on a metric.

    `expression` is the text that the user wrote. `limit` is a number in the unit of the metric.
    """

    expression: str
    metric: Metric
    operator: Operator
    limit: float

    def judge(self, result: Figures, void: Sequence[str] = ()) -> JudgedThreshold:
        """Judge the limit on this result.

        `void` lists the reasons why the figures of the run are worthless. An empty `void` means
        that there is no reason.
        """
        value = self.metric.value(result)
        holds = value is not None and OPERATORS[self.operator](value, self.limit)
        # A violation is certain even in a run whose other figures do not count.
        if void and (holds or self.metric.path[0] != "safety"):
            doubt = f"the figures of this run are not valid: {void[0]}"
        else:
            doubt = self._doubt(result, value, holds=holds)
            late = doubt and value is not None and not holds and self.metric.path[0] == "latency_s"
            if late and beyond_for_certain(self, result):
                # The excess is too large to be the effect of lateness or gaps of the generator.
                doubt = ""
        endless = ""
        if value == inf:
            endless = f"∞: {_failed_share(result)} of acquires failed"
            value = None
        status: Literal["pass", "fail", "inconclusive"] = "pass" if holds else "fail"
        if doubt:
            status = "inconclusive"
        return JudgedThreshold(
            expression=self.expression,
            metric=self.metric.name,
            path=".".join(self.metric.path),
            operator=self.operator,
            limit=self.limit,
            unit=self.metric.unit,
            value=value,
            infinite=bool(endless),
            margin=None if value is None else self._room(value),
            status=status,
            reason=doubt or endless or None,
        )

    def _room(self, value: float) -> float:
        """Return the distance between the value and the limit. A negative distance means that the
        value breaks the limit.
        """
        room = self.limit - value
        return {"<": room, ">": -room, "!": abs(room), "=": -abs(room)}[self.operator[0]]

    def _doubt(self, result: Figures, value: float | None, *, holds: bool) -> str:
        """Return the reason why `result` cannot decide the limit. Return "" if `result` can decide
        the limit.
        """
        section = self.metric.path[0]
        figure = self.metric.path[-1]
        safety = result.safety
        if section == "safety" and safety.verdict == "UNKNOWN":
            return f"safety is unknown: {safety.reason}"
        if value is None:
            samples = _samples(self.metric, result)
            return (
                f"{samples:,} samples are too few for this figure"
                if samples
                else "there are no samples"
            )
        if section == "safety" and holds and safety.verdict == "NOT TESTED":
            return f"safety was not tested: {safety.reason}"
        if section == "latency_s" and holds and result.rate.sustained is False:
            return "the offered rate was not sustained"
        of_acquired = holds and self.metric.path[:-1] in OF_ACQUIRED and figure in OVER_ALL
        if of_acquired and find_metric(f"acquire.{figure}").value(result) == inf:
            return (
                f"this figure covers only successful acquires, but {_failed_share(result)} of "
                f"acquires failed; use acquire.{figure}"
            )
        if not holds and (touched := _gap_doubt(self, result)):
            return touched
        return _one_sided_doubt(self.metric, self.operator, result, holds=holds)


def _samples(metric: Metric, result: Figures) -> int:
    """Return the number of samples from which a figure was computed. Return 0 if the figure is not
    a figure of a distribution.
    """
    if metric.path[0] != "latency_s":
        return 0
    section: Latency | AllAcquires = result.latency_s.value_of(metric.path[1])
    return section.count


def sentence(entry: JudgedThreshold) -> str:
    """Return a sentence about a failed or inconclusive limit. The sentence becomes a reason of the
    verdict.
    """
    if entry.status == "inconclusive":
        return f"{entry.expression}: {entry.reason}"
    return f"{entry.expression} does not hold" + (f" ({entry.reason})" if entry.reason else "")


def value_of(entry: JudgedThreshold) -> float:
    """Return the measured value that was compared with the limit. The value may be infinite."""
    return inf if entry.infinite or entry.value is None else entry.value


def _failed_share(result: Figures) -> str:
    return f"{100 * (1 - (result.outcome_shares.acquired or 0)):.1f} %"


def read_threshold(text: str) -> Threshold:
    """Return the threshold that `text` describes.

    Raises UsageError if the text has a wrong form, an unknown metric or a wrong unit.
    """
    try:
        expression = parse_threshold(text)
    except ValueError as error:
        raise UsageError(f"threshold: {error}") from None
    parts = THRESHOLD.fullmatch(expression)
    # parse_threshold refuses every text that does not match.
    assert parts is not None
    metric = find_metric(parts["name"])
    unit = parts["unit"] or ""
    scale = _SCALES[metric.unit].get(unit)
    if scale is None:
        example = f"{metric.name} {parts['operator']} {_EXAMPLES.get(metric.unit, '0')}"
        wrong = f"{unit!r} is not a unit of {metric.name}" if unit else "the limit needs a unit"
        raise UsageError(f"threshold {expression!r}: {wrong} (write it like {example})")
    limit = Decimal(parts["number"]) * scale
    if metric.is_share and limit > 1:
        share = parts["number"]
        raise UsageError(
            f"threshold {expression!r}: {metric.name} is a share between 0 and 1, but the "
            f"limit {share}{unit} is above 1; write {metric.name} {parts['operator']} "
            f"{share if Decimal(share) <= 100 else 100}%"
        )
    if metric.is_whole and parts["operator"] in ("==", "!=") and limit != limit.to_integral_value():
        raise UsageError(
            f"threshold {expression!r}: {metric.name} is a whole number, but {parts['number']} is "
            f"not; write {metric.name} {parts['operator']} {limit.to_integral_value(ROUND_FLOOR)}"
        )
    return Threshold(expression, metric, cast("Operator", parts["operator"]), float(limit))


def read_thresholds(texts: Iterable[str]) -> tuple[Threshold, ...]:
    """Return the thresholds that `texts` describe, in the same order and without repetitions.

    Raises UsageError if a text has a wrong form, an unknown metric or a wrong unit.
    """
    return tuple(dict.fromkeys(map(read_threshold, texts)))


_OF_LOAD = (
    "rate",
    "outcomes",
    "outcome_shares",
    "latency_s",
    "attempts",
    "votes",
    "split_votes",
    "waiting",
)


def _gap_doubt(threshold: Threshold, result: Figures) -> str:
    """Return a sentence if gaps of the load generator may be the only cause of a failed limit.
    Otherwise return "".

    Call this function only if the measured value breaks the limit. The sentence says how long a
    load process did not run, and how many acquires this gap affected.
    """
    generator = result.generator
    path = threshold.metric.path
    if not generator.gap_operations or path[0] not in _OF_LOAD:
        return ""
    if path == ("outcome_shares", "acquired"):
        acquires = result.latency_s.acquire_all.count - generator.gap_failures
        best = result.outcomes.acquired / acquires if acquires > 0 else 1.0
        if not OPERATORS[threshold.operator](best, threshold.limit):
            return ""
    return (
        f"a load process did not run for {generator.gap_s:.2f} s, and this affected "
        f"{generator.gap_operations:,} acquires ({generator.gap_failures:,} failed), so the "
        "generator may be the cause"
    )


def beyond_for_certain(threshold: Threshold, result: Figures) -> bool:
    """Return whether a percentile is certainly beyond its limit.

    The function makes two assumptions in favour of the lock. First, it ignores every operation that
    a gap of the load generator affected. Second, it subtracts from every other operation the delay
    that the generator may have added. If the percentile is beyond its limit even under these two
    assumptions, it is certainly beyond its limit.

    The scheduler can delay an operation. In an open loop, the timer can also delay an operation.
    The function tests several values of a delay d. For each d, the function computes the share of
    slow operations. In a closed loop, an operation is slow if it exceeded the limit by more than d.
    In an open loop, an operation is slow if it exceeded the limit by more than 2d. From this share,
    the function subtracts the share of operations that the scheduler delayed by more than d. In an
    open loop, the function also subtracts the share of operations that the timer delayed by more
    than d. The result is True if two conditions are met for at least one d. The first condition is
    that the difference is above the share that the percentile allows. The second condition is that
    at least `SAMPLES_BEYOND` operations were slow. The largest lateness of the run is one of the
    tested values of d.
    """
    path = threshold.metric.path
    generator = result.generator
    percent = PERCENTILES.get(path[-1])
    shown = result.histograms.get("acquire" if path[1] == "acquire_all" else path[1])
    if percent is None or not shown or threshold.operator not in ("<", "<="):
        return False
    own = Histogram.decode(shown)
    failed = result.latency_s.acquire_failed.count if path[1] == "acquire_all" else 0
    whole = own.count + failed - generator.gap_operations
    if whole < SAMPLES_BEYOND:
        return False
    failed -= min(failed, generator.gap_failures)
    # Successful acquires that touched a gap.
    served = generator.gap_operations - generator.gap_failures
    names = ["scheduler_lag"] + (
        ["timer_lateness"] if result.rate.offered_per_s is not None else []
    )
    delays = [Histogram.decode(text) for name in names if (text := result.histograms.get(name))]
    if generator.verdict in IN_DOUBT and not any(delay.count for delay in delays):
        # The lateness of the generator is unknown.
        return False
    for added_ns in _possible_delays(delays):
        late = sum(delay.beyond(added_ns) / delay.count for delay in delays if delay.count)
        longer = own.beyond(threshold.limit * 1e9 + len(delays) * added_ns) + failed - served
        if longer >= SAMPLES_BEYOND and longer / whole - late > 1 - percent / 100:
            return True
    return False


def _possible_delays(delays: Sequence[Histogram]) -> list[int]:
    """Return the candidates (ns) for the delay that the generator added.

    For each kind of delay, the candidates are the largest delay and the quantiles at 0 %, 5 %, 10 %
    and so on up to 100 %. The value 0 is also a candidate.
    """
    delays_ns = {0}
    for delay in delays:
        if delay.count:
            shares = np.searchsorted(np.cumsum(delay.counts), np.linspace(1, delay.count, 21))
            delays_ns |= {highest_of_bucket(int(bucket)) for bucket in shares} | {delay.max_ns}
    return sorted(delays_ns)


def _one_sided_doubt(metric: Metric, operator: str, result: Figures, *, holds: bool) -> str:
    """Return the reason why the load generator's delay makes a limit on `metric` inconclusive.

    `holds` is true if the measured figure is within the limit. Return "" if the delay is small, or
    if this limit does not depend on the delay.
    """
    figure = metric.path[-1]
    value = metric.value(result)
    lateness = result.histograms.get("timer_lateness")
    if metric.path[0] != "latency_s" or metric.unit != "s":
        return ""
    if holds or value == inf if operator in ("<", "<=") else operator in (">", ">=") and not holds:
        return ""
    if result.generator.verdict in IN_DOUBT:
        return f"the latency is an upper bound: {result.generator.reason}"
    if (
        result.rate.offered_per_s is None
        or not lateness
        or figure not in PERCENTILES
        or value is None
    ):
        return ""
    late_s = (Histogram.decode(lateness).percentile(PERCENTILES[figure]) or 0) / 1e9
    late = f"the latency is an upper bound: the timer was {late_s * 1e3:.3g} ms late ({figure})"
    return late if late_s > LATENESS_SHARE * value else ""
