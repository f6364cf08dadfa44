"""`lockbench crash`: *options → what each AOF policy loses, and who then gets a lock twice*."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from bench.errors import UsageError
from bench.frame.experiment import Several, carry_out, experiment_options
from bench.frame.options import Grouped, Read, Values
from bench.scenario.quantity import parse_duration

if TYPE_CHECKING:
    from bench.experiments.durability.loss_plan import CrashPlan

INSTANCES = (1, 3, 5)
LOCKS_PER_S = 240
SEED = 1
_POLICIES = ("none", "no", "everysec", "always")
_KINDS = ("shutdown", "kill", "kill-slow-fsync", "power-cut", "power-cut-torn")
# With more latency an acquire under `always` takes longer than its instance time-out allows.
MOST_LATENCY_MS = 200.0


def _latency_ms(text: str) -> float:
    latency_ms = parse_duration(text)
    if latency_ms > MOST_LATENCY_MS:
        raise ValueError(f"{text} is too slow: at most {MOST_LATENCY_MS:g}ms")
    return latency_ms


_LATENCY = Read("duration", _latency_ms)
_N = Several(click.IntRange(1, 9))
_EACH = Several(click.Choice(_POLICIES))
_ENDS = Several(click.Choice(_KINDS))
_TAKES = (
    "Servers are started on loopback and stopped; --quick takes less than 6 minutes on two cores."
)
_OFFERED = f"locks/s per fleet  [{LOCKS_PER_S}]"


@click.command(cls=Grouped, epilog=_TAKES)
@click.option("--instances", metavar="N,…", type=_N, help="fleets of so many servers  [1,3,5]")
@click.option(
    "--fsync", "policies", metavar="P,…", type=_EACH, help=f"only these: {', '.join(_POLICIES)}"
)
@click.option("--kind", "kinds", metavar="K,…", type=_ENDS, help=f"only these: {', '.join(_KINDS)}")
@click.option(
    "--repeats",
    "--cuts",
    "cuts",
    metavar="C",
    type=click.IntRange(1, 10_000),
    help="cuts per cell  [20]",
)
@click.option(
    "--rate", metavar="L", type=click.IntRange(20, 5000), default=LOCKS_PER_S, help=_OFFERED
)
@click.option(
    "--latency",
    "latency_ms",
    metavar="TIME",
    type=_LATENCY,
    default="0",
    help="added to every fsync  [0]",
)
@click.option("--quick", is_flag=True, help="N=3 in depth, the main crashes of the other N")
@experiment_options("crash", seed=SEED)
def crash(**values: Any) -> int:
    """What is lost at a crash, by AOF policy, kind of crash, restart and vote margin; who then gets
    a lock twice.

    \b
    kinds      clean SHUTDOWN, kill -9, kill -9 while fsync is slow, power cut,
               power cut with a torn tail
    restart    at once (trusted, or abstaining by the client), or delayed past
               the longest TTL

    A matrix that was cut goes on in its folder (--out). Exit code 5: what must be safe lost a lock
    or granted it twice; 4: an expected loss did not show.
    """
    from bench.experiments.durability.loss_experiment import run_crash

    return carry_out("crash", plan_of(values), values, run_crash)


def plan_of(values: Values) -> CrashPlan:
    """Return what the options ask for. Raises UsageError."""
    from bench.experiments.durability.loss_plan import CUTS, CrashPlan, full_crashes, quick_crashes

    quick = values["quick"]
    policies = values["policies"] or _POLICIES
    kinds = values["kinds"] or _KINDS
    every = (quick_crashes if quick else full_crashes)(sorted(values["instances"] or INSTANCES))
    crashes = tuple(crash for crash in every if crash.policy in policies and crash.kind in kinds)
    if not crashes:
        more = "; leave --quick out for more of them" if quick else ""
        raise UsageError(f"no crash has one of these policies and one of these kinds{more}")
    cuts = values["cuts"] or CUTS
    return CrashPlan(crashes, cuts, values["rate"], values["seed"], quick, values["latency_ms"])
