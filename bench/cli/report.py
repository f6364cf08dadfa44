"""`lockbench report`: *stored results → a page in a browser, a summary on the screen, Markdown*.

Rules: a result is only read, never judged again, so the exit code says only whether the report could be made. One
result: report.html beside it; several runs: one page side by side. Source: README's command table.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.errors import BenchError, EnvironmentNotReadyError, UsageError

if TYPE_CHECKING:
    from bench.measure.result import Result


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RESULT…")
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="where the page goes  [report.html beside the result; of several: results/<time>-report-<id>/]",
)
@click.option("--markdown", metavar="FILE", type=click.Path(path_type=Path), help="write Markdown, too; - is stdout")
@click.option("--json", "as_json", is_flag=True, help="print where the pages are as JSON on stdout, nothing else")
@click.option("--quiet", is_flag=True, help="no summary")
def report(results: tuple[Path, ...], **values: Any) -> int:
    """Write a result as an HTML page, and show it again. RESULT: a result folder, or its result.json."""
    from bench.measure.result import read_result
    from bench.report.kinds import of_its_kind

    names = [str(place.parent if place.is_file() else place) for place in results]
    documents = [read_result(place) for place in results]
    for document, name in zip(documents, names, strict=True):
        of_its_kind(document, name)  # refused by its name, before anything is written
    try:
        page = _write(documents, results, names, values["html"])
        _show(documents, names, page, values)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        said = f"{type(error).__name__}: {error}"
        raise UsageError(f"{', '.join(names)}: not a whole result of lockbench ({said}); make it anew") from None
    return 0


def _write(documents: Sequence[Result], results: Sequence[Path], names: Sequence[str], wanted: Path | None) -> Path:
    from bench.report.html.page import REPORT_NAME, write_page
    from bench.report.html.pages import page_of, page_of_several

    if len(documents) == 1:
        folder = results[0] if results[0].is_dir() else results[0].parent
        return write_page(page_of(documents[0], names[0]), wanted or folder / REPORT_NAME)
    page = page_of_several(documents, [Path(name).name or name for name in names])  # refused before a folder is made
    if wanted is None:
        from bench.cli.folder import result_folder

        folder = result_folder(None, "report", secrets.token_hex(4)).path
        folder.mkdir(parents=True)
        wanted = folder / REPORT_NAME
    return write_page(page, wanted)


def _show(documents: Sequence[Result], names: Sequence[str], page: Path, values: dict[str, Any]) -> None:
    from rich.console import Console

    from bench.report.kinds import told
    from bench.report.sheet import print_sheet, sheet_markdown

    sheets = [told(document, name) for document, name in zip(documents, names, strict=True)]
    if values["markdown"] is not None:
        _write_markdown("\n".join(map(sheet_markdown, sheets)), values["markdown"])
    if values["as_json"]:
        print(json.dumps({"results": list(names), "html": str(page)}, ensure_ascii=False))
    elif not values["quiet"] and str(values["markdown"]) != "-":
        console = Console(highlight=False)
        for sheet in sheets:
            print_sheet(sheet, console)
            console.print()
        print(f"report     {page}")


def _write_markdown(text: str, path: Path) -> None:
    if str(path) == "-":
        print(text, end="")
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentNotReadyError(f"{path} cannot be written ({error.strerror}); name another file") from None


def place_of(stored: Path | None, page: Path | None) -> str:
    """Where a result and its page beside it are, for the last line of a summary; "" if it is not stored."""
    return f"{stored}{f', {page.name}' if page else ''}" if stored else ""


def report_beside(result: Result, stored: Path | None) -> Path | None:
    """Write report.html beside a result that was just stored and return its path; None when there is none.

    A report that cannot be written takes nothing from what was measured: it costs a sentence on stderr.
    """
    if stored is None:
        return None
    try:
        from bench.report.html.pages import write_report

        return write_report(result, stored)
    except BenchError as error:
        why = str(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, the result is there and must be shown
        why = f"a fault of the report itself ({type(error).__name__}: {error}); please report it"
    print(f"lockbench: there is no report.html: {why}", file=sys.stderr)
    return None
