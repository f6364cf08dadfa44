"""Defines three commands. `lockbench fsync` measures the price of each fsync policy. `lockbench
crash` measures the losses under each policy. `lockbench planner` shows the prices and the losses on
one page, and recommends a policy.

A command refuses wrong options before it starts any server. The command first prints how long the
measurement will take. The command writes its progress to stderr and its tables to stdout. With
--json it writes only the result to stdout.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.experiments.durability.policies import (
    AOF_POLICIES,
    KINDS,
    POLICIES,
    AofPolicy,
    CrashKind,
    Policy,
)
from bench.frame.experiment import Several, experiment_options, measured
from bench.frame.options import (
    PLACE,
    Grouped,
    Options,
    Read,
    ScenarioPlace,
    ending,
    environment_targets,
    file_options,
)
from bench.frame.outputs import Outputs
from bench.scenario import Scenario, load
from bench.scenario.quantity import delay_text, parse_duration, parse_target

if TYPE_CHECKING:
    from bench.experiments.durability.loss_plan import CrashPlan
    from bench.experiments.durability.loss_result import CrashResult
    from bench.experiments.durability.price_plan import FsyncPlan
    from bench.experiments.durability.price_result import FsyncCell, FsyncResult
    from bench.measure.result import Document
    from bench.report.answer import Answer
    from bench.run.experiment import Done

Stored = TypeVar("Stored", bound="Document")

# Fewer pairs give no 95 % interval (Wilcoxon).
REPEATS = 6
QUICK_REPEATS = 8
SECONDS = 0.5
SCENARIO_SECONDS = 2.0
WARMUP_SHARE = 0.3
SEED = 1
MOST_CALLERS = 65_536
CRASHED_INSTANCES = (1, 3, 5)
LOCKS_PER_S = 240


def _duration(least: str, most: str) -> Read:
    """Return a parser for a duration (ms) between these limits. The parser also accepts the text
    `raw`, which means no added delay."""
    least_ms = parse_duration(least)
    most_ms = parse_duration(most)

    def read(text: str) -> float:
        ms = 0.0 if text == "raw" else parse_duration(text)
        if not least_ms <= ms <= most_ms:
            raise ValueError(f"{text} is not between {least} and {most}")
        return ms

    return Read("duration", read)


_CALLERS = Several(click.IntRange(1, MOST_CALLERS))
_OFTEN = (
    f"number of time slices for each policy  [{REPEATS}; with --quick or a scenario "
    f"{QUICK_REPEATS}]"
)
_LONG = f"duration of each load  [{SECONDS:g}s; with a scenario {SCENARIO_SECONDS:g}s]"
_CALLING = "concurrent callers, each with a connection to every instance  [1,16]"
_HELD = "measure only two loads: 1 caller, and 16 callers that hold a lock for 5 ms"


@dataclass(frozen=True, slots=True)
class FsyncOptions(Options):
    """The options of `lockbench fsync`. If an option is None, its default applies. `latency` holds
    the delays (ms) that lockbench adds to each fsync. `load_ms` is the duration of each load.
    `targets` are the user's servers. Servers that lockbench starts store their files in the folder
    `disk`."""

    scenario: Path | None
    policies: Sequence[Policy] | None
    instances: Sequence[int] | None
    clients: Sequence[int] | None
    pipeline: Sequence[int] | None
    latency: Sequence[float] | None
    repeats: int | None
    load_ms: float | None
    quick: bool
    targets: Sequence[str]
    allow_config: bool
    disk: Path | None
    seed: int
    server: str | None

    @property
    def has_shape(self) -> bool:
        """True if an option of the user sets the servers, the callers or the disks."""
        return any((self.targets, self.instances, self.clients, self.pipeline, self.latency))


@click.argument("scenario", required=False, type=ScenarioPlace())
@click.option(
    "--fsync",
    "policies",
    metavar="P,…",
    type=Several(click.Choice(POLICIES)),
    help=f"{', '.join(POLICIES)}  [all]",
)
@click.option(
    "--instances",
    metavar="N,…",
    type=Several(click.IntRange(1, 15)),
    help="number of servers  [1,3; with --target: all targets]",
)
@click.option("--users", "--clients", "clients", metavar="C,…", type=_CALLERS, help=_CALLING)
@click.option(
    "--pipeline", metavar="P,…", type=_CALLERS, help="callers that share each connection  [1]"
)
@click.option(
    "--latency",
    metavar="TIME,…",
    type=Several(_duration("0", "1s")),
    help="delay that lockbench adds to every fsync; raw means no delay  [raw,2ms]",
)
@click.option("--repeats", metavar="R", type=click.IntRange(1, 100), help=_OFTEN)
@click.option(
    "--duration", "load_ms", metavar="DURATION", type=_duration("200ms", "10m"), help=_LONG
)
@click.option("--quick", is_flag=True, help=_HELD)
@click.option(
    "--target",
    "targets",
    metavar="URL",
    type=Read("URL", parse_target),
    multiple=True,
    help="address of your own server; lockbench then starts no servers (repeatable)",
)
@click.option(
    "--allow-config",
    is_flag=True,
    help="allow CONFIG SET appendfsync on your servers; the old value is restored",
)
@click.option(
    "--disk",
    metavar="DIR",
    type=PLACE,
    help="the folder for the files of started servers  [TMPDIR]",
)
@experiment_options("fsync", seed=SEED)
def fsync(outputs: Outputs, **values: object) -> Done[FsyncResult]:
    """Measure what each AOF fsync policy costs in rate and latency, for different callers, disks
    and numbers of instances.

    With SCENARIO the command measures your callers, hold time, instances or targets under every
    policy. With SCENARIO, lockbench adds no disk delay by default. Without SCENARIO the command
    measures a matrix of callers, disks and numbers of instances. The command measures the policies
    alternately on the same servers. To continue an interrupted matrix, give its folder as --out.
    Exit code 4 means that the measurement did not show an expected difference.
    """
    from bench.experiments.durability.price_experiment import run_fsync
    from bench.experiments.durability.servers import FsyncServers, OwnServers, UserServers
    from bench.topology.server import find_server

    options = FsyncOptions.of(values)
    disk = options.disk
    targets = options.targets
    if not targets and not options.server and not disk:
        targets = environment_targets(quiet=outputs.quiet)
    if options.scenario and not targets:
        targets = load(options.scenario).targets
    if options.allow_config and not targets:
        raise UsageError(
            "option --allow-config is only for your own servers; name your servers with --target"
        )
    plan = fsync_plan_of(replace(options, targets=targets))
    if disk is not None and not disk.is_dir():
        raise UsageError(f"option --disk: {disk} is not a folder")

    def servers() -> FsyncServers:
        if not targets:
            return OwnServers(find_server(options.server), disk)
        policies = {cell.policy for cell in plan.cells}
        return UserServers(targets, policies, allow_config=options.allow_config)

    return measured(
        "fsync",
        plan,
        outputs,
        partial(run_fsync, open_servers=servers),
        server=options.server,
        goes_on=True,
    )


def fsync_plan_of(options: FsyncOptions) -> FsyncPlan:
    """Return the plan of the matrix that the user's options describe. Raises UsageError."""
    from bench.experiments.durability.price_plan import FsyncPlan, driven, full_cells, quick_cells

    quick = options.quick
    path = options.scenario
    scenario = load(path) if path else None
    seconds = SCENARIO_SECONDS if path else SECONDS
    if options.load_ms:
        seconds = options.load_ms / 1000
    if scenario and scenario.hold.ms > seconds * 1000:
        raise UsageError(
            f"{path}: the hold time of a lock is longer than a load of {seconds:g} s; use a "
            "longer --duration"
        )
    policies = options.policies or POLICIES
    about = ""
    if scenario or options.has_shape:
        cells = _product(options, policies, scenario)
    else:
        cores = len(os.sched_getaffinity(0))
        cells = (quick_cells if quick else full_cells)(cores)
        if 5 not in driven(cores):
            extent = "not measured"
            if not quick:
                extent = "measured only with callers that hold their locks for 50 ms"
            about = f"{cores} cores cannot drive five servers to their maximum, so N=5 is {extent}"
    if path and scenario:
        about = _taken(path, scenario)
    return FsyncPlan(
        cells=tuple(cell for cell in cells if cell.policy in policies),
        repeats=options.repeats or (QUICK_REPEATS if quick or path else REPEATS),
        warmup_s=WARMUP_SHARE * seconds,
        seconds=seconds,
        seed=options.seed,
        quick=quick,
        scenario=about,
    )


