"""`lockbench observe`: *scenario and options → `lockbench run`, with Prometheus around it*.

Rules: all of `lockbench run` holds, exit codes too. Where to look goes to stderr as soon as Prometheus scrapes.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from bench.cli.options import PLACE, run_options, scenario_of, scenario_options


@click.command(epilog="Needs Prometheus (Debian: apt-get install prometheus).")
@click.argument("scenario", required=False, type=PLACE)
@scenario_options()
@click.option("--prometheus", metavar="PATH", help="the Prometheus to start  [prometheus on PATH]")
@click.option(
    "--collector", metavar="PATH", help="an OpenTelemetry Collector between them; none = without  [one on PATH]"
)
@click.option("--stay", is_flag=True, help="keep Prometheus after the run, until Ctrl-C")
@run_options("observe")
def observe(scenario: Path | None, **values: Any) -> int:
    """One run with Prometheus around it: look at it while it runs, or afterwards with --stay.

    SCENARIO.toml and the options are those of `lockbench run`.
    """
    wanted = scenario_of(scenario, values)
    from bench.cli.run import run_and_show
    from bench.cli.showing import Outputs
    from bench.errors import EXIT_INTERRUPTED
    from bench.experiments.observe.watch import open_watch, shipped

    Outputs.of(values)  # refused before anything starts
    with open_watch(values["prometheus"], values["collector"]) as watch:
        way = f", fed by the collector {watch.collector}" if watch.collector else ""
        _say(f"Prometheus  {watch.url}  as long as this runs{way}")
        _say(f"graphs      {watch.graphs}")
        _say(f"boards      {shipped('boards')}  for a Grafana with this Prometheus")
        for warning in watch.warnings:
            _say(f"lockbench: {warning}")
        code = run_and_show("observe", wanted, values)
        if values["stay"] and code != EXIT_INTERRUPTED:
            _say(f"Prometheus  {watch.url}  stays until Ctrl-C")
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
    return code


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
