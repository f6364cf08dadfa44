"""Writes the texts of `compare` and `gate`: *a comparison's result → a table and sentences*. The
texts are up to 80 columns wide. Only a table that has a column for the noise may be wider."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import attrgetter

from bench.experiments.compare.result import ComparisonResult, Exact, Judged
from bench.gates.threshold import FOREVER_S, find_metric
from bench.measure.verdict import TESTED_LEAST
from bench.report.figures import INFINITE, MISSING, count, counted, in_unit, percent, threshold_text
from bench.report.html.plot import Bar, Figure, data_of, forest
from bench.report.html.scale import Scale, exact, logarithmic
from bench.report.junit import Case, Suite, suite_of
from bench.report.sheet import KeyFigure, Part, Sentence, Sheet, not_measured, sheet_of, to_do
from bench.report.summary import load_parts
from bench.scenario.quantity import duration_text

# If a change is at least this factor, it is shown as infinite. A real latency never grows so much,
# but a caller without a lease counts as one hour.
ENDLESS = 1000.0


def sheet(result: ComparisonResult, place: str = "") -> Sheet:
    """Return the summary of `result`. `place` is the result's folder, or "" if the result is not
    stored."""
    return sheet_of(
        result,
        place,
        headline=_headline(result),
        conditions=_conditions(result),
        parts=_parts(result),
        lines=(*_lines(result), *_advice(result)),
        caveat=_caveat(result),
        keys=_keys(result),
    )


def _changes(result: ComparisonResult, side: int) -> list[Judged]:
    """Return the judged changes of a side. Figures that got worse are first."""
    judged = [
        entry
        for entry in result.metrics
        if (entry.side, entry.role) == (side, "judged") and entry.ratio is not None
    ]
    return sorted(judged, key=_is_worse, reverse=True)


def _is_worse(entry: Judged) -> bool:
    return _word_of(entry) in ("fail", "worse")


def _keys(result: ComparisonResult) -> tuple[KeyFigure, ...]:
    """Return up to three key figures, which are the most important changes of the second side."""
    return tuple(
        KeyFigure(
            metric_text(entry.metric),
            change_text(entry.ratio),
            f"interval {interval_text(entry)}; allowed {change_text(entry.limit)}"
            if entry.low is not None
            else "no interval yet",
        )
        for entry in _changes(result, 1)[:3]
    )


def _advice(result: ComparisonResult) -> Iterator[Sentence]:
    status = result.verdict.status
    worse = [
        metric_text(entry.metric)
        for entry in result.metrics
        if entry.role == "judged" and _is_worse(entry)
    ]
    if worse:
        yield to_do(
            f"find the cause of the change in {', '.join(worse)}; the table shows both figures",
            "look",
        )
    elif status == "inconclusive":
        more = "--pairs allows more of them" if result.paired else "store more runs of each side"
        yield to_do(f"measure more pairs: {more}", "next")
    elif result.kind == "gate":
        yield to_do(
            "accept the change, because no judged figure got worse by more than the tolerance"
        )
    if untested := _untested(result):
        names = ", ".join(untested)
        yield not_measured(f"the safety of the lock in {names}; set --hold to test the safety")
    if not any(entry.metric == "acquire.p99" for entry in result.metrics if entry.role == "judged"):
        yield not_measured("the slowest acquires; use --metric acquire.p99 to judge these acquires")
    if result.sides[0].scenario:
        yield not_measured("other loads, other machines and other times of the day")


def _headline(result: ComparisonResult) -> str:
    labels = [side.label for side in result.sides]
    status = result.verdict.status
    finished = result.finished_pairs
    planned = result.planned_pairs
    if result.kind == "compare":
        # In paired runs, the last side is the first side again (A/A). So the last side is not
        # named.
        others = range(1, len(labels) - result.paired)
        names = "; ".join(_summary(result, side) for side in others)
    else:
        names = _gate_names(result)
    if not result.paired:
        pairs = "stored runs that were not run in pairs"
    elif finished < planned and not (finished in result.looks and status in ("pass", "fail")):
        pairs = f"{finished} of {planned} pairs"
    else:
        pairs = counted(finished, "pair")
    caveat = _caveat(result)
    return f"{names}   {pairs}" + (f"   {caveat}" if caveat else "")


def _caveat(result: ComparisonResult) -> str:
    """Return a warning for the headline if the safety of a side was not tested. Otherwise return
    ""."""
    return "safety not tested" if result.runs and _untested(result) else ""


def _gate_names(result: ComparisonResult) -> str:
    """Return a sentence with the verdict and the names of the gate's two sides. After a PASS the
    sentence also lists the judged figures. If p99 is not among the judged figures, the sentence
    contains a note about this."""
    baseline, candidate = (side.label for side in result.sides[:2])
    status = result.verdict.status
    tolerance = f"{result.tolerance_ratio * 100:g} %"
    if status == "fail":
        return f"{candidate} worse than {baseline}"
    if status != "pass":
        return f"it is not known whether {candidate} is worse than {baseline}"
    names = [_short(entry.metric) for entry in result.metrics if entry.role == "judged"]
    p99 = "" if "p99" in names else "; the p99 was not judged"
    listed = " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
    return f"{candidate} is at most {tolerance} worse than {baseline} in {listed}{p99}"


def _short(metric: str) -> str:
    """Return the short name of a metric for a headline."""
    return metric_text(metric).removeprefix("acquire.")


def _untested(result: ComparisonResult) -> list[str]:
    """Return the labels of sides with too few tested leases and without a violation. The runs of
    these sides prove nothing about safety."""
    tested = Counter[int]()
    broken = Counter[int]()
    for run in result.runs:
        tested[run.side] += run.safety.tested_leases
        broken[run.side] += run.safety.service_faults
    sides = enumerate(result.sides)
    return [
        side.label for index, side in sides if tested[index] < TESTED_LEAST and not broken[index]
    ]


def _conditions(result: ComparisonResult) -> Sequence[str]:
    scenario = result.sides[0].scenario
    fleet = result.sides[0].fleet
    parts = ["cut short"] if result.interrupted else []
    if scenario is not None:
        how = ", alternating every 0.1 s" if result.in_turns else ", there and back"
        each = f"{duration_text(scenario.duration_ms)} each" + (
            f"{how} (--duration sets it)" if result.paired else ""
        )
        parts += [
            f"N={scenario.instances}",
            fleet.text if fleet else f"fsync {scenario.fsync}",
            *load_parts(scenario),
            each,
        ]
    return parts


def _parts(result: ComparisonResult) -> Iterator[Part]:
    noise = {entry.metric: entry for entry in result.metrics if entry.role == "noise"}
    for index, side in enumerate(result.sides):
        entries = [
            entry for entry in result.metrics if entry.side == index and entry.role != "noise"
        ]
        shown = (entry for entry in entries if entry.pairs or entry.role == "judged")
        rows = tuple(_row(entry, noise.get(entry.metric, entry)) for entry in shown)
        if entries:
            names = ("baseline", "candidate") if result.kind == "gate" else ("first", "second")
            head = ("", "verdict", *names, "change", "interval", "allowed", "noise")
            about = f"against {result.sides[0].label}"
            yield Part(side.label, about, head, rows, left=frozenset({0, 1}), aside=len(head) - 1)


def _row(entry: Judged, noise: Judged) -> tuple[str, ...]:
    return (
        metric_text(entry.metric),
        _word_of(entry),
        _figure_text(entry.first, entry.unit),
        _figure_text(entry.second, entry.unit),
        change_text(entry.ratio),
        interval_text(entry) if entry.pairs else MISSING,
        change_text(entry.limit),
        percent(noise.pair_noise_ratio),
    )


def _figure_text(value: float | None, unit: str) -> str:
    return (
        INFINITE
        if unit == "s" and value is not None and value >= FOREVER_S
        else in_unit(value, unit)
    )


def _word_of(entry: Judged) -> str:
    if entry.role == "shown":
        return "(not judged)"
    if entry.verdict != "different":
        return entry.verdict
    return "better" if ((entry.ratio or 1) > 1) == entry.higher_is_better else "worse"


def change_text(ratio: float | None) -> str:
    """Return the ratio second ÷ first as a change in per cent, or `+∞` if too many acquires
    failed."""
    if ratio is None:
        return MISSING
    if ratio >= ENDLESS:
        return f"+{INFINITE}"
    return f"{(ratio - 1) * 100:+.{0 if ratio >= 2 else 1}f} %"


def interval_text(entry: Judged) -> str:
    """Return the interval of a change, in per cent."""
    if entry.low is None or entry.high is None:
        return "none"
    return f"{change_text(entry.low).removesuffix(' %')} … {change_text(entry.high)}"


def _lines(result: ComparisonResult) -> Iterator[tuple[str, str]]:
    for entry in result.thresholds:
        yield (
            "threshold",
            f"{entry.status.upper()}  {entry.label}  {entry.expression}  {threshold_text(entry)}",
        )
    if result.differs:
        yield "differs", " · ".join(result.differs)
    if result.exact is not None:
        yield "exact", _exact(result.exact)
    faults = sum(run.safety.service_faults for run in result.runs)
    leases = sum(run.safety.tested_leases for run in result.runs)
    many = f"{len(result.runs)} runs"
    if leases or faults:
        untested = "".join(f"; {label}: not tested" for label in _untested(result))
        yield (
            "safety",
            f"{count(faults)} violations in {count(leases)} tested leases of {many}{untested}",
        )
    elif result.runs:
        yield (
            "safety",
            f"not tested, because no lease of the {many} was held long enough; use a longer --hold",
        )
    if sure := sorted(
        {f"{entry.confidence * 100:.3g} %" for entry in result.metrics if entry.confidence}
    ):
        of, test = ("the pairs'", "Wilcoxon") if result.paired else ("all", "Mann-Whitney")
        yield (
            "interval",
            f"{', '.join(sure)}: Hodges-Lehmann estimate over {of} log ratios, with an exact "
            f"interval ({test})",
        )
        if result.paired:
            equal = (
                " of equal runs (A/A)"
                if any(entry.role == "noise" for entry in result.metrics)
                else ""
            )
            yield "noise", f"standard deviation of one pair{equal}"


def _exact(exact: Exact) -> str:
    if exact.skipped:
        return f"not counted: {exact.skipped}"
    rows = [(row.name.replace("_", " "), row.first, row.second) for row in exact.rows]
    changed = [f"{name} {first:g} → {second:g}" for name, first, second in rows if first != second]
    same = ", ".join(f"{name} {first:g}" for name, first, second in rows if first == second)
    parts = changed
    if same:
        how_many = "same" if changed else "all the same"
        parts = [*changed, f"{how_many}: {same}"]
    return " · ".join(parts) + "  (per acquire with its release)"


def metric_text(name: str) -> str:
    """Return a metric's name, short enough for a table."""
    return find_metric(name).label if name.startswith("cost.") else name


