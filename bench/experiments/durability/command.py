"""`lockbench fsync` and `lockbench planner`: *options → what each fsync policy costs, and that
beside what it loses*.

Rules: what is wrong in the options is refused before anything starts; how long it will take is said
first; progress goes to stderr, stdout holds the tables, or with --json the result and nothing else.
"""

from __future__ import annotations

import os
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.frame.experiment import Several, carry_out, experiment_options
from bench.frame.options import (
    PLACE,
    Grouped,
    Read,
    ScenarioPlace,
    Values,
    environment_targets,
    file_options,
)
from bench.scenario import Scenario, load
from bench.scenario.quantity import delay_text, parse_duration, parse_target

if TYPE_CHECKING:
    from bench.experiments.durability.price_plan import FsyncPlan
    from bench.experiments.durability.price_result import FsyncCell, Policy
    from bench.report.kinds import Found

# Fewer pairs give no interval of 95 % (Wilcoxon).
REPEATS = 6
QUICK_REPEATS = 8
SECONDS = 0.5
SCENARIO_SECONDS = 2.0
WARMUP_SHARE = 0.3
SEED = 1
_LISTS = ("policies", "instances", "clients", "pipeline", "latency", "repeats", "seconds")

# The shortest load.
LEAST_S = 0.2
MOST_S = 600.0
MOST_DELAY_MS = 1000.0
MOST_CALLERS = 65_536
# The shortest TTL that somebody can plan.
LEAST_TTL_MS = 1.0
MOST_TTL_MS = 86_400_000.0
_CALLERS = Several(click.IntRange(1, MOST_CALLERS))
_POLICIES: tuple[Policy, ...] = ("none", "no", "everysec", "always", "waitaof")
_EACH = Several(click.Choice(_POLICIES))
_TAKES = (
    "Servers are started on loopback and stopped. --quick takes less than five minutes, all "
    "of it less than 35."
)
_COUNTS = Several(click.IntRange(1, 15))
_OFTEN = f"turns of each policy  [{REPEATS}; quick, scenario {QUICK_REPEATS}]"
_LONG = f"per load  [{SECONDS:g}s; of a scenario {SCENARIO_SECONDS:g}s]"
_CALLING = "callers, each with a connection to every instance  [1,16]"
_URL = Read("URL", parse_target)
_HELD = "what this machine can drive: 1 caller, and 16 that hold a lock for 5 ms"


def _delay(text: str) -> float:
    delay_ms = 0.0 if text == "raw" else parse_duration(text)
    if delay_ms > MOST_DELAY_MS:
        raise ValueError(f"{text} is too slow for a disk: at most {MOST_DELAY_MS:g}ms")
    return delay_ms


def _load_s(text: str) -> float:
    seconds = parse_duration(text) / 1000
    if not LEAST_S <= seconds <= MOST_S:
        raise ValueError(f"{text} is not between {LEAST_S:g}s and {MOST_S:g}s")
    return seconds


@click.command(cls=Grouped, epilog=_TAKES)
@click.argument("scenario", required=False, type=ScenarioPlace())
@click.option(
    "--fsync", "policies", metavar="P,…", type=_EACH, help=f"{', '.join(_POLICIES)}  [all]"
)
@click.option(
    "--instances",
    metavar="N,…",
    type=_COUNTS,
    help="how many servers  [1,3; with --target: all of them]",
)
@click.option("--users", "--clients", "clients", metavar="C,…", type=_CALLERS, help=_CALLING)
@click.option(
    "--pipeline", metavar="P,…", type=_CALLERS, help="instead so many callers on each of these  [1]"
)
@click.option(
    "--latency",
    metavar="TIME,…",
    type=Several(_delay),
    help="added to every fsync; raw = none  [raw,2ms]",
)
@click.option("--repeats", metavar="R", type=click.IntRange(1, 100), help=_OFTEN)
@click.option(
    "--duration", "seconds", metavar="DURATION", type=Read("duration", _load_s), help=_LONG
)
@click.option("--quick", is_flag=True, help=_HELD)
@click.option(
    "--target",
    "targets",
    metavar="URL",
    type=_URL,
    multiple=True,
    help="your own server (repeatable)",
)
@click.option(
    "--allow-config", is_flag=True, help="let it CONFIG SET appendfsync there; it is put back"
)
@click.option(
    "--disk", metavar="DIR", type=PLACE, help="where started servers keep their files  [TMPDIR]"
)
@experiment_options("fsync", seed=SEED)
def fsync(**values: Any) -> int:
    """What an AOF fsync policy costs: acquires/s, latency, fsyncs, by callers, disk and N; beside
    what it loses.

    With SCENARIO its callers, hold time, instances or targets are measured under every policy, on
    the disk as it is; without, a matrix of those. Policies take turns on the same servers. A matrix
    that was cut goes on in its folder (--out). Exit code 4: an expected difference did not show.
    """
    from bench.experiments.durability.price_experiment import run_fsync
    from bench.experiments.durability.servers import FsyncServers, OwnServers, UserServers
    from bench.topology.server import find_server

    if not values["targets"] and not values["server"] and not values["disk"]:
        values["targets"] = environment_targets(quiet=values["quiet"])
    if values["scenario"] and not values["targets"]:
        values["targets"] = load(values["scenario"]).targets
    if values["allow_config"] and not values["targets"]:
        raise UsageError(
            "option --allow-config is for servers that are not ours: name them with --target"
        )
    plan = fsync_plan_of(values)
    disk = values["disk"]
    if disk is not None and not disk.is_dir():
        raise UsageError(f"option --disk: {disk} is not a folder")

    def servers() -> FsyncServers:
        if targets := values["targets"]:
            return UserServers(
                targets, {cell.policy for cell in plan.cells}, allow_config=values["allow_config"]
            )
        return OwnServers(find_server(values["server"]), disk)

    return carry_out("fsync", plan, values, partial(run_fsync, open_servers=servers))


