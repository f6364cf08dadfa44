"""Runs in turn, so that what changes on the machine changes for all: *sides → rounds of short runs, two per side*.

Rules
- A round runs every side there and back: in random order, then in the reverse (ABBA or BAAB), all with one seed. A
  side's value is the geometric mean of its two runs.
- Sides whose servers are alike share one fleet for the whole time. Where a scenario has faults every run gets servers
  of its own, as a fault may outlive it; and what the faults of one side need (proxies, the shim) is put under the
  servers of all, so that only the fault differs.
- A round with an INVALID run is repeated, at most one round in two. So is one of an open loop whose timer was late: the
  same delay on both sides hides what differs between them.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import geometric_mean

from msgspec import structs

from bench.errors import BenchError
from bench.experiments.compare.judge import is_late
from bench.experiments.compare.result import ComparedRun, RunSafety
from bench.gates.threshold import Metric, find_metric, finite
from bench.measure.run_result import RunResult
from bench.recipes.registry import find_recipe
from bench.run.experiment import Show
from bench.run.interrupt import Interrupts
from bench.run.run import Order, run_on
from bench.run.servers import Servers, open_servers
from bench.scenario import Scenario
from bench.topology.faults.kinds import read_faults

RECORDED = (
    *("rate", "acquire.success", "acquire.count", "acquire.mean", "acquire.p50", "acquire.p90", "acquire.p99"),
    *("acquire.p999", "acquire.max", "release.p50", "release.p99", "handoff.p50", "handoff.p99"),
    *("cost.commands_per_acquire", "cost.round_trips_per_acquire", "cost.bytes_per_acquire"),
    *("cost.client_cpu_us_per_cycle", "cost.server_cpu_us_per_cycle"),
)
REPEATED_SHARE = 2
_HERE = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the things compared. `python_path`: folders that its load processes look for packages in first."""

    label: str
    scenario: Scenario
    python_path: tuple[str, ...] = ()

    def environ(self) -> dict[str, str]:
        """The environment of its load processes; the bench in it is the one that runs, wherever it is started."""
        before = [part for part in (os.environ.get("PYTHONPATH", ""),) if part]
        return {**os.environ, "PYTHONPATH": os.pathsep.join([*self.python_path, *before, str(_HERE)])}


@dataclass(frozen=True, slots=True)
class PairsOrder:
    """What to run: `pairs` rounds of `sides`, the order within each drawn from `seed`."""

    sides: Sequence[Side]
    pairs: int
    seed: int
    server: str | None = None
    allow_missing: bool = False
    allow_skipped: bool = False


@dataclass(slots=True)
class Rounds:
    """What was run. `runs`: one entry per run of a finished round; `results`: one of each side, to describe it.

    `repeated`: rounds that were thrown away as a run was INVALID; `stopped`: why the rest was not run.
    """

    runs: list[ComparedRun]
    results: dict[int, RunResult]
    repeated: int = 0
    stopped: str = ""
    interrupted: bool = False
    paired: bool = True

    @property
    def finished(self) -> int:
        """How many rounds there are."""
        return len({run.pair for run in self.runs})

    def values(self, side: int, metric: Metric) -> list[float | None]:
        """One figure of a side, round by round: the geometric mean over its runs, None if one has no value."""
        rounds: dict[int, list[float | None]] = {}
        for run in self.runs:
            if run.side == side:
                rounds.setdefault(run.pair, []).append(run.figures.get(metric.name))
        return [_middle(found) for found in rounds.values()]


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return geometric_mean(known) if all(known) else 0.0


