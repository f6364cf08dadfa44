"""Writes the texts of `lockbench capacity`: *a capacity result → the answer in one sentence, tables
and advice*. The texts are 100 columns wide."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from bench.experiments.capacity.probe import OTHERS
from bench.experiments.capacity.result import (
    CapacityPoint,
    CapacityResult,
    ClosedLoop,
    Headroom,
    Probe,
    ProbedInstance,
    Seen,
    point_name,
)
from bench.report.figures import MISSING, count, counted, latency, percent
from bench.report.html.plot import Band, Figure, Line, Mark, Spot, data_of, plot
from bench.report.html.scale import latencies, logarithmic, number_tick
from bench.report.junit import Case, Suite, suite_of
from bench.report.sheet import (
    Columns,
    KeyFigure,
    Part,
    Sentence,
    Sheet,
    made,
    not_measured,
    sheet_of,
    table_of,
    to_do,
)
from bench.scenario.quantity import delay_text, duration_text, skew_text

_OUTCOMES = {
    Seen.HELD: ("good", "held the SLO"),
    Seen.MISSED: ("bad", "missed it"),
    Seen.PAUSED: ("c5", "no result: this machine paused"),
    Seen.SATURATED: ("c3", "no result, because the load process reached its limit"),
}


_POINTS: Columns[CapacityPoint] = (
    ("leases/s\nwithin the SLO", lambda point: _bracket(point).partition(" leases/s")[0]),
    "near.acquire_s.p99",
    "near.attainment.rate",
    "knee.rate_per_s",
    "next_limit.name",
)


def sheet(result: CapacityResult, place: str = "") -> Sheet:
    """Return the summary of `result`. `place` is the result's folder, or "" if the result is not
    stored."""
    points = result.points
    keys: Iterable[KeyFigure] = ()
    lines: Iterable[tuple[str, str] | Sentence]
    if len(points) == 1 and not points[0].variables:
        headline = f"{_headline(points[0], result)} at {' and '.join(result.slo)}{_now(points[0])}"
        parts = [*_parts(points[0])]
        lines = (*_lines(points[0], result), *_advice(points[0], result))
        keys = _keys(points[0], result)
    else:
        headline = f"{counted(len(points), 'point')}, {' and '.join(result.slo)}"
        swept = [
            (name, lambda point, name=name: point.variables[name]) for name in points[0].variables
        ]
        columns = [*swept, *_POINTS]
        parts = [
            table_of(CapacityPoint, "capacity", "", points, columns, words=points[0].variables)
        ]
        best = max(points, key=lambda point: point.capacity.low or 0.0)
        keys = _keys(best, result)
        choice = (
            f"the best setting is {point_name(best.variables)}, because the lower end of its "
            "range is the highest"
        )
        lines = (*_sweep_lines(result), to_do(choice, "choose"), *_unmeasured(result))
    return sheet_of(
        result,
        place,
        headline=headline,
        conditions=_conditions(result),
        parts=parts,
        lines=lines,
        keys=keys,
    )


def _keys(point: CapacityPoint, result: CapacityResult) -> tuple[KeyFigure, ...]:
    """Return three key figures. The key figures are the capacity, the share of acquires within the
    SLO's limit near the capacity, and the resource that limits the capacity."""
    near = point.near
    slo = " and ".join(result.slo)
    limit = point.next_limit
    full = f"full at {rate_text(limit.full_per_s)}/s" if limit.full_per_s else limit.text
    ends = _bracket(point).partition(", ")[0]
    keys = [KeyFigure("capacity", ends, f"95 % sure, {slo}; {_tally(point)}")]
    if near and (attained := near.attainment):
        sure = f"95 % sure: {percent(attained.low, 2)} to {percent(attained.high, 2)}"
        bound = f"{sure}, at {rate_text(near.rate_per_s)}/s"
        keys.append(KeyFigure("in time", percent(attained.rate, 2), bound))
    return (*keys, KeyFigure("next limit", limit.name or "not known", full))


