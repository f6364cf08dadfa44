"""Boards and their panels: *instruments → queries → panels in rows → a dashboard as the JSON that is committed*.

Rules
- PromQL is made from the instrument table: a metric or label that it does not have is refused here. Every selector is
  narrowed by the board's variables. All queries of a panel have one unit, which decides the panel's.
- A counter is looked at as a rate over `$__rate_interval`, or `whole`: its last value in `$__range`. Each run's
  counters start at 0, so that is exactly the run's count.
- Quantiles of acquire are over all of them (`acquire_quantile`): successes alone look well in the middle of an outage.
- A histogram is asked for as a classic one, and where it has no buckets as a native one (exponential, or converted by
  Prometheus 3): whichever is there answers. A native one cannot count failures as endless; where more than 1 − q failed
  its quantile is the largest bound, as a classic one's, else that of the acquired.
- Panels of a line share its 24 columns; they are placed here, as Grafana's own layout overflows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from grafana_foundation_sdk.builders import bargauge, common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as shared
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heat_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from bench.telemetry.table import BOUNDS, BY_NAME, InstrumentKind

INSTANCE = ("server_address", "server_port")
RUN = "redlock_run_id"
POLICY = "redlock_fsync"
NAME, BEGAN = "redlock_run_name", "redlock_run_started"
RATIO = "1"
NATIVE = "native"  # a whole histogram
PRODUCTION = ""  # instead of a run: what applications export
ACQUIRE = "redlock.acquire.duration"
_VARIABLES = {RUN: "$run", "redlock_recipe": "$recipe", POLICY: "$policy"}
_INSTANCE_VARIABLES = {"server_address": "$instance", "server_port": "$port"}

TAG = "lockbench"
COLUMNS = 24
SOURCE = shared.DataSourceRef(type_val="prometheus", uid="${datasource}")
_UNITS = {"s": "s", "By": "bytes", RATIO: "percentunit", "x": "suffix: ×", "cores": "suffix: cores"}
_INFO = BY_NAME["redlock.run.info"].prometheus
Builder = Any  # each panel type of the SDK has a builder of its own, without a common interface
Built = TypeVar("Built")
Variable = dashboard.QueryVariable | dashboard.CustomVariable | dashboard.DatasourceVariable
PanelLine = tuple[int, Sequence[Builder]]  # its height, and the panels side by side
PanelRow = tuple[str, Sequence[PanelLine]]  # its heading, and its lines


# -- queries ----------------------------------------------------------------------------------------------------------


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
    """The selector of instrument `name`; `part` of a histogram: bucket, sum, count, `NATIVE`; `labels`: exact values.

    Raises KeyError for an instrument or label that the table does not have, ValueError for a wrong part.
    """
    one = BY_NAME[name]
    if (one.kind is InstrumentKind.HISTOGRAM) != (part in ("bucket", "sum", "count", NATIVE)):
        raise ValueError(f"{name} is a {one.kind.value}: {part or 'nothing'} is no part of it")
    known = {attribute.label for attribute in one.attributes} | ({"le"} if part == "bucket" else set())
    unknown = set(labels) - known
    if unknown:
        raise KeyError(f"{name} has no label {', '.join(sorted(unknown))}")
    scope = {"job": "$service"} if run == PRODUCTION else _VARIABLES | {RUN: run}
    variables = scope | {key: value for key, value in _INSTANCE_VARIABLES.items() if key in known}
    matchers = [f'{RUN}=""'] if run == PRODUCTION else []
    matchers += [f'{key}=~"{value}"' for key, value in variables.items()]
    matchers += [f'{key}="{value}"' for key, value in labels.items()]
    suffix = f"_{part}" if part not in ("", NATIVE) else ""
    return f"{one.prometheus}{suffix}{{{', '.join(matchers)}}}"


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
    unit = BY_NAME[name].unit
    expr = _sum(grown(metric(name, part, **labels)), by)
    return Query(expr, RATIO if unit == "s" else f"{unit}/s", _legend(by))


def total(name: str, by: Sequence[str] = (), *, part: str = "", run: str = "$run", **labels: str) -> Query:
    """A counter's value at the end of each run in view, summed; of a histogram its `part` (sum, count)."""
    unit = BY_NAME[name].unit if part != "count" else "{operation}"
    expr = _sum(grown(metric(name, part, run=run, **labels), whole=True), by)
    if part:
        native = _sum(grown(metric(name, NATIVE, run=run, **labels), whole=True), by)
        expr = either(expr, f"histogram_{part}({native})")
    return Query(expr, unit, _legend(by))


