"""The page of one run: *result.json → verdict, figures, tables, in the order people ask*.

Rules: verdict and reasons first, then how fast, how it went over time, whether it was safe, the instances, the
conditions. Words and figures are those of the terminal's summary. Source: bench.report.summary.
"""

from __future__ import annotations

import shlex

from bench.measure.run_result import RunResult
from bench.measure.section import Section as Facts
from bench.measure.section import builtins_of
from bench.report.html.facts import fact_text, scenario_facts
from bench.report.html.figure import Figure, Page, Section, Table
from bench.report.html.run.course import course_figures, fault_rows
from bench.report.html.run.instances import instance_figures, instances_finding
from bench.report.html.run.latency import percentile_figure
from bench.report.html.run.safety import examples_table, holders_figure, safety_finding
from bench.report.sheet import STYLES, Sheet
from bench.report.summary import sheet

_PAIR, _WORDS = frozenset({0, 1}), frozenset({0, 1, 4})


def run_page(result: RunResult, place: str = "") -> Page:
    """Return the page of a run whose result stands at `place`."""
    summary = sheet(result, place)
    sections = [_speed(result, summary), *_course(result), _safety(result), _instances(result), _conditions(result)]
    return Page(
        title=f"{summary.verdict} · {result.scenario.recipe} · {result.started_at[:16].replace('T', ' ')}",
        verdict=summary.verdict,
        style=STYLES[summary.style],
        headline=summary.headline.replace("   ", " · "),
        conditions=summary.conditions,
        facts=tuple((line.label, line.text, STYLES.get(summary.style_of(line), "")) for line in summary.lines),
        sections=tuple(section for section in sections if section.figures or section.tables),
        repeat=shlex.join(result.command),
    )


def _speed(result: RunResult, summary: Sheet) -> Section:
    (part,) = summary.parts
    rows = tuple((f"{name.strip()}{f' ({note.strip()})' if note else ''}", *cells) for name, *cells, note in part.rows)
    about = "From HDR histograms; – means fewer than ten samples beyond it"
    table = Table("How long it took", about, part.plain_head[:-1], rows, name="latency")
    curve = percentile_figure(result)
    return Section("How fast", (curve,) if curve else (), (table,) if rows else (), "beside")


def _course(result: RunResult) -> list[Section]:
    figures = course_figures(result)
    faults = fault_rows(result)
    head = ("fault", "target", "begun", "ended", "")
    table = Table("Faults of this run", "Seconds of the measured window", head, faults, left=_WORDS, name="faults")
    return [Section("Over time", tuple(figures), (table,) if faults else ())]


def _safety(result: RunResult) -> Section:
    holders, table = holders_figure(result), examples_table(result)
    figures: tuple[Figure, ...] = (holders,) if holders else ()
    safety = result.safety
    counts = {
        "service faults": safety.service_faults,
        "granted invalid": safety.granted_invalid,
        "foreign deletes": safety.foreign_deletes,
        "client overstays": safety.client_overstays,
        "spurious refusals": safety.spurious_refusals,
        "unexplained": safety.unexplained,
        "contested leases": safety.contested_leases,
        "tested leases": safety.tested_leases,
    }
    rows = tuple((name, f"{number:,}") for name, number in counts.items())
    title = "What the oracle found" if figures else safety_finding(result)
    table_of_counts = Table(
        title, "in the whole run, warm-up and drain included", ("rule", "count"), rows, name="safety"
    )
    return Section("Did the lock hold?", figures, (table_of_counts, *((table,) if table else ())))


def _instances(result: RunResult) -> Section:
    return Section(f"Instances: {instances_finding(result)}", tuple(instance_figures(result)), style="small")


def _conditions(result: RunResult) -> Section:
    scenario = tuple(scenario_facts(result.scenario).items())
    packages = result.environment.packages
    machine = _facts(result.environment, but="packages")
    installed = tuple((name, version or "not installed") for name, version in packages.items())
    fleet = _facts(result.fleet, but="instances")
    return Section(
        "Conditions",
        (),
        (
            Table(
                "Scenario", "Every key with its resolved value", ("key", "value"), scenario, left=_PAIR, name="scenario"
            ),
            Table("Servers", "What was started or targeted", ("what", "value"), fleet, left=_PAIR, name="fleet"),
            Table("Machine", "Of the load generator", ("what", "value"), machine, left=_PAIR, name="environment"),
            Table("Packages", "Versions", ("package", "version"), installed, left=_PAIR, name="packages"),
        ),
        style="folded",
    )


def _facts(section: Facts, but: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, fact_text(value)) for name, value in builtins_of(section).items() if name != but)
