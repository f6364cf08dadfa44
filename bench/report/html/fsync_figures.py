"""Pictures of fsync policies: *rows, costs and planner of a result → what always costs, what each choice gives*.

Rules: the figures are those of the planner's tables; a rate the generator limited is a ring, not a dot. Source:
bench.analysis.planner, bench.report.planner.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.report.figures import count, latency
from bench.report.html.figure import Cell, Column, Data, Figure, Key
from bench.report.html.plot import X_RANGE, Y_RANGE, Axes, Line, Mark, Spot, plot
from bench.report.html.scale import Scale, duration_tick, logarithmic, number_tick
from bench.report.planner import disk_name

Result = Mapping[str, Any]
Option = Mapping[str, Any]
_POLICIES = {"none": "c5", "no": "c4", "everysec": "c1", "always": "bad", "waitaof": "good"}
_STYLES = ("c1", "c2", "c4", "c3", "c5")


def fsync_figures(result: Result) -> list[Figure]:
    """What always costs by callers, and the planner's charts as far as there are figures for them."""
    planner = result["planner"]
    options = [option for option in planner["options"] if option["acquired_per_s"]]
    figures = [_losses(options, planner["advice"]), _latency(options), _costs(result["costs"])]
    return [figure for figure in figures if figure]


def _costs(costs: Sequence[Mapping[str, Any]]) -> Figure | None:
    known = [cost for cost in costs if cost["ratio"]]
    if not known:
        return None
    x = logarithmic([cost["callers"] for cost in known], *X_RANGE)
    y = logarithmic([1.0, *(cost["ratio"] for cost in known)], *Y_RANGE)
    groups: dict[tuple[int, float], list[Mapping[str, Any]]] = {}
    for cost in sorted(known, key=lambda cost: int(cost["callers"])):
        groups.setdefault((cost["instances"], cost["injected_ms"]), []).append(cost)
    marks: list[Mark] = [Line([x.low, x.high], [1.0, 1.0], "c5")]
    keys = []
    for place, ((instances, injected), row) in enumerate(groups.items()):
        style = _STYLES[place % len(_STYLES)]
        marks.append(Line([cost["callers"] for cost in row], [cost["ratio"] for cost in row], style))
        marks += [Spot(cost["callers"], cost["ratio"], style, hollow=cost["generator_bound"]) for cost in row]
        keys.append(Key(style, f"N={instances}, {disk_name(injected)} fsync"))
    most, least = (pick(known, key=lambda cost: float(cost["ratio"])) for pick in (max, min))
    cheap, dear = (f"{_price(cost['ratio'])} ({_callers(cost['callers'])})" for cost in (least, most))
    title = f"always costs between {cheap} and {dear}"
    about = "Acquires/s with everysec ÷ with always, by callers, log scales; 1: no cost; rings: the load was the limit"
    axes = Axes(x, y, "callers (log scale)", "everysec ÷ always (log scale)", number_tick, _times)
    names = ("instances", "clients", "pipeline", "injected_ms", "callers", "ratio")
    data = Data(tuple(Column(name, "count") for name in names), [[cost[name] for name in names] for cost in known])
    return Figure("costs", title, about, plot(axes, marks, name=title, about=about), data, tuple(keys))


def _latency(options: Sequence[Option]) -> Figure | None:
    known = [option for option in options if option["p99_s"]]
    if not known:
        return None
    y = logarithmic([option["p99_s"] for option in known], *Y_RANGE)
    fastest = max(known, key=lambda option: float(option["acquired_per_s"]["median"]))
    title = f"Fastest: {_name(fastest)}, {count(round(fastest['acquired_per_s']['median']))} locks/s"
    about = "Planner: p99 at 80 % of each choice's maximum rate against that rate; rings: not sustained, a queue grew"
    chart = _Chart("planner-latency", title, about, y, "acquire p99 (log scale)", "s")
    return _planner(chart, known, [option["p99_s"] for option in known])


def _losses(options: Sequence[Option], advice: Sequence[str]) -> Figure | None:
    known = [option for option in options if option["crash"]]
    if not known:
        return None
    lost = [option["crash"]["lost_per_cut"]["max"] for option in known]
    y = logarithmic([0.5, 1.0, *lost], *Y_RANGE)
    title = advice[0]
    about = "Planner: most locks lost in one crash against the maximum rate, both log scale; 0.5 stands for none"
    chart = _Chart("planner-losses", title, about, y, "locks lost (log scale)", "count")
    return _planner(chart, known, [most or 0.5 for most in lost])


@dataclass(frozen=True, slots=True)
class _Chart:
    """What the planner's charts differ in; `unit` is that of the y axis."""

    name: str
    title: str
    about: str
    y: Scale
    y_name: str
    unit: str


def _planner(chart: _Chart, options: Sequence[Option], values: Sequence[float]) -> Figure:
    rates = [option["acquired_per_s"]["median"] for option in options]
    x = logarithmic(rates, *X_RANGE)
    marks: list[Mark] = []
    rows: list[list[Cell]] = []
    for option, rate, value in zip(options, rates, values, strict=True):
        style, text = _POLICIES.get(option["policy"], "c5"), f"N{option['instances']}"
        marks.append(Spot(rate, value, style, text, hollow=not option["sustained"]))
        rows.append([option["instances"], option["policy"], option["restart"], rate, value])
    label = duration_tick if chart.unit == "s" else number_tick
    axes = Axes(x, chart.y, "most locks per second (log scale)", chart.y_name, number_tick, label)
    names = (("instances", "count"), ("policy", "text"), ("restart", "text"), ("acquired_per_s", "per_s"))
    columns = (*(Column(name, unit) for name, unit in names), Column("value", chart.unit, chart.y_name))
    used = [policy for policy in _POLICIES if any(option["policy"] == policy for option in options)]
    keys = tuple(Key(_POLICIES[policy], policy, area=True) for policy in used)
    picture = plot(axes, marks, name=chart.title, about=chart.about)
    return Figure(chart.name, chart.title, chart.about, picture, Data(columns, rows), keys)


def _name(option: Option) -> str:
    restart = f", restart {option['restart']}" if option["restart"] else ""
    p99 = f", p99 {latency(option['p99_s'])}" if option["p99_s"] and option["sustained"] else ""
    return f"N={option['instances']} {option['policy']}{restart}{p99}"


def _price(ratio: float) -> str:
    """What always costs; below 1 noise hides it."""
    return "nothing measurable" if ratio <= 1 else _times(ratio)


def _callers(callers: int) -> str:
    return f"{count(callers)} caller{'' if callers == 1 else 's'}"


def _times(value: float) -> str:
    return f"{value:.2g}×" if value < 10 else f"{value:,.0f}×"
