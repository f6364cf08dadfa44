"""This module makes the panels of a board: *queries → a panel object of Grafana's SDK*.

Rules: all queries of a panel have the same unit, which is the unit of the panel. Every panel has a
description. If a number is missing, the panel shows a text with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from grafana_foundation_sdk.models import common as shared
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heat_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.queries import PLAIN, RATIO, Query

SOURCE = shared.DataSourceRef(type_val="prometheus", uid="${datasource}")
_UNITS = {
    "s": "s",
    "By": "bytes",
    RATIO: "percentunit",
    "x": "suffix:×",
    "{index}": PLAIN,
    PLAIN: PLAIN,
}
# A panel shows this text instead of a number.
NO_RUN = "no run in view"
# The builder of a panel. In the SDK, each type of panel has a separate builder class. These classes
# have no common interface.
Builder = Any
_LAST = common.ReduceDataOptions().calcs(["lastNotNull"])


def lines(
    title: str, description: str, *queries: Query, stacked: bool = False, exemplars: bool = False
) -> Builder:
    """Return a panel of values over time."""
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
    """Return a panel with one number. The query decides whether the number is the present value or
    a value for the whole time range.

    If the number is greater than or equal to `red_above`, it is red. `empty`: the text that the
    panel shows if there is no number.
    """
    panel = stat.Panel().graph_mode(shared.BigValueGraphMode.NONE).reduce_options(_LAST)
    if red_above is not None:
        steps = [models.Threshold(color="green"), models.Threshold(value=red_above, color="red")]
        panel.thresholds(
            dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)
        )
    return _filled(panel.no_value(empty), title, description, (query,), instant=True)


def bars(title: str, description: str, query: Query, *, empty: str = NO_RUN) -> Builder:
    """Return a panel with bars. The bars show values of the whole time range.

    `empty`: the text that the panel shows if there are no values.
    """
    panel = (
        bargauge.Panel()
        .orientation(shared.VizOrientation.HORIZONTAL)
        .display_mode(shared.BarGaugeDisplayMode.BASIC)
    )
    panel.reduce_options(_LAST).min(0).no_value(empty)
    return _filled(panel, title, description, (query,), instant=True)


def heat(title: str, description: str, query: Query) -> Builder:
    """Return a heatmap panel, which shows the changes of a histogram over time."""
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
    """Return Grafana's name for a unit of the instrument table.

    For example, `{acquire}/s` becomes the suffix "acquires/s" after the number. Grafana puts a
    space before a suffix. Grafana does not shorten a number that has a suffix. Without a suffix,
    Grafana would show a number such as 78,800 as "78.8 K". So readers see exactly the count in
    result.json.
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
