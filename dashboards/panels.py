"""Boards and their panels: *instruments → queries → panels in rows → a dashboard as the JSON that
is committed*.

Rules
- PromQL is made from the instrument table: a metric or label that it does not have is refused here.
  Every selector is narrowed by the board's variables. All queries of a panel have one unit, which
  decides the panel's.
- A counter is looked at as a rate over `$__rate_interval`, or `whole`: its last value in
  `$__range`. Each run's counters start at 0, so that is exactly the run's count.
- Quantiles of acquire are over all of them (`acquire_quantile`): successes alone look well in the
  middle of an outage.
- A histogram is asked for as a classic one, and where it has no buckets as a native one
  (exponential, or converted by Prometheus 3): whichever is there answers. A native one cannot count
  failures as endless; where more than 1 − q failed its quantile is the largest bound, as a classic
  one's, else that of the acquired.
- Panels of a line share its 24 columns; they are placed here, as Grafana's own layout overflows
  them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    timeseries,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as shared
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heat_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from bench.telemetry.table import BOUNDS, BY_NAME, InstrumentKind

INSTANCE = ("server_address", "server_port")
RUN = "redlock_run_id"
POLICY = "redlock_fsync"
NAME = "redlock_run_name"
BEGAN = "redlock_run_started"
RATIO = "1"
# a whole histogram
NATIVE = "native"
# instead of a run: what applications export
PRODUCTION = ""
ACQUIRE = "redlock.acquire.duration"
_VARIABLES = {RUN: "$run", "redlock_recipe": "$recipe", POLICY: "$policy"}
_INSTANCE_VARIABLES = {"server_address": "$instance", "server_port": "$port"}

# What a board shows when it is opened. A run of 20 s is a tenth of three minutes; runs to compare
# follow each other within half an hour; an application is looked at over an hour.
ONE_RUN = "now-3m"
SOME_RUNS = "now-30m"
AN_HOUR = "now-1h"

TAG = "lockbench"
COLUMNS = 24
SOURCE = shared.DataSourceRef(type_val="prometheus", uid="${datasource}")
# a number without a unit: an index, or a state, 1 or 0
PLAIN = "none"
_UNITS = {
    "s": "s",
    "By": "bytes",
    RATIO: "percentunit",
    "x": "suffix:×",
    "{index}": PLAIN,
    PLAIN: PLAIN,
}
# a panel says this instead of a number
NO_RUN = "no run in view"
# each panel type of the SDK has a builder of its own, without a common interface
Builder = Any
Variable = dashboard.QueryVariable | dashboard.CustomVariable | dashboard.DatasourceVariable
# its heading, if any; its height; the panels that stand side by side
Shelf = tuple[str, int, Sequence[Builder]]


# -- queries ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL and what it yields: `unit` as in the table ("1" = a ratio), `legend` for Grafana's
    legend."""

    expr: str
    unit: str
    legend: str = ""

    def named(self, legend: str) -> Query:
        """The same, called `legend`; `{{label}}` stands for a label's value."""
        return replace(self, legend=legend)


