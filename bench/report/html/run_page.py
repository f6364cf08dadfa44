"""The page of a run: *result.json → verdict, figures and tables*.

The page answers first the questions that readers ask first.

Rules: the page begins with the verdict and its reasons. The picture of the most important moment
and the advice follow. The next chapters are about speed, safety, changes over time, the instances
and the conditions, in this sequence. Words and figures are the same as in the terminal's summary.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from bench.measure.fleet_facts import FleetFacts
from bench.measure.run_result import BrokenRule, Example, RunResult
from bench.measure.section import Section, builtins_of
from bench.measure.workers import IN_DOUBT
from bench.report.figures import MISSING, count
from bench.report.html.chapters import Chapter, Page
from bench.report.html.plot import Column, Figure
from bench.report.html.run_figures import (
    course_figures,
    course_of,
    fault_bands,
    instance_figures,
    percentile_figure,
    slowest_of,
)
from bench.report.sheet import Part, Sentence, Sheet, facts_of, not_measured, to_do
from bench.report.summary import key_figures, safety_sentence, sheet
from bench.scenario import Scenario
from bench.scenario.quantity import delay_text, skew_text

_LEASE = ("granted_us", "end_us", "valid_until_us", "work_end_us", "caller", "fault")


def run_page(result: RunResult, place: str = "") -> Page:
    """Return the page of a run whose result is stored at `place`."""
    summary = sheet(result, place)
    moment = moment_of(result)
    course = course_figures(result)
    safety = _safety(result, moment)
    speed = _speed(result, summary)
    answers = course[:1] or [*speed.figures]
    if moment and moment.is_violation:
        answers = [*safety.figures]
    drawn = frozenset(figure.name for figure in answers)
    chapters = [
        Chapter("The answer", tuple(answers)),
        speed,
        safety,
        Chapter("Over time", tuple(course)),
        Chapter("Instances", tuple(filter(None, instance_figures(result)))),
        _conditions(result),
    ]
    rest = (
        replace(one, figures=tuple(each for each in one.figures if each.name not in drawn))
        for one in chapters[1:]
    )
    shown = "figure-holders" if safety.figures else "part-1"
    started_at = result.started_at[:16].replace("T", " ")
    return Page(
        f"{summary.verdict} · {result.scenario.recipe} · {started_at}",
        replace(summary, keys=key_figures(result), lines=(*summary.lines, *advice(result))),
        tuple(filter(Chapter.is_full, (chapters[0], *rest))),
        shlex.join(result.command),
        (moment.text, shown) if moment else None,
    )


def advice(result: RunResult) -> Iterator[Sentence]:
    """Yield advice after this run, and sentences about things that this run did not measure."""
    scenario = result.scenario
    safety = result.safety
    if safety.verdict == "VIOLATED":
        yield to_do(
            "look at both holders in the timeline, and at their commands in the table below the "
            "timeline",
            "look",
        )
        yield to_do(
            "lockbench judge mine.py tests your own lock against each fault separately", "next"
        )
    if safety.verdict == "NOT TESTED":
        yield to_do(
            "use --hold 5ms --resources 50, so that callers request locks that other callers hold",
            "test safety",
        )
    if result.generator.verdict in IN_DOUBT:
        yield to_do(
            "use --processes 2 or fewer --users, because the load process was late", "measure again"
        )
    if result.rate.sustained is False:
        yield to_do(
            "use a lower --rate, because the servers did not sustain this rate", "slow down"
        )
    yield to_do("lockbench capacity --slo 'acquire.p99 < 10ms' finds the highest rate", "plan")
    if result.fleet.started:
        yield not_measured("your network and your disk; use --target to load your own servers")
    if not result.faults:
        yield not_measured(
            "the effect of faults; add [[faults]] to a scenario, and run the scenario"
        )
    if safety.within_one_process:
        yield not_measured("callers in several processes; use --processes 2")
    if not scenario.rate_per_s:
        yield not_measured(
            "the latency at a given rate; use --rate 2000, because callers of a closed loop "
            "wait for their own replies"
        )


def _speed(result: RunResult, summary: Sheet) -> Chapter:
    (part,) = summary.parts
    rows = tuple(
        (f"{name.strip()}{f' ({note.strip()})' if note else ''}", *cells)
        for name, *cells, note in part.rows
    )
    about = (
        "Figures from HDR histograms; – means that fewer than ten samples are above the percentile"
    )
    table = replace(part, name="How long it took", about=about, head=part.head[:-1], rows=rows)
    curve = percentile_figure(result)
    figures = (curve,) if curve else ()
    tables = (table,) if rows else ()
    return Chapter("How fast", figures, tables, "beside")


# -- where it opens --------------------------------------------------------------------------------
# The page opens at the first violation. Without a violation it opens at the first fault, and
# without a fault at the slowest acquire. Seconds count from the start of the measured window. The
# result keeps only the earliest few violations of each kind, so "first" means the first of the kept
# violations.

RULES: dict[BrokenRule, str] = {
    "service_fault": "two leases valid at once",
    "granted_invalid": "accepted after its own end",
    "foreign_delete": "deleted another's lock",
    "client_overstay": "worked past its own validity",
    "spurious_refusal": "refused, and nobody held it",
}
TIMES = (
    "start_ns",
    "granted_ns",
    "valid_until_ns",
    "work_end_ns",
    "release_sent_ns",
    "release_replied_ns",
)
_VIOLATIONS = ("service_fault", "granted_invalid", "foreign_delete")
# The picture shows this many leases around a moment.
_LEASES = 24


@dataclass(frozen=True, slots=True)
class Eyecatcher:
    """The moment of a run that a reader should see first.

    `text`: a sentence about the moment. `view_s`: the time span of the run that the picture shows
    around the moment.
    """

    text: str
    view_s: tuple[float, float]
    is_violation: bool = False


def moment_of(result: RunResult) -> Eyecatcher | None:
    """Return the moment that the page of `result` shows first.

    If the run has violations, return the moment of the first violation. If the run has faults but
    no violations, return the moment of the first fault. For every other run, return the moment of
    the slowest acquire. Return None if this slowest acquire is unknown, or if the result has no
    figures over time.
    """
    over = course_of(result)
    incidents = findings(result)
    safety = result.safety
    if over is None:
        return None
    if incidents and incidents[0].kind in _VIOLATIONS:
        violations = safety.service_faults + safety.granted_invalid + safety.foreign_deletes
        resource = incidents[0].operations[0].resource
        where = f"on resource {resource}, {_told(incidents[0], over.origin_ns)}"
        return Eyecatcher(
            f"Violation 1 of {count(violations)}: {where}",
            _span(incidents[0], over.origin_ns),
            is_violation=True,
        )
    if bands := fault_bands(result):
        first = min(bands, key=lambda band: band.start)
        text = (
            f"Fault 1 of {len(bands)}: {first.text}, from {first.start:.2f} s to "
            f"{first.stop:.2f} s of the run"
        )
        return Eyecatcher(text, _around(result, first.start))
    at_s, text = slowest_of(result) or (0.0, "")
    return Eyecatcher(text, _around(result, at_s)) if text else None


def findings(result: RunResult) -> list[Example]:
    """Return the oracle's findings. Violations come before all other findings. Both groups are
    sorted by time."""
    return sorted(result.safety.examples, key=lambda one: (one.kind not in _VIOLATIONS, one.at_ns))


def _told(example: Example, origin_ns: int) -> str:
    at_s = (example.at_ns - origin_ns) / 1e9
    return f"{RULES[example.kind]} at {at_s:.3f} s{' (warm-up)' if at_s < 0 else ''}"


def _span(example: Example, origin_ns: int) -> tuple[float, float]:
    """Return the time span from the first to the last time in a finding.

    The times of the operations of the finding are included.
    """
    names = (name for name in TIMES if name != "valid_until_ns")
    times = [
        example.at_ns,
        *(at for name in names for op in example.operations if (at := getattr(op, name))),
    ]
    return (min(times) - origin_ns) / 1e9, (max(times) - origin_ns) / 1e9


def _around(result: RunResult, at_s: float) -> tuple[float, float]:
    """Return a time span that contains `at_s` and some leases.

    The chosen leases are the leases whose grant times are nearest to `at_s`. The leases belong to
    the first resource for which the result shows holders.
    """
    rows = next((holder.rows for holder in result.safety.holders if holder.rows), ())
    near = sorted(rows, key=lambda row: abs(row[0] / 1e6 - at_s))[:_LEASES]
    times = [at_s, *(row[0] / 1e6 for row in near), *(row[1] / 1e6 for row in near)]
    return min(times), max(times)


# -- did the lock hold -----------------------------------------------------------------------------


def _safety(result: RunResult, moment: Eyecatcher | None) -> Chapter:
    holders = _holders(result, moment)
    examples = _examples(result)
    about = "counts over the whole run, with warm-up and drain"
    counts = Part("What the oracle found", about, ("rule", "count"), facts_of(result.safety))
    figures = (holders,) if holders else ()
    tables = (counts, examples) if examples else (counts,)
    return Chapter("Did the lock hold?", figures, tables)


def _holders(result: RunResult, moment: Eyecatcher | None) -> Figure | None:
    """Return the figure that shows the holders of each resource over time.

    When the page opens, the figure shows the time around `moment`. The reader can then move to
    other times. The script of the page (page.js) draws the figure. If the browser runs no scripts,
    the tables below show the same data. Return None if the result has no holders.
    """
    holders = result.safety.holders
    over = course_of(result)
    if over is None or not any(entry.rows for entry in holders):
        return None
    start = over.start_s[0]
    end = over.start_s[-1] + over.slice_s
    origin_ns = over.origin_ns
    sentence = safety_sentence(result.safety).text
    drawn = {
        "start_s": start,
        "end_s": end,
        "bands": [[band.start, band.stop, band.text] for band in fault_bands(result)],
        "lanes": [
            {**builtins_of(entry), "name": f"resource {entry.resource}"} for entry in holders
        ],
        "marks": [
            {
                "resource": one.operations[0].resource,
                "span_s": _span(one, origin_ns),
                "text": _told(one, origin_ns),
            }
            for one in findings(result)
        ],
        "opens": moment.view_s if moment else [start, end],
    }
    rows = [[entry.resource, *row] for entry in holders for row in entry.rows]
    columns = [Column(name, "count") for name in ("resource", *_LEASE)]
    about = (
        "Each bar is a lease, from its grant to its release or its end; the strip above "
        "shows the whole run"
    )
    return Figure(
        "holders", sentence[:1].upper() + sentence[1:], about, "", columns, rows, drawn=drawn
    )


def _examples(result: RunResult) -> Part | None:
    """Return one table with the operations of all findings.

    Times are in ms from the start of the finding's first operation.
    """
    rows: list[tuple[str, ...]] = []
    for number, example in enumerate(findings(result), 1):
        operations = example.operations
        first = min(op.start_ns for op in operations)
        for place, op in enumerate(operations):
            what = f"{number}. {RULES[example.kind]}" if not place else ""
            blame = (example.blame or "no violation") if not place else ""
            times = (
                f"{(at - first) / 1e6:,.3f}" if (at := getattr(op, name)) else "–" for name in TIMES
            )
            ended = f"{op.outcome}, {op.release_outcome}".replace("_", " ")
            rows.append((what, blame, f"caller {op.caller}, resource {op.resource}", ended, *times))
    if not rows:
        return None
    when = ("start", "granted", "valid until", "work end", "release sent", "returned")
    about = (
        "The table shows up to five findings of each kind; times are in ms from the earliest "
        "start in each finding"
    )
    head = ("finding", "cause", "who", "acquire, release", *when)
    return Part("The operations involved", about, head, tuple(rows), frozenset(range(4)))


# -- conditions ------------------------------------------------------------------------------------


def _conditions(result: RunResult) -> Chapter:
    tables = {"Scenario": conditions_of(result), "Servers": _server_facts(result.fleet)}
    tables |= {"Load generator": _facts(result.environment)}
    head = ("what", "value")
    words = frozenset({0, 1})
    parts = (Part(name, "", head, tuple(facts.items()), words) for name, facts in tables.items())
    return Chapter("Conditions", (), tuple(parts), "folded")


def conditions_of(result: RunResult) -> dict[str, str]:
    """Return every key of the run's scenario, with its value as text.

    The text for the key `fsync` is the actual AOF policy of the servers. The user's own targets
    ignore the key `fsync`, so the scenario may have a wrong value for this key.
    """
    return scenario_facts(result.scenario) | {"fsync": result.fleet.policies or MISSING}


def _server_facts(fleet: FleetFacts) -> dict[str, str]:
    """Return facts about the servers, including the user's own servers."""
    facts = _facts(fleet) | {"fsync": fleet.policies or MISSING}
    return facts if fleet.server else facts | {"server": fleet.servers_text or MISSING}


def _facts(section: Section) -> dict[str, str]:
    return {
        name: _fact_text(value)
        for name, value in builtins_of(section).items()
        if name != "instances"
    }


def scenario_facts(scenario: Scenario) -> dict[str, str]:
    """Return every key of a resolved scenario, with its value as text.

    The values of `hold`, `think` and `skew` are written as in scenario files.
    """
    facts = {name: _fact_text(value) for name, value in asdict(scenario).items()}
    written = {
        "hold": delay_text(scenario.hold),
        "think": delay_text(scenario.think),
        "skew": skew_text(scenario.skew),
    }
    return facts | written


def _fact_text(value: object) -> str:
    """Return `value` as text.

    A mapping is written as `name value, name value, …`. Semicolons separate the items of a list.
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_fact_text(part)}" for name, part in value.items()) or "none"
    if isinstance(value, list | tuple):
        return "; ".join(_fact_text(part) for part in value) or "none"
    if value is None:
        return MISSING
    return f"{value:g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)
