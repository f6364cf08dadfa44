"""Implements `lockbench report`: *stored results → an HTML page and the summaries of the results*.

The command does not trust a stored result. For each kind of result there is an `Answer` object.
This object reads the result and judges it again.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.errors import UNPAIRED, UsageError, writing
from bench.frame.options import PLACE, Grouped, ending
from bench.frame.outputs import Outputs
from bench.frame.showing import result_folder
from bench.screen import console_on, say, say_json

if TYPE_CHECKING:
    from bench.measure.result import Document
    from bench.measure.run_result import RunResult
    from bench.report.answer import Answer


@click.command(
    cls=Grouped,
    epilog=ending("lockbench report results/before results/after --html side-by-side.html"),
)
@click.argument("results", nargs=-1, required=True, type=PLACE, metavar="RESULT…")
@click.option(
    "--html",
    metavar="FILE",
    type=PLACE,
    help="write the HTML page to this file  [default: beside the result, or in results/ if you "
    "name several results]",
)
@click.option(
    "--markdown",
    metavar="FILE",
    type=PLACE,
    help="also write Markdown to this file; - means stdout",
)
@click.option(
    "--json", "as_json", is_flag=True, help="print only the paths of the pages, as JSON on stdout"
)
@click.option(
    "--judge",
    is_flag=True,
    help="judge again the record that `run --keep-history` kept, and compare the two verdicts",
)
@click.option("--quiet", is_flag=True, help="no summary")
def report(
    results: tuple[Path, ...],
    html: Path | None,
    markdown: Path | None,
    *,
    as_json: bool,
    judge: bool,
    quiet: bool,
) -> int:
    """Show a stored result again, and write it as an HTML page. RESULT is the folder of a result,
    or the file result.json in this folder.

    With --judge, the command judges the kept record again and writes no page. The new verdict
    decides the exit code. If the new verdict is good but differs from the stored result, the exit
    code is 2.
    """
    if judge:
        from bench.commands.judging import judge_again

        return judge_again(results, quiet=quiet)
    names = [str(place.parent if place.is_file() else place) for place in results]
    stored = [*map(_read, results, names)]
    try:
        _show_again(stored, names, html, Outputs(None, markdown, None, as_json, quiet))
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(
            f"{', '.join(names)}: not a complete result of lockbench ({reason}); "
            "make the result again"
        ) from None
    return 0


def _read(place: Path, name: str) -> tuple[Answer[Any], Document]:
    """Return the result at `place`, and the answer that can read it. Error messages use `name` as
    the name of the result."""
    from bench.measure.result import read_result
    from bench.questions import ANSWERS
    from bench.report.answer import answer_to

    document = read_result(place)
    answer = answer_to(document, name, ANSWERS)
    return answer, answer.beside(answer.read(document, name), Path(name).absolute().parent)


def _show_again(
    stored: Sequence[tuple[Answer[Any], Document]],
    names: Sequence[str],
    html: Path | None,
    outputs: Outputs,
) -> None:
    from bench.report.html.page import REPORT_NAME, page_of_several, write_page
    from bench.report.sheet import print_sheet, sheet_markdown

    if len(stored) == 1:
        ((answer, result),) = stored
        page = answer.page(result, names[0])
        folder = Path(names[0])
    else:
        page = page_of_several(_runs(stored, names), [Path(name).name or name for name in names])
        folder = Path()
        if html is None:
            folder, _ = result_folder(None, "report", secrets.token_hex(4))
            folder.mkdir(parents=True)
    place = write_page(page, html or folder / REPORT_NAME)
    sheets = [
        answer.sheet(result, name) for (answer, result), name in zip(stored, names, strict=True)
    ]
    if (path := outputs.markdown) is not None:
        with (
            writing(path, "name another file"),
            click.open_file(path, "w", encoding="utf-8", errors=UNPAIRED) as file,
        ):
            file.write("\n".join(map(sheet_markdown, sheets)))
    if outputs.as_json:
        say_json({"results": list(names), "html": str(place)})
    elif not outputs.quiet and str(path) != "-":
        console = console_on()
        for sheet in sheets:
            print_sheet(sheet, console)
            console.print()
        say(f"report     {place}")


def _runs(stored: Sequence[tuple[Answer[Any], Document]], names: Sequence[str]) -> list[RunResult]:
    """Return the stored results. Raises UsageError if one of them is not a result of `lockbench
    run`."""
    from bench.measure.run_result import RunResult

    runs = []
    for (answer, result), name in zip(stored, names, strict=True):
        if not isinstance(result, RunResult):
            raise UsageError(
                "a page with several results can only show results of lockbench run, but "
                f"{name} is a result of lockbench {answer.kind}; leave this result out"
            )
        runs.append(result)
    return runs