def _taken(path: Path, scenario: Scenario) -> str:
    rate = ""
    if scenario.rate_per_s is not None:
        rate = (
            f". The rate of {scenario.rate_per_s:g}/s is also ignored, because lockbench "
            "measures the maximum rate"
        )
    return (
        f"lockbench uses these settings of {path.name}: {scenario.users} users, "
        f"{scenario.processes} processes, a hold time of {delay_text(scenario.hold)}, and the "
        "servers. lockbench ignores the file's resources, because each caller has its own "
        f"resource here. lockbench also ignores the file's TTL, think time and faults{rate}"
    )


def _product(
    options: FsyncOptions, policies: Sequence[Policy], scenario: Scenario | None
) -> list[FsyncCell]:
    from bench.experiments.durability.price_plan import product_cells

    targets = options.targets
    if targets and (options.server or options.disk):
        raise UsageError(
            "options --server and --disk are only for servers that lockbench starts; with "
            "--target, leave out these options"
        )
    if targets and any(options.latency or ()):
        raise UsageError(
            "option --latency: fsync latency can only be added on servers that lockbench starts; "
            "leave the option out"
        )
    usual_counts = [1] if options.quick else [1, 3]
    usual_clients = [1, 16]
    usual_pipeline = [1]
    usual_ms = [0.0, 2.0]
    hold = "0"
    if scenario:
        hold = delay_text(scenario.hold)
        usual_counts = [scenario.instances]
        if not options.clients and not options.pipeline:
            usual_clients = [scenario.processes]
            usual_pipeline = [max(1, round(scenario.users / scenario.processes))]
    if targets or scenario:
        usual_ms = [0.0]
    instances = options.instances or usual_counts
    if targets:
        instances = options.instances or [len(targets)]
        if max(instances) > len(targets):
            raise UsageError(
                f"option --instances: {max(instances)} is more than {len(targets)}, the number of "
                "servers that --target names"
            )
    shapes = [
        (count, callers, hold)
        for count in options.clients or usual_clients
        for callers in options.pipeline or usual_pipeline
    ]
    if max(count * callers for count, callers, _ in shapes) > MOST_CALLERS:
        raise UsageError(
            f"clients × pipeline is more than {MOST_CALLERS:,} callers: use fewer clients, or "
            "less pipelining"
        )
    return product_cells(policies, instances, shapes, options.latency or usual_ms)