def fsync_plan_of(values: Values) -> FsyncPlan:
    """Return the matrix the options ask for. Raises UsageError."""
    from bench.experiments.durability.price_plan import FsyncPlan

    quick = values["quick"]
    path = values["scenario"]
    scenario = load(path) if path else None
    seconds = values["seconds"] or (SCENARIO_SECONDS if path else SECONDS)
    if scenario and scenario.hold.ms > seconds * 1000:
        raise UsageError(
            f"{path}: a lock is held longer than a load of {seconds:g} s takes: longer --duration"
        )
    is_usual = not scenario and not any(values[name] for name in ("targets", *_LISTS[1:5]))
    if is_usual:
        cells, about = _usual_cells(values)
    else:
        cells = _product(values, scenario)
        about = ""
    if scenario:
        about = _taken(path, scenario)
    return FsyncPlan(
        cells=cells,
        repeats=values["repeats"] or (QUICK_REPEATS if quick or path else REPEATS),
        warmup_s=WARMUP_SHARE * seconds,
        seconds=seconds,
        seed=values["seed"],
        quick=quick,
        scenario=about,
    )


def _usual_cells(values: Values) -> tuple[tuple[FsyncCell, ...], str]:
    """What this machine can drive, and what is missing for that, in a sentence."""
    from bench.experiments.durability.price_plan import driven, full_cells, quick_cells

    quick = values["quick"]
    policies = values["policies"] or _POLICIES
    cores = len(os.sched_getaffinity(0))
    cells = tuple(
        cell for cell in (quick_cells if quick else full_cells)(cores) if cell.policy in policies
    )
    but = "" if quick else " but for callers that hold their locks for 50 ms"
    lacking = f"{cores} cores do not drive five servers to their maximum: N=5 is not measured{but}"
    return cells, "" if 5 in driven(cores) else lacking


def _taken(path: Path, scenario: Scenario) -> str:
    rate = (
        ""
        if scenario.rate_per_s is None
        else f", its rate of {scenario.rate_per_s:g}/s (the maximum is looked for)"
    )
    return (
        f"of {path.name} are taken users {scenario.users}, processes {scenario.processes}, hold "
        f"{delay_text(scenario.hold)} and the servers; not its resources (each caller "
        "has its own, so nobody "
        f"contends), TTL, think time and faults{rate}"
    )


def _product(values: Values, scenario: Scenario | None) -> tuple[FsyncCell, ...]:
    from bench.experiments.durability.price_plan import product_cells

    targets = values["targets"]
    (instances, clients, pipeline, delays) = (values[name] or () for name in _LISTS[1:5])
    if targets and (values["server"] or values["disk"]):
        raise UsageError(
            "options --server and --disk are for servers of our own: with --target leave them out"
        )
    if targets and any(delays):
        raise UsageError(
            "on servers that are not ours no fsync latency is added: leave --latency out"
        )
    if targets and max(instances, default=0) > len(targets):
        raise UsageError(
            f"option --instances: {max(instances)} is more than the {len(targets)} that "
            "--target names"
        )
    hold = delay_text(scenario.hold) if scenario else "0"
    shapes = [
        (count, callers, hold) for count in clients or (1, 16) for callers in pipeline or (1,)
    ]
    if scenario is not None and not clients and not pipeline:
        shapes = [(scenario.processes, max(1, round(scenario.users / scenario.processes)), hold)]
    if max(count * callers for count, callers, _ in shapes) > MOST_CALLERS:
        raise UsageError(f"clients × pipeline is more than {MOST_CALLERS:,} callers: ask for fewer")
    counts = instances or _usual_counts(values, scenario)
    usual = (0.0,) if targets or scenario else (0.0, 2.0)
    return tuple(product_cells(values["policies"] or _POLICIES, counts, shapes, delays or usual))


