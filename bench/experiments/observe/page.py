"""The boards of a run on one page: *panels.json and its result → every panel with its title, its unit and its data*.

Rules: titles, units and explanations are the boards' own; a panel that is one number, or some side by side, is a row of
a table; a panel without data says so, and why that may be. Faults and the measured time are bands in every picture.
Source: bench/measure/panels.schema.json; dashboards/boards.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from bench.report.figures import MISSING, count, in_unit, latency, percent
from bench.report.html import svg
from bench.report.html.figure import Cell, Column, Data, Figure, Key, Page, Section, Table
from bench.report.html.plot import FULL, X_RANGE, Y_RANGE, Axes, Band, Line, plot
from bench.report.html.scale import Label, Scale, duration_tick, exact, linear, number_tick, ratio_tick
from bench.report.sheet import STYLES
from bench.report.summary import sheet

Panel = Mapping[str, Any]
_COLOURS = ("c1", "c2", "c3", "c4", "c5")
_ROWS = ("stat", "bargauge", "table")  # shown as rows of a table
_BANDS = {"Faults": "fault", "Measured time": "warmup"}
_TIME = "s since Prometheus began to watch"
_BYTES = 1024.0


def panels_page(panels: Mapping[str, Any], result: Mapping[str, Any], place: str = "") -> Page:
    """Return the page of the boards `panels`, as they were at the end of the run `result`, stored at `place`."""
    summary = sheet(result, place)
    sections = [section for board in panels["boards"] for section in _sections(board, panels)]
    full = sum(_has_data(panel) for board in panels["boards"] for panel in board["panels"])
    every = sum(len(board["panels"]) for board in panels["boards"])
    way = "by way of a collector" if panels["by_collector"] else "scraped from the run"
    return Page(
        title=f"Boards · {result['scenario']['recipe']} · {result['started_at'][:16].replace('T', ' ')}",
        verdict=summary.verdict,
        style=STYLES[summary.style],
        headline=summary.headline.replace("   ", " · "),
        conditions=f"run {panels['id']} · {summary.conditions}",
        facts=(
            ("boards", f"{full} of {every} panels have data; the others say so below", ""),
            ("data", f"Prometheus {panels['prometheus']}, {way}, a point every {panels['step_s']:g} s", ""),
        ),
        sections=tuple(sections),
        repeat=shlex.join(str(word) for word in panels["command"]),
        source="panels.json",
    )


def _sections(board: Mapping[str, Any], panels: Mapping[str, Any]) -> Iterator[Section]:
    rows: dict[str, list[Panel]] = {}
    for panel in board["panels"]:
        rows.setdefault(panel["row"], []).append(panel)
    name = board["title"].removeprefix("lockbench: ")
    for number, (row, members) in enumerate(rows.items()):
        figures = [_figure(board, panel, panels) for panel in members if panel["type"] not in _ROWS]
        told = [line for panel in members if panel["type"] in _ROWS for line in _lines(panel)]
        head = ("panel", "of", "value", "what it says")
        table = Table("", board["description"], head, tuple(told), frozenset({0, 1, 3}), f"{board['uid']}-row-{number}")
        yield Section(f"{name} · {row}", tuple(figures), (table,) if told else ())


def _has_data(panel: Panel) -> bool:
    return any(value is not None for one in _series(panel) for _, value in one["points"])


def _series(panel: Panel) -> list[Mapping[str, Any]]:
    return [one for target in panel["targets"] for one in target["series"]]


def _missing(panel: Panel) -> str:
    """Why there is nothing to show, as far as that can be known."""
    errors = [text for target in panel["targets"] for text in (target["error"], *target["warnings"]) if text]
    if errors:
        return str(errors[0])
    if all("$baseline" in target["expr"] for target in panel["targets"]):
        return "no data: it compares two runs, and this is one; use `lockbench compare`, or the boards in Grafana"
    return "no data: it did not happen in this run, or nobody measured it"


def _lines(panel: Panel) -> Iterator[tuple[str, str, str, str]]:
    series = [one for one in _series(panel) if one["points"][-1][1] is not None]
    if not series:
        yield panel["title"], "", MISSING, f"{panel['description']} ({_missing(panel)})"
    for one in series:
        labels = one["name"] or ", ".join(
            f"{key.removeprefix('redlock_')} {text}" for key, text in sorted(one["labels"].items())
        )
        value = "" if panel["type"] == "table" else value_text(one["points"][-1][1], panel["unit"])
        yield panel["title"], labels if panel["type"] != "stat" else "", value, panel["description"]


def value_text(value: float | None, unit: str) -> str:
    """A value in the unit of a board's panel, as people read it."""
    if value is None:
        return MISSING
    if unit == "s":
        return latency(value)
    if unit == "percentunit":
        return percent(value)
    if unit == "bytes":
        return next(
            f"{value / size:,.1f} {name}" if size > 1 else f"{value:,.0f} B"
            for name, size in (("GiB", _BYTES**3), ("MiB", _BYTES**2), ("KiB", _BYTES), ("B", 1.0))
            if abs(value) >= size or size == 1.0
        )
    noun = unit.removeprefix("suffix: ")
    return f"{in_unit(value, 'count') if noun == '×' else count(value)} {noun}"