def suite(result: ComparisonResult) -> Suite:
    """Return JUnit cases for every judged metric, every threshold, the exact costs and the whole
    verdict."""
    cases = []
    for entry in result.metrics:
        if entry.role == "judged":
            status = "pass" if entry.verdict in ("same", "different") else entry.verdict
            why = f": {entry.reason}" if entry.reason else ""
            text = f"{change_text(entry.ratio)}, interval {interval_text(entry)}{why}"
            cases.append(Case(f"{entry.metric} ({entry.label})", status, text))
    cases += [
        Case(entry.expression, entry.status, threshold_text(entry)) for entry in result.thresholds
    ]
    if result.exact is not None and not result.exact.skipped:
        cases.append(
            Case("exact costs", "fail" if result.exact.failures else "pass", _exact(result.exact))
        )
    verdict = result.verdict
    cases.append(Case(result.kind, verdict.status, "; ".join(verdict.reasons) or _headline(result)))
    return suite_of(result, cases)


# -- pictures --------------------------------------------------------------------------------------


_MULTIPLE = 3.0
# How a bar looks, and what the bar means.
_GOOD = ("good", "pass or better")
_BAD = ("bad", "fail or worse")
_STYLES = {"pass": _GOOD, "better": _GOOD, "fail": _BAD, "worse": _BAD}