def _usual_counts(values: Values, scenario: Scenario | None) -> tuple[int, ...]:
    """The Ns that are measured when the options name none."""
    if values["targets"]:
        return (len(values["targets"]),)
    if scenario:
        return (scenario.instances,)
    return (1,) if values["quick"] else (1, 3)


def _ttl_ms(text: str) -> float:
    ttl_ms = parse_duration(text)
    if not LEAST_TTL_MS <= ttl_ms <= MOST_TTL_MS:
        raise ValueError(
            f"{text} is not between {LEAST_TTL_MS:g}ms and {MOST_TTL_MS / 3_600_000:g}h"
        )
    return ttl_ms


_TTL = Read("duration", _ttl_ms)


@click.command(cls=Grouped)
@click.option("--costs", "speed", metavar="RESULT", type=PLACE, help="what policies cost  [newest]")
@click.option("--crash", metavar="RESULT", type=PLACE, help="what they lose  [newest, if any]")
@click.option(
    "--ttl",
    "ttl_ms",
    metavar="DURATION",
    type=Read("duration", _ttl_ms),
    help="your longest TTL: what a wait costs",
)
@click.option("--html", metavar="FILE", type=PLACE, help="write the page with its pictures, too")
@file_options
@click.option(
    "--json", "as_json", is_flag=True, help="print the page as JSON on stdout, nothing else"
)
@click.option("--quiet", is_flag=True, help="print nothing")
def planner(**values: Any) -> int:
    """The planner's page: throughput and p99 of each fsync policy beside what a crash loses, and
    what to choose.

    Made from stored results of lockbench fsync and lockbench crash; nothing is measured. Both must
    say AS EXPECTED, and must be of one machine and one server. Exit code 4: nothing can be
    recommended yet.
    """
    from bench.experiments.durability.loss_result import CrashResult
    from bench.experiments.durability.planner import apart, judge_page, machine_text, plan_page
    from bench.experiments.durability.planner_words import planner_page, planner_sheet
    from bench.experiments.durability.price_result import FsyncResult
    from bench.experiments.durability.price_words import suite
    from bench.frame.showing import require_outputs, write_outputs
    from bench.measure.environment import describe_environment
    from bench.measure.section import builtins_of
    from bench.report.html.page import write_page
    from bench.report.sheet import print_sheet
    from bench.screen import console_on, say_json
    from lockcore.mask import masked_command

    require_outputs(values)
    result = _named_or_newest(values["speed"], "fsync", FsyncResult)
    crash = _named_or_newest(values["crash"], "crash", CrashResult)
    if result is None:
        raise EnvironmentNotReadyError(
            "there is no result of lockbench fsync in results/; measure one, or name it"
        )
    if crash is not None and (why := apart(result, crash)):
        raise UsageError(
            f"nothing can be planned: {why}; name two results that belong together "
            "(--costs, --crash)"
        )
    page = plan_page(result.rows, crash, values["ttl_ms"])
    result = msgspec.structs.replace(result, planner=page)
    named = (("fsync", result), ("crash", crash))
    sources = [f"{name} {one.id} of {one.started_at}" for name, one in named if one]
    sources.append(machine_text(result.environment, describe_environment()))
    sheet = planner_sheet(result, sources)
    if values["as_json"]:
        say_json(builtins_of(page))
    elif not values["quiet"]:
        print_sheet(sheet, console_on())
    write_outputs(values, sheet, suite(result))
    if values["html"]:
        write_page(
            planner_page(result, sources, shlex.join(["lockbench", *masked_command(sys.argv[1:])])),
            values["html"],
        )
    return int(judge_page(page).exit_code or 0)


def _named_or_newest(named: Path | None, kind: str, form: type[Found]) -> Found | None:
    """The result that the user named, else the newest of that kind in results/; None: there is
    none."""
    from bench.report.kinds import newest_result, result_of_kind

    return (
        result_of_kind(named, kind, form) if named else newest_result(Path("results"), kind, form)
    )
