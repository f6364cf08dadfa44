"""Panels: *title, description, queries → a Grafana panel whose unit follows from its queries*.

Rules: all queries of a panel have one unit, which decides the panel's; one without a description is refused; panels
are numbered and placed here, row by row over 24 columns, as Grafana's own layout overflows them.
Source: Grafana's panel docs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import bargauge, common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import table as tables
from grafana_foundation_sdk.models import common as shared
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heat_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from dashboards.query import RATIO, Query

COLUMNS = 24
SOURCE = shared.DataSourceRef(type_val="prometheus", uid="${datasource}")
_UNITS = {"s": "s", "By": "bytes", RATIO: "percentunit", "x": "suffix: ×", "cores": "suffix: cores"}
Builder = Any  # each panel type of the SDK has a builder of its own, without a common interface


@dataclass(frozen=True, slots=True)
class Place:
    """A panel and how many of the 24 columns it takes."""

    width: int
    panel: Builder


@dataclass(frozen=True, slots=True)
class Line:
    """Panels side by side, all so high."""

    height: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """A headed row of one or more lines."""

    title: str
    lines: tuple[Line, ...]


def line(height: int, *places: Place) -> Line:
    """Panels side by side; their widths must make 24."""
    return Line(height, places)


def row(title: str, *lines: Line) -> Row:
    """Lines under one heading."""
    return Row(title, lines)


def unit_of(unit: str) -> str:
    """The unit of the table as Grafana writes it; `{acquire}/s` becomes "acquires/s" behind the number."""
    if unit in _UNITS:
        return _UNITS[unit]
    noun, _, per = unit.strip("{").partition("}")
    return f"suffix: {noun}s{per}"


def lines(
    width: int, title: str, description: str, *queries: Query, stacked: bool = False, exemplars: bool = False
) -> Place:
    """Values over time."""
    panel = timeseries.Panel().line_width(1).fill_opacity(30 if stacked else 8).show_points(shared.VisibilityMode.AUTO)
    if stacked:
        panel.stacking(common.StackingConfig().mode(shared.StackingMode.NORMAL))
    legend = common.VizLegendOptions().display_mode(shared.LegendDisplayMode.LIST)
    panel.legend(legend.placement(shared.LegendPlacement.BOTTOM).show_legend(True))
    panel.tooltip(common.VizTooltipOptions().mode(shared.TooltipDisplayMode.MULTI).sort(shared.SortOrder.DESCENDING))
    return Place(width, _filled(panel.min(0), title, description, queries, exemplars=exemplars))


def number(width: int, title: str, description: str, query: Query, *, red_above: float | None = None) -> Place:
    """One number, now or of the whole range; red above `red_above`."""
    panel = stat.Panel().graph_mode(shared.BigValueGraphMode.NONE).color_mode(shared.BigValueColorMode.VALUE)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    if red_above is not None:
        panel.thresholds(
            dashboard.ThresholdsConfig()
            .mode(models.ThresholdsMode.ABSOLUTE)
            .steps([models.Threshold(color="green"), models.Threshold(value=red_above, color="red")])
        )
    return Place(width, _filled(panel, title, description, (query,), instant=True))


def bars(width: int, title: str, description: str, query: Query) -> Place:
    """Values of the whole range side by side."""
    panel = (
        bargauge.Panel().orientation(shared.VizOrientation.HORIZONTAL).display_mode(shared.BarGaugeDisplayMode.BASIC)
    )
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    return Place(width, _filled(panel.min(0), title, description, (query,), instant=True))


def heat(width: int, title: str, description: str, query: Query) -> Place:
    """A histogram over time, one column a moment, on the histogram's own bounds."""
    panel = heatmap.Panel().calculate(False)
    panel.color(heatmap.HeatmapColorOptions().mode(heat_models.HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
    panel.y_axis(heatmap.YAxisConfig().unit(unit_of(query.unit)))
    return Place(width, _filled(panel, title, description, (query,), heatmap_format=True, exemplars=True))


def table(width: int, title: str, description: str, query: Query) -> Place:
    """Labels and values, a row each."""
    return Place(
        width, _filled(tables.Panel().show_header(True), title, description, (query,), instant=True, as_table=True)
    )


def _filled(
    panel: Builder,
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    instant: bool = False,
    exemplars: bool = False,
    heatmap_format: bool = False,
    as_table: bool = False,
) -> Builder:
    units = {query.unit for query in queries}
    if len(units) != 1 or not description:
        raise ValueError(f"panel {title!r}: one unit and a description are needed, not {sorted(units)}")
    panel.title(title).description(description).datasource(SOURCE).unit(unit_of(units.pop()))
    formats = PromQueryFormat.HEATMAP if heatmap_format else PromQueryFormat.TABLE if as_table else None
    for index, query in enumerate(queries):
        target = prometheus.Dataquery().expr(query.expr).ref_id("ABCDEFGH"[index]).datasource(SOURCE)
        target.legend_format(query.legend or "__auto")
        target = target.instant() if instant else target.range()
        if exemplars and index == 0:
            target.exemplar(True)
        panel.with_target(target.format(formats or PromQueryFormat.TIME_SERIES))
    return panel


def lay_out(rows: Sequence[Row]) -> list[Builder]:
    """Number the panels and give each its place; a row's heading takes one line. Raises ValueError on overflow."""
    placed: list[Builder] = []
    y, number_ = 0, 0
    for one in rows:
        number_ += 1
        placed.append(dashboard.Row(one.title).id(number_).grid_pos(models.GridPos(h=1, w=COLUMNS, x=0, y=y)))
        y += 1
        for each in one.lines:
            if sum(place.width for place in each.places) != COLUMNS:
                raise ValueError(f"row {one.title!r}: its panels do not fill {COLUMNS} columns")
            x = 0
            for place in each.places:
                number_ += 1
                placed.append(place.panel.id(number_).grid_pos(models.GridPos(h=each.height, w=place.width, x=x, y=y)))
                x += place.width
            y += each.height
    return placed
