"""The page of a run: *result.json → verdict, figures, tables, in the order people ask*.

Rules: verdict and reasons first, then the chapter that shows where to look first, then how fast, how it went over time,
whether it was safe, the instances, the conditions. Words and figures are those of the terminal's summary.
"""

import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace

from bench.measure.run_result import Example, InstanceReport, RunResult
from bench.measure.section import Section, builtins_of
from bench.report.figures import MISSING, count, inverse, latency
from bench.report.html.figure import Chapter, Column, Data, Figure, Page
from bench.report.html.opening import FAULT, RULES, TIMES, VIOLATION, Eyecatcher, findings, moment_of, span_of
from bench.report.html.run_figures import (
    course_figures,
    course_of,
    fault_bands,
    fault_rows,
    instance_figures,
    percentile_figure,
)
from bench.report.sheet import Part, Sheet
from bench.report.summary import sheet
from bench.scenario import Scenario
from bench.scenario.quantity import delay_text, skew_text

_LEASE = ("granted_us", "end_us", "valid_until_us", "work_end_us", "caller", "fault")


def run_page(result: RunResult, place: str = "") -> Page:
    """Return the page of a run whose result stands at `place`."""
    told, moment = sheet(result, place), moment_of(result)
    course, safety = _course(result, moment), _safety(result, moment)
    usual = [_speed(result, told), course, safety, _instances(result), _conditions(result)]
    first = [] if moment is None else [safety if moment.what == VIOLATION else course]
    chapters = (*first, *(chapter for chapter in usual if chapter not in first))
    shown = "figure-holders" if any(figure.drawn for figure in safety.figures) else "part-1"
    return Page(
        f"{told.verdict} · {result.scenario.recipe} · {result.started_at[:16].replace('T', ' ')}",
        told,
        tuple(chapter for chapter in chapters if chapter.figures or chapter.tables),
        shlex.join(result.command),
        (moment.text, shown) if moment else None,
    )


def _speed(result: RunResult, told: Sheet) -> Chapter:
    (part,) = told.parts
    rows = tuple((f"{name.strip()}{f' ({note.strip()})' if note else ''}", *cells) for name, *cells, note in part.rows)
    about = "From HDR histograms; – means fewer than ten samples beyond it"
    table = replace(part, name="How long it took", about=about, head=part.head[:-1], rows=rows)
    curve = percentile_figure(result)
    return Chapter("How fast", (curve,) if curve else (), (table,) if rows else (), "beside")


def _course(result: RunResult, moment: Eyecatcher | None) -> Chapter:
    head = ("fault", "target", "begun", "ended", "")
    rows = fault_rows(result)
    table = Part("Faults of this run", "Seconds of the measured window", head, rows, frozenset({0, 1, 4}))
    mark = (moment.at_s, moment.what) if moment and moment.at_s is not None and moment.what != FAULT else None
    return Chapter("Over time", tuple(course_figures(result, mark)), (table,) if rows else ())


# -- did the lock hold -----------------------------------------------------------------------------------------------


def _safety(result: RunResult, moment: Eyecatcher | None) -> Chapter:
    holders, examples = _holders(result, moment), _examples(result)
    found = ("service_faults", "granted_invalid", "foreign_deletes", "client_overstays", "spurious_refusals")
    names = (*found, "unexplained", "contested_leases", "tested_leases")
    rows = tuple((name.replace("_", " "), f"{getattr(result.safety, name):,}") for name in names)
    title = "What the oracle found" if holders else _safety_finding(result)
    counts = Part(title, "in the whole run, warm-up and drain included", ("rule", "count"), rows)
    return Chapter("Did the lock hold?", (holders,) if holders else (), (counts, examples) if examples else (counts,))


def _safety_finding(result: RunResult) -> str:
    """The verdict of the oracle in one line."""
    safety = result.safety
    tested = f"{count(safety.tested_leases)} tested leases"
    if safety.verdict == "VIOLATED":
        return f"VIOLATED: {safety.reason}, in {tested}"
    if safety.verdict != "SAFE":
        return f"{safety.verdict}: {safety.reason}"
    return f"0 violations in {tested} (95 % sure: < 1 in {inverse(safety.upper_bound_95 or 0.0)})"