def _tally(point: CapacityPoint) -> str:
    """Return a text with the number of probes for each outcome."""
    outcomes = Counter(probe.seen for probe in point.probes)
    named = {Seen.HELD: "held", Seen.MISSED: "missed"}
    named |= {Seen.SATURATED: "spoilt by the generator", Seen.PAUSED: "by pauses"}
    counts = (f"{outcomes[outcome]} {text}" for outcome, text in named.items() if outcomes[outcome])
    return f"{counted(len(point.probes), 'probe')}: {', '.join(counts) or 'none finished'}"


def _advice(point: CapacityPoint, result: CapacityResult) -> Iterator[Sentence]:
    low = point.capacity.low
    target = result.target_rate_per_s
    holds = point.headroom.holds if point.headroom else None
    if target and holds:
        yield to_do(f"you may take {rate_text(target)}/s: {_room(point)}", "plan")
    elif low:
        no = f"do not take {rate_text(target)}/s; " if target and holds is False else ""
        yield to_do(f"{no}plan for at most {rate_text(low)}/s, the lower end of the range", "plan")
    else:
        yield to_do(
            "lockbench found no rate that keeps the SLO; use a longer --budget or a looser --slo",
            "plan",
        )
    if point.capacity.at_least:
        yield to_do(
            f"the servers may sustain a higher rate; next limit: {point.next_limit.text}",
            "measure more",
        )
    elif point.next_limit.name:
        yield to_do(f"to grant more locks, raise the next limit: {point.next_limit.name}", "grow")
    yield from _unmeasured(result)


def _unmeasured(result: CapacityResult) -> Iterator[Sentence]:
    first = result.points[0]
    if first.fleet and first.fleet.started:
        yield not_measured("your network and your disk; use --target to measure your own servers")
    if not first.variables:
        yield not_measured(
            "other hold times, other numbers of resources and other numbers of servers; use "
            "--sweep, such as --sweep hold=1ms,10ms"
        )


def suite(result: CapacityResult) -> Suite:
    """Return one JUnit case per point."""
    cases = [
        Case(" ".join(point.variables.values()) or "capacity", point.status, answer(point, result))
        for point in result.points
    ]
    return suite_of(result, cases)


def answer(point: CapacityPoint, result: CapacityResult) -> str:
    """Answer the planning question in one sentence."""
    scenario = point.scenario
    near = point.near
    skew = skew_text(scenario.skew)
    hold = delay_text(scenario.hold).removeprefix("fixed:")
    users = [counted(near.users, "user")] if near else []
    skewed = "" if skew == "uniform" else f" {skew}"
    load = (
        f"N={scenario.instances}",
        _servers_text(point),
        *users,
        f"{count(scenario.resources)} keys{skewed}",
        "no hold" if hold == "0" else f"{hold} hold",
    )
    interval_text = f"{_bracket(point)} at {' and '.join(result.slo)}{_now(point)}"
    limit = point.next_limit
    full = f", full at {rate_text(limit.full_per_s)}/s" if limit.full_per_s else ""
    # A limit without a name is shown by its text alone. So is a limit with a text like "not
    # reached" or "not known".
    plain = limit.name is None or limit.text.startswith("not ")
    next_one = limit.text if plain else f"{limit.name}{full} ({limit.text})"
    return f"{', '.join(load)}: {interval_text}; next limit: {next_one}"


def _servers_text(point: CapacityPoint) -> str:
    """Return a text that describes the servers of the measurement. If no server was found, the text
    describes the servers that the scenario asks for."""
    if point.fleet:
        return point.fleet.text
    scenario = point.scenario
    return "own targets" if scenario.targets else f"fsync {scenario.fsync}"


def _headline(point: CapacityPoint, result: CapacityResult) -> str:
    """Return the answer to the user's question. If the user named a target rate, the answer says
    whether the fleet keeps the target."""
    return (
        _target(point, point.headroom, result)
        if point.headroom and point.probes
        else _bracket(point)
    )


def _now(point: CapacityPoint) -> str:
    """Return a text for the headline if the answer may be different at another time. This is the
    case if other programs used much of the machine's CPU time, or if pauses of the machine counted
    as misses. Otherwise return ""."""
    others = [probe.others_ratio for probe in point.probes if probe.others_ratio is not None]
    is_busy = bool(others) and median(others) >= OTHERS
    why = f": other programs use {percent(median(others), 0)} of its CPU time" if is_busy else ""
    return (
        f", for this machine in its present state{why}"
        if is_busy or point.capacity.as_it_is
        else ""
    )


