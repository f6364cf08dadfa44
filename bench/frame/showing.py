"""Writes the output of a command: the result's folder, tables or JSON on stdout, further files, and
warnings on stderr.

If lockbench cannot store a result, it still shows the result, even with --quiet. It then writes a
warning to stderr. If a file or folder cannot be written, the command fails before the measurement
starts. The folder is made only when there is a result to write. In a GitHub job, lockbench appends
the summary to a file. The environment variable GITHUB_STEP_SUMMARY contains the path of this file.
"""

from __future__ import annotations

import contextlib
import csv
import datetime
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from bench.errors import UNPAIRED, BenchError, EnvironmentNotReadyError, UsageError, writing
from bench.frame.identity import identity_of
from bench.frame.outputs import Outputs
from bench.run.interrupt import until_shown
from bench.screen import console_on, note, say, say_json

if TYPE_CHECKING:
    from bench.measure.result import Document
    from bench.measure.run_result import RunResult
    from bench.report.answer import Answer
    from bench.report.junit import Suite
    from bench.report.sheet import Sheet
    from bench.run.experiment import Done

Stored = TypeVar("Stored", bound="Document")


def _places(outputs: Outputs) -> list[Path | None]:
    """Return the paths of the Markdown file, the JUnit file and the summary of a CI job.

    If a file is not requested, its path is None.
    """
    step = os.environ.get("GITHUB_STEP_SUMMARY")
    return [outputs.markdown, outputs.junit, Path(step) if step else None]


def require_outputs(outputs: Outputs) -> None:
    """Raise EnvironmentNotReadyError if one of the requested files cannot be written."""
    for path in filter(None, _places(outputs)):
        write_text(path, "", "a")


def write_outputs(outputs: Outputs, sheet: Sheet, suite: Suite) -> None:
    """Write the requested files. Raises EnvironmentNotReadyError."""
    from bench.report.junit import junit_xml
    from bench.report.sheet import sheet_markdown

    markdown, junit, step = _places(outputs)
    suite = named(suite)
    if markdown:
        write_text(markdown, sheet_markdown(sheet))
    if junit:
        write_text(junit, junit_xml(suite))
    if step:
        write_text(step, sheet_markdown(sheet) + "\n", "a")


def named(suite: Suite) -> Suite:
    """Return a copy of `suite` that has the name and the mark of the current command."""
    context = click.get_current_context(silent=True)
    name, mark = identity_of(context.params) if context else ("", "")
    return replace(suite, name=name or suite.properties.get("recipe", ""), mark=mark)


def write_text(path: Path, text: str, mode: str = "w") -> None:
    """Write `text` into the file `path`. Raises EnvironmentNotReadyError."""
    with (
        writing(path, "name another file"),
        path.open(mode, encoding="utf-8", errors=UNPAIRED) as file,
    ):
        file.write(text)


@until_shown()
def show(done: Done[Stored], answer: Answer[Stored], outputs: Outputs) -> int:
    """Show the result, write the files that `outputs` requests, and return the exit code.

    If the user presses Ctrl-C while this function works, it still shows the result and then raises
    KeyboardInterrupt.
    """
    page = report_beside(done.result, answer, done.path)
    place = f"{done.path}" if done.path else ""
    if place and page:
        place = f"{place}, {page.name}"
    sheet = answer.sheet(done.result, place)
    try:
        # The files are written first, because a reader such as `| head` may close stdout.
        write_outputs(outputs, sheet, answer.cases(done.result))
    finally:
        _print(done, outputs, sheet)
    return done.exit_code


def _print(done: Done[Document], outputs: Outputs, sheet: Sheet) -> None:
    from bench.measure.section import builtins_of
    from bench.report.sheet import print_sheet

    if outputs.as_json:
        say_json(builtins_of(done.result))
    elif outputs.summary and done.path is not None:
        if not outputs.quiet:
            say(f"{outputs.summary}   {sheet.verdict}   {sheet.headline}")
    elif not outputs.quiet or done.path is None:
        print_sheet(sheet, console_on())
    if done.unstored:
        note(f"lockbench: {done.unstored}")


