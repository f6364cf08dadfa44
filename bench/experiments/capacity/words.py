"""What `lockbench capacity` says: *its result → one sentence that answers, tables and sentences*.

Rules: the answer first, in words; nothing is computed here, a number is only scaled to its unit. Fits 100 columns.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from bench.experiments.capacity.result import (
    Attainment,
    CapacityPoint,
    CapacityResult,
    ClosedLoop,
    Headroom,
    Probe,
    ProbedInstance,
    Seen,
    point_name,
)
from bench.experiments.capacity.usl import Estimate, throughput
from bench.report.figures import MISSING, count, decimals, latency, milliseconds, percent
from bench.report.html.figure import Column, Data, Figure, Legend
from bench.report.html.plot import X_RANGE, Y_RANGE, Area, Axes, Band, Line, Mark, Spot, plot
from bench.report.html.scale import duration_tick, linear, logarithmic, number_tick
from bench.report.sheet import Case, Part, Sheet, Suite, made, sheet_of
from bench.scenario.quantity import delay_text, duration_text, skew_text

_PROBES = ("step", "offered\n/s", "done\n/s", "p50\nms", "p99\nms", "within", "callers", "gener-\nator", "")
_INSTANCES = ("instance", "CPU of\na core", "CPU µs\n/command", "reply p50\nms", "p99\nms", "waited\nfor fsync")
_CALLERS = ("callers", "leases\n/s", "p50\nms", "p99\nms", "gener-\nator")
_STYLES = {Seen.HELD: "good", Seen.MISSED: "bad", Seen.CLEARLY_MISSED: "bad"}
_TABLE = ("leases/s\nwithin the SLO", "p99\nms", "attained", "knee\n/s", "next limit")


def sheet(result: CapacityResult, place: str = "") -> Sheet:
    """Return the summary of `result`, stored at `place` ("" = nowhere)."""
    points = result.points
    if len(points) == 1 and not points[0].variables:
        headline, parts, lines = answer(points[0], result), [*_parts(points[0])], _lines(points[0], result)
    else:
        headline = f"{len(points)} points, {' and '.join(result.slo)}"
        parts, lines = [_sweep(points)], _sweep_lines(result)
    return sheet_of(
        result, place, kind="capacity", headline=headline, conditions=_conditions(result), parts=parts, lines=lines
    )


def suite(result: CapacityResult) -> Suite:
    """One JUnit case per point."""
    cases = [
        Case(" ".join(point.variables.values()) or "capacity", point.status, answer(point, result))
        for point in result.points
    ]
    return Suite("capacity", result.started_at, result.duration_s, cases, {"id": result.id})


def answer(point: CapacityPoint, result: CapacityResult) -> str:
    """The planning question answered in one sentence."""
    scenario, limit = point.scenario, point.next_limit
    load = [f"N={scenario.instances}"]
    load += ["own targets"] if scenario.targets else [f"fsync {scenario.fsync}"]
    skew = skew_text(scenario.skew)
    load.append(f"{count(scenario.resources)} keys{'' if skew == 'uniform' else f' {skew}'}")
    hold = delay_text(scenario.hold).removeprefix("fixed:")
    load.append("no hold" if hold == "0" else f"{hold} hold")
    found = f"{_bracket(point)} at {' and '.join(result.slo)}"
    return f"{', '.join(load)}: {found}; next limit: {limit.name or 'none found'}"


def _bracket(point: CapacityPoint) -> str:
    capacity = point.capacity
    if not point.probes:
        return "no probe was finished"
    if capacity.low is None:
        return "no rate"
    if capacity.at_least or capacity.high is None:
        return f"≥ {rate_text(capacity.low)} leases/s"
    return f"{rate_text(capacity.low)}–{rate_text(capacity.high)} leases/s"


def rate_text(rate: float | None) -> str:
    """Three significant digits: a bracket is 5 % wide."""
    return MISSING if rate is None else count(float(f"{rate:.3g}"))


def _conditions(result: CapacityResult) -> Sequence[str]:
    environment = result.environment
    scenario, fleet = result.points[0].scenario, result.points[0].fleet
    server = fleet.server if fleet else None
    return (
        scenario.recipe,
        f"probes of {duration_text(scenario.duration_ms)}, {scenario.arrivals} arrivals",
        *([f"{server.name} {server.version}"] if server else []),
        f"{environment.usable_cores} cores{' shared with the servers' if fleet and fleet.started else ''}",
        *made(result),
    )


def _lines(point: CapacityPoint, result: CapacityResult) -> Iterator[tuple[str, str]]:
    capacity, attained, knee = point.capacity, point.attainment, point.knee
    held = capacity.confirmed + 1 if capacity.held is None else capacity.held
    probed = held if capacity.probed is None else capacity.probed  # a result from before all probes counted
    missed = "nothing above was tried" if capacity.high is None else f"{rate_text(capacity.high)}/s did not hold"
    found = f"{rate_text(capacity.low)}/s held in {held} of {probed} probes" if capacity.low else "no rate held"
    yield "bracket", f"{found}; {missed}"
    if attained:
        within = f"{count(attained.operations)} acquires within {latency(attained.limit_s)}"
        yield "attained", f"{_attained(attained)} of {within}"
    if knee:
        acquire = knee.acquire_s
        times = f"p50 {latency(acquire.p50)}, p99 {latency(acquire.p99)}"
        yield "knee", f"{rate_text(knee.rate_per_s)}/s: most throughput per latency ({times})"
    if point.headroom:
        yield "headroom", _headroom(point.headroom, at_least=point.capacity.at_least)
    limit = point.next_limit
    yield "next limit", f"{limit.name}: {limit.text}" if limit.name else limit.text
    others = [use for use in limit.uses if use.ratio is not None and use.name != limit.name]
    yield from (("used", f"{use.name}: {use.text}") for use in sorted(others, key=lambda use: -(use.ratio or 0)))
    yield "scaling", _law(point)


def _attained(attained: Attainment) -> str:
    if attained.rate is None:
        return MISSING
    low, high = percent(attained.low, 2), percent(attained.high, 2)
    return f"{percent(attained.rate, 2)} (95 % sure: {low} to {high})"


def _headroom(headroom: Headroom, *, at_least: bool) -> str:
    target, ratio = f"{count(headroom.target_rate_per_s)}/s", headroom.ratio
    if ratio is None:
        return f"none at {target}: no rate holds"
    least, doubt = ("at least ", "not known to be") if at_least else ("", "not")
    return f"{least}{ratio * 100:+.0f} % at {target}" + ("" if headroom.kept else f": the SLO is {doubt} kept there")


def _law(point: CapacityPoint) -> str:
    law = point.law
    if law is None:
        return f"no law fitted: {point.no_law}" if point.no_law else "not measured (--callers)"
    peak, rate = law.peak_callers, law.peak_rate
    return (
        f"peak of {rate_text(rate.value)} leases/s ({rate_text(rate.low)}–{rate_text(rate.high)}) at "
        f"{peak.value:.0f} callers ({peak.low:.0f}–{peak.high:.0f}); contention {_small(law.contention)}, "
        f"coherency {_small(law.coherency)}; misses the points by {percent(law.misfit)}"
    )


def _small(estimate: Estimate) -> str:
    return f"{estimate.value:.2g} ({estimate.low:.2g}–{estimate.high:.2g})"


def _parts(point: CapacityPoint) -> Iterator[Part]:
    yield Part(
        "probes", "open loop, from the intended start", _PROBES, tuple(map(_probe, point.probes)), frozenset({0, 8})
    )
    if point.instances:
        rows = tuple(map(_instance, point.instances))
        yield Part("instances", "at the largest rate that held", _INSTANCES, rows)
    if len(point.callers) > 1:  # one alone was the pilot
        yield Part("callers", "closed loop", _CALLERS, tuple(map(_caller, point.callers)), frozenset())


def _probe(probe: Probe) -> tuple[str, ...]:
    attained, acquire = probe.attainment, probe.acquire_s
    return (
        probe.step.value,
        count(round(probe.rate_per_s)),
        count(round(probe.completed_per_s or 0)),
        milliseconds(acquire.p50),
        milliseconds(acquire.p99),
        percent(attained.rate, 2) if attained else MISSING,
        count(probe.users),
        percent(probe.generator.cpu_ratio, 0),
        probe.seen.value,
    )


def _instance(instance: ProbedInstance) -> tuple[str, ...]:
    cpu = instance.cpu_us_per_command
    return (
        f"#{instance.index} {instance.address}",
        percent(instance.cpu_ratio, 0),
        decimals(cpu, 1),
        milliseconds(instance.reply_p50_s),
        milliseconds(instance.reply_p99_s),
        count(instance.delayed_fsyncs),
    )


def _caller(loop: ClosedLoop) -> tuple[str, ...]:
    acquire = loop.acquire_s
    return (
        count(loop.users),
        count(round(loop.achieved_per_s or 0)),
        milliseconds(acquire.p50),
        milliseconds(acquire.p99),
        percent(loop.generator_cpu_ratio, 0),
    )


def _sweep(points: Sequence[CapacityPoint]) -> Part:
    names = tuple(points[0].variables)
    rows = tuple((*point.variables.values(), *_sweep_row(point)) for point in points)
    words = frozenset({*range(len(names)), len(names) + len(_TABLE) - 1})
    return Part("capacity", "", (*names, *_TABLE), rows, words)


def _sweep_row(point: CapacityPoint) -> tuple[str, ...]:
    attained, knee, capacity = point.attainment, point.knee, point.capacity
    held = [probe for probe in point.probes if probe.rate_per_s == capacity.low and probe.seen is Seen.HELD]
    return (
        _bracket(point).removesuffix(" leases/s"),
        milliseconds(held[-1].acquire_s.p99) if held else MISSING,
        percent(attained.rate, 2) if attained else MISSING,
        rate_text(knee.rate_per_s) if knee else MISSING,
        point.next_limit.name or "none found",
    )


def _sweep_lines(result: CapacityResult) -> Iterator[tuple[str, str]]:
    for point in result.points:
        yield point_name(point.variables), answer(point, result)
        if point.headroom:
            yield "headroom", _headroom(point.headroom, at_least=point.capacity.at_least)


# -- pictures ----------------------------------------------------------------------------------------------------------


def figures(result: CapacityResult) -> list[Figure]:
    """What each rate did to the latency, and how callers scale, of every point."""
    pictures = (
        figure
        for number, point in enumerate(result.points)
        for figure in (_search_picture(point, result, number), _callers_picture(point, number))
    )
    return [figure for figure in pictures if figure]


def _search_picture(point: CapacityPoint, result: CapacityResult, number: int) -> Figure | None:
    slowest = ((probe, probe.acquire_s.p99 or probe.acquire_s.p90 or probe.acquire_s.max) for probe in point.probes)
    probes = [(probe, at) for probe, at in slowest if at is not None]
    if not probes:
        return None
    limits = {entry.limit for probe, _ in probes for entry in probe.slo if entry.expression.startswith("acquire.")}
    x = logarithmic([probe.rate_per_s for probe, _ in probes], *X_RANGE)
    y = logarithmic([*(at for _, at in probes), *limits], *Y_RANGE)
    low, high = point.capacity.low, point.capacity.high
    marks: list[Mark] = [] if low is None else [Band(low, high or x.high, "capacity", "found")]
    marks += [Line([x.low, x.high], [limit, limit], "c2") for limit in sorted(limits)]
    marks += [
        Spot(probe.rate_per_s, at, _STYLES.get(probe.seen, "c5"), hollow=probe.seen is not Seen.HELD)
        for probe, at in probes
    ]
    knee = point.knee
    if knee:
        marks.append(Spot(knee.rate_per_s, y.low, "c4"))
    title = answer(point, result).partition("; next limit")[0]
    title += f"; knee at {rate_text(knee.rate_per_s)}/s" if knee else ""
    about = (
        "Acquire p99 of each probe by the rate offered, both log scale; p90 or slowest where p99 has too few samples"
    )
    axes = Axes(x, y, "acquires offered per second (log scale)", "latency (log scale)", number_tick, duration_tick)
    names = (("rate_per_s", "per_s"), ("seen", "text"), ("p99_s", "s"), ("achieved_per_s", "per_s"))
    rows = [[p.rate_per_s, p.seen.value, p.acquire_s.p99, p.achieved_per_s] for p in point.probes]
    data = Data(tuple(Column(*name) for name in names), rows)
    seen = Legend("good", "held the SLO", area=True), Legend("bad", "missed it", area=True)
    keys = (*seen, Legend("c2", "the SLO's limit"), *([Legend("c4", "knee", area=True)] if knee else []))
    picture = plot(axes, marks, name=title, about=about)
    return Figure(f"search-{number}", title, about, picture, data, keys)


def _callers_picture(point: CapacityPoint, number: int) -> Figure | None:
    loops, law = point.callers, point.law
    if len(loops) < 2:
        return None
    users, rates = [loop.users for loop in loops], [loop.achieved_per_s or 0.0 for loop in loops]
    x, most = logarithmic(users, *X_RANGE), max(rates)
    marks: list[Mark] = [Spot(n, rate, "c1") for n, rate in zip(users, rates, strict=True)]
    keys = [Legend("c1", "measured", area=True)]
    found = f"{count(most)} leases/s at most, with {users[rates.index(most)]} callers"
    title = f"{found}; {point.no_law or 'no law was fitted'}"
    if law:
        grid = np.geomspace(min(users), max(users), 60)
        curve = throughput(grid, law.rate_of_one.value, law.contention.value, law.coherency.value).tolist()
        low = throughput(grid, law.rate_of_one.low, law.contention.high, law.coherency.high).tolist()
        high = throughput(grid, law.rate_of_one.high, law.contention.low, law.coherency.low).tolist()
        marks = [Area([*grid.tolist(), grid[-1]], low, high, "band"), Line(grid.tolist(), curve, "c4"), *marks]
        keys += [Legend("c4", "scalability law"), Legend("band", "the corners of its 95 % intervals", area=True)]
        most, peak = max(most, *high), law.peak_callers
        around = f"{peak.value:.0f} callers ({peak.low:.0f}–{peak.high:.0f})"
        title = f"Throughput peaks at {around}, {count(law.peak_rate.value)}/s"
    about = "Leases per second by callers, closed loop; where more callers bring less, they wait for each other"
    y = linear([most], *Y_RANGE)
    axes = Axes(x, y, "callers (log scale)", "leases per second", number_tick, number_tick)
    names = (("callers", "count"), ("leases_per_s", "per_s"), ("p50_s", "s"), ("p99_s", "s"))
    rows = [[loop.users, loop.achieved_per_s, loop.acquire_s.p50, loop.acquire_s.p99] for loop in loops]
    data = Data(tuple(Column(*name) for name in names), rows, [x(n) for n in users])
    return Figure(f"callers-{number}", title, about, plot(axes, marks, name=title, about=about), data, tuple(keys))