def _bracket(point: CapacityPoint) -> str:
    capacity = point.capacity
    low = rate_text(capacity.low)
    high = rate_text(capacity.high)
    if not point.probes:
        return "no probe was finished"
    if capacity.low is None and capacity.high is None:
        return "lockbench found no rate that keeps the SLO"
    if capacity.low is None:
        ends = f"at most {high}"
    elif capacity.at_least or capacity.high is None:
        ends = f"≥ {low}"
    else:
        ends = f"{low}–{high}"
    return f"{ends} leases/s, {percent(capacity.sure, 0)} sure,"


def rate_text(rate: float | None) -> str:
    """Return a rate with three significant digits. The interval of a rate is at least ten times as
    wide as the rounding error, so the error does not matter."""
    return MISSING if rate is None else count(float(f"{rate:.3g}"))


def _conditions(result: CapacityResult) -> Sequence[str]:
    scenario = result.points[0].scenario
    fleet = result.points[0].fleet
    servers = fleet.servers_text if fleet else ""
    where = " shared with the servers" if fleet and fleet.started else ""
    return (
        scenario.recipe,
        f"probes of {duration_text(scenario.duration_ms)}, {scenario.arrivals} arrivals",
        *([servers] if servers else []),
        *made(result, where),
    )


def _lines(point: CapacityPoint, result: CapacityResult) -> Iterator[tuple[str, str]]:
    knee = point.knee
    yield "answer", answer(point, result)
    if point.headroom:
        yield "target", _headroom(point, point.headroom, result)
    if pauses := _pauses(point):
        yield "pauses", pauses
    if own := _own_share(point):
        yield "own share", own
    if point.agreement and point.agreement not in point.reasons:
        yield "closed loop", point.agreement
    if knee:
        times = f"p50 {latency(knee.acquire_s.p50)}, p99 {latency(knee.acquire_s.p99)}"
        rate = f"{rate_text(knee.rate_per_s)}/s"
        yield "knee", f"{rate} has the best ratio of throughput to latency ({times})"
    near = point.near
    others = [use for use in (near.uses if near else ()) if use.name != point.next_limit.name]
    yield from (
        ("used", f"{use.name}: {use.text}")
        for use in sorted(others, key=lambda use: -(use.ratio or 0))
    )


def _own_share(point: CapacityPoint) -> str:
    """Return a sentence that says how much of the measured latency was caused by the load process.
    Return "" if this is unknown."""
    if (near := point.near) is None:
        return ""
    figure = near.generator.figure
    late = near.generator.late_s
    whole = getattr(near.acquire_s, figure)
    if whole is None or late is None:
        return ""
    times = f"the {figure} at {rate_text(near.rate_per_s)}/s is {latency(whole)}"
    return (
        f"{times}; this machine added {latency(min(late, whole))}, because the machine woke "
        "the load process late"
    )


def _target(point: CapacityPoint, headroom: Headroom, result: CapacityResult) -> str:
    """Return a sentence that says whether the fleet keeps the target rate. The sentence also gives
    the range of the capacity."""
    probes = [probe for probe in point.probes if probe.rate_per_s == result.target_rate_per_s]
    held = sum(probe.seen is Seen.HELD for probe in probes)
    times = headroom.acquire_s
    at = f"{count(result.target_rate_per_s)}/s"
    how = ""
    if times and point.probes:
        how = (
            f"{point.probes[0].generator.figure} {latency(times.value)}, 95 % sure below "
            f"{latency(times.high)}"
        )
    tally = "; ".join([f"{held} of {counted(len(probes), 'probe')} held", *([how] if how else [])])
    if headroom.holds:
        return f"{at} holds ({how or tally}); {_room(point)}"
    word = (
        f"{at} does not hold"
        if headroom.holds is False
        else f"it is not known whether the fleet keeps the SLO at {at}"
    )
    return f"{word} ({tally}); capacity: {_bracket(point).rstrip(',')}"