def _figure(board: Mapping[str, Any], panel: Panel, panels: Mapping[str, Any]) -> Figure:
    name = f"{board['uid']}-{panel['id']}"
    about = f"{panel['description']} Unit: {_unit_name(panel['unit'])}."
    if not _has_data(panel):
        nothing = svg.drawing(FULL.width, 40.0, svg.label(MISSING, 8, 24), name=panel["title"], about="no data")
        return Figure(name, panel["title"], about, nothing, Data((), ()), notes=(_missing(panel),))
    x = exact(0.0, panels["end_s"] - panels["start_s"], *X_RANGE)
    if panel["type"] == "heatmap":
        return _heatmap(name, panel, about, x)
    return _curves(name, panel, about, x, _bands(board))


def _unit_name(unit: str) -> str:
    return {"s": "seconds", "percentunit": "per cent", "bytes": "bytes"}.get(unit, unit.removeprefix("suffix: "))


def _label(unit: str) -> Label:
    labels: dict[str, Label] = {"s": duration_tick, "percentunit": ratio_tick, "bytes": lambda at: value_text(at, unit)}
    return labels.get(unit, number_tick)


def _bands(board: Mapping[str, Any]) -> list[Band]:
    return [
        Band(one["start_s"], one["end_s"], one["title"] if one["name"] == "Faults" else "", _BANDS[one["name"]])
        for one in board["annotations"]
        if one["name"] in _BANDS
    ]


def _curves(name: str, panel: Panel, about: str, x: Scale, bands: Sequence[Band]) -> Figure:
    series = [one for one in _series(panel) if any(value is not None for _, value in one["points"])]
    times = sorted({time for one in series for time, _ in one["points"]})
    columns = [dict(one["points"]) for one in series]
    known = [value for column in columns for value in column.values() if value is not None]
    y = linear([*known, 0.0], *Y_RANGE)
    styles = [_COLOURS[place % len(_COLOURS)] for place in range(len(series))]
    marks = [
        Line(times, [column.get(time) for time in times], style) for column, style in zip(columns, styles, strict=True)
    ]
    names = [one["name"] or panel["title"] for one in series]
    axes = Axes(x, y, _TIME, _unit_name(panel["unit"]), lambda at: f"{at:g}", _label(panel["unit"]))
    unit = {"s": "s", "percentunit": "ratio"}.get(panel["unit"], "text")
    data = Data(
        (Column("time_s", "text", "s"), *(Column(text, unit) for text in names)),
        [[time, *(column.get(time) for column in columns)] for time in times],
        [x(time) for time in times],
    )
    keys = tuple(Key(style, text) for style, text in zip(styles, names, strict=True))
    drawn = plot(axes, [*bands, *marks], name=panel["title"], about=about)
    return Figure(name, panel["title"], about, drawn, data, keys)


def _heatmap(name: str, panel: Panel, about: str, x: Scale) -> Figure:
    """Cells of (time, bucket), the darker the more: buckets are cumulative, so each is taken less the one below it."""
    series = sorted(_series(panel), key=lambda one: float(one["labels"]["le"]))
    bounds = [float(one["labels"]["le"]) for one in series]
    columns: dict[float, list[float]] = {}
    for one in series:
        for time, value in one["points"]:
            columns.setdefault(time, []).append(value or 0.0)
    cells = {
        time: [high - low for low, high in zip([0.0, *sums], sums, strict=False)] for time, sums in columns.items()
    }
    used = [place for place in range(len(bounds)) if any(row[place] > 0 for row in cells.values())]
    first, last = max(min(used) - 1, 0), max(used)
    shown = bounds[first : last + 1]
    most = max(max(row) for row in cells.values())
    y = Scale(0.0, float(len(shown)), *Y_RANGE, tuple(float(place) for place in range(0, len(shown) + 1, 3)))
    axes = Axes(x, y, _TIME, "up to (s)", lambda at: f"{at:g}", lambda place: _bound(bounds, first + int(place) - 1))
    drawn = plot(axes, [], name=panel["title"], about=about)
    drawn = drawn.removesuffix("</svg>") + _cells(cells, axes, first, len(shown), most) + "</svg>"
    rows: list[list[Cell]] = [[time, *row[first : last + 1]] for time, row in sorted(cells.items())]
    data = Data((Column("time_s", "text", "s"), *(Column(f"to {duration_tick(b)}", "text") for b in shown)), rows)
    return Figure(name, panel["title"], about, drawn, data, (Key("c2", f"up to {count(most)} per second", area=True),))


def _bound(bounds: Sequence[float], place: int) -> str:
    return duration_tick(bounds[place]) if 0 <= place < len(bounds) else "0"


def _cells(cells: Mapping[float, Sequence[float]], axes: Axes, first: int, height: int, most: float) -> str:
    times = sorted(cells)
    step = min((after - before for before, after in pairwise(times)), default=1.0)
    parts = []
    for time in times:
        left, right = axes.x(time - step / 2), axes.x(time + step / 2)
        for place in range(height):
            value = cells[time][first + place]
            if value > 0:
                top, bottom = axes.y(place + 1.0), axes.y(float(place))
                area = {"x": left, "y": top, "width": right - left, "height": bottom - top}
                shade = f"{0.15 + 0.85 * (value / most) ** 0.5:.2f}"
                parts.append(svg.element("rect", class_="bar c2", fill_opacity=shade, **area))
    return "".join(parts)
