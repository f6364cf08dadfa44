"""`lockbench report`: *stored results → a page in a browser, a summary on the screen, Markdown*.

Rules: a result is only read, never judged again, so the exit code says only whether the report could be made. One
result: report.html beside it; several runs: one page side by side. Source: README's command table.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.cli.options import PLACE, Values
from bench.errors import UsageError

if TYPE_CHECKING:
    from bench.measure.result import Document


@click.command()
@click.argument("results", nargs=-1, required=True, type=PLACE, metavar="RESULT…")
@click.option(
    "--html",
    metavar="FILE",
    type=PLACE,
    help="where the page goes  [report.html beside the result; of several: results/<time>-report-<id>/]",
)
@click.option("--markdown", metavar="FILE", type=PLACE, help="write Markdown, too; - is stdout")
@click.option("--json", "as_json", is_flag=True, help="print where the pages are as JSON on stdout, nothing else")
@click.option("--quiet", is_flag=True, help="no summary")
def report(results: tuple[Path, ...], **values: Any) -> int:
    """Write a result as an HTML page, and show it again. RESULT: a result folder, or its result.json."""
    from bench.measure.result import read_result
    from bench.report.kinds import of_its_kind

    names = [str(place.parent if place.is_file() else place) for place in results]
    documents = [of_its_kind(read_result(place), name) for place, name in zip(results, names, strict=True)]
    try:
        page = _write(documents, results, names, values["html"])
        _show(documents, names, page, values)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        said = f"{type(error).__name__}: {error}"
        raise UsageError(f"{', '.join(names)}: not a whole result of lockbench ({said}); make it anew") from None
    return 0


def _write(documents: Sequence[Document], results: Sequence[Path], names: Sequence[str], wanted: Path | None) -> Path:
    from bench.report.html.page import REPORT_NAME, page_of, page_of_several, write_page

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


def _show(documents: Sequence[Document], names: Sequence[str], page: Path, values: Values) -> None:
    from rich.console import Console

    from bench.cli.showing import write_text
    from bench.report.kinds import told
    from bench.report.sheet import print_sheet, sheet_markdown

    sheets = [told(document, name) for document, name in zip(documents, names, strict=True)]
    markdown, path = "\n".join(map(sheet_markdown, sheets)), values["markdown"]
    if str(path) == "-":
        print(markdown, end="")
    elif path is not None:
        write_text(path, markdown)
    if values["as_json"]:
        print(json.dumps({"results": list(names), "html": str(page)}, ensure_ascii=False))
    elif not values["quiet"] and str(path) != "-":
        console = Console(highlight=False)
        for sheet in sheets:
            print_sheet(sheet, console)
            console.print()
        print(f"report     {page}")
