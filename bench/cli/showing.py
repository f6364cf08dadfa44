"""What an experiment's command shows: *its end → tables or JSON on stdout, files beside, complaints on stderr*.

Rules: stdout holds the tables, or with --json the result and nothing else. What could not be stored is shown all the
same, --quiet or not, and then complained of. Source: README's command table.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from bench.cli.outputs import Outputs
from bench.cli.report import place_of, report_beside
from bench.report.junit import Suite
from bench.run.done import Done
from bench.run.interrupt import until_shown


@dataclass(frozen=True, slots=True)
class Told:
    """An experiment in words: `tables` prints them on a console."""

    tables: Callable[[Console], None]
    markdown: str
    suite: Suite


@until_shown()
def show(done: Done, tell: Callable[[Done, str], Told], files: Outputs, values: Mapping[str, Any]) -> int:
    """Show what came of it as the options `values` ask for, write the `files`, and return the exit code.

    `tell`: puts it in words, with the place of its files. Raises KeyboardInterrupt, once all is shown.
    """
    told = tell(done, place_of(done.path, report_beside(done.result, done.path)))
    if values["as_json"]:
        print(json.dumps(done.result, ensure_ascii=False), flush=True)
    elif not values["quiet"] or done.path is None:
        told.tables(Console(highlight=False))
    if done.unstored:
        print(f"lockbench: {done.unstored}", file=sys.stderr)
    files.write(told.markdown, told.suite)
    return done.exit_code