def either(classic: str, native: str) -> str:
    """Whichever has data."""
    return f"({classic} or {native})"


def below(name: str, bound: str, **labels: str) -> Query:
    """How many values of whole runs do not exceed `bound`, one of the histogram's own."""
    classic = f"sum({grown(metric(name, 'bucket', le=bound, **labels), whole=True)})"
    whole = f"sum({grown(metric(name, NATIVE, **labels), whole=True)})"
    return Query(
        either(classic, f"histogram_fraction(-Inf, {bound}, {whole}) * histogram_count({whole})"), "{operation}"
    )


def voting() -> Query:
    """How many instances vote: each one only while every load process gets its vote."""
    each = _sum(metric("redlock.instance.voting"), (RUN, *INSTANCE), "min")
    return Query(f"sum({each})", BY_NAME["redlock.instance.voting"].unit)


def whole_rate(by: Sequence[str] = (), *, run: str = "$run") -> Query:
    """Leases per second of each whole run in view, warm-up and drain included, averaged over runs."""
    of_run = tuple(dict.fromkeys((RUN, *by)))
    leases = total("redlock.acquire.outcomes", of_run, run=run, redlock_outcome="acquired")
    lasted_s = _sum(grown(metric("redlock.load.time", run=run), whole=True), of_run, "max")
    return Query(_sum(f"{leases.expr} / {lasted_s}", by, "avg"), "{lease}/s", _legend(by))


def quantile(q: float, name: str, by: Sequence[str] = (), *, whole: bool = False, **labels: str) -> Query:
    """The `q` quantile of a histogram."""
    classic, native = (grown(metric(name, part, **labels), whole=whole) for part in ("bucket", NATIVE))
    expr = either(_quantile(q, classic, ("le", *by)), _quantile(q, native, by))
    return Query(expr, BY_NAME[name].unit, _legend(by))


def acquire_quantile(q: float, by: Sequence[str] = (), *, whole: bool = False, run: str = "$run") -> Query:
    """The `q` quantile over all acquires: one that failed is in no bucket but the last, as it took for ever.

    So it is the largest bound when more than 1 − `q` failed.
    """
    acquired = metric(ACQUIRE, "bucket", run=run, redlock_outcome="acquired")
    ended = metric(ACQUIRE, "bucket", run=run, le="+Inf")
    failed = ended.replace('le="+Inf"', 'le="+Inf", redlock_outcome!="acquired"')
    classic = _quantile(q, f"{grown(acquired, whole=whole)} or {grown(failed, whole=whole)}", ("le", *by))
    got, all_ = (
        _sum(grown(metric(ACQUIRE, NATIVE, run=run, **labels), whole=whole), by)
        for labels in ({"redlock_outcome": "acquired"}, {})
    )
    ended_, got_ = f"histogram_count({all_})", f"histogram_count({got})"
    failed_ = f"({ended_} - ({got_} or 0 * {ended_}))"
    endless = f"({failed_} > {1 - q:g} * {ended_}) * 0 + {BOUNDS[-1]:g}"
    native = f"({endless} or histogram_quantile({q:g}, {got}))"
    return Query(either(classic, native), BY_NAME[ACQUIRE].unit, _legend(by))


def _quantile(q: float, grown_: str, by: Sequence[str]) -> str:
    return f"histogram_quantile({q:g}, {_sum(grown_, by)})"


def mean(name: str, by: Sequence[str] = (), **labels: str) -> Query:
    """The mean of a histogram, moment by moment."""
    upper, lower = (_sum(grown(metric(name, part, **labels)), by) for part in ("sum", "count"))
    native = _sum(grown(metric(name, NATIVE, **labels)), by)
    expr = either(f"{upper} / {lower}", f"histogram_sum({native}) / histogram_count({native})")
    return Query(expr, BY_NAME[name].unit, _legend(by))


def buckets(name: str, **labels: str) -> Query:
    """A histogram's buckets, for a heatmap: observations per second by upper bound."""
    classic, native = (grown(metric(name, part, **labels)) for part in ("bucket", NATIVE))
    return Query(either(_sum(classic, ("le",)), _sum(native, ())), BY_NAME[name].unit, "{{le}}")