def metric(name: str, part: str = "", *, run: str = "$run", **labels: str) -> str:
    """The selector of instrument `name`; `part` of a histogram: bucket, sum, count, `NATIVE`;
    `labels`: exact values, or others behind their operator (`!=`, `=~`).

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
    """Each series of a counter (or `part`) per second as of now, or `whole`: over the whole of the
    runs in view."""
    selector = metric(name, part, run=run, **labels)
    return (
        f"last_over_time({selector}[$__range])" if whole else f"rate({selector}[$__rate_interval])"
    )


def summed(expr: str, by: Sequence[str] = (), function: str = "sum") -> str:
    """Its series, `function`-ed (sum, max, min, avg) by the labels `by`."""
    return f"{function} by ({', '.join(by)}) ({expr})" if by else f"{function}({expr})"


def _query(name: str, expr: str, by: Sequence[str] = (), unit: str = "") -> Query:
    return Query(expr, unit or BY_NAME[name].unit, ":".join(f"{{{{{label}}}}}" for label in by))


def now(name: str, by: Sequence[str] = (), *, function: str = "sum", **labels: str) -> Query:
    """A gauge as it stands, `function`-ed by the labels `by`."""
    return _query(name, summed(metric(name, **labels), by, function), by)


def state(name: str, by: Sequence[str] = (), *, function: str = "sum", **labels: str) -> Query:
    """`now` of a gauge that is 1 or 0."""
    return replace(now(name, by, function=function, **labels), unit=PLAIN)


def rate(name: str, by: Sequence[str] = (), **labels: str) -> Query:
    """How fast a counter grows, per second."""
    unit = BY_NAME[name].unit
    return _query(
        name,
        summed(grown(name, whole=False, **labels), by),
        by,
        RATIO if unit == "s" else f"{unit}/s",
    )


def total(name: str, by: Sequence[str] = (), **labels: str) -> Query:
    """A counter's value at the end of each run in view, summed."""
    return _query(name, summed(grown(name, whole=True, **labels), by), by)


def either(classic: str, native: str) -> str:
    """Whichever has data."""
    return f"({classic} or {native})"


def count(name: str) -> Query:
    """How many values a histogram has at the end of each run in view."""
    classic, native = (summed(grown(name, part, whole=True)) for part in ("count", NATIVE))
    return Query(either(classic, f"histogram_count({native})"), "{operation}")


def below(name: str, bound: str, **labels: str) -> Query:
    """How many values of whole runs do not exceed `bound`, one of the histogram's own."""
    classic = summed(grown(name, "bucket", whole=True, le=bound, **labels))
    whole = summed(grown(name, NATIVE, whole=True, **labels))
    native = f"histogram_fraction(-Inf, {bound}, {whole}) * histogram_count({whole})"
    return Query(either(classic, native), "{operation}")


def voting() -> Query:
    """How many instances vote: each one only while every load process gets its vote."""
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
    """The `q` quantile of a histogram."""
    classic, native = (grown(name, part, whole=whole, **labels) for part in ("bucket", NATIVE))
    return _query(
        name,
        either(_quantile(q, summed(classic, ("le", *by))), _quantile(q, summed(native, by))),
        by,
    )


def acquire_quantile(
    q: float, by: Sequence[str] = (), *, whole: bool = False, run: str = "$run"
) -> Query:
    """The `q` quantile over all acquires: one that failed is in no bucket but the last, as it took
    for ever.

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
    """The mean of a histogram, moment by moment."""
    upper, lower, native = (summed(grown(name, part)) for part in ("sum", "count", NATIVE))
    return _query(
        name, either(f"{upper} / {lower}", f"histogram_sum({native}) / histogram_count({native})")
    )


def buckets(name: str, **labels: str) -> Query:
    """A histogram's buckets, for a heatmap: observations per second by upper bound."""
    classic, native = (grown(name, part, whole=False, **labels) for part in ("bucket", NATIVE))
    return _query(name, either(summed(classic, ("le",)), summed(native)), ("le",))


def ratio(upper: Query, lower: Query, unit: str = RATIO) -> Query:
    """One query over another; `unit` of the quotient."""
    return Query(f"{upper.expr} / {lower.expr}", unit, upper.legend)


# -- panels ----------------------------------------------------------------------------------------

_LAST = common.ReduceDataOptions().calcs(["lastNotNull"])


def lines(
    title: str, description: str, *queries: Query, stacked: bool = False, exemplars: bool = False
) -> Builder:
    """Values over time."""
    panel = timeseries.Panel().fill_opacity(30 if stacked else 8)
    if stacked:
        panel.stacking(common.StackingConfig().mode(shared.StackingMode.NORMAL))
    panel.legend(common.VizLegendOptions().show_legend(True))
    panel.tooltip(
        common.VizTooltipOptions()
        .mode(shared.TooltipDisplayMode.MULTI)
        .sort(shared.SortOrder.DESCENDING)
    )
    return _filled(panel.min(0), title, description, queries, exemplars=exemplars)


