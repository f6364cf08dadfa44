"""`lockbench crash`: *options → what each AOF policy loses, and who then gets a lock twice*.

Rules: what is wrong in the options is refused before anything starts; progress goes to stderr, stdout holds the tables,
or with --json the result and nothing else. A matrix that was cut short goes on where it stopped: --resume, or the same
--out with the same options. Source: README's command table.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from bench.cli.experiment import carry_out, each, experiment_options, resumed
from bench.errors import UsageError

if TYPE_CHECKING:
    from bench.experiments.crash.plan import CrashPlan

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
@experiment_options("crash", seed=SEED, resumes=True)
def crash(**values: Any) -> int:
    """What is lost at a crash, by AOF policy, kind of crash, restart and vote margin; who then gets a lock twice.

    \b
    policies   none, no, everysec, always
    kinds      clean SHUTDOWN, kill -9, kill -9 while fsync is slow, power cut, power cut with a torn tail
    restart    at once (trusted, or abstaining by the client), or delayed past the longest TTL

    Exit code 5: what must be safe lost a lock or granted it twice; 4: an expected loss did not show.
    """
    from bench.experiments.crash.experiment import run_crash

    return carry_out("crash", plan_of(values), values, run_crash)


def plan_of(values: dict[str, Any]) -> CrashPlan:
    """Return what the options ask for, or with --resume alone what was begun there. Raises UsageError."""
    from bench.experiments.crash.plan import FULL_CUTS, QUICK_CUTS, CrashPlan, full_crashes, quick_crashes
    from bench.experiments.crash.result import KINDS, POLICIES

    fleets = values["fleets"] or min(FLEETS_PER_CORE * len(os.sched_getaffinity(0)), MOST_FLEETS)
    if begun := resumed(values, _USUAL, lambda plan: CrashPlan.from_json(plan, fleets)):
        return begun
    instances = tuple(sorted(each("instances", values["instances"], _count)))
    quick = values["quick"]
    policies = each("policy", values["policies"], _one_of(POLICIES)) or POLICIES
    kinds = each("kind", values["kinds"], _one_of(KINDS)) or KINDS
    every = (quick_crashes if quick else full_crashes)(instances)
    crashes = tuple(crash for crash in every if crash.policy in policies and crash.kind in kinds)
    if not crashes:
        more = "; leave --quick out for more of them" if quick else ""
        raise UsageError(f"no crash has one of these policies and one of these kinds{more}")
    cuts = values["cuts"] or (QUICK_CUTS if quick else FULL_CUTS)
    return CrashPlan(crashes, cuts, values["rate"], fleets, values["seed"], quick)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_INSTANCES:
        raise ValueError(f"{text!r} is no number of servers, 1 to {MOST_INSTANCES} (write them like 1,3,5)")
    return int(text)


def _one_of(names: Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"{text!r} is none of {', '.join(names)}")
        return text

    return parse