def run_pairs(order: PairsOrder, say: Show) -> Rounds:
    """Run all rounds and return them. Raises BenchError when the first round cannot be run, and KeyboardInterrupt when
    it was cut short before its end."""
    done = Rounds([], {})
    allowed = max(1, order.pairs // REPEATED_SHARE)
    draw, began_s = random.Random(order.seed), time.monotonic()
    with Interrupts() as interrupts, contextlib.ExitStack() as stack:
        fleets = _Fleets(order, stack)
        while done.finished < order.pairs:
            number = done.finished
            there = draw.sample(range(len(order.sides)), len(order.sides))
            left_s = (time.monotonic() - began_s) * (order.pairs / number - 1) if number else None
            say(f"pair {number + 1} of {order.pairs}" + ("" if left_s is None else f": about {left_s:.0f} s left"))
            try:
                runs = [_run(fleets, side, number, interrupts, done.results) for side in (*there, *reversed(there))]
            except (BenchError, KeyboardInterrupt) as error:
                if not done.runs:
                    raise
                done.interrupted = isinstance(error, KeyboardInterrupt)
                done.stopped = "" if done.interrupted else str(error)
                break
            if any(run.status == "invalid" or is_late(run) for run in runs) and done.repeated < allowed:
                done.repeated += 1
                continue
            done.runs += [structs.replace(run, position=place) for place, run in enumerate(runs)]
    return done


def _run(
    fleets: _Fleets, index: int, number: int, interrupts: Interrupts, results: dict[int, RunResult]
) -> ComparedRun:
    """Run one side once. Raises KeyboardInterrupt when it was cut short: half a run is no measurement."""
    order, side = fleets.order, fleets.order.sides[index]
    scenario = replace(side.scenario, seed=order.seed + number)
    run = Order(scenario, secrets.token_hex(4), (), None, order.server, order.allow_missing, order.allow_skipped)
    with fleets.of(index, interrupts) as servers:
        finished = run_on(servers, run, interrupts, lambda _progress: None, environ=side.environ())
    if interrupts.count:
        raise KeyboardInterrupt
    results[index] = finished.result
    return entry_of(finished.result, index, number)


def entry_of(result: RunResult, side: int, number: int) -> ComparedRun:
    """Return what a comparison keeps of a run, but for its `position` in the round."""
    return ComparedRun(
        side=side,
        pair=number,
        id=result.id,
        started_at=result.started_at,
        status=result.verdict.status,
        reasons=result.verdict.reasons,
        generator_cpu_ratio=result.generator.cpu_ratio,
        generator=None if result.rate.offered_per_s is None else result.generator.verdict,
        safety=RunSafety(
            verdict=result.safety.verdict,
            service_faults=result.safety.service_faults,
            contested_leases=result.safety.contested_leases,
            tested_leases=result.safety.tested_leases,
        ),
        figures={metric.name: finite(metric.value(result)) for metric in map(find_metric, RECORDED)},
        thresholds=result.thresholds,
    )


class _Fleets:
    """The servers of the sides: shared for the whole time where that is possible."""

    def __init__(self, order: PairsOrder, stack: contextlib.ExitStack) -> None:
        self.order = order
        self._stack = stack
        self._fresh = any(side.scenario.faults for side in order.sides)
        self._open: dict[tuple[object, ...], Servers] = {}

    @contextlib.contextmanager
    def of(self, index: int, interrupts: Interrupts) -> Iterator[Servers]:
        """The servers for a run of this side."""
        if interrupts.count:
            raise KeyboardInterrupt
        scenario = self.order.sides[index].scenario
        if self._fresh:
            with self._opened(scenario) as servers:
                yield servers
            return
        replicated = find_recipe(scenario.recipe).about.replicated
        key = scenario.targets, scenario.instances, scenario.fsync, replicated
        if key not in self._open:
            self._open[key] = self._stack.enter_context(self._opened(scenario))
        yield self._open[key]

    def _opened(self, scenario: Scenario) -> contextlib.AbstractContextManager[Servers]:
        order = self.order
        faults = [
            fault
            for side in order.sides  # of all of them: if one stands behind proxies the others do, too
            for fault in read_faults(side.scenario.faults, seed=scenario.seed, duration_ms=side.scenario.duration_ms)
        ]
        return open_servers(scenario, server=order.server, allow_missing=order.allow_missing, faults=faults)