def figures(result: ComparisonResult) -> list[Figure]:
    """Return one picture for each side after the first."""
    compared_entries = [
        entry for entry in result.metrics if entry.role != "noise" and entry.ratio is not None
    ]
    sides = groupby(sorted(compared_entries, key=attrgetter("side")), attrgetter("side"))
    return [_figure(result, side, list(entries)) for side, entries in sides]


def _summary(result: ComparisonResult, side: int) -> str:
    """Describe the two most important changes of a side."""
    changes = ", ".join(
        f"{metric_text(entry.metric)} {change_text(entry.ratio)} ({_word_of(entry)})"
        for entry in _changes(result, side)[:2]
    )
    against = f"{result.sides[side].label} against {result.sides[0].label}"
    return f"{against}: {changes}" if changes else against


def _figure(result: ComparisonResult, side: int, entries: Sequence[Judged]) -> Figure:
    numbers = [
        value
        for entry in entries
        for value in (entry.ratio, entry.low, entry.high, entry.limit)
        if value
    ]
    allowed = (
        f"the mark in each row shows the tolerance, which is {result.tolerance_ratio * 100:g} % "
        "for most figures and less for CPU"
    )
    about = (
        f"Each row shows the change of a figure with its interval; {allowed}; a change whose "
        "interval contains 0 may be chance"
    )
    columns, rows = data_of(Judged, entries, ("metric", "ratio", "low", "high", "limit"))
    return forest(
        f"change-{side}",
        _summary(result, side),
        about,
        bars=[_bar(entry) for entry in entries],
        x=_scale(numbers),
        columns=columns,
        rows=rows,
        lines=[(1.0, "equal")],
        limit="allowed",
    )


def _scale(ratios: Sequence[float]) -> Scale:
    """Return the scale of a picture that shows changes. `ratios` holds one ratio per change. If any
    ratio is above _MULTIPLE or below 1 ÷ _MULTIPLE, the scale is logarithmic. Otherwise the scale
    is linear, and "equal" is in its middle."""
    if max(ratios) > _MULTIPLE or min(ratios) < 1 / _MULTIPLE:
        return logarithmic([*ratios, 1.0], "second ÷ first (log scale)", "{:g}×".format, most=4)
    edge = max(0.02, *(abs(ratio - 1) for ratio in ratios)) * 1.08
    return exact(1 - edge, 1 + edge, "change", _change_tick, most=4)


def _change_tick(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.3g} %" if abs(ratio - 1) > 1e-9 else "0"


def _bar(entry: Judged) -> Bar:
    whole = entry.low is not None and entry.high is not None
    text = interval_text(entry) if whole else change_text(entry.ratio)
    style, key = _STYLES.get(
        _word_of(entry), ("c5", "it is not known whether the figure is better or worse")
    )
    return Bar(
        metric_text(entry.metric),
        entry.ratio,
        entry.low,
        entry.high,
        text,
        style,
        key,
        entry.limit,
    )
