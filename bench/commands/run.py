"""Implements `lockbench run`: *options → one or more stored runs*. Some of this code also serves
`lockbench observe`.

The command imports heavy modules only after it has checked the options.
"""

from __future__ import annotations

import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.errors import EXIT_INTERRUPTED, UsageError
from bench.frame.experiment import measured
from bench.frame.hosts import hosts_options, led
from bench.frame.options import (
    PLACE,
    Grouped,
    ScenarioPlace,
    Values,
    ending,
    run_options,
    scenario_of,
    scenario_options,
)
from bench.frame.outputs import Outputs
from bench.scenario import Scenario
from bench.screen import say

if TYPE_CHECKING:
    from bench.frame.progress_line import ProgressLine
    from bench.measure.run_result import RunResult
    from bench.run.experiment import Done, ExperimentOrder

_TOLD = ("allow_missing", "allow_skipped", "name", "more")


@click.command(
    cls=Grouped,
    epilog=ending(
        "lockbench run hot-key --duration 10s",
        "lockbench run mine.toml --threshold 'acquire.p99 < 10ms'",
        note="Ready scenarios are in bench/scenarios/. `lockbench init` writes a "
        "scenario with every key.",
    ),
)
@click.argument("scenario", required=False, type=ScenarioPlace())
@scenario_options()
@click.option(
    "--name", metavar="TEXT", default="", help="the name of the run in results and comparisons"
)
@click.option(
    "--repeats",
    "--repeat",
    "repeat",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=1,
    help="how many runs to make, each with its own result folder  [1]",
)
@click.option(
    "--keep-history",
    is_flag=True,
    help="keep the record beside the result, so that `report --judge` can judge the record again",
)
@click.option("--csv", metavar="FILE", type=PLACE, help="append one line per run to this CSV file")
@hosts_options
@run_options("run")
def run(scenario: Path | None, repeat: int, **values: Any) -> int:
    """Load a lock once, record every operation, and judge the record. The command starts servers
    and uses Locust to make the load.

    In the file SCENARIO.toml, each key has the name of an option. An option on the command line
    overrides the key of the same name.
    """
    from bench.frame.showing import require_table

    outputs = Outputs.taken_from(values)
    requested = scenario_of(scenario, values, quiet=outputs.quiet)
    if values["csv"] is not None:
        require_table(values["csv"])
    if repeat == 1:
        return run_and_show("run", requested, outputs, values)
    of_one = {"markdown": outputs.markdown, "junit": outputs.junit, "json": outputs.as_json}
    for name, value in of_one.items():
        if value:
            reason = (
                "is only for one run; remove this option, then give the folder to compare or report"
            )
            raise UsageError(f"option --{name}: {reason}")
    return _repeated(requested, repeat, outputs, values)


def _repeated(scenario: Scenario, times: int, outputs: Outputs, values: Values) -> int:
    """Run the scenario `times` times, and print a line for each run.

    If a run raises an error, the command makes no further run. It keeps the results of the earlier
    runs.
    """
    from bench.frame.showing import result_folder
    from bench.measure.verdict import worst_code

    codes = list[int]()
    folder, _ = result_folder(outputs.out, "run", secrets.token_hex(4))
    for number in range(times):
        # Each run has its own seed, because the same seed would repeat the same random choices.
        one = replace(scenario, seed=scenario.seed + number)
        part = replace(
            outputs,
            out=folder / f"{number + 1:0{len(str(times))}}",
            summary=f"{number + 1} of {times}",
        )
        codes.append(run_and_show("run", one, part, {**values, "more": number + 1 < times}))
        if codes[-1] == EXIT_INTERRUPTED:
            break
    if not outputs.quiet:
        say(
            f"{len(codes)} of {times} runs are in {folder}; to compare them with "
            f"others: lockbench compare {folder} OTHER"
        )
    return worst_code(codes)


def run_and_show(command: str, scenario: Scenario, outputs: Outputs, values: Values) -> int:
    """Run `scenario` with the options of `command`. Store the result and show it.

    Return the exit code.
    """
    from bench.frame.showing import append_line, show
    from bench.report.run_answer import RUN
    from bench.run.interrupt import Interrupts
    from bench.run.run import Order, run_scenario

    (scenario,), bind = led([scenario], values, quiet=outputs.quiet)

    def measure(order: ExperimentOrder[Scenario], progress: ProgressLine) -> Done[RunResult]:
        options = {name: values[name] for name in (*_TOLD, "keep_history") if name in values}
        one = Order(
            order.plan,
            order.run_id,
            order.command,
            order.folder,
            order.server,
            **options,
            bind=bind,
        )
        with Interrupts() as interrupts:
            done = run_scenario(one, interrupts, progress)
        if values.get("csv") is not None:
            append_line(values["csv"], done.result)
        return done

    done = measured(command, scenario, outputs, measure, server=values["server"])
    return show(done, RUN, outputs)
