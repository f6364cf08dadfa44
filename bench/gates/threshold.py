"""One limit on one figure: *`acquire.p99 < 5ms` and a result → pass, fail or inconclusive, with value and margin*.

Rules
- No value is INCONCLUSIVE, never a pass: no samples, too few for a percentile.
- Percentiles of acquire are over all acquires, a failed one took for ever: with 2 % failed the p99 is infinite.
- A figure of safety is inconclusive while safety is UNKNOWN; NOT TESTED, it can fail, but not pass.
- The latency of a rate that was not sustained is that of a growing queue: it can fail, but not pass.
- A figure that errs to one side only is judged on that side (`one_sided.py`).
- Of an invalid run nothing is judged but broken limits of safety: a violation is certain.

Source: README, "Gate your CI".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import inf
from operator import eq, ge, gt, le, lt, ne
from typing import cast

from bench.errors import UsageError
from bench.gates.metric import OVER_ALL, Metric, find_metric
from bench.gates.one_sided import one_sided_doubt
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
        section, safety = self.metric.path[0], result.safety
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
            return f"it is of successes only, and {_failed_share(result)} of acquires failed: see acquire.{self.figure}"
        return one_sided_doubt(self.metric, self.operator, self.limit, result, kept=kept)

    @property
    def figure(self) -> str:
        """The last part of the metric's name."""
        return self.metric.path[-1]

    def _hides_failures(self, result: Figures) -> bool:
        """Whether this percentile of acquired ones would be infinite over all."""
        if self.metric.path[1] not in ("acquire_service", "wait"):
            return False
        return find_metric(f"acquire.{self.figure}").value(result) == inf if self.figure in OVER_ALL else False


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
