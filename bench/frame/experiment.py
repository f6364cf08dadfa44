"""Provides the code that the commands of all experiments share. This code turns the options of a
command into an order, and runs the order.

Wrong options are refused before any work starts. Progress is shown on stderr, and the tables are
printed on stdout. With --json, stdout holds the result and nothing else. If an interrupted
experiment has a journal, the experiment can continue later. To continue an experiment, the user
repeats the command with the same options, and names the experiment's folder in --out.
"""

from __future__ import annotations

import os
import secrets
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from bench.errors import BenchError, UsageError
from bench.frame.options import Decorator, Read, result_options, server_option, together
from bench.frame.outputs import Outputs

if TYPE_CHECKING:
    from bench.frame.progress_line import ProgressLine
    from bench.run.experiment import Done, ExperimentOrder, Stored

Plan = TypeVar("Plan")


def experiment_options(kind: str, *, seed: int | None = 1) -> Decorator:
    """Return a decorator that adds common options to a click command. These options are --seed,
    --server, --out, --markdown, --junit, --json and --quiet.

    `seed` is the default of --seed. If `seed` is None, the decorator does not add --seed.
    """
    options = [server_option, result_options(kind)]
    if seed is not None:
        text = f"seed of all random choices  [{seed}]"
        options.insert(0, click.option("--seed", metavar="N", type=int, default=seed, help=text))
    return together(*options)


def measured(
    kind: str,
    plan: Plan,
    outputs: Outputs,
    run: Callable[[ExperimentOrder[Plan], ProgressLine], Done[Stored]],
    *,
    server: str | None,
    goes_on: bool = False,
) -> Done[Stored]:
    """Call `run`, which measures `plan` and stores the result in a new folder. Show the progress on
    stderr.

    `server` is the path of the server program to start. If `goes_on` is true, an interrupted
    experiment can continue in its folder. Raises BenchError. Raises KeyboardInterrupt if the user
    interrupts the experiment before it has measured anything.
    """
    from bench.frame.progress_line import ProgressLine
    from bench.frame.showing import remove_empty, require_outputs, result_folder
    from bench.run.experiment import ExperimentOrder
    from bench.run.journal import is_unfinished
    from bench.telemetry.receiver import require_receivers
    from lockcore.bench import masked_command

    # A file that cannot be written is refused before the work begins.
    require_outputs(outputs)
    require_receivers(os.environ)
    run_id = secrets.token_hex(4)
    folder = outputs.out
    new_folders = list[Path]()
    command = ["lockbench", *masked_command(sys.argv[1:])]
    if not goes_on or folder is None or not is_unfinished(folder):
        folder, new_folders = result_folder(folder, kind, run_id)
    order = ExperimentOrder(plan, run_id, command, folder, server)
    go_on = f"go on with: {shlex.join(command)}" + ("" if outputs.out else f" --out {folder}")
    try:
        with ProgressLine(quiet=outputs.quiet) as line:
            done = run(order, line)
    except BenchError as error:
        if is_unfinished(folder) and not isinstance(error, UsageError):
            raise type(error)(f"{error}; {go_on}") from error
        raise
    finally:
        remove_empty(new_folders)
    return replace(done, unstored=f"{done.unstored}; {go_on}") if is_unfinished(folder) else done


class Several(click.ParamType[tuple[object, ...]]):
    """An option type for several values that are separated by commas. A repeated value counts once.

    `one` is the click type of a single value. `one` may also be a function that reads a single
    value. This function must raise ValueError if the value is wrong.
    """

    name = "list"

    def __init__(self, one: click.ParamType[object] | Callable[[str], object]) -> None:
        self._one = one if isinstance(one, click.ParamType) else Read("value", one)
        if isinstance(one, click.IntRange):
            # If a text is not a whole number, click uses this name in its message.
            one.name = "whole number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[Any, ...]:
        """Return the values. If a value is wrong, raise a usage error of click."""
        return tuple(
            dict.fromkeys(self._one.convert(part.strip(), param, ctx) for part in value.split(","))
        )

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return completions for the last value in `incomplete`. Each completion begins with the
        unchanged text before the last value.
        """
        before, comma, last = incomplete.rpartition(",")
        return [
            CompletionItem(f"{before}{comma}{item.value}")
            for item in self._one.shell_complete(ctx, param, last)
        ]