def number(
    title: str,
    description: str,
    query: Query,
    *,
    red_above: float | None = None,
    empty: str = NO_RUN,
) -> Builder:
    """One number, now or of the whole range; red above `red_above`.

    `empty`: what stands there without one.
    """
    panel = stat.Panel().graph_mode(shared.BigValueGraphMode.NONE).reduce_options(_LAST)
    if red_above is not None:
        steps = [models.Threshold(color="green"), models.Threshold(value=red_above, color="red")]
        panel.thresholds(
            dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
        )
    return _filled(panel.no_value(empty), title, description, (query,), instant=True)


def bars(title: str, description: str, query: Query, *, empty: str = NO_RUN) -> Builder:
    """Values of the whole range side by side. `empty`: what stands there without one."""
    panel = (
        bargauge.Panel()
        .orientation(shared.VizOrientation.HORIZONTAL)
        .display_mode(shared.BarGaugeDisplayMode.BASIC)
    )
    panel.reduce_options(_LAST).min(0).no_value(empty)
    return _filled(panel, title, description, (query,), instant=True)


def heat(title: str, description: str, query: Query) -> Builder:
    """A histogram over time, one column a moment, on the histogram's own bounds."""
    panel = heatmap.Panel().y_axis(heatmap.YAxisConfig().unit(unit_of(query.unit)))
    panel.color(
        heatmap.HeatmapColorOptions()
        .mode(heat_models.HeatmapColorMode.SCHEME)
        .scheme("Oranges")
        .steps(64)
    )
    return _filled(
        panel, title, description, (query,), form=PromQueryFormat.HEATMAP, exemplars=True
    )


def unit_of(unit: str) -> str:
    """The unit of the table as Grafana writes it; `{acquire}/s` becomes "acquires/s" behind the
    number.

    Grafana puts a space before a suffix. A suffix is not shortened (78.8 K), so a count is exactly
    that of result.json.
    """
    if unit in _UNITS:
        return _UNITS[unit]
    noun, _, per = unit.strip("{").partition("}")
    return f"suffix:{noun}s{per}"


def _filled(
    panel: Builder,
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    instant: bool = False,
    exemplars: bool = False,
    form: PromQueryFormat = PromQueryFormat.TIME_SERIES,
) -> Builder:
    units = {query.unit for query in queries}
    if len(units) != 1 or not description:
        raise ValueError(
            f"panel {title!r}: one unit and a description are needed, not {sorted(units)}"
        )
    panel.title(title).description(description).datasource(SOURCE).unit(unit_of(units.pop()))
    for index, query in enumerate(queries):
        target = (
            prometheus.Dataquery().expr(query.expr).ref_id("ABCDEFGH"[index]).datasource(SOURCE)
        )
        target.legend_format(query.legend or "__auto")
        target = target.instant() if instant else target.range()
        if exemplars and index == 0:
            target.exemplar(True)
        panel.with_target(target.format(form))
    return panel


# -- boards ----------------------------------------------------------------------------------------


def board(
    title: str,
    name: str,
    description: str,
    shelves: Sequence[Shelf],
    extra: Sequence[Variable] = (),
    *,
    variables: Sequence[Variable] = (),
    since: str = ONE_RUN,
    refresh: str = "5s",
) -> str:
    """The board as the JSON text that is committed: of runs, with `extra` variables; or with its
    own `variables`.

    It opens on the time from `since` until now, and looks again after each `refresh`.
    """
    builder = (
        dashboard.Dashboard(f"{TAG}: {title}")
        .uid(f"{TAG}-{name}")
        .description(description)
        .tags([TAG])
    )
    builder.timezone("browser").time(since, "now").refresh(refresh).tooltip(
        models.DashboardCursorSync.CROSSHAIR
    )
    source = dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")
    for variable in (source, *(variables or (*_variables(), *extra))):
        builder.with_variable(variable)
    for annotation in () if variables else _annotations():
        builder.annotation(annotation)
    others = (
        dashboard.DashboardLink("lockbench boards")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
    )
    builder.link(others.as_dropdown(True).include_vars(True).keep_time(True))
    _place(builder, shelves)
    built = builder.build()
    # the SDK gives each variable what only an interval has
    for one in built.templating.list_val or ():
        one.auto = None
        one.auto_min = None
        one.auto_count = None
    return JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False).encode(built) + "\n"


