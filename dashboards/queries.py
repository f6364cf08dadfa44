"""The queries of the boards: *instruments → queries for Prometheus*.

Rules
- PromQL is made from the instrument table. A metric or label that the table lacks is refused here.
  The board's variables narrow every selector.
- A counter is read as a rate over `$__rate_interval`, or `whole`: its last value in `$__range`.
  Each run's counters start at 0, so this value is exactly the run's count.
- Quantiles of acquire cover all acquires (`acquire_quantile`), because the successes alone look
  good in the middle of an outage.
- A query reads a histogram as a classic one. If there are no classic buckets, it reads a native
  histogram (exponential, or converted by Prometheus 3). A native histogram cannot count failures as
  endless. If more than 1 − q failed, its quantile is the largest bound, as with a classic one; else
  it is the quantile of the acquired.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from bench.telemetry.table import BOUNDS, BY_NAME, InstrumentKind

INSTANCE = ("server_address", "server_port")
RUN = "redlock_run_id"
POLICY = "redlock_fsync"
NAME = "redlock_run_name"
BEGAN = "redlock_run_started"
RATIO = "1"
# The unit of a number without a unit: an index, or a state (1 or 0).
PLAIN = "none"
# a whole histogram
NATIVE = "native"
# instead of a run: what applications export
PRODUCTION = ""
ACQUIRE = "redlock.acquire.duration"
_VARIABLES = {RUN: "$run", "redlock_recipe": "$recipe", POLICY: "$policy"}
_INSTANCE_VARIABLES = {"server_address": "$instance", "server_port": "$port"}


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL and what it yields: `unit` as in the table ("1" = a ratio), `legend` for Grafana's
    legend."""

    expr: str
    unit: str
    legend: str = ""

    def named(self, legend: str) -> Query:
        """Return the same query with the name `legend`; `{{label}}` stands for a label's value."""
        return replace(self, legend=legend)


def metric(name: str, part: str = "", *, run: str = "$run", **labels: str) -> str:
    """Return the selector of instrument `name`; `part` of a histogram: bucket, sum, count,
    `NATIVE`; `labels`: exact values, or others behind their operator (`!=`, `=~`).

    Raises KeyError for an instrument or label that the table does not have, ValueError for a wrong
    part.
    """
    one = BY_NAME[name]
    if (one.kind is InstrumentKind.HISTOGRAM) != (part in ("bucket", "sum", "count", NATIVE)):
        raise ValueError(f"{name} is a {one.kind.value}: {part or 'nothing'} is no part of it")
    labels_of_metric = {attribute.label for attribute in one.attributes} | (
        {"le"} if part == "bucket" else set()
    )
    if unknown := set(labels) - labels_of_metric:
        raise KeyError(f"{name} has no label {', '.join(sorted(unknown))}")
    scope = {"job": "$service"} if run == PRODUCTION else _VARIABLES | {RUN: run}
    matchers = [f'{RUN}=""'] if run == PRODUCTION else []
    matchers += [f'{key}=~"{value}"' for key, value in scope.items()]
    matchers += [
        f'{key}=~"{value}"' for key, value in _INSTANCE_VARIABLES.items() if key in labels_of_metric
    ]
    for key, value in labels.items():
        operator = next((each for each in ("!=", "=~") if value.startswith(each)), "")
        matchers.append(f'{key}{operator or "="}"{value.removeprefix(operator)}"')
    suffix = f"_{part}" if part not in ("", NATIVE) else ""
    return f"{one.prometheus}{suffix}{{{', '.join(matchers)}}}"


def grown(
    name: str, part: str = "", *, whole: bool = False, run: str = "$run", **labels: str
) -> str:
    """Return each series of a counter (or `part`) per second as of now, or `whole`: over the whole
    of the runs in view."""
    selector = metric(name, part, run=run, **labels)
    return (
        f"last_over_time({selector}[$__range])" if whole else f"rate({selector}[$__rate_interval])"
    )


def summed(expr: str, by: Sequence[str] = (), function: str = "sum") -> str:
    """Return the series of `expr`, combined with `function` (sum, max, min, avg) by the labels
    `by`."""
    return f"{function} by ({', '.join(by)}) ({expr})" if by else f"{function}({expr})"


def _query(name: str, expr: str, by: Sequence[str] = (), unit: str = "") -> Query:
    return Query(expr, unit or BY_NAME[name].unit, ":".join(f"{{{{{label}}}}}" for label in by))


def now(name: str, by: Sequence[str] = (), *, function: str = "sum", **labels: str) -> Query:
    """Return the present value of a gauge, combined with `function` by the labels `by`."""
    return _query(name, summed(metric(name, **labels), by, function), by)


