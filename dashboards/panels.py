"""Boards and their panels: *instruments → queries → panels in rows → a dashboard as the JSON that is committed*.

Rules
- PromQL is made from the instrument table: a metric or label that it does not have is refused here. Every selector is
  narrowed by the board's variables. All queries of a panel have one unit, which decides the panel's.
- A counter is looked at as a rate over `$__rate_interval`, or `whole`: its last value in `$__range`. Each run's
  counters start at 0, so that is exactly the run's count.
- Quantiles of acquire are over all of them (`acquire_quantile`): successes alone look well in the middle of an outage.
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

from bench.telemetry.table import BY_NAME, InstrumentKind

INSTANCE = ("server_address", "server_port")
RUN = "redlock_run_id"
POLICY = "redlock_fsync"
RATIO = "1"
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
    """The selector of instrument `name`; `part`: bucket, sum or count of a histogram; `labels`: exact values.

    Raises KeyError for an instrument or label that the table does not have, ValueError for a wrong part.
    """
    one = BY_NAME[name]
    if (one.kind is InstrumentKind.HISTOGRAM) != (part in ("bucket", "sum", "count")):
        raise ValueError(f"{name} is a {one.kind.value}: {part or 'nothing'} is no part of it")
    known = {attribute.label for attribute in one.attributes} | ({"le"} if part == "bucket" else set())
    unknown = set(labels) - known
    if unknown:
        raise KeyError(f"{name} has no label {', '.join(sorted(unknown))}")
    variables = _VARIABLES | {RUN: run} | {key: value for key, value in _INSTANCE_VARIABLES.items() if key in known}
    matchers = [f'{key}=~"{value}"' for key, value in variables.items()]
    matchers += [f'{key}="{value}"' for key, value in labels.items()]
    return f"{one.prometheus}{'_' + part if part else ''}{{{', '.join(matchers)}}}"


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


def whole_rate(by: Sequence[str] = (), *, run: str = "$run") -> Query:
    """Leases per second of each whole run in view, warm-up and drain included, averaged over runs."""
    of_run = tuple(dict.fromkeys((RUN, *by)))
    leases = total("redlock.acquire.outcomes", of_run, run=run, redlock_outcome="acquired")
    lasted_s = _sum(grown(metric("redlock.load.time", run=run), whole=True), of_run, "max")
    return Query(_sum(f"{leases.expr} / {lasted_s}", by, "avg"), "{lease}/s", _legend(by))


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


def board(title: str, uid: str, description: str, rows: Sequence[PanelRow], extra: Sequence[Variable] = ()) -> str:
    """The board as the JSON text that is committed."""
    made = dashboard.Dashboard(title).uid(uid).description(description).tags([TAG]).timezone("browser")
    made.time("now-15m", "now").refresh("5s").tooltip(models.DashboardCursorSync.CROSSHAIR).editable()
    for variable in (*_variables(), *extra):
        made.with_variable(variable)
    for annotation in _annotations():
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
    variable.query({"query": query, "refId": name}).definition(query).sort(models.VariableSort.ALPHABETICAL_ASC)
    variable.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED).multi(multi).include_all(multi)
    if multi:
        variable.all_value(".*").current(models.VariableOption(text="All", value="$__all"))
    return variable


def _variables() -> tuple[Variable, ...]:
    voting, of_run = BY_NAME["redlock.instance.voting"].prometheus, f'{RUN}=~"$run"'
    return (
        dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"),
        choice("run", "Run", "run id, as in result.json", f"label_values({_INFO}, {RUN})"),
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
