"""What a command shows of its result: *its end → tables or JSON on stdout, files beside, complaints on stderr*.

Rules: stdout holds the tables, or with --json the result and nothing else. What could not be stored is shown all the
same, --quiet or not, and then complained of. A file that cannot be written is refused before the work, not after it;
what GitHub names in GITHUB_STEP_SUMMARY is appended to, whatever else is asked for. Source: README's command table.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from bench.cli.options import Values
from bench.errors import BenchError, EnvironmentNotReadyError
from bench.run.interrupt import until_shown

if TYPE_CHECKING:
    from bench.measure.result import Document
    from bench.report.junit import Suite
    from bench.run.verdict import Done

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where the Markdown and the JUnit XML go; None = not asked for. `step_summary`: of the CI job, if there is one."""

    markdown: Path | None
    junit: Path | None
    step_summary: Path | None

    @classmethod
    def of(cls, values: Values, environ: Mapping[str, str] = os.environ) -> Self:
        """From a command's options and the environment. Raises EnvironmentNotReadyError for what cannot be written."""
        step = environ.get(STEP_SUMMARY)
        outputs = cls(values["markdown"], values["junit"], Path(step) if step else None)
        for path in (outputs.markdown, outputs.junit, outputs.step_summary):
            if path is not None:
                write_text(path, "", "a")
        return outputs

    def write(self, markdown: str, suite: Suite) -> None:
        """Write what was asked for. Raises EnvironmentNotReadyError."""
        from bench.report.junit import junit_xml

        for path, text, mode in (
            (self.markdown, markdown, "w"),
            (self.junit, junit_xml(suite), "w"),
            (self.step_summary, markdown + "\n", "a"),
        ):
            if path is not None:
                write_text(path, text, mode)


def write_text(path: Path, text: str, mode: str = "w") -> None:
    """Write `text` into the file `path`. Raises EnvironmentNotReadyError."""
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise EnvironmentNotReadyError(f"{path} cannot be written ({error.strerror}); name another file") from None


@until_shown()
def show(done: Done[Document], files: Outputs, values: Values) -> int:
    """Show what came of it, once it is shown grant the wish to end (KeyboardInterrupt), and return the exit code."""
    return show_result(done, files, values)


def show_result(done: Done[Document], files: Outputs, values: Values) -> int:
    """Show what came of it as the options `values` ask for, write the `files`, and return the exit code."""
    from rich.console import Console

    from bench.measure.section import builtins_of
    from bench.report.kinds import cases_of, told
    from bench.report.sheet import print_sheet, sheet_markdown

    page = report_beside(done.result, done.path)
    sheet = told(done.result, f"{done.path}{f', {page.name}' if page else ''}" if done.path else "")
    if values["as_json"]:
        print(json.dumps(builtins_of(done.result), ensure_ascii=False), flush=True)
    elif not values["quiet"] or done.path is None:
        print_sheet(sheet, Console(highlight=False))
    if done.unstored:
        print(f"lockbench: {done.unstored}", file=sys.stderr)
    files.write(sheet_markdown(sheet), cases_of(done.result))
    return done.exit_code


def report_beside(result: Document, stored: Path | None) -> Path | None:
    """Write report.html beside a result that was just stored and return its path; None when there is none.

    A report that cannot be written takes nothing from what was measured: it costs a sentence on stderr.
    """
    if stored is None:
        return None
    try:
        from bench.report.html.page import write_report

        return write_report(result, stored)
    except BenchError as error:
        why = str(error)
    except Exception as error:  # noqa: BLE001 - whatever it is, the result is there and must be shown
        why = f"a fault of the report itself ({type(error).__name__}: {error}); please report it"
    print(f"lockbench: there is no report.html: {why}", file=sys.stderr)
    return None
