"""Pictures of fsync policies: *rows, costs and planner of a result → what always costs, what each choice gives*.

Rules: the figures are those of the planner's tables; a rate the generator limited is a ring, not a dot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bench.experiments.fsync.judge import NOISE
from bench.experiments.fsync.result import AlwaysCost, FsyncResult, Option
from bench.experiments.fsync.words import disk_name
from bench.report.figures import count, counted, latency
from bench.report.html.figure import Cell, Column, Data, Figure, Legend
from bench.report.html.plot import X_RANGE, Y_RANGE, Axes, Line, Mark, Spot, plot
from bench.report.html.scale import duration_tick, logarithmic, number_tick

_POLICIES = {"none": "c5", "no": "c4", "everysec": "c1", "always": "bad", "waitaof": "good"}
NO_GRANT = 0.1  # per 100 cuts: a logarithmic axis has no zero
_STYLES = ("c1", "c2", "c4", "c3", "c5")


def figures(result: FsyncResult) -> list[Figure]:
    """What always costs by callers, and the planner's charts as far as there are figures for them."""
    options = [option for option in result.planner.options if option.acquired_per_s]
    figures = [_losses(options, result.planner.advice[0]), _grants(options), _latency(options), _costs(result.costs)]
    return [figure for figure in figures if figure]


def _costs(costs: Sequence[AlwaysCost]) -> Figure | None:
    known = [cost for cost in costs if cost.ratio]
    if not known:
        return None
    x = logarithmic([cost.callers for cost in known], *X_RANGE)
    y = logarithmic([1.0, *(cost.ratio for cost in known)], *Y_RANGE)
    groups: dict[str, list[AlwaysCost]] = {}
    for cost in sorted(known, key=lambda cost: cost.callers):
        groups.setdefault(f"N={cost.instances}, {disk_name(cost)} fsync", []).append(cost)
    marks: list[Mark] = [Line([x.low, x.high], [1.0, 1.0], "c5")]
    keys = []
    for place, (name, row) in enumerate(groups.items()):
        style = _STYLES[place % len(_STYLES)]
        marks.append(Line([cost.callers for cost in row], [cost.ratio for cost in row], style))
        marks += [Spot(cost.callers, cost.ratio, style, hollow=cost.generator_bound) for cost in row]
        keys.append(Legend(style, name))
    most, least = (pick(known, key=lambda cost: cost.ratio) for pick in (max, min))
    cheap, dear = (f"{_price(cost.ratio)} ({counted(cost.callers, 'caller')})" for cost in (least, most))
    title = f"always costs between {cheap} and {dear}"
    about = "Acquires/s with everysec ÷ with always, by callers, log scales; 1: no cost; rings: the load was the limit"
    axes = Axes(x, y, "callers (log scale)", "everysec ÷ always (log scale)", number_tick, _times)
    names = ("instances", "clients", "pipeline", "injected_ms", "callers", "ratio")
    rows = [[getattr(cost, name) for name in names] for cost in known]
    data = Data(tuple(Column(name, "count") for name in names), rows)
    return Figure("costs", title, about, plot(axes, marks, name=title, about=about), data, tuple(keys))


class _ChartAxis(NamedTuple):
    """An axis of a planner's chart: column, name and unit of its values, and what its scale must hold."""

    column: str
    name: str
    unit: str
    least: tuple[float, ...] = ()


_RATE = _ChartAxis("acquired_per_s", "most locks per second (log scale)", "per_s")
Points = Sequence[tuple[Option, float, float]]


def _rate(option: Option) -> float:
    return option.acquired_per_s.median if option.acquired_per_s else 0.0


def _latency(options: Sequence[Option]) -> Figure | None:
    points = [(option, _rate(option), option.p99_s) for option in options if option.p99_s]
    about = "Planner: p99 at 80 % of each choice's maximum rate against that rate; rings: the load was the limit"
    y = _ChartAxis("value", "acquire p99 (log scale)", "s")
    return _planner("planner-latency", _fastest(options), about, points, across=_RATE, up=y) if points else None


