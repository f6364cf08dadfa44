"""This module builds a board: *panels in rows, variables → the dashboard as the text of a JSON
file*.

Rules: a line of the board has 24 columns for its panels. This module places each panel, because
Grafana's own layout needs more than 24 columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from grafana_foundation_sdk.builders import dashboard, prometheus
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from bench.telemetry.table import BY_NAME
from dashboards.panels import SOURCE, Builder
from dashboards.queries import BEGAN, INSTANCE, NAME, POLICY, RUN, metric, summed

# When a reader opens a board, it shows this much time. Three minutes suit one run of about 20 s.
# Half an hour suits a reader who compares several runs. An hour suits an application.
ONE_RUN = "now-3m"
SOME_RUNS = "now-30m"
AN_HOUR = "now-1h"

TAG = "lockbench"
COLUMNS = 24
Variable = dashboard.QueryVariable | dashboard.CustomVariable | dashboard.DatasourceVariable
# One line of a board. It has a heading (or ""), a height, and panels from left to right.
Shelf = tuple[str, int, Sequence[Builder]]


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
    """Return the board as the text of the JSON file in the folder `boards`.

    All boards of runs have the same basic Grafana variables. `extra`: the variables that this board
    has in addition to the basic variables. If `variables` is not empty, the board has only these
    variables, and it has no annotations. The board first shows the time from `since` until now. The
    board repeats its queries after each `refresh`.
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
    # The SDK sets these fields on each variable, but they belong only to variables of type
    # interval.
    for one in built.templating.list_val or ():
        one.auto = None
        one.auto_min = None
        one.auto_count = None
    return JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False).encode(built) + "\n"


def _place(builder: dashboard.Dashboard, shelves: Sequence[Shelf]) -> None:
    """Give each panel a number and a position in its line.

    If 24 is not divisible by the number of panels, some panels of the line are one column wider
    than the others.
    """
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
    """Return a Grafana variable that lets a reader choose a value of one label.

    `values`: the name of the label. `of`: an instrument that has this label. `within`: matchers
    that select the series. `multi`: if true, a reader may choose several values or all values.
    """
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
    """Return two variables, the host and the port, with which a reader selects an instance.

    A reader can choose any instance for which the metric `redlock.instance.voting` exists.
    `within`: matchers that select the series.
    """
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
        choice("name", "Name", "the name that the user gave to a run (--name)", NAME),
        choice(
            "started",
            "Began",
            "start time of a run (UTC); the newest run comes first",
            BEGAN,
            called,
        ),
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
