"""`lockbench run`, and what `observe` has of it: *scenario and output options → one run, shown and stored*.

Rules: progress and warnings go to stderr; stdout holds the summary, or with --json the result and nothing else. What
cannot be stored is shown all the same, and only then complained of. What is heavy is imported once the options are
known to be right. Source: README's command table.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path
from typing import Any

import click

from bench.cli.options import PLACE, Values, metrics_port_option, run_options, scenario_of, scenario_options
from bench.scenario import Scenario
from lockcore.mask import masked_command


@click.command(epilog="Ready scenarios stand in bench/scenarios/; `lockbench init` writes one with every key.")
@click.argument("scenario", required=False, type=PLACE)
@scenario_options
@metrics_port_option
@run_options("run")
def run(scenario: Path | None, **values: Any) -> int:
    """One run: servers, Locust, record, verdict.

    SCENARIO.toml holds keys of the same names as the options; an option wins over the file.
    """
    return run_and_show("run", scenario_of(scenario, values), values)


def run_and_show(command: str, scenario: Scenario, values: Values) -> int:
    """Run `scenario` as the options `values` of `command` say, show and store its result, and return the exit code.

    Raises BenchError and KeyboardInterrupt.
    """
    from bench.cli.folder import result_folder
    from bench.cli.progress_line import ProgressLine
    from bench.cli.showing import Outputs, show_result
    from bench.run.interrupt import Interrupts
    from bench.run.run import Order, run_scenario
    from bench.run.verdict import INTERRUPTED

    files, run_id = Outputs.of(values), secrets.token_hex(4)
    folder = result_folder(values["out"], command, run_id)
    typed = ["lockbench", *masked_command(sys.argv[1:])]
    options = {name: values[name] for name in ("server", "allow_missing", "allow_skipped", "keep_history")}
    with Interrupts() as interrupts:
        try:
            with ProgressLine(quiet=values["quiet"]) as show:
                order = Order(scenario, run_id, typed, folder.path, **options)
                finished = run_scenario(order, interrupts, show)
        finally:
            folder.remove_if_empty()
        interrupts.patience = interrupts.count + 1  # the first Ctrl-C from here on waits until all is shown
        show_result(finished, files, values)
        return INTERRUPTED if interrupts.count else finished.exit_code
