"""`lockbench run`, what `observe` has of it, and `fleet`: *options → one run shown and stored;
servers alone*.

Rules: of a fleet stdout holds one URL per line (or one JSON object), flushed at once, so that a
script can read them; what happens to the servers goes to stderr. What is heavy is imported once the
options are known to be right.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.errors import EXIT_INTERRUPTED, UsageError
from bench.frame.experiment import carry_out
from bench.frame.hosts import hosts_options, led
from bench.frame.options import (
    PLACE,
    Grouped,
    ScenarioPlace,
    Values,
    run_options,
    scenario_of,
    scenario_options,
    server_option,
)
from bench.scenario import Scenario
from bench.screen import note, say, say_json

if TYPE_CHECKING:
    from bench.frame.progress_line import ProgressLine
    from bench.measure.run_result import RunResult
    from bench.run.experiment import Done, ExperimentOrder

_LOOK_S = 0.1
_TOLD = ("allow_missing", "allow_skipped", "name", "more")


@click.command(
    cls=Grouped,
    epilog="Ready scenarios: bench/scenarios/; `lockbench init` writes one with every key.",
)
@click.argument("scenario", required=False, type=ScenarioPlace())
@scenario_options()
@click.option("--name", metavar="TEXT", default="", help="what results and comparisons call it")
@click.option(
    "--repeats",
    "--repeat",
    "repeat",
    metavar="N",
    type=click.IntRange(1, 1000),
    default=1,
    help="runs, each in a folder  [1]",
)
@click.option(
    "--keep-history",
    is_flag=True,
    help="keep the record beside the result; report --judge judges it anew",
)
@click.option("--csv", metavar="FILE", type=PLACE, help="append one line per run")
@hosts_options
@run_options("run")
def run(scenario: Path | None, **values: Any) -> int:
    """One run: servers, Locust, record, verdict.

    SCENARIO.toml holds keys of the same names as the options; an option wins over the file.
    """
    from bench.frame.showing import require_table

    requested = scenario_of(scenario, values)
    if values["csv"] is not None:
        require_table(values["csv"])
    if values["repeat"] == 1:
        return run_and_show("run", requested, values)
    for name in ("markdown", "junit", "as_json"):
        if values[name]:
            reason = "is of one run; leave it out, and give the folder to compare or report"
            raise UsageError(f"option --{name.removeprefix('as_')}: {reason}")
    return _repeated(requested, values)


def _repeated(scenario: Scenario, values: Values) -> int:
    """Run it so often, a line for each. What is wrong ends the series; what was run stays."""
    from bench.frame.showing import result_folder
    from bench.measure.verdict import worst_code

    times = values["repeat"]
    codes = list[int]()
    folder, _ = result_folder(values["out"], "run", secrets.token_hex(4))
    for number in range(times):
        # Each run has a seed of its own. With one seed every run would have the same luck.
        one = replace(scenario, seed=scenario.seed + number)
        part = {
            **values,
            "out": folder / f"{number + 1:0{len(str(times))}}",
            "summary": f"{number + 1} of {times}",
        }
        part["more"] = number + 1 < times
        codes.append(run_and_show("run", one, part))
        if codes[-1] == EXIT_INTERRUPTED:
            break
    if not values["quiet"]:
        say(
            f"{len(codes)} of {times} runs in {folder}; compare them: lockbench compare "
            f"{folder} OTHER"
        )
    return worst_code(codes)


def run_and_show(command: str, scenario: Scenario, values: Values) -> int:
    """Run `scenario` as the options of `command` say, show and store its result, and return the
    exit code."""
    from bench.frame.showing import append_line
    from bench.run.interrupt import Interrupts
    from bench.run.run import Order, run_scenario

    (scenario,), bind = led([scenario], values)

    def measure(order: ExperimentOrder[Scenario], show: ProgressLine) -> Done[RunResult]:
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
            done = run_scenario(one, interrupts, show)
        if values.get("csv") is not None:
            append_line(values["csv"], done.result)
        return done

    return carry_out(command, scenario, values, measure)


@click.command(cls=Grouped)
@click.option(
    "--instances", metavar="N", type=click.IntRange(1, 64), default=5, help="how many servers  [5]"
)
@click.option(
    "--fsync",
    type=click.Choice(["none", "no", "everysec", "always"]),
    default="everysec",
    help="AOF policy; none = no AOF  [everysec]",
)
@server_option
@click.option("--json", "as_json", is_flag=True, help="print one JSON object instead of the lines")
@click.option("--quiet", is_flag=True, help="print the URLs only")
def fleet(*, instances: int, fsync: str, server: str | None, as_json: bool, quiet: bool) -> int:
    """Start servers, print one URL per line, stop them on Ctrl-C."""
    from bench.run.interrupt import Interrupts
    from bench.topology.fleet import start_fleet
    from bench.topology.server import find_server

    with (
        start_fleet(instances, fsync, server=find_server(server)) as started,
        Interrupts() as interrupts,
    ):
        interrupts.raising = False
        alive = {instance.index: instance for instance in started.instances}
        urls = [instance.url for instance in started.instances]
        facts = {
            "urls": urls,
            "fsync": fsync,
            "server": asdict(started.server),
            "folder": str(started.folder),
        }
        if as_json:
            say_json(facts)
        else:
            say(*urls)
        if not quiet:
            what = f"{len(urls)} × {started.server}, fsync {fsync}, in {started.folder}"
            note(f"lockbench: {what}; Ctrl-C stops them")
        while not interrupts.count:
            for index, exit_code in enumerate(started.exit_codes()):
                if exit_code is not None and (ended := alive.pop(index, None)):
                    message = f"instance {index} ({ended.url}) ended with exit code {exit_code}"
                    note(f"lockbench: {message}")
            time.sleep(_LOOK_S)
    return EXIT_INTERRUPTED