def _holders(result: RunResult, moment: Eyecatcher | None) -> Figure | None:
    """Holders per resource over time, drawn by the page's script (page.js); None when the result has none.

    It opens at `moment`. Its legend is made of what is in view. Without a script the tables below say the same.
    """
    holders, over = result.safety.holders, course_of(result)
    if over is None or not any(entry.rows for entry in holders):
        return None
    start, end = over.start_s[0], over.start_s[-1] + over.slice_s
    drawn = {
        "start_s": start,
        "end_s": end,
        "bands": [[band.start, band.stop, band.text] for band in fault_bands(result, end)],
        "lanes": [{**builtins_of(entry), "name": f"resource {entry.resource}"} for entry in holders],
        "marks": [_mark(example, over.origin_ns) for example in findings(result)],
        "opens": moment.view_s if moment and moment.at_s is not None else [start, end],
    }
    rows = [[entry.resource, *row] for entry in holders for row in entry.rows]
    columns = (Column("resource", "count"), *(Column(name, "count") for name in _LEASE))
    about = "Each bar is a lease, from its grant to its release or its end; the strip above shows the whole run"
    return Figure("holders", _safety_finding(result), about, "", Data(columns, rows), drawn=drawn)


def _mark(example: Example, origin_ns: int) -> dict[str, object]:
    """A finding, as a place to go to: resource, from, to, in seconds of the window."""
    at_s = (example.at_ns - origin_ns) / 1e9
    text = f"{RULES[example.kind]} at {at_s:.3f} s{' (warm-up)' if at_s < 0 else ''}"
    return {"resource": example.operations[0].resource, "span_s": span_of(example, origin_ns), "text": text}


def _examples(result: RunResult) -> Part | None:
    """The operations of every finding, times in ms from the first of them."""
    rows: list[tuple[str, ...]] = []
    for number, example in enumerate(findings(result), 1):
        operations = example.operations
        first = min(op.start_ns for op in operations)
        for place, op in enumerate(operations):
            what = f"{number}. {RULES[example.kind]}" if not place else ""
            blame = (example.blame or "no violation") if not place else ""
            times = (f"{(at - first) / 1e6:,.3f}" if (at := getattr(op, name)) else "–" for name in TIMES)
            ended = f"{op.outcome}, {op.release_outcome}".replace("_", " ")
            rows.append((what, blame, f"caller {op.caller}, resource {op.resource}", ended, *times))
    if not rows:
        return None
    when = ("start", "granted", "valid until", "work end", "release sent", "returned")
    about = "Up to five of each kind; times in ms from the earliest start of the finding"
    head = ("finding", "cause", "who", "acquire, release", *when)
    return Part("The operations involved", about, head, tuple(rows), frozenset(range(4)))


# -- instances and conditions ----------------------------------------------------------------------------------------


def _instances(result: RunResult) -> Chapter:
    head = ("", "state", "reply p50", "p99", "slowest", "commands", "CPU each", "errors", "keys left")
    about = "Reply times of sampled attempts; CPU of the server for each command"
    rows = tuple(map(_instance, result.instances))
    table = Part("Instances", about, head, rows, frozenset({0, 1, 7}))
    return Chapter("Instances", tuple(filter(None, instance_figures(result))), (table,))


def _instance(one: InstanceReport) -> tuple[str, ...]:
    reply = one.reply_s
    times = [latency(value) for value in ((reply.p50, reply.p99, reply.max) if reply else (None,) * 3)]
    cpu = MISSING if one.cpu_us_per_command is None else f"{one.cpu_us_per_command:.1f} µs"
    errors = ", ".join(f"{kind.lower()} {count(number)}" for kind, number in one.errors.items())
    name, state = f"#{one.index} {one.address}", one.state.replace("_", " ")
    return name, state, *times, count(one.commands), cpu, errors, count(one.leaked_keys)


def _conditions(result: RunResult) -> Chapter:
    versions = result.environment.packages.items()
    tables = (
        ("Scenario", "Every key with its resolved value", ("key", "value"), _scenario(result.scenario)),
        ("Servers", "What was started or targeted", ("what", "value"), _facts(result.fleet, but="instances")),
        ("Machine", "Of the load generator", ("what", "value"), _facts(result.environment, but="packages")),
        ("Packages", "Versions", ("package", "version"), {name: text or "not installed" for name, text in versions}),
    )
    parts = (Part(name, about, head, tuple(facts.items()), frozenset({0, 1})) for name, about, head, facts in tables)
    return Chapter("Conditions", (), tuple(parts), "folded")


def _facts(section: Section, but: str) -> dict[str, str]:
    return {name: _fact_text(value) for name, value in builtins_of(section).items() if name != but}


def _scenario(scenario: Scenario) -> dict[str, str]:
    """Every key of a resolved scenario in words; times to wait and skew as a scenario file has them."""
    said = {name: _fact_text(value) for name, value in asdict(scenario).items()}
    written = {"hold": delay_text(scenario.hold), "think": delay_text(scenario.think), "skew": skew_text(scenario.skew)}
    return said | written


def _fact_text(value: object) -> str:
    """Return `value` in words: mappings as `name value, …`, lists parted by semicolons."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_fact_text(part)}" for name, part in value.items()) or "none"
    if isinstance(value, list | tuple):
        return "; ".join(_fact_text(part) for part in value) or "none"
    if value is None:
        return MISSING
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)