def report_beside(result: Stored, answer: Answer[Stored], stored: Path | None) -> Path | None:
    """Write report.html beside a stored result, and return its path.

    If the report cannot be written, print the reason on stderr and return None.
    """
    if stored is None:
        return None
    try:
        from bench.report.html.page import write_report

        return write_report(answer.page(result, str(stored)), stored)
    except Exception as error:  # noqa: BLE001
        # After any error of the page, the result must still be shown.
        fault = f"the report code has a fault ({type(error).__name__}: {error}); please report it"
        why = str(error) if isinstance(error, BenchError) else fault
    note(f"lockbench: report.html was not written: {why}")
    return None


def result_folder(requested: Path | None, command: str, run_id: str) -> tuple[Path, list[Path]]:
    """Return the path of a new folder, and a list of the folders on this path that do not exist
    yet.

    The path is `requested`. If `requested` is None, the path is results/<UTC time>-<command>-<run
    id>. In the list, each folder comes before the folder that contains it. To check that the
    folders can be made, the function makes them and then removes them. Raises
    EnvironmentNotReadyError if the new folder exists already or cannot be made.
    """
    now = datetime.datetime.now(datetime.UTC)
    folder = requested or Path("results") / f"{now:%Y%m%d-%H%M%S}-{command}-{run_id}"
    with writing(folder, "name another place with --out"):
        new_folders = [place for place in (folder, *folder.parents) if not place.exists()]
        if folder not in new_folders:
            raise EnvironmentNotReadyError(
                f"the result folder {folder} exists already; name a new one with --out"
            )
        folder.mkdir(parents=True)
    remove_empty(new_folders)
    return folder, new_folders


def remove_empty(folders: Sequence[Path]) -> None:
    """Remove `folders`, one after the other. Stop at the first folder that is not empty."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


# -- a line of a table per run ---------------------------------------------------------------------


def require_table(path: Path) -> None:
    """Check that `append_line` will be able to write to the file.

    Raises UsageError if the first line of the file has the columns of another table. Raises
    EnvironmentNotReadyError if this process cannot write to the file.
    """
    with (
        writing(path, "name another file with --csv"),
        path.open("a+", encoding="utf-8", errors="replace") as file,
    ):
        file.seek(0)
        if not (file.readline() or "name,id,").startswith("name,id,"):
            raise UsageError(
                f"option --csv: the columns of {path} differ from the columns of "
                "a run; name a new file"
            )


def append_line(path: Path, run: RunResult) -> None:
    """Append a line for `run` to the CSV file. The cells have the same order as the columns of the
    file.

    If the file is empty, the function first writes a line with the names of the columns. The
    columns contain some facts about the run, the most common figures, and the values of the
    scenario's keys. The cell of an unknown value is empty. Raises EnvironmentNotReadyError.
    """
    from bench.gates.threshold import shown_at
    from bench.measure.section import builtins_of, leaves

    cells = {
        **{name: getattr(run, name) for name in ("name", "id", "started_at")},
        **{name: getattr(run.verdict, name) for name in ("status", "word", "exit_code")},
        "server": run.fleet.servers_text,
        "violations": run.safety.service_faults,
        **{
            f"{one.name}_s" if one.unit == "s" else one.name: one.value(run)
            for one in shown_at("several")
        },
        **dict(leaves(builtins_of(run.scenario.shown()))),
        # The key `fsync` of the scenario does not describe servers of the user.
        "fsync": run.fleet.policies,
    }
    with (
        writing(path, "its line is missing"),
        path.open("a+", encoding="utf-8", errors=UNPAIRED, newline="") as file,
    ):
        file.seek(0)
        columns = next(csv.reader(file), None)
        table = csv.DictWriter(file, columns or list(cells), extrasaction="ignore")
        if columns is None:
            table.writeheader()
        table.writerow(cells)