@dataclass(frozen=True, slots=True)
class CrashOptions(Options):
    """The options of `lockbench crash`. If an option is None, its default applies. The experiment
    makes `cuts` crashes per group. `rate` is the load on each fleet in locks/s."""

    instances: Sequence[int] | None = None
    policies: Sequence[AofPolicy] | None = None
    kinds: Sequence[CrashKind] | None = None
    cuts: int | None = None
    rate: int = LOCKS_PER_S
    latency_ms: float = 0.0
    quick: bool = False
    seed: int = SEED
    server: str | None = None


@click.option(
    "--instances",
    metavar="N,…",
    type=Several(click.IntRange(1, 9)),
    help="numbers of servers in the fleets  [1,3,5]",
)
@click.option(
    "--fsync",
    "policies",
    metavar="P,…",
    type=Several(click.Choice(AOF_POLICIES)),
    help=f"only these policies: {', '.join(AOF_POLICIES)}",
)
@click.option(
    "--kind",
    "kinds",
    metavar="K,…",
    type=Several(click.Choice(tuple(KINDS))),
    help=f"only these crashes: {', '.join(KINDS)}",
)
@click.option(
    "--repeats",
    "--cuts",
    "cuts",
    metavar="C",
    type=click.IntRange(1, 10_000),
    help="crashes per cell  [20]",
)
@click.option(
    "--rate",
    metavar="L",
    type=click.IntRange(20, 5000),
    default=LOCKS_PER_S,
    help=f"locks per second in each fleet  [{LOCKS_PER_S}]",
)
@click.option(
    "--latency",
    "latency_ms",
    metavar="TIME",
    # If the delay were longer, an acquire under `always` would take longer than its instance
    # time-out.
    type=_duration("0", "200ms"),
    default="raw",
    help="time added to every fsync; raw means no added time  [raw]",
)
@click.option(
    "--quick",
    is_flag=True,
    help="make all crashes with N=3, but only the main crashes with every other N",
)
@experiment_options("crash", seed=SEED)
def crash(outputs: Outputs, **values: object) -> Done[CrashResult]:
    """Crash servers, and count the acknowledged locks that are lost and the locks that are then
    granted twice.

    \b
    kinds      clean SHUTDOWN, kill -9, kill -9 while fsync is slow, power cut,
               power cut with a torn tail
    restart    at once (trusted, or abstaining by the client), or delayed past
               the longest TTL

    To continue an interrupted matrix, give its folder as --out. Exit code 5 means that a lock was
    lost or granted twice under a policy that must be safe. Exit code 4 means that the crashes did
    not show an expected loss.
    """
    from bench.experiments.durability.loss_experiment import run_crash

    options = CrashOptions.of(values)
    plan = crash_plan_of(options)
    return measured("crash", plan, outputs, run_crash, server=options.server, goes_on=True)


