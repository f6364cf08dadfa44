"""`lockbench run` and `observe`: *scenario and output options → one run, shown and stored*.

Rules: progress and warnings go to stderr; stdout holds the summary, or with --json the result and nothing else. What
cannot be stored is shown all the same, and only then complained of.
Source: README's command table.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.cli.folder import result_folder
from bench.cli.outputs import Outputs
from bench.cli.progress_line import ProgressLine
from bench.cli.showing import show_result
from bench.run.interrupt import Interrupts
from bench.run.run import Order, run_scenario
from bench.run.verdict import INTERRUPTED
from bench.scenario import Scenario
from lockcore.mask import masked_command


@dataclass(frozen=True, slots=True)
class RunOutput:
    """Where a run's result goes and what is shown of it; `folder` None = a new one below results/."""

    folder: Path | None
    files: Outputs
    as_json: bool
    quiet: bool


def run_and_print(
    scenario: Scenario,
    output: RunOutput,
    *,
    command: str = "run",
    server: str | None,
    allow_missing: bool,
    keep_history: bool,
    allow_skipped: bool = False,
) -> int:
    """Run `scenario`, show and store its result, and return the exit code. Raises BenchError and KeyboardInterrupt."""
    output.files.require_writable()
    run_id = secrets.token_hex(4)
    folder = result_folder(output.folder, command, run_id)
    order = Order(scenario, run_id, _typed(sys.argv), folder.path, server, allow_missing, keep_history, allow_skipped)
    with Interrupts() as interrupts:
        try:
            with ProgressLine(quiet=output.quiet) as show:
                finished = run_scenario(order, interrupts, show)
        finally:
            folder.remove_if_empty()
        interrupts.patience = interrupts.count + 1  # the first Ctrl-C from here on waits until all is shown
        show_result(finished, output.files, {"as_json": output.as_json, "quiet": output.quiet})
        return INTERRUPTED if interrupts.count else finished.exit_code


def _typed(argv: Sequence[str]) -> list[str]:
    """The command line as it can be typed again, without secrets."""
    return ["lockbench", *masked_command(argv[1:])]
