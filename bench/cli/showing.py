"""What a command shows of its result: *its end → tables or JSON on stdout, files beside, complaints on stderr*.

Rules: stdout holds the tables, or with --json the result and nothing else. What could not be stored is shown all the
same, --quiet or not, and then complained of. Source: README's command table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from bench.cli.outputs import Outputs
from bench.cli.report import place_of, report_beside
from bench.measure.section import builtins_of
from bench.report.kinds import cases_of, told
from bench.report.sheet import print_sheet, sheet_markdown
from bench.run.interrupt import until_shown
from bench.run.verdict import Done


@until_shown()
def show(done: Done[Any], files: Outputs, values: Mapping[str, Any]) -> int:
    """Show what came of it, once it is shown grant the wish to end (KeyboardInterrupt), and return the exit code."""
    return show_result(done, files, values)


def show_result(done: Done[Any], files: Outputs, values: Mapping[str, Any], footer: str = "") -> int:
    """Show what came of it as the options `values` ask for, write the `files`, and return the exit code.

    `footer`: a line of the command's own below the tables.
    """
    sheet = told(done.result, place_of(done.path, report_beside(done.result, done.path)))
    if values["as_json"]:
        print(json.dumps(builtins_of(done.result), ensure_ascii=False), flush=True)
    elif not values["quiet"] or done.path is None:
        print_sheet(sheet, Console(highlight=False))
        if footer:
            print(footer, flush=True)
    if done.unstored:
        print(f"lockbench: {done.unstored}", file=sys.stderr)
    files.write(sheet_markdown(sheet), cases_of(done.result))
    return done.exit_code