def _room(point: CapacityPoint) -> str:
    capacity = point.capacity
    low = rate_text(capacity.low)
    high = rate_text(capacity.high)
    if capacity.low is None or point.headroom is None or point.headroom.ratio is None:
        return "the capacity is not known"
    value = f"at least {low}" if capacity.high is None else f"{low}–{high}"
    return f"the capacity is {value}/s"


def _headroom(point: CapacityPoint, headroom: Headroom, result: CapacityResult) -> str:
    limit = point.next_limit
    first = (limit.name or limit.text) + (
        f", at {rate_text(limit.full_per_s)}/s" if limit.full_per_s else ""
    )
    return f"{_target(point, headroom, result)}; the first limit is {first}"


def _pauses(point: CapacityPoint) -> str:
    """Return a sentence about the acquires that the verdict on the SLO ignores. While these
    acquires were in progress, the machine paused the load process. Return "" if there are no such
    acquires."""
    touched = [probe for probe in point.probes if probe.left_out]
    if not touched:
        return ""
    nothing = sum(probe.seen is Seen.PAUSED for probe in point.probes)
    text = (
        f"{count(sum(probe.left_out for probe in touched))} acquires in "
        f"{counted(len(touched), 'probe')} overlapped a pause"
    )
    text += " of the load process; the verdict on the SLO ignores these acquires"
    return f"{text}; {counted(nothing, 'probe')} gave no result" if nothing else text


def _parts(point: CapacityPoint) -> Iterator[Part]:
    if near := point.near:
        yield table_of(
            Probe, "probes", "open loop; times count from the intended start", point.probes
        )
        about = "in the probe nearest to the capacity"
        yield table_of(ProbedInstance, "instances", about, near.instances)
    if point.callers:
        yield table_of(ClosedLoop, "callers", "closed loop", point.callers)


def _sweep_lines(result: CapacityResult) -> Iterator[tuple[str, str]]:
    for point in result.points:
        yield point_name(point.variables), answer(point, result)
        if point.headroom:
            yield "target", _headroom(point, point.headroom, result)


def figures(result: CapacityResult) -> list[Figure]:
    """Return one picture for each point. A picture shows the latency at each rate."""
    pictures = (
        _search_picture(point, result, number) for number, point in enumerate(result.points)
    )
    return [figure for figure in pictures if figure]


def _search_picture(point: CapacityPoint, result: CapacityResult, number: int) -> Figure | None:
    slowest = (
        (probe, probe.acquire_s.p99 or probe.acquire_s.p90 or probe.acquire_s.max)
        for probe in point.probes
    )
    probes = [(probe, at) for probe, at in slowest if at is not None]
    if not probes:
        return None
    limits = {probe.attainment.limit_s for probe, _ in probes if probe.attainment}
    x = logarithmic(
        (probe.rate_per_s for probe, _ in probes),
        "acquires offered per second (log scale)",
        number_tick,
    )
    y = latencies([*(at for _, at in probes), *limits])
    low = point.capacity.low
    high = point.capacity.high
    marks: list[Mark] = (
        [] if low is None else [Band(low, high or x.high, "capacity", "the capacity", "found")]
    )
    marks += [
        Line([x.low, x.high], [limit, limit], "c2", "the SLO's limit") for limit in sorted(limits)
    ]
    for probe, at in probes:
        style, key = _OUTCOMES[probe.seen]
        marks.append(Spot(probe.rate_per_s, at, style, key, hollow=probe.seen is not Seen.HELD))
    if target := result.target_rate_per_s:
        named = f"target {rate_text(target)}/s"
        marks.append(Band(target, target, named, "the target", "warmup"))
    title = f"{_bracket(point)} at {' and '.join(result.slo)}"
    title += f"; knee at {rate_text(point.knee.rate_per_s)}/s" if point.knee else ""
    about = (
        "Each point shows the acquire p99 of one probe at its offered rate. With "
        "too few samples for a p99, the point shows the p90 or the slowest acquire"
    )
    if any(probe.left_out for probe in point.probes):
        about += ". The verdict leaves out acquires that overlap a pause of this machine"
    columns, rows = data_of(Probe, point.probes)
    return plot(f"search-{number}", title, about, x=x, y=y, marks=marks, columns=columns, rows=rows)
