"""Pictures of fsync policies: *rows, costs and planner of a result → what always costs, what each choice gives*.

Rules: the figures are those of the planner's tables; a rate the generator limited is a ring, not a dot. Source:
bench.experiments.fsync.planner, bench.experiments.fsync.planner_words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.experiments.fsync.judge import NOISE
from bench.experiments.fsync.planner_words import disk_name
from bench.report.figures import count, latency
from bench.report.html.figure import Cell, Column, Data, Figure, Key
from bench.report.html.plot import X_RANGE, Y_RANGE, Axes, Line, Mark, Spot, plot
from bench.report.html.scale import Scale, duration_tick, logarithmic, number_tick

Result = Mapping[str, Any]
Option = Mapping[str, Any]
_POLICIES = {"none": "c5", "no": "c4", "everysec": "c1", "always": "bad", "waitaof": "good"}
NO_GRANT = 0.1  # per 100 cuts: a logarithmic axis has no zero
_STYLES = ("c1", "c2", "c4", "c3", "c5")


def figures(result: Result) -> list[Figure]:
    """What always costs by callers, and the planner's charts as far as there are figures for them."""
    planner = result["planner"]
    options = [option for option in planner["options"] if option["acquired_per_s"]]
    figures = [_losses(options, planner["advice"]), _grants(options), _latency(options), _costs(result["costs"])]
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
    title = _fastest([option for option in options if option["acquired_per_s"]])
    about = "Planner: p99 at 80 % of each choice's maximum rate against that rate; rings: the load was the limit"
    chart = _Chart("planner-latency", title, about, y, "acquire p99 (log scale)", "s")
    return _planner(chart, known, _rates(known), [option["p99_s"] for option in known])


def _fastest(options: Sequence[Option]) -> str:
    """Which option is ahead of all others by more than noise, those without a p99 included."""
    top = max(option["acquired_per_s"]["median"] for option in options)
    ahead = [option for option in options if option["acquired_per_s"]["median"] >= (1 - NOISE) * top]
    if len(ahead) > 1:
        return f"No fastest one: {', '.join(map(_name, ahead))} within {NOISE:.0%} of {count(round(top))} locks/s"
    return f"Fastest: {_name(ahead[0])}, {'≥ ' if ahead[0]['generator_bound'] else ''}{count(round(top))} locks/s"


def _losses(options: Sequence[Option], advice: Sequence[str]) -> Figure | None:
    known = [option for option in options if option["crash"]]
    if not known:
        return None
    lost = [option["crash"]["lost_per_cut"]["max"] for option in known]
    y = logarithmic([0.5, 1.0, *lost], *Y_RANGE)
    title = advice[0]
    about = (
        "Planner: most locks lost in one crash against the maximum rate, both log scale; 0.5 stands for none; rings: "
        "the load was the limit"
    )
    chart = _Chart("planner-losses", title, about, y, "locks lost (log scale)", "count")
    return _planner(chart, known, _rates(known), [most or 0.5 for most in lost])


def _grants(options: Sequence[Option]) -> Figure | None:
    known = [option for option in options if option["crash"] and option["crash"]["double_grants"] is not None]
    shown = [option for option in known if option["p99_s"]]
    if not shown:
        return None
    per_100 = [100 * option["crash"]["double_grants"] / option["crash"]["cuts"] for option in shown]
    y = logarithmic([NO_GRANT, 1.0, *per_100], *Y_RANGE)
    safe = sum(not option["crash"]["double_grants"] for option in known)
    title = f"{safe} of {len(known)} choices led to no double grant"
    about = (
        f"Planner: leases granted twice in 100 cuts against p99 at 80 % of the maximum, both log scale; {NO_GRANT:g} "
        "stands for none; a choice without a p99 stands in the table alone"
    )
    chart = _Chart("planner-grants", title, about, y, "granted twice (log scale)", "count")
    p99 = _Across("p99_s", "acquire p99 (log scale)", "s", [option["p99_s"] for option in shown])
    return _planner(chart, shown, p99, [value or NO_GRANT for value in per_100])


@dataclass(frozen=True, slots=True)
class _Chart:
    """What the planner's charts differ in; `unit` is that of the y axis."""

    name: str
    title: str
    about: str
    y: Scale
    y_name: str
    unit: str


@dataclass(frozen=True, slots=True)
class _Across:
    """The x axis of a planner's chart: its column, its name, its unit, and the value of each choice."""

    column: str
    name: str
    unit: str
    values: Sequence[float]


def _rates(options: Sequence[Option]) -> _Across:
    rates = [option["acquired_per_s"]["median"] for option in options]
    return _Across("acquired_per_s", "most locks per second (log scale)", "per_s", rates)


def _planner(chart: _Chart, options: Sequence[Option], across: _Across, values: Sequence[float]) -> Figure:
    x = logarithmic(across.values, *X_RANGE)
    marks: list[Mark] = []
    rows: list[list[Cell]] = []
    for option, place, value in zip(options, across.values, values, strict=True):
        style, text = _POLICIES.get(option["policy"], "c5"), f"{option['policy']} N{option['instances']}"
        hollow = across.unit == "per_s" and bool(option["generator_bound"])
        marks.append(Spot(place, value, style, text, hollow=hollow))
        rows.append([option["instances"], option["policy"], option["restart"], place, value])
    x_label, label = (duration_tick if unit == "s" else number_tick for unit in (across.unit, chart.unit))
    axes = Axes(x, chart.y, across.name, chart.y_name, x_label, label)
    names = (("instances", "count"), ("policy", "text"), ("restart", "text"), (across.column, across.unit))
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
