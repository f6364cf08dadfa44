"""A page as text and as a file: *Page → one self-contained HTML document*.

Rules: nothing is fetched (the page forbids it to itself by its Content-Security-Policy); whatever comes from a result
is escaped, in markup by jinja2, in the data by `_json`; a file is written whole or not at all.
Source: page.html.j2, page.css, page.js beside this.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from bench.errors import EnvironmentNotReadyError
from bench.report.html.figure import Figure, Page

REPORT_NAME = "report.html"


def render(page: Page) -> str:
    """Return the document. Raises EnvironmentNotReadyError when jinja2 is not installed."""
    figures = [figure for section in page.sections for figure in section.figures]
    data = {figure.name: _data_of(figure) for figure in figures}
    return str(_template().render(page=page, css=_text("page.css"), js=_text("page.js"), data=_json(data)))


def write_page(page: Page, path: Path) -> Path:
    """Write the document to `path` and return it. Raises EnvironmentNotReadyError."""
    text = render(page)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise EnvironmentNotReadyError(f"cannot write {path}: {error.strerror}; name another file") from error
    finally:  # also when it is interrupted
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return path


def _data_of(figure: Figure) -> Mapping[str, Any]:
    return {**figure.data.to_json(), **({"drawn": figure.extra} if figure.extra else {})}


def _json(value: object) -> str:
    """JSON that can stand inside a script element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@cache
def _template() -> Any:
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
