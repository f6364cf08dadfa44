"""The conversion of a page to text and to a file: *a Page, or several runs side by side → one
self-contained HTML document*.

Rules: a page of several runs shows the figures of the runs side by side and never shows a ratio.
Only `lockbench compare` can say whether a difference is more than noise, because only `lockbench
compare` pairs its runs. The page fetches no other files. The Content-Security-Policy of the page
forbids the browser to fetch files. All text from a result is escaped. jinja2 escapes the text in
the markup, and `render` escapes the text in the data. A file is written completely or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from bench.errors import EnvironmentNotReadyError
from bench.gates.threshold import shown_at
from bench.measure.result import write_whole
from bench.measure.run_result import RunResult
from bench.report.figures import count, in_unit, latency
from bench.report.html.chapters import Chapter, Page
from bench.report.html.plot import Column, Figure
from bench.report.html.run_figures import LatencyCurve, curve_of, curves_figure
from bench.report.html.run_page import conditions_of
from bench.report.sheet import BAD, DOUBTFUL, GOOD, STYLES, Part, Sentence, Sheet
from bench.report.summary import sheet

if TYPE_CHECKING:
    from jinja2 import Template

REPORT_NAME = "report.html"


# Sentences with these labels come first on a page.
_ALARMS = ("because", "warning")


def write_report(page: Page, stored: Path) -> Path:
    """Write `page` to report.html in the folder of the result file `stored`, and return the path of
    report.html.

    Raises EnvironmentNotReadyError.
    """
    return write_page(page, stored.with_name(REPORT_NAME))


def render(page: Page) -> str:
    """Return the HTML document. Raises EnvironmentNotReadyError if jinja2 is not installed."""
    figures = [figure for chapter in page.chapters for figure in chapter.figures]
    data = {
        figure.name: {
            "columns": [*map(asdict, figure.columns)],
            "rows": figure.rows,
            "cursor": [round(x, 1) for x in figure.cursor],
            "drawn": figure.drawn,
        }
        for figure in figures
    }
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace(
        "<", "\\u003c"
    )
    # The text is part of a script element. In a script, these two characters would end a line.
    text = text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    texts = {"css": _text("page.css"), "js": _text("page.js"), "data": text}
    return _template().render(
        page=page, sheet=page.sheet, lines=_lines_of(page.sheet), styles=STYLES, **texts
    )


def _lines_of(sheet: Sheet) -> dict[str, object]:
    """Return the sentences of a page in three groups: alarms, advice by heading, and notes."""
    alarms = list[Sentence]()
    notes = list[Sentence]()
    advice: dict[str, list[Sentence]] = {}
    place = notes
    for line in sheet.lines:
        if line.group:
            place = advice.setdefault(line.group, [])
        elif line.label:
            # If a line has no label, it continues the line before it.
            place = alarms if line.label in _ALARMS else notes
        place.append(line)
    return {"alarms": alarms, "advice": advice, "notes": notes}


def write_page(page: Page, path: Path) -> Path:
    """Write the document to `path` and return it. Raises EnvironmentNotReadyError."""
    write_whole(path, render(page), "name another file")
    return path


def _template() -> Template:
    try:
        import jinja2
    except ImportError:
        raise EnvironmentNotReadyError(
            "the report needs the package jinja2; install lockbench with the extra [report]"
        ) from None
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(_text("page.html.j2"))


def _text(name: str) -> str:
    return (resources.files(__package__) / name).read_text("utf-8")


# -- several runs ----------------------------------------------------------------------------------

# The styles of the curves. If there are more runs than styles, the other runs have no curve and
# appear only in the tables.
_STYLES = ("c1", "c2", "c4", "c5", "good", "c3", "bad")


def page_of_several(runs: Sequence[RunResult], names: Sequence[str]) -> Page:
    """Return the page of several runs.

    `names` has one name for each run. The names are in the same sequence as the runs.
    """
    labels = [f"{chr(ord('A') + place % 26)}: {name}" for place, name in enumerate(names)]
    named = [*zip(labels, runs, map(sheet, runs), strict=True)]
    heads = [
        f"{label[0]} {one.verdict} {count(run.rate.achieved_per_s)} leases/s"
        for label, run, one in named
    ]
    lines = [
        Sentence("shown", f"{label}, {one.verdict}: {one.conditions}") for label, _, one in named
    ]
    note = (
        "this page only shows runs side by side; lockbench compare judges whether they really "
        "differ"
    )
    about = (
        "figures of the measured window; acquires include failed acquires; – means that "
        "there are too few samples, or that the figure does not apply"
    )
    rows = [
        (one.name, *(in_unit(one.value(run), one.unit) for run in runs))
        for one in shown_at("several", "beside")
    ]
    verdicts = ("verdict", *(one.verdict for *_, one in named))
    figures = Part("Figures", about, ("", *labels), (verdicts, *rows))
    summary = Sheet(
        f"{len(runs)} RUNS",
        min((one.style for *_, one in named), key=(BAD, DOUBTFUL, GOOD).index),
        "; ".join(heads),
        f"from {runs[0].started_at} to {runs[-1].started_at}",
        (figures, _differences(runs, labels)),
        (*lines, Sentence("note", note)),
    )
    curves = _curves(labels, runs)
    pictures = (Chapter("In pictures", (curves,)),) if curves else ()
    return Page(
        summary.verdict, summary, (*pictures, Chapter("Side by side", (), summary.parts, "several"))
    )


def _differences(runs: Sequence[RunResult], labels: Sequence[str]) -> Part:
    """Return the differences between the runs that may explain different figures.

    The runs are compared by scenario keys, servers, machines and commits.
    """
    facts = [
        {
            **conditions_of(run),
            "server": ", ".join(sorted({str(instance.server) for instance in run.instances})),
            "machine": f"{run.environment.cpu_model}, {run.environment.cores_text}",
            "commit": str(run.environment.git_commit)[:12],
        }
        for run in runs
    ]
    keys = [
        key
        for key in facts[0]
        if key not in ("seed", "targets") and len({fact[key] for fact in facts}) > 1
    ]
    if not keys:
        return Part("Nothing differs", "the runs differ only in their start time", (), ())
    rows = tuple((key, *(fact[key] for fact in facts)) for key in keys)
    words = frozenset(range(len(labels) + 1))
    return Part(
        "What differs",
        "differences between the scenarios, servers and machines of the runs",
        ("key", *labels),
        rows,
        words,
    )


def _curves(labels: Sequence[str], runs: Sequence[RunResult]) -> Figure | None:
    curves = []
    percentiles = []
    for label, run, style in zip(labels, runs, _STYLES, strict=False):
        acquire = run.latency_s.acquire
        if acquire.count:
            points = curve_of(run.histograms["acquire"], acquire.max)
            curves.append(LatencyCurve(Column(label, "s", label), style, points))
            percentiles.append(f"{label[0]} {latency(acquire.p99)}")
    return curves_figure(f"Acquire p99: {', '.join(percentiles)}", "Acquire latency", curves)
