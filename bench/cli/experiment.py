"""What the commands of all experiments share: *options → order → done → shown*.

Rules: what is wrong in the options is refused before anything starts; progress goes to stderr, stdout holds the tables,
or with --json the result and nothing else. An experiment that keeps a journal and was cut goes on in its own folder:
--resume, or the same --out with the same options.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from bench.cli.options import PLACE, Option, Read, Values, result_options, server_option, together
from bench.errors import BenchError, UsageError

if TYPE_CHECKING:
    from bench.cli.progress_line import ProgressLine
    from bench.measure.result import Document
    from bench.run.experiment import Done, ExperimentOrder, Stored

Plan = TypeVar("Plan")


def experiment_options(kind: str, *, seed: int | None = 1, resumes: bool = False) -> Option:
    """Give a click command --seed, --server, --out, --markdown, --junit, --json and --quiet, and --resume if it
    `resumes`. `seed`: the usual one; None: the command has one of its own."""
    more = []
    if resumes:
        more.append(
            click.option("--resume", metavar="DIR", type=PLACE, help="go on with the matrix that was cut there")
        )
    if seed is not None:
        text = f"of every random choice  [{seed}]"
        more.append(click.option("--seed", metavar="N", type=int, default=seed, help=text))
    return together(*more, server_option, result_options(kind))


def carry_out(
    kind: str, plan: Plan, values: Values, run: Callable[[ExperimentOrder[Plan], ProgressLine], Done[Document]]
) -> int:
    """Have `plan` measured as `values` say, show what came of it and return the exit code. Raises as `measured`."""
    from bench.cli.showing import require_outputs, show

    require_outputs(values)  # before the work
    return show(measured(kind, plan, values, run), values)


def measured(
    kind: str, plan: Plan, values: Values, run: Callable[[ExperimentOrder[Plan], ProgressLine], Done[Stored]]
) -> Done[Stored]:
    """Have `plan` measured by `run` in a folder of its own, with progress on stderr. Raises BenchError, and
    KeyboardInterrupt when it was cut before there was anything to show."""
    from bench.cli.progress_line import ProgressLine
    from bench.cli.showing import remove_empty, result_folder
    from bench.run.experiment import ExperimentOrder
    from bench.run.journal import is_unfinished
    from lockcore.mask import masked_command

    run_id = secrets.token_hex(4)
    wanted = values.get("resume") or values["out"]
    if "resume" in values and wanted is not None and is_unfinished(wanted):
        folder, made = wanted, list[Path]()
    else:
        folder, made = result_folder(wanted, kind, run_id)
    order = ExperimentOrder(plan, run_id, ["lockbench", *masked_command(sys.argv[1:])], folder, values["server"])
    given = [f"--{name}" for name in ("target", "disk", "server") if values.get(name) or values.get(f"{name}s")]
    go_on = f"go on with lockbench {kind} --resume {folder}" + f" and the same {', '.join(given)}" * bool(given)
    try:
        with ProgressLine(quiet=values["quiet"]) as line:
            done = run(order, line)
    except BenchError as error:
        if is_unfinished(folder) and not isinstance(error, UsageError):
            raise type(error)(f"{error}; {go_on}") from error
        raise
    finally:
        remove_empty(made)
    return replace(done, unstored=f"{done.unstored}; {go_on}") if is_unfinished(folder) else done


def resumed(values: Values, usual: Mapping[str, object], kind: type[Plan]) -> Plan | None:
    """Return the plan that was begun where --resume says, if no option asks for another than the `usual`; else
    None. Raises UsageError."""
    from msgspec import ValidationError

    from bench.measure.section import converted
    from bench.run.journal import is_unfinished, read_journal

    if (folder := values["resume"]) is None:
        return None
    if values["out"] is not None:
        raise UsageError("option --resume goes on in its own folder: leave --out out")
    if not is_unfinished(folder):
        raise UsageError(f"option --resume: no matrix was cut in {folder}; begin anew without it")
    if any(values[name] != value for name, value in usual.items()):
        return None
    try:
        return converted(read_journal(folder)[0], kind)
    except ValidationError:
        raise UsageError(
            f"option --resume: what was cut in {folder} is none of this command; name one of those"
        ) from None


class Several(click.ParamType[tuple[Any, ...]]):
    """Values parted by commas, each once. `one`: a type of click, or a function that raises ValueError."""

    name = "list"

    def __init__(self, one: click.ParamType[Any] | Callable[[str], object]) -> None:
        self._one = one if isinstance(one, click.ParamType) else Read("value", one)
        if isinstance(one, click.IntRange):
            one.name = "whole number"  # as click names it where it is none

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Any, ...]:
        """The values. Fails with the sentence of a usage error."""
        return tuple(dict.fromkeys(self._one.convert(part.strip(), param, ctx) for part in value.split(",")))

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The words for the last one of them, behind those before."""
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(f"{before}{comma}{item.value}") for item in self._one.shell_complete(ctx, param, last)]
