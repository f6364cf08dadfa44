"""The page of one run: *result.json → verdict, figures, tables, in the order people ask*.

Rules: verdict and reasons first, then how fast, how it went over time, whether it was safe, the instances, the
conditions. Words and figures are those of the terminal's summary. Source: bench.report.summary.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace

from bench.measure.run_result import RunResult
from bench.measure.section import Section, builtins_of
from bench.report.figures import MISSING
from bench.report.html.figure import Chapter, Figure, Page
from bench.report.html.run.course import course_figures, fault_rows
from bench.report.html.run.latency import instance_figures, instances_finding, percentile_figure
from bench.report.html.run.safety import examples_table, holders_figure, safety_finding
from bench.report.sheet import Part, Sheet
from bench.report.summary import sheet
from bench.scenario import Scenario
from bench.scenario.quantity import delay_text, skew_text


def run_page(result: RunResult, place: str = "") -> Page:
    """Return the page of a run whose result stands at `place`."""
    told = sheet(result, place)
    chapters = (_speed(result, told), _course(result), _safety(result), _instances(result), _conditions(result))
    return Page(
        f"{told.verdict} · {result.scenario.recipe} · {result.started_at[:16].replace('T', ' ')}",
        told,
        tuple(chapter for chapter in chapters if chapter.figures or chapter.tables),
        shlex.join(result.command),
    )


def _speed(result: RunResult, told: Sheet) -> Chapter:
    (part,) = told.parts
    rows = tuple((f"{name.strip()}{f' ({note.strip()})' if note else ''}", *cells) for name, *cells, note in part.rows)
    about = "From HDR histograms; – means fewer than ten samples beyond it"
    table = replace(part, name="How long it took", about=about, head=part.head[:-1], rows=rows)
    curve = percentile_figure(result)
    return Chapter("How fast", (curve,) if curve else (), (table,) if rows else (), "beside")


def _course(result: RunResult) -> Chapter:
    head = ("fault", "target", "begun", "ended", "")
    rows = fault_rows(result)
    table = Part("Faults of this run", "Seconds of the measured window", head, rows, frozenset({0, 1, 4}))
    return Chapter("Over time", tuple(course_figures(result)), (table,) if rows else ())


def _safety(result: RunResult) -> Chapter:
    holders, examples = holders_figure(result), examples_table(result)
    figures: tuple[Figure, ...] = (holders,) if holders else ()
    found = ("service_faults", "granted_invalid", "foreign_deletes", "client_overstays", "spurious_refusals")
    names = (*found, "unexplained", "contested_leases", "tested_leases")
    rows = tuple((name.replace("_", " "), f"{getattr(result.safety, name):,}") for name in names)
    title = "What the oracle found" if figures else safety_finding(result)
    counts = Part(title, "in the whole run, warm-up and drain included", ("rule", "count"), rows)
    return Chapter("Did the lock hold?", figures, (counts, examples) if examples else (counts,))


def _instances(result: RunResult) -> Chapter:
    return Chapter(f"Instances: {instances_finding(result)}", tuple(instance_figures(result)), style="small")


def _conditions(result: RunResult) -> Chapter:
    versions = result.environment.packages.items()
    tables = (
        ("Scenario", "Every key with its resolved value", ("key", "value"), scenario_facts(result.scenario)),
        ("Servers", "What was started or targeted", ("what", "value"), _facts(result.fleet, but="instances")),
        ("Machine", "Of the load generator", ("what", "value"), _facts(result.environment, but="packages")),
        ("Packages", "Versions", ("package", "version"), {name: text or "not installed" for name, text in versions}),
    )
    parts = (Part(name, about, head, tuple(facts.items()), frozenset({0, 1})) for name, about, head, facts in tables)
    return Chapter("Conditions", (), tuple(parts), "folded")


def _facts(section: Section, but: str) -> dict[str, str]:
    return {name: _fact_text(value) for name, value in builtins_of(section).items() if name != but}


def scenario_facts(scenario: Scenario) -> dict[str, str]:
    """Return every key of a resolved scenario in words; times to wait and skew as a scenario file has them."""
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