def ratio(upper: Query, lower: Query, unit: str = RATIO) -> Query:
    """One query over another; `unit` of the quotient."""
    return Query(f"{upper.expr} / {lower.expr}", unit, upper.legend)


# -- panels ----------------------------------------------------------------------------------------------------------


def row(title: str, *lines: PanelLine) -> PanelRow:
    """Lines under one heading."""
    return title, lines


def line(height: int, *panels: Builder) -> PanelLine:
    """Panels side by side, all so high; those at the end are wider where 24 columns cannot be shared evenly."""
    return height, panels


def lines(
    title: str, description: str, *queries: Query, stacked: bool = False, exemplars: bool = False
) -> timeseries.Panel:
    """Values over time."""
    panel = timeseries.Panel().line_width(1).fill_opacity(30 if stacked else 8).show_points(shared.VisibilityMode.AUTO)
    if stacked:
        panel.stacking(common.StackingConfig().mode(shared.StackingMode.NORMAL))
    legend = common.VizLegendOptions().display_mode(shared.LegendDisplayMode.LIST)
    panel.legend(legend.placement(shared.LegendPlacement.BOTTOM).show_legend(True))
    panel.tooltip(common.VizTooltipOptions().mode(shared.TooltipDisplayMode.MULTI).sort(shared.SortOrder.DESCENDING))
    return _filled(panel.min(0), title, description, queries, exemplars=exemplars)


def number(title: str, description: str, query: Query, *, red_above: float | None = None) -> stat.Panel:
    """One number, now or of the whole range; red above `red_above`."""
    panel = stat.Panel().graph_mode(shared.BigValueGraphMode.NONE).color_mode(shared.BigValueColorMode.VALUE)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    if red_above is not None:
        limits = dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE)
        panel.thresholds(
            limits.steps([models.Threshold(color="green"), models.Threshold(value=red_above, color="red")])
        )
    return _filled(panel, title, description, (query,), instant=True)


def bars(title: str, description: str, query: Query) -> bargauge.Panel:
    """Values of the whole range side by side."""
    panel = bargauge.Panel().orientation(shared.VizOrientation.HORIZONTAL)
    panel.display_mode(shared.BarGaugeDisplayMode.BASIC)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    return _filled(panel.min(0), title, description, (query,), instant=True)


