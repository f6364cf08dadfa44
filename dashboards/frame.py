"""What all boards share: *title, uid, rows → a dashboard with its variables, annotations and links*.

Rules: classic JSON (schema of Grafana 11 and 12); the data source is a variable; every variable but the data source
can hold several values. Faults and runs are annotations, so that every panel shows them. Source: Grafana's docs.
"""

from __future__ import annotations

from collections.abc import Sequence

from grafana_foundation_sdk.builders import dashboard, prometheus
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from bench.telemetry.table import BY_NAME
from dashboards.panels import SOURCE, Row, lay_out
from dashboards.query import RUN, metric

TAG = "lockbench"
_INFO = BY_NAME["redlock.run.info"].prometheus
_OF_RUN = f'{RUN}=~"$run"'
Variable = dashboard.QueryVariable | dashboard.CustomVariable | dashboard.DatasourceVariable


def board(title: str, uid: str, description: str, rows: Sequence[Row], extra: Sequence[Variable] = ()) -> str:
    """The board as the JSON text that is committed."""
    made = dashboard.Dashboard(title).uid(uid).description(description).tags([TAG]).timezone("browser")
    made.time("now-15m", "now").refresh("5s").tooltip(models.DashboardCursorSync.CROSSHAIR).editable()
    for variable in (*_variables(), *extra):
        made.with_variable(variable)
    for annotation in _annotations():
        made.annotation(annotation)
    others = dashboard.DashboardLink("lockbench boards").type(models.DashboardLinkType.DASHBOARDS).tags([TAG])
    made.link(others.as_dropdown(True).include_vars(True).keep_time(True))
    for panel in lay_out(rows):
        made.with_row(panel) if isinstance(panel, dashboard.Row) else made.with_panel(panel)
    return JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False).encode(made.build()) + "\n"


def choice(name: str, label: str, description: str, query: str, *, multi: bool = True) -> dashboard.QueryVariable:
    """A variable filled by a Prometheus label query."""
    variable = dashboard.QueryVariable(name).label(label).description(description).datasource(SOURCE)
    variable.query({"query": query, "refId": name}).definition(query).sort(models.VariableSort.ALPHABETICAL_ASC)
    variable.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED).multi(multi).include_all(multi)
    if multi:
        variable.all_value(".*").current(models.VariableOption(text="All", value="$__all"))
    return variable


def _variables() -> tuple[Variable, ...]:
    voting = BY_NAME["redlock.instance.voting"].prometheus
    return (
        dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"),
        choice("run", "Run", "run id, as in result.json", f"label_values({_INFO}, {RUN})"),
        choice("recipe", "Recipe", "the lock under test", f"label_values({_INFO}{{{_OF_RUN}}}, redlock_recipe)"),
        choice("policy", "Policy", "appendfsync", f"label_values({_INFO}{{{_OF_RUN}}}, redlock_fsync)"),
        choice("instance", "Instance", "host of a server", f"label_values({voting}{{{_OF_RUN}}}, server_address)"),
        choice("port", "Port", "port of a server", f"label_values({voting}{{{_OF_RUN}}}, server_port)"),
    )


def _annotations() -> tuple[dashboard.AnnotationQuery, ...]:
    return (
        _annotation(
            "Faults",
            f"{metric('redlock.fault.active')} > 0",
            "red",
            "{{redlock_fault_kind}} on {{redlock_fault_target}}",
            "redlock_fault_kind,redlock_fault_target",
        ),
        _annotation(
            "Run start and end",
            f"sum by ({RUN}, redlock_recipe, redlock_fsync) ({metric('redlock.run.active')}) > 0",
            "blue",
            f"run {{{{{RUN}}}}}: {{{{redlock_recipe}}}}, {{{{redlock_fsync}}}}",
            RUN,
        ),
        _annotation(
            "Measured time",
            f"{metric('redlock.run.active', redlock_run_phase='measuring')} > 0",
            "green",
            f"measured time of run {{{{{RUN}}}}}",
            RUN,
        ),
    )


def _annotation(name: str, expr: str, color: str, title: str, tags: str) -> dashboard.AnnotationQuery:
    query = dashboard.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(color).expr(expr)
    target = prometheus.Dataquery().expr(expr).ref_id("A").range()
    return query.target(target).title_format(title).tag_keys(tags).step("5s")