def state(name: str, by: Sequence[str] = (), *, function: str = "sum", **labels: str) -> Query:
    """`now` for a gauge that is 1 or 0."""
    return replace(now(name, by, function=function, **labels), unit=PLAIN)


def rate(name: str, by: Sequence[str] = (), **labels: str) -> Query:
    """Return how fast a counter grows, per second."""
    unit = BY_NAME[name].unit
    return _query(
        name,
        summed(grown(name, whole=False, **labels), by),
        by,
        RATIO if unit == "s" else f"{unit}/s",
    )


def total(name: str, by: Sequence[str] = (), **labels: str) -> Query:
    """Return a counter's value at the end of each run in view, summed."""
    return _query(name, summed(grown(name, whole=True, **labels), by), by)


def either(classic: str, native: str) -> str:
    """Return the first of the two queries that has data."""
    return f"({classic} or {native})"


def count(name: str) -> Query:
    """Return the number of values in a histogram at the end of each run in view."""
    classic, native = (summed(grown(name, part, whole=True)) for part in ("count", NATIVE))
    return Query(either(classic, f"histogram_count({native})"), "{operation}")


def below(name: str, bound: str, **labels: str) -> Query:
    """Return the number of values of whole runs that do not exceed `bound`, which is a bound of the
    histogram."""
    classic = summed(grown(name, "bucket", whole=True, le=bound, **labels))
    whole = summed(grown(name, NATIVE, whole=True, **labels))
    native = f"histogram_fraction(-Inf, {bound}, {whole}) * histogram_count({whole})"
    return Query(either(classic, native), "{operation}")


def voting() -> Query:
    """Return the number of voting instances. An instance counts only while every load process gets
    its vote."""
    name = "redlock.instance.voting"
    return _query(name, f"sum({now(name, (RUN, *INSTANCE), function='min').expr})")


def whole_rate(by: Sequence[str] = (), *, run: str = "$run") -> Query:
    """Leases per second of each whole run in view, warm-up and drain included, averaged over
    runs."""
    of_run = tuple(dict.fromkeys((RUN, *by)))
    leases = total("redlock.acquire.outcomes", of_run, run=run, redlock_outcome="acquired")
    lasted_s = summed(grown("redlock.load.time", whole=True, run=run), of_run, "max")
    return _query(
        "redlock.load.time", summed(f"{leases.expr} / {lasted_s}", by, "avg"), by, "{lease}/s"
    )


def quantile(
    q: float, name: str, by: Sequence[str] = (), *, whole: bool = False, **labels: str
) -> Query:
    """Return the `q` quantile of a histogram."""
    classic, native = (grown(name, part, whole=whole, **labels) for part in ("bucket", NATIVE))
    return _query(
        name,
        either(_quantile(q, summed(classic, ("le", *by))), _quantile(q, summed(native, by))),
        by,
    )


def acquire_quantile(
    q: float, by: Sequence[str] = (), *, whole: bool = False, run: str = "$run"
) -> Query:
    """Return the `q` quantile over all acquires: one that failed is in no bucket but the last, as
    it took for ever.

    So it is the largest bound when more than 1 − `q` failed.
    """
    series = partial(grown, ACQUIRE, whole=whole, run=run)
    acquired = series("bucket", redlock_outcome="acquired")
    lost = series("bucket", le="+Inf", redlock_outcome="!=acquired")
    classic = _quantile(q, summed(f"{acquired} or {lost}", ("le", *by)))
    got = summed(series(NATIVE, redlock_outcome="acquired"), by)
    all_ = summed(series(NATIVE), by)
    ended = f"histogram_count({all_})"
    won = f"histogram_count({got})"
    failed = f"({ended} - ({won} or 0 * {ended}))"
    endless = f"({failed} > {1 - q:g} * {ended}) * 0 + {BOUNDS[-1]:g}"
    return _query(ACQUIRE, either(classic, f"({endless} or {_quantile(q, got)})"), by)


def _quantile(q: float, expr: str) -> str:
    return f"histogram_quantile({q:g}, {expr})"


def mean(name: str) -> Query:
    """Return the mean of a histogram, moment by moment."""
    upper, lower, native = (summed(grown(name, part)) for part in ("sum", "count", NATIVE))
    return _query(
        name, either(f"{upper} / {lower}", f"histogram_sum({native}) / histogram_count({native})")
    )


def buckets(name: str, **labels: str) -> Query:
    """Return a histogram's buckets, for a heatmap: observations per second by upper bound."""
    classic, native = (grown(name, part, whole=False, **labels) for part in ("bucket", NATIVE))
    return _query(name, either(summed(classic, ("le",)), summed(native)), ("le",))


def ratio(upper: Query, lower: Query, unit: str = RATIO) -> Query:
    """Return the quotient of two queries, with `unit`."""
    return Query(f"{upper.expr} / {lower.expr}", unit, upper.legend)