def heat(title: str, description: str, query: Query) -> heatmap.Panel:
    """A histogram over time, one column a moment, on the histogram's own bounds."""
    panel = heatmap.Panel().calculate(False)
    panel.color(heatmap.HeatmapColorOptions().mode(heat_models.HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
    panel.y_axis(heatmap.YAxisConfig().unit(unit_of(query.unit)))
    return _filled(panel, title, description, (query,), form=PromQueryFormat.HEATMAP, exemplars=True)


def unit_of(unit: str) -> str:
    """The unit of the table as Grafana writes it; `{acquire}/s` becomes "acquires/s" behind the number."""
    if unit in _UNITS:
        return _UNITS[unit]
    noun, _, per = unit.strip("{").partition("}")
    return f"suffix: {noun}s{per}"


def _filled(
    made: Built, title: str, description: str, queries: Sequence[Query], *,
    instant: bool = False, exemplars: bool = False, form: PromQueryFormat = PromQueryFormat.TIME_SERIES,
) -> Built:  # fmt: skip
    panel: Builder = made
    units = {query.unit for query in queries}
    if len(units) != 1 or not description:
        raise ValueError(f"panel {title!r}: one unit and a description are needed, not {sorted(units)}")
    panel.title(title).description(description).datasource(SOURCE).unit(unit_of(units.pop()))
    for index, query in enumerate(queries):
        target = prometheus.Dataquery().expr(query.expr).ref_id("ABCDEFGH"[index]).datasource(SOURCE)
        target.legend_format(query.legend or "__auto")
        target = target.instant() if instant else target.range()
        if exemplars and index == 0:
            target.exemplar(True)
        panel.with_target(target.format(form))
    return made


# -- boards ----------------------------------------------------------------------------------------------------------


def board(
    title: str, uid: str, description: str, rows: Sequence[PanelRow], extra: Sequence[Variable] = (),
    *, variables: Sequence[Variable] = (),
) -> str:  # fmt: skip
    """The board as the JSON text that is committed: of runs, with `extra` variables; or with its own `variables`."""
    made = dashboard.Dashboard(title).uid(uid).description(description).tags([TAG]).timezone("browser")
    made.time("now-15m", "now").refresh("5s").tooltip(models.DashboardCursorSync.CROSSHAIR).editable()
    for variable in variables or (*_variables(), *extra):
        made.with_variable(variable)
    for annotation in () if variables else _annotations():
        made.annotation(annotation)
    others = dashboard.DashboardLink("lockbench boards").type(models.DashboardLinkType.DASHBOARDS).tags([TAG])
    made.link(others.as_dropdown(True).include_vars(True).keep_time(True))
    _place(made, rows)
    return JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False).encode(made.build()) + "\n"


def _place(made: dashboard.Dashboard, rows: Sequence[PanelRow]) -> None:
    """Number the panels and give each its place; a row's heading takes one line."""
    y, number_ = 0, 0
    for title, shelves in rows:
        number_ += 1
        made.with_row(dashboard.Row(title).id(number_).grid_pos(models.GridPos(h=1, w=COLUMNS, x=0, y=y)))
        y += 1
        for height, panels in shelves:
            edges = [COLUMNS * index // len(panels) for index in range(len(panels) + 1)]
            for panel, x, end in zip(panels, edges, edges[1:], strict=False):
                number_ += 1
                made.with_panel(panel.id(number_).grid_pos(models.GridPos(h=height, w=end - x, x=x, y=y)))
            y += height


def choice(name: str, label: str, description: str, query: str, *, multi: bool = True) -> dashboard.QueryVariable:
    """A variable filled by a Prometheus label query."""
    variable = dashboard.QueryVariable(name).label(label).description(description).datasource(SOURCE)
    order = models.VariableSort.ALPHABETICAL_DESC if name == "started" else models.VariableSort.ALPHABETICAL_ASC
    variable.query({"query": query, "refId": name}).definition(query).sort(order)
    variable.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED).multi(multi).include_all(multi)
    if multi:
        variable.all_value(".*").current(models.VariableOption(text="All", value="$__all"))
    return variable


def source() -> dashboard.DatasourceVariable:
    """The variable that says which Prometheus."""
    return dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus")


def _variables() -> tuple[Variable, ...]:
    voting, of_run = BY_NAME["redlock.instance.voting"].prometheus, f'{RUN}=~"$run"'
    called = f'{NAME}=~"$name"'
    return (
        source(),
        choice("name", "Name", "what its user calls a run (--name)", f"label_values({_INFO}, {NAME})"),
        choice(
            "started", "Began", "when a run began, UTC; the newest first", f"label_values({_INFO}{{{called}}}, {BEGAN})"
        ),
        choice(
            "run", "Run", "run id, as in result.json", f'label_values({_INFO}{{{called}, {BEGAN}=~"$started"}}, {RUN})'
        ),
        choice("recipe", "Recipe", "the lock under test", f"label_values({_INFO}{{{of_run}}}, redlock_recipe)"),
        choice("policy", "Policy", "appendfsync", f"label_values({_INFO}{{{of_run}}}, redlock_fsync)"),
        choice("instance", "Instance", "host of a server", f"label_values({voting}{{{of_run}}}, server_address)"),
        choice("port", "Port", "port of a server", f"label_values({voting}{{{of_run}}}, server_port)"),
    )


def _annotations() -> tuple[dashboard.AnnotationQuery, ...]:
    faults, active = metric("redlock.fault.active"), metric("redlock.run.active")
    kind, target, run = "redlock_fault_kind", "redlock_fault_target", f"run {{{{{RUN}}}}}"
    runs = f"sum by ({RUN}, redlock_recipe, redlock_fsync) ({active}) > 0"
    return (
        _annotation("Faults", f"{faults} > 0", "red", f"{{{{{kind}}}}} on {{{{{target}}}}}", f"{kind},{target}"),
        _annotation("Run start and end", runs, "blue", f"{run}: {{{{redlock_recipe}}}}, {{{{redlock_fsync}}}}", RUN),
    )


def _annotation(name: str, expr: str, color: str, title: str, tags: str) -> dashboard.AnnotationQuery:
    query = dashboard.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(color).expr(expr)
    target = prometheus.Dataquery().expr(expr).ref_id("A").range()
    return query.target(target).title_format(title).tag_keys(tags).step("5s")