def crash_plan_of(options: CrashOptions) -> CrashPlan:
    """Return the plan of the crashes that the user's options describe. Raises UsageError."""
    from bench.experiments.durability.loss_plan import CUTS, CrashPlan, full_crashes, quick_crashes

    policies = options.policies or POLICIES
    kinds = options.kinds or KINDS
    instances = sorted(options.instances or CRASHED_INSTANCES)
    every = (quick_crashes if options.quick else full_crashes)(instances)
    crashes = tuple(one for one in every if one.policy in policies and one.kind in kinds)
    if not crashes:
        more = "; without --quick there are more combinations" if options.quick else ""
        raise UsageError(
            f"no crash of lockbench combines one of these policies and one of these kinds{more}"
        )
    cuts = options.cuts or CUTS
    return CrashPlan(crashes, cuts, options.rate, options.seed, options.quick, options.latency_ms)


@click.command(
    cls=Grouped,
    epilog=ending(
        "lockbench planner", "lockbench planner --costs results/fsync --crash results/crash"
    ),
)
@click.option(
    "--costs",
    "speed",
    metavar="RESULT",
    type=PLACE,
    help="a result of `lockbench fsync`  [newest]",
)
@click.option(
    "--crash",
    metavar="RESULT",
    type=PLACE,
    help="a result of `lockbench crash`  [newest, if any]",
)
@click.option(
    "--ttl",
    "ttl_ms",
    metavar="DURATION",
    type=_duration("1ms", "24h"),
    help="your longest TTL; restarted servers must wait for it",
)
@click.option(
    "--html", metavar="FILE", type=PLACE, help="also write the planner's page with its pictures"
)
@file_options
@click.option(
    "--json", "as_json", is_flag=True, help="print only the planner's page, as JSON on stdout"
)
@click.option("--quiet", is_flag=True, help="print nothing")
def planner(
    speed: Path | None,
    crash: Path | None,
    ttl_ms: float | None,
    html: Path | None,
    **values: object,
) -> int:
    """Recommend an fsync policy from stored results. The page shows the price of each policy next
    to its losses in a crash.

    The planner reads stored results of `lockbench fsync` and `lockbench crash` and measures
    nothing. Both stored results must have the verdict AS EXPECTED. Both stored results must come
    from the same machine and the same server version. Exit code 4 means that the planner cannot
    recommend a policy yet.
    """
    from msgspec.structs import replace

    from bench.experiments.durability.answers import LOSSES, PRICES
    from bench.experiments.durability.planner import apart, judge_page, machine_text, plan_page
    from bench.experiments.durability.planner_words import planner_page, planner_sheet
    from bench.experiments.durability.price_words import suite
    from bench.frame.showing import require_outputs, write_outputs
    from bench.measure.environment import describe_environment
    from bench.measure.section import builtins_of
    from bench.report.html.page import write_page
    from bench.report.sheet import print_sheet
    from bench.screen import console_on, say_json
    from lockcore.bench import masked_command

    outputs = Outputs.taken_from(values)
    require_outputs(outputs)
    result = _named_or_newest(speed, PRICES)
    losses = _named_or_newest(crash, LOSSES)
    if result is None:
        raise EnvironmentNotReadyError(
            "results/ has no result of lockbench fsync; run lockbench fsync, or name a result "
            "with --costs"
        )
    if losses is not None and (why := apart(result, losses)):
        raise UsageError(
            f"no plan is possible: {why}; name two results that belong together (--costs, --crash)"
        )
    page = plan_page(result.rows, losses, ttl_ms)
    result = replace(result, planner=page)
    named = (("fsync", result), ("crash", losses))
    sources = [f"{name} {one.id} of {one.started_at}" for name, one in named if one]
    sources.append(machine_text(result.environment, describe_environment()))
    sheet = planner_sheet(result, sources)
    if outputs.as_json:
        say_json(builtins_of(page))
    elif not outputs.quiet:
        print_sheet(sheet, console_on())
    write_outputs(outputs, sheet, suite(result))
    if html:
        repeat = shlex.join(["lockbench", *masked_command(sys.argv[1:])])
        write_page(planner_page(result, sources, repeat), html)
    return int(judge_page(page).exit_code or 0)


def _named_or_newest(named: Path | None, answer: Answer[Stored]) -> Stored | None:
    """Return the result in the file `named`. If `named` is None, return the newest result of this
    kind in results/. Return None if results/ contains no result of this kind."""
    return answer.read_file(named) if named else answer.newest(Path("results"))
