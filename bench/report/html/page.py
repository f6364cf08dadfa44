"""Which page a result gets, as text and as a file: *one or several results → Page → one self-contained HTML document*.

Rules: a run has its own page, several runs a page side by side, every other kind its sheet with its figures. Nothing is
fetched (the page forbids it to itself by its Content-Security-Policy); whatever comes from a result is escaped, in
markup by jinja2, in the data by `_json`; a file is written whole or not at all.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.measure.result import Document, write_whole
from bench.measure.run_result import RunResult
from bench.report.html.figure import Chapter, Figure, Page
from bench.report.html.run_page import run_page, several_page
from bench.report.kinds import kind_of, of_its_kind, room_of, told
from bench.report.sheet import STYLES

if TYPE_CHECKING:
    from jinja2 import Template

REPORT_NAME = "report.html"


def page_of(result: Document, place: str = "") -> Page:
    """Return the page of one result, stored at `place`. Raises UsageError if it is not whole."""
    document = of_its_kind(result)
    if isinstance(document, RunResult):
        return run_page(document, place)
    kind, sheet = kind_of(document), told(document, place)
    figures, evidence = (_of(kind, what, document) for what in ("figures", "evidence"))
    pictures = (Chapter("In pictures", figures),) if figures else ()
    courses = (Chapter("Step by step", (), evidence, "folded"),) if evidence else ()
    tables = (Chapter(part.name or part.plain_head[0], (), (part,), "sheet") for part in sheet.parts)
    title = f"{sheet.verdict} · {kind} · {document.started_at[:16].replace('T', ' ')}"
    return Page(title, sheet, (*pictures, *tables, *courses), shlex.join(document.command))


def _of(kind: str, what: str, document: Document) -> tuple[Any, ...]:
    """What else the question tells of its result; nothing if it does not."""
    return tuple(getattr(room_of(kind, "words"), what, lambda _none: ())(document))


def page_of_several(results: Sequence[Document], names: Sequence[str]) -> Page:
    """Return the page that shows several runs. Raises UsageError for results of other commands."""
    runs = []
    for result, name in zip(results, names, strict=True):
        run = of_its_kind(result, name) if kind_of(result) == "run" else None
        if not isinstance(run, RunResult):
            raise UsageError(f"{name} is a result of lockbench {kind_of(result)}; only runs can stand side by side")
        runs.append(run)
    return several_page(runs, names)


def write_report(result: Document, stored: Path) -> Path:
    """Write report.html beside the result stored at `stored` and return its path. Raises EnvironmentNotReadyError."""
    return write_page(page_of(result, str(stored)), stored.with_name(REPORT_NAME))


def render(page: Page) -> str:
    """Return the document. Raises EnvironmentNotReadyError when jinja2 is not installed."""
    data = {figure.name: _data_of(figure) for chapter in page.chapters for figure in chapter.figures}
    texts = {"css": _text("page.css"), "js": _text("page.js"), "data": _json(data)}
    return _template().render(page=page, sheet=page.sheet, styles=STYLES, **texts)


def write_page(page: Page, path: Path) -> Path:
    """Write the document to `path` and return it. Raises EnvironmentNotReadyError."""
    write_whole(path, render(page), "name another file")
    return path


def _data_of(figure: Figure) -> dict[str, object]:
    """What the page's script reads."""
    columns = [asdict(column) | {"label": column.label or column.name} for column in figure.data.columns]
    drawn = {"drawn": figure.drawn} if figure.drawn else {}
    return {"columns": columns, "rows": figure.data.rows, "cursor": [round(x, 1) for x in figure.data.cursor], **drawn}


def _json(value: object) -> str:
    """JSON that can stand inside a script element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def _template() -> Template:
    try:
        import jinja2
    except ImportError:
        raise EnvironmentNotReadyError(
            "the report needs the package jinja2; install lockbench with its extra: [report]"
        ) from None
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(_text("page.html.j2"))


def _text(name: str) -> str:
    return (resources.files("bench.report.html") / name).read_text("utf-8")