def _place(builder: dashboard.Dashboard, shelves: Sequence[Shelf]) -> None:
    """Number the panels and give each its place; those at a line's end are wider where it cannot be
    shared evenly."""
    y = 0
    numbers = itertools.count(1)
    for heading, height, panels in shelves:
        if heading:
            place = models.GridPos(h=1, w=COLUMNS, x=0, y=y)
            builder.with_row(dashboard.Row(heading).id(next(numbers)).grid_pos(place))
            y += 1
        edges = [COLUMNS * index // len(panels) for index in range(len(panels) + 1)]
        for panel, (x, end) in zip(panels, itertools.pairwise(edges), strict=True):
            builder.with_panel(
                panel.id(next(numbers)).grid_pos(models.GridPos(h=height, w=end - x, x=x, y=y))
            )
        y += height


def choice(
    name: str,
    label: str,
    description: str,
    values: str,
    within: str = "",
    *,
    of: str = "redlock.run.info",
    multi: bool = True,
) -> dashboard.QueryVariable:
    """A variable filled by what the label `values` is on the instrument `of`, where the matchers
    `within` hold."""
    query = f"label_values({BY_NAME[of].prometheus}{f'{{{within}}}' if within else ''}, {values})"
    variable = (
        dashboard.QueryVariable(name).label(label).description(description).datasource(SOURCE)
    )
    order = (
        models.VariableSort.ALPHABETICAL_DESC
        if name == "started"
        else models.VariableSort.ALPHABETICAL_ASC
    )
    variable.query({"query": query, "refId": name}).definition(query).sort(order)
    variable.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED).multi(multi).include_all(multi)
    if multi:
        variable.all_value(".*").current(models.VariableOption(text="All", value="$__all"))
    return variable


def instances(within: str) -> tuple[Variable, Variable]:
    """The variables that say which instance, of those whose votes count where the matchers `within`
    hold."""
    return (
        choice(
            "instance",
            "Instance",
            "host of a server",
            INSTANCE[0],
            within,
            of="redlock.instance.voting",
        ),
        choice(
            "port", "Port", "port of a server", INSTANCE[1], within, of="redlock.instance.voting"
        ),
    )


def _variables() -> tuple[Variable, ...]:
    called = f'{NAME}=~"$name"'
    of_run = f'{RUN}=~"$run"'
    return (
        choice("name", "Name", "what its user calls a run (--name)", NAME),
        choice("started", "Began", "when a run began, UTC; the newest first", BEGAN, called),
        choice("run", "Run", "run id, as in result.json", RUN, f'{called}, {BEGAN}=~"$started"'),
        choice("recipe", "Recipe", "the lock under test", "redlock_recipe", of_run),
        choice("policy", "Policy", "appendfsync", POLICY, of_run),
        *instances(of_run),
    )


def _annotations() -> Iterator[dashboard.AnnotationQuery]:
    kind = "redlock_fault_kind"
    target = "redlock_fault_target"
    what = ("redlock_recipe", POLICY)
    runs = summed(metric("redlock.run.active"), (RUN, *what))
    for name, expr, color, title, tags in (
        (
            "Faults",
            metric("redlock.fault.active"),
            "red",
            f"{{{{{kind}}}}} on {{{{{target}}}}}",
            f"{kind},{target}",
        ),
        (
            "Run start and end",
            runs,
            "blue",
            f"run {{{{{RUN}}}}}: {{{{{what[0]}}}}}, {{{{{what[1]}}}}}",
            RUN,
        ),
    ):
        query = (
            dashboard.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(color)
        )
        target_of = prometheus.Dataquery().expr(f"{expr} > 0").ref_id("A").range()
        query.expr(f"{expr} > 0").target(target_of).title_format(title).tag_keys(tags).step("5s")
        yield query
