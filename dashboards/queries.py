"""This module writes the queries of the boards: *instruments → queries for Prometheus*.

Rules
- This module builds every PromQL query from the instrument table. If a query uses a metric or a
  label that the table lacks, this module raises an error. Every selector contains the variables of
  the board.
- A query for a counter computes the rate over `$__rate_interval`. If `whole` is true, the query
  instead uses the last value in `$__range`. The counters of each run start at 0, so this last value
  is exactly the count of the run.
- A quantile of acquire durations is computed over all acquires (`acquire_quantile`). A quantile
  over only the successful acquires would hide an outage.
- A query reads a histogram as a classic histogram. If there are no classic buckets, the query reads
  a native histogram (exponential, or converted by Prometheus 3). A native histogram has no bucket
  for failed acquires, which count as infinitely long. If the share of failed acquires is more than
  1 − q, the query returns the largest bound. A query for a classic histogram returns the same
  bound. If the share of failed acquires is at most 1 − q, the query returns the quantile of the
  successful acquires.
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
# This unit is for numbers without a unit, such as an index or a state (1 or 0).
PLAIN = "none"
# The part of a histogram that is a native histogram.
NATIVE = "native"
# The value of `run` for metrics of applications, which have no run.
PRODUCTION = ""
ACQUIRE = "redlock.acquire.duration"
_VARIABLES = {RUN: "$run", "redlock_recipe": "$recipe", POLICY: "$policy"}
_INSTANCE_VARIABLES = {"server_address": "$instance", "server_port": "$port"}


@dataclass(frozen=True, slots=True)
class Query:
    """A query in PromQL.

    `unit`: the unit of the values, in the notation of the instrument table. The unit of a ratio is
    "1". `legend`: the text for Grafana's legend.
    """

    expr: str
    unit: str
    legend: str = ""

    def named(self, legend: str) -> Query:
        """Return a copy of this query whose name is `legend`.

        Grafana replaces `{{label}}` in the name by the value of this label.
        """
        return replace(self, legend=legend)


def metric(name: str, part: str = "", *, run: str = "$run", **labels: str) -> str:
    """Return the selector of instrument `name`.

    `part`: the part of a histogram, which is "bucket", "sum", "count" or `NATIVE`. For any other
    instrument, `part` is "". `labels`: the required value of each label. A value may begin with the
    operator `!=` or `=~`. Raises KeyError if the table lacks the instrument or a label. Raises
    ValueError if the part is wrong.
    """
    one = BY_NAME[name]
    if (one.kind is InstrumentKind.HISTOGRAM) != (part in ("bucket", "sum", "count", NATIVE)):
        raise ValueError(f"{name} is a {one.kind.value}, so part={part!r} is not possible")
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
    """Return the present rate of every series of a counter. If the instrument is a histogram,
    `part` selects the part of the histogram.

    `whole`: if true, this function returns the last value in the time range instead of the rate.
    This value covers a whole run.
    """
    selector = metric(name, part, run=run, **labels)
    return (
        f"last_over_time({selector}[$__range])" if whole else f"rate({selector}[$__rate_interval])"
    )


def summed(expr: str, by: Sequence[str] = (), function: str = "sum") -> str:
    """Return the series of `expr`, combined by the labels `by`.

    `function`: the aggregation, which is sum, max, min or avg.
    """
    return f"{function} by ({', '.join(by)}) ({expr})" if by else f"{function}({expr})"


def _query(name: str, expr: str, by: Sequence[str] = (), unit: str = "") -> Query:
    return Query(expr, unit or BY_NAME[name].unit, ":".join(f"{{{{{label}}}}}" for label in by))


def now(name: str, by: Sequence[str] = (), *, function: str = "sum", **labels: str) -> Query:
    """Return the present value of a gauge. The query groups the series by the labels `by` and
    combines each group with `function`."""
    return _query(name, summed(metric(name, **labels), by, function), by)


def state(name: str, by: Sequence[str] = (), *, function: str = "sum", **labels: str) -> Query:
    """Return the same query as `now`, except that the values have no unit.

    Use this function for a gauge that is 1 or 0.
    """
    return replace(now(name, by, function=function, **labels), unit=PLAIN)


def rate(name: str, by: Sequence[str] = (), **labels: str) -> Query:
    """Return the growth of a counter per second."""
    unit = BY_NAME[name].unit
    return _query(
        name,
        summed(grown(name, whole=False, **labels), by),
        by,
        RATIO if unit == "s" else f"{unit}/s",
    )


def total(name: str, by: Sequence[str] = (), **labels: str) -> Query:
    """Return the final value of a counter, summed over all runs that the board shows."""
    return _query(name, summed(grown(name, whole=True, **labels), by), by)


def either(classic: str, native: str) -> str:
    """Return a query that uses `classic` if `classic` has data. If `classic` has no data, the query
    uses `native`.
    """
    return f"({classic} or {native})"


def count(name: str) -> Query:
    """Return the final number of values in a histogram, summed over all runs that the board
    shows."""
    classic, native = (summed(grown(name, part, whole=True)) for part in ("count", NATIVE))
    return Query(either(classic, f"histogram_count({native})"), "{operation}")


def below(name: str, bound: str, **labels: str) -> Query:
    """Return the number of values that are at most `bound`, summed over all runs that the board
    shows.

    `bound`: a bound of the histogram.
    """
    classic = summed(grown(name, "bucket", whole=True, le=bound, **labels))
    whole = summed(grown(name, NATIVE, whole=True, **labels))
    native = f"histogram_fraction(-Inf, {bound}, {whole}) * histogram_count({whole})"
    return Query(either(classic, native), "{operation}")


def voting() -> Query:
    """Return the number of instances that vote.

    An instance counts only while all load processes receive the votes of this instance.
    """
    name = "redlock.instance.voting"
    return _query(name, f"sum({now(name, (RUN, *INSTANCE), function='min').expr})")


def whole_rate(by: Sequence[str] = (), *, run: str = "$run") -> Query:
    """Return the number of leases per second, averaged over all runs that the board shows.

    The time of a run includes warm-up and drain.
    """
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
    """Return the `q` quantile over all acquires.

    A failed acquire counts as infinitely long, so only the last bucket contains it. If the share of
    failed acquires is more than 1 − `q`, the quantile is the largest bound.
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
    """Return a query for the mean of the values in a histogram. The query computes this mean over
    `$__rate_interval`."""
    upper, lower, native = (summed(grown(name, part)) for part in ("sum", "count", NATIVE))
    return _query(
        name, either(f"{upper} / {lower}", f"histogram_sum({native}) / histogram_count({native})")
    )


def buckets(name: str, **labels: str) -> Query:
    """Return the rate of observations in each bucket of a histogram. Use this query for a
    heatmap."""
    classic, native = (grown(name, part, whole=False, **labels) for part in ("bucket", NATIVE))
    return _query(name, either(summed(classic, ("le",)), summed(native)), ("le",))


def ratio(upper: Query, lower: Query, unit: str = RATIO) -> Query:
    """Return a query for `upper` divided by `lower`, with the unit `unit`."""
    return Query(f"{upper.expr} / {lower.expr}", unit, upper.legend)
