"""Carries out one of several short runs: *a scenario, running servers → the result of the run, or
the reason why the run cannot be used*.

The commands capacity, compare and gate make many short runs. This module starts each run and
decides whether its result can be used.

- An incomplete run is not a measurement. If Ctrl-C ended the run early, `run_short` raises
  KeyboardInterrupt.
- A run is torn if its load ended early because of another run in the same round.
- A run is broken if it is INVALID although its generator is VALID.
- A run is disturbed if its generator was INVALID, or if its generator was late in an open loop. If
  a disturbed run is repeated, the new run may succeed.
- A stored run can be used if its verdict word is SAFE or VIOLATED. A violation is certain, so the
  verdict word VIOLATED is a usable answer. A run with the verdict word NOT TESTED can be used only
  if all other runs are also NOT TESTED.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bench.errors import BenchError, InconclusiveError, UsageError
from bench.measure.run_result import RunResult
from bench.measure.verdict import NOT_TESTED, SAFE, VIOLATED
from bench.measure.workers import IN_DOUBT
from bench.run.follower import Show
from bench.run.interrupt import Interrupts
from bench.run.run import Order, run_on
from bench.run.servers import Servers
from bench.workloads.launch import LocustSeries

# A refusal names at most this many runs.
MOST_NAMED = 3


class TornError(BenchError):
    """This error means that the load of a run ended early."""


def run_short(
    servers: Servers,
    order: Order,
    interrupts: Interrupts,
    look: Show | None = None,
    *,
    series: LocustSeries | None = None,
    environ: Mapping[str, str] = os.environ,
) -> RunResult:
    """Run `order` on running servers, as one of several runs.

    `look`: a function that is called once a second with the progress of the run. The parameters
    `series` and `environ` have the same meaning as in `run_on`.

    Raises KeyboardInterrupt, TornError, and the errors of `run_on`.
    """
    one_of_many = replace(order, more=True)
    done = run_on(servers, one_of_many, interrupts, look, environ=environ, series=series)
    result = done.result
    if interrupts.count:
        raise KeyboardInterrupt
    if order.ring and (
        result.interrupted or result.duration_s * 1000 < result.scenario.duration_ms - 1
    ):
        raise TornError(f"the load of one side ended early: {'; '.join(result.verdict.reasons)}")
    if result.interrupted:
        raise KeyboardInterrupt
    return result


def require_whole(result: RunResult) -> None:
    """Raise InconclusiveError if `result` belongs to a broken run.

    A repetition of a broken run does not help, because the new run would also be broken.
    """
    if result.verdict.status == "invalid" and result.generator.verdict == "VALID":
        raise InconclusiveError(f"a probe ended early: {result.verdict.reasons[0]}")


def is_disturbed(result: RunResult) -> bool:
    """Return True if the actual load of a run differed from the requested load.

    If the result is True, it is useful to repeat the run.
    """
    is_late = result.rate.offered_per_s is not None and result.generator.verdict in IN_DOUBT
    return result.verdict.status == "invalid" or is_late


def require_earned(
    command: str, series: Sequence[Sequence[RunResult]], labels: Sequence[str]
) -> None:
    """Raise UsageError if the verdict word of a run shows that its figures cannot be used.

    A lock that sends no commands is fast, but its runs have the verdict word NOT TESTED. If all
    runs are NOT TESTED, the function accepts them, because the load may have no contention. If only
    some runs are NOT TESTED, the function refuses them.
    """
    runs = [
        (label, result) for results, label in zip(series, labels, strict=True) for result in results
    ]
    usable = {SAFE.text, VIOLATED.text}
    if all(result.verdict.word == NOT_TESTED.text for _, result in runs):
        usable.add(NOT_TESTED.text)
    wrong = [
        f"{label}, run {result.id}: {result.verdict.word}{_why(result)}"
        for label, result in runs
        if result.verdict.word not in usable
    ]
    if wrong:
        more = f"; and {len(wrong) - MOST_NAMED} other runs" if len(wrong) > MOST_NAMED else ""
        raise UsageError(
            f"lockbench {command} needs runs that are SAFE or VIOLATED, or runs that are all NOT "
            f"TESTED. {len(wrong)} of {len(runs)} runs have another verdict: "
            f"{'; '.join(wrong[:MOST_NAMED])}{more}; leave these runs out, or make them again"
        )


def _why(result: RunResult) -> str:
    """Return a text in brackets with the first reason for the verdict word of a run."""
    reason = next(iter(result.verdict.reasons), result.safety.reason)
    return f" ({reason})" if reason else ""
