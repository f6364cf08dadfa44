"""PromQL made from the instrument table: *instrument name, how to look at it → a query that knows its unit*.

Rules
- A metric or label that the table does not have is refused here, so that no board asks for what nobody exports.
- Every selector is narrowed by the board's variables: run, recipe, policy and, where it has one, instance.
- A counter is looked at as a rate over `$__rate_interval`, or `whole`: its last value in `$__range`. Each run's
  counters start at 0, so that is exactly the run's count.
- Quantiles of acquire are over all of them (`acquire_quantile`): successes alone look well in the middle of an outage.

Source: bench.telemetry.table; Prometheus, "Querying"; Grafana, "Prometheus template variables".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.telemetry.table import BY_NAME, Instrument, InstrumentKind

INSTANCE = ("server_address", "server_port")
RUN = "redlock_run_id"
POLICY = "redlock_fsync"
RATIO = "1"
ACQUIRE = "redlock.acquire.duration"
_VARIABLES = {RUN: "$run", "redlock_recipe": "$recipe", POLICY: "$policy"}
_INSTANCE_VARIABLES = {"server_address": "$instance", "server_port": "$port"}


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL and what it yields: `unit` as in the table ("1" = a ratio), `legend` for Grafana's legend."""

    expr: str
    unit: str
    legend: str = ""

    def named(self, legend: str) -> Query:
        """The same, called `legend`; `{{label}}` stands for a label's value."""
        return Query(self.expr, self.unit, legend)


def metric(name: str, part: str = "", *, run: str = "$run", **labels: str) -> str:
    """The selector of instrument `name`; `part`: bucket, sum or count of a histogram; `labels`: exact values.

    Raises KeyError for an instrument or label that the table does not have, ValueError for a wrong part.
    """
    one = BY_NAME[name]
    if (one.kind is InstrumentKind.HISTOGRAM) != (part in ("bucket", "sum", "count")):
        raise ValueError(f"{name} is a {one.kind.value}: {part or 'nothing'} is no part of it")
    known = _labels(one) | ({"le"} if part == "bucket" else set())
    unknown = set(labels) - known
    if unknown:
        raise KeyError(f"{name} has no label {', '.join(sorted(unknown))}")
    variables = _VARIABLES | {RUN: run} | {key: value for key, value in _INSTANCE_VARIABLES.items() if key in known}
    matchers = [f'{key}=~"{value}"' for key, value in variables.items()]
    matchers += [f'{key}="{value}"' for key, value in labels.items()]
    return f"{one.prometheus}{'_' + part if part else ''}{{{', '.join(matchers)}}}"


def _labels(one: Instrument) -> set[str]:
    return {attribute.label for attribute in one.attributes}


def _sum(expr: str, by: Sequence[str], function: str = "sum") -> str:
    return f"{function} by ({', '.join(by)}) ({expr})" if by else f"{function}({expr})"


def _legend(by: Sequence[str]) -> str:
    return ":".join(f"{{{{{label}}}}}" for label in by)


def now(name: str, by: Sequence[str] = (), *, function: str = "sum", **labels: str) -> Query:
    """A gauge as it stands, `function`-ed (sum, max, min, avg) by the labels `by`."""
    return Query(_sum(metric(name, **labels), by, function), BY_NAME[name].unit, _legend(by))


def grown(selector: str, *, whole: bool = False) -> str:
    """Each series of a counter per second as of now, or `whole`: over the whole of the runs in view."""
    return f"last_over_time({selector}[$__range])" if whole else f"rate({selector}[$__rate_interval])"


def rate(name: str, by: Sequence[str] = (), *, part: str = "", **labels: str) -> Query:
    """How fast a counter (or a part of a histogram) grows, per second."""
    unit = "{operation}" if part in ("bucket", "count") else BY_NAME[name].unit
    expr = _sum(grown(metric(name, part, **labels)), by)
    return Query(expr, RATIO if unit == "s" else f"{unit}/s", _legend(by))


def total(name: str, by: Sequence[str] = (), *, part: str = "", run: str = "$run", **labels: str) -> Query:
    """A counter's value at the end of each run in view, summed."""
    unit = BY_NAME[name].unit if part != "count" else "{operation}"
    return Query(_sum(grown(metric(name, part, run=run, **labels), whole=True), by), unit, _legend(by))


def voting() -> Query:
    """How many instances vote: each one only while every load process gets its vote."""
    each = _sum(metric("redlock.instance.voting"), (RUN, *INSTANCE), "min")
    return Query(f"sum({each})", BY_NAME["redlock.instance.voting"].unit)


def typical(name: str, by: Sequence[str] = (), *, run: str = "$run", **labels: str) -> Query:
    """A gauge's median over each run in view while it is not 0, summed over load processes, averaged over runs."""
    of_run = tuple(dict.fromkeys((RUN, *by)))
    each = _sum(f"quantile_over_time(0.5, ({metric(name, run=run, **labels)} > 0)[$__range:])", of_run)
    return Query(_sum(each, by, "avg"), BY_NAME[name].unit, _legend(by))


def quantile(q: float, name: str, by: Sequence[str] = (), *, whole: bool = False, **labels: str) -> Query:
    """The `q` quantile of a histogram."""
    return _quantile(q, name, by, grown(metric(name, "bucket", **labels), whole=whole))


def acquire_quantile(q: float, by: Sequence[str] = (), *, whole: bool = False, run: str = "$run") -> Query:
    """The `q` quantile over all acquires: one that failed is in no bucket but the last, as it took for ever.

    So it is the largest bound when more than 1 − `q` failed.
    """
    acquired = metric(ACQUIRE, "bucket", run=run, redlock_outcome="acquired")
    ended = metric(ACQUIRE, "bucket", run=run, le="+Inf")
    failed = ended.replace('le="+Inf"', 'le="+Inf", redlock_outcome!="acquired"')
    return _quantile(q, ACQUIRE, by, f"{grown(acquired, whole=whole)} or {grown(failed, whole=whole)}")


def _quantile(q: float, name: str, by: Sequence[str], buckets: str) -> Query:
    return Query(f"histogram_quantile({q:g}, {_sum(buckets, ('le', *by))})", BY_NAME[name].unit, _legend(by))


def mean(name: str, by: Sequence[str] = (), **labels: str) -> Query:
    """The mean of a histogram, moment by moment."""
    upper, lower = (_sum(grown(metric(name, part, **labels)), by) for part in ("sum", "count"))
    return Query(f"{upper} / {lower}", BY_NAME[name].unit, _legend(by))


def buckets(name: str, **labels: str) -> Query:
    """A histogram's buckets, for a heatmap: observations per second by upper bound."""
    return Query(_sum(grown(metric(name, "bucket", **labels)), ("le",)), BY_NAME[name].unit, "{{le}}")


def ratio(upper: Query, lower: Query, unit: str = RATIO) -> Query:
    """One query over another; `unit` of the quotient."""
    return Query(f"{upper.expr} / {lower.expr}", unit, upper.legend)
