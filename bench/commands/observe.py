"""Implements `lockbench observe`: *a scenario and options → a run that Prometheus watches*.

All rules and exit codes of `lockbench run` apply to this command, too.
"""

import contextlib
import threading
from pathlib import Path

import click

from bench.errors import EXIT_INTERRUPTED
from bench.frame.options import (
    Grouped,
    ScenarioPlace,
    ending,
    run_options,
    scenario_of,
    scenario_options,
)
from bench.frame.outputs import Outputs
from bench.screen import note


@click.command(
    cls=Grouped,
    epilog=ending(
        "lockbench observe hot-key",
        "lockbench observe hot-key --duration 60s --stay",
        note="Needs Prometheus (Debian: apt-get install prometheus).",
    ),
)
@click.argument("scenario", required=False, type=ScenarioPlace())
@scenario_options()
@click.option(
    "--prometheus", metavar="PATH", help="the Prometheus program to start  [prometheus on PATH]"
)
@click.option(
    "--collector",
    metavar="PATH",
    help="program of the OpenTelemetry Collector, which sends lockbench's figures to "
    "Prometheus; the value none means no collector  [the collector on PATH]",
)
@click.option("--stay", is_flag=True, help="keep Prometheus running after the run, until Ctrl-C")
@run_options("observe")
def observe(
    scenario: Path | None,
    prometheus: str | None,
    collector: str | None,
    *,
    stay: bool,
    **values: object,
) -> int:
    """Load a lock once, and watch the run with a Prometheus that this command starts. With --stay,
    Prometheus continues after the run.

    SCENARIO.toml and the options are the same as in `lockbench run`.
    """
    outputs = Outputs.taken_from(values)
    requested = scenario_of(scenario, values, quiet=outputs.quiet)
    from bench.commands.run import run_and_show
    from bench.commands.watch import NAMES, graphs, last_words, open_watch, shipped
    from bench.frame.showing import require_outputs

    # A file that cannot be written is refused before any program starts.
    require_outputs(outputs)
    with open_watch(prometheus, collector) as watch:
        way = f", and the collector {watch.collector} feeds it" if watch.collector else ""
        note(f"Prometheus  {watch.url}  runs until this command ends{way}")
        note(f"graphs      {graphs(watch.url)}")
        note(
            f"boards      {shipped('boards')}  can be imported into a Grafana that "
            "reads this Prometheus"
        )
        code = run_and_show("observe", requested, outputs, values)
        troubles = [
            index for index, state in watch.guard.states().items() if state.exit_code is not None
        ]
        for index in troubles:
            last = last_words(watch.guard, index)
            note(
                f"{NAMES[index]} ended before the run ended, so the graphs are incomplete ({last})"
            )
        if stay and not troubles and code != EXIT_INTERRUPTED:
            note(f"Prometheus  {watch.url}  stays until Ctrl-C")
            with contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
    return code