def _fastest(options: Sequence[Option]) -> str:
    """Which option is ahead of all others by more than noise, those without a p99 included."""
    top = max(map(_rate, options))
    ahead = [option for option in options if _rate(option) >= (1 - NOISE) * top]
    if len(ahead) > 1:
        return f"No fastest one: {', '.join(map(_name, ahead))} within {NOISE:.0%} of {count(round(top))} locks/s"
    return f"Fastest: {_name(ahead[0])}, {'≥ ' if ahead[0].generator_bound else ''}{count(round(top))} locks/s"


def _losses(options: Sequence[Option], advice: str) -> Figure | None:
    points = [(one, _rate(one), one.crash.lost_per_cut.max or 0.5) for one in options if one.crash]
    about = (
        "Planner: most locks lost in one crash against the maximum rate, both log scale; 0.5 stands for none; rings: "
        "the load was the limit"
    )
    y = _ChartAxis("value", "locks lost (log scale)", "count", (0.5, 1.0))
    return _planner("planner-losses", advice, about, points, across=_RATE, up=y) if points else None


def _grants(options: Sequence[Option]) -> Figure | None:
    crashed = [(option, option.crash) for option in options if option.crash]
    known = [(one, crash.double_grants, crash.cuts) for one, crash in crashed if crash.double_grants is not None]
    points = [(one, one.p99_s, 100 * grants / cuts or NO_GRANT) for one, grants, cuts in known if one.p99_s]
    title = f"{sum(not grants for _, grants, _ in known)} of {len(known)} choices led to no double grant"
    about = (
        f"Planner: leases granted twice in 100 cuts against p99 at 80 % of the maximum, both log scale; {NO_GRANT:g} "
        "stands for none; a choice without a p99 stands in the table alone"
    )
    x = _ChartAxis("p99_s", "acquire p99 (log scale)", "s")
    y = _ChartAxis("value", "granted twice (log scale)", "count", (NO_GRANT, 1.0))
    return _planner("planner-grants", title, about, points, across=x, up=y) if points else None


def _planner(name: str, title: str, about: str, points: Points, *, across: _ChartAxis, up: _ChartAxis) -> Figure:
    """A chart of choices."""
    marks: list[Mark] = []
    rows: list[list[Cell]] = []
    for option, place, value in points:
        hollow = across is _RATE and bool(option.generator_bound)
        text = f"{option.policy} N{option.instances}"
        marks.append(Spot(place, value, _POLICIES[option.policy], text, hollow=hollow))
        rows.append([option.instances, option.policy, option.restart, place, value])
    x = logarithmic([place for _, place, _ in points], *X_RANGE)
    y = logarithmic([*up.least, *(value for _, _, value in points)], *Y_RANGE)
    ticks = (duration_tick if axis.unit == "s" else number_tick for axis in (across, up))
    picture = plot(Axes(x, y, across.name, up.name, *ticks), marks, name=title, about=about)
    names = (("instances", "count"), ("policy", "text"), ("restart", "text"), (across.column, across.unit))
    columns = (*(Column(column, unit) for column, unit in names), Column(up.column, up.unit, up.name))
    keys = tuple(Legend(style, used, area=True) for used, style in _POLICIES.items() if any(r[1] == used for r in rows))
    return Figure(name, title, about, picture, Data(columns, rows), keys)


def _name(option: Option) -> str:
    restart = f", restart {option.restart}" if option.restart else ""
    p99 = f", p99 {latency(option.p99_s)}" if option.p99_s and option.sustained else ""
    return f"N={option.instances} {option.policy}{restart}{p99}"


def _price(ratio: float) -> str:
    """What always costs; below 1 noise hides it."""
    return "nothing measurable" if ratio <= 1 else _times(ratio)


def _times(value: float) -> str:
    return f"{value:.2g}×" if value < 10 else f"{value:,.0f}×"
