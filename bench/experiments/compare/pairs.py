"""Interleaves runs, so that changes of the machine affect all sides: *sides → rounds of short
runs*.

Rules, in addition to the README: the order of the sides and the assignment of the equal fleets are
random. All sides of a round have the same seed. If the faults of one side need proxies or the shim,
the servers of all sides get proxies or the shim. So the sides differ only in their faults. An
open-loop round with a late timer is repeated, because the same delay on both sides hides their
difference.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from msgspec import structs

from bench.errors import BenchError
from bench.experiments.compare.judge import values_of
from bench.experiments.compare.result import ComparedRun, Kind, RunSafety
from bench.gates.threshold import Metric, finite, shown_at
from bench.measure.run_result import RunResult
from bench.recipes.registry import find_recipe
from bench.run.experiment import ExperimentOrder, Show
from bench.run.interrupt import Interrupts
from bench.run.run import Order
from bench.run.servers import Servers, open_servers
from bench.run.short import TornError, is_disturbed, run_short
from bench.scenario import Scenario
from bench.telemetry.settings import is_wanted
from bench.topology.faults.kinds import read_faults
from bench.topology.servants import Guard
from bench.workloads.launch import LocustSeries
from bench.workloads.plan import Ring

# A hold or a rest up to this length ends well within a time slice.
SHORT_MS = 10.0
LOOK_S = 0.1
UNKNOWN = "not known"
_DESCRIBE = (
    "import json; from bench.measure.environment import describe_environment; found = "
    "describe_environment(); "
    "print(json.dumps({'lockcore': found.lockcore, 'packages': found.packages}))"
)
# After this many runs, a new load process replaces the old one. Otherwise the random memory layout
# of one process would affect all pairs of a gate.
RUNS = 12
HERE = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison.

    `python_path`: the folders in which the side's processes first search for packages. `is_noise`:
    this side is a second run of the first side (A/A).
    """

    label: str
    scenario: Scenario
    python_path: tuple[str, ...] = ()
    is_noise: bool = False

    def described(self, run: RunResult) -> RunResult:
        """Return the run with this side's form of lockcore and this side's packages. `run` has the
        data of this leading process, so the function asks a fresh interpreter of the side. A side
        without `python_path` has the same data as this process."""
        if not self.python_path:
            return run
        process = subprocess.run(
            [sys.executable, "-c", _DESCRIBE],
            env=self.environ(),
            cwd=os.sep,
            capture_output=True,
            text=True,
            check=False,
        )
        brought = {"lockcore": UNKNOWN}
        with contextlib.suppress(ValueError):
            brought = json.loads(process.stdout)
        return structs.replace(run, environment=structs.replace(run.environment, **brought))

    def environ(self) -> dict[str, str]:
        """Return the environment of the side's load processes. These processes use the bench that
        runs now, whatever folder they start in."""
        path = filter(None, [*self.python_path, os.environ.get("PYTHONPATH", ""), str(HERE)])
        return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The plan of a comparison. Every side is compared with the first of `sides`. `judged` are the
    figures that decide the verdict. There are at most `pairs` rounds. `looks` says after how many
    rounds a gate may stop. `cpu_share` is the share of the tolerance that CPU gets. `bind` is the
    address where other hosts join."""

    kind: Kind
    sides: Sequence[Side]
    judged: Sequence[Metric]
    shown: Sequence[Metric]
    tolerance: float
    seed: int
    pairs: int
    looks: Sequence[int] = ()
    cpu_share: float = 1.0
    allow_missing: bool = False
    allow_skipped: bool = False
    bind: tuple[str, int] | None = None


CompareOrder = ExperimentOrder[Comparison]


@dataclass(slots=True)
class Rounds:
    """The finished rounds. `runs` has one entry per run. `results` has one result per side, which
    describes the side. `repeated` says how many rounds were discarded because a run was INVALID.
    `stopped` is the reason why the other rounds were not run."""

    runs: list[ComparedRun]
    results: dict[int, RunResult]
    repeated: int = 0
    stopped: str = ""
    interrupted: bool = False
    paired: bool = True

    @property
    def finished(self) -> int:
        """The number of finished rounds."""
        return len({run.pair for run in self.runs})

    def values(self, side: int, metric: Metric) -> list[float | None]:
        """Return one figure of a side, with one value per round. A value is the geometric mean over
        the round's runs, or None if one run has no value."""
        return values_of(self.runs, side, metric)


def take_turns(plan: Comparison) -> bool:
    """Return whether all sides can run at once and alternate in time slices. lockbench must start
    the servers, each side must have one load process, and there must be no other hosts and no
    telemetry. The load must be a closed loop without faults, because a schedule or a fault would
    continue while a side waits. Operations must end well within a time slice."""
    loads = [side.scenario for side in plan.sides]
    go_on = any(one.targets or one.faults or one.rate_per_s or one.processes > 1 for one in loads)
    short = all(max(one.hold.ms, one.think.ms) <= SHORT_MS for one in loads)
    return plan.bind is None and not is_wanted(os.environ) and short and not go_on


def run_pairs(
    order: CompareOrder,
    say: Show,
    so_far: Callable[[Rounds], tuple[str, bool]] = lambda _: ("", False),
) -> Rounds:
    """Run all rounds.

    `so_far` returns the interim text after each round, and whether the rounds are enough. Raises if
    the first round fails.
    """
    plan = order.plan
    done = Rounds([], {})
    began_s = time.monotonic()
    allowed = max(1, plan.pairs // 2)
    draw = random.Random(plan.seed)
    sides = range(len(plan.sides))
    run_round = _in_turns if take_turns(plan) else _there_and_back
    with Interrupts() as interrupts, contextlib.ExitStack() as stack:
        fleets = _Fleets(order, stack)
        progress = ""
        enough = False
        while (number := done.finished) < plan.pairs and not enough:
            each_s = (time.monotonic() - began_s) / max(number, 1)
            left = (
                f": {progress}at most {each_s * (plan.pairs - number):.0f} s left" if number else ""
            )
            say(f"pair {number + 1} of {plan.pairs}{left}")
            try:
                results = run_round(fleets, draw.sample(sides, len(sides)), number, interrupts)
            except (BenchError, KeyboardInterrupt) as error:
                if isinstance(error, TornError) and done.repeated < allowed:
                    done.repeated += 1
                    continue
                if not done.runs:
                    raise
                done.interrupted = isinstance(error, KeyboardInterrupt)
                done.stopped = "" if done.interrupted else str(error)
                break
            done.results |= dict(results)
            if done.repeated < allowed and any(is_disturbed(result) for _, result in results):
                done.repeated += 1
                continue
            done.runs += [entry_of(result, index, number) for index, result in results]
            progress, enough = so_far(done)
    done.results = {
        index: plan.sides[index].described(result) for index, result in done.results.items()
    }
    return done


# The runs of one round, each with the index of its side.
RoundResults = list[tuple[int, RunResult]]


def _there_and_back(
    fleets: _Fleets, there: Sequence[int], number: int, interrupts: Interrupts
) -> RoundResults:
    results: RoundResults = []
    for index in (*there, *reversed(there)):
        if interrupts.count:
            raise KeyboardInterrupt
        with fleets.of(index) as servers:
            results.append((index, _run(fleets.order, index, number, interrupts, servers)))
    return results


def _in_turns(
    fleets: _Fleets, there: Sequence[int], number: int, interrupts: Interrupts
) -> RoundResults:
    """Run all sides at the same time, each side once.

    If one side fails, the function ends the other sides, too.
    """
    # The runs take place in threads, where Ctrl-C raises no exception. All runs check `wishes`
    # instead. Ctrl-C increases the count of `wishes`, and the first run that fails also increases
    # it. So no side continues alone.
    wishes = Interrupts()
    run = partial(_run, fleets.order)
    servers = [fleets.shared(index, place) for place, index in enumerate(there)]
    with Guard(Path(tempfile.gettempdir()), "lockbench-turns-") as guard:
        interrupts.raising = False
        runs = [
            fleets.pool.submit(
                run,
                index,
                number,
                wishes,
                servers[place],
                ring=Ring(guard.folder, place, len(there)),
                series=fleets.series(index),
            )
            for place, index in enumerate(there)
        ]
        while (ended := wait(runs, LOOK_S)).not_done:
            wishes.count = interrupts.count or int(any(run.exception() for run in ended.done))
    errors = [error for run in runs if (error := run.exception()) is not None]
    # If one side fails, the other sides are ended and have a KeyboardInterrupt. The original error
    # is raised first.
    for error in sorted(errors, key=lambda error: isinstance(error, KeyboardInterrupt)):
        raise KeyboardInterrupt if interrupts.count else error
    return [(index, run.result()) for index, run in zip(there, runs, strict=True)]


def _run(
    order: CompareOrder,
    index: int,
    number: int,
    interrupts: Interrupts,
    servers: Servers,
    *,
    ring: Ring | None = None,
    series: LocustSeries | None = None,
) -> RunResult:
    """Run one side once.

    Raises KeyboardInterrupt if the run was interrupted, because an incomplete run is not a
    measurement.
    """
    plan = order.plan
    side = order.plan.sides[index]
    run = Order(
        replace(side.scenario, seed=plan.seed + number),
        secrets.token_hex(4),
        (),
        None,
        order.server,
        plan.allow_missing,
        plan.allow_skipped,
        ring,
        bind=plan.bind,
    )
    return run_short(servers, run, interrupts, series=series, environ=side.environ())


def entry_of(result: RunResult, side: int, number: int) -> ComparedRun:
    """Return the part of a run that a comparison stores."""
    return ComparedRun(
        side=side,
        pair=number,
        id=result.id,
        status=result.verdict.status,
        reasons=result.verdict.reasons,
        generator_cpu_ratio=result.generator.cpu_ratio,
        generator=None if result.rate.offered_per_s is None else result.generator.verdict,
        safety=RunSafety(
            **{name: getattr(result.safety, name) for name in RunSafety.__struct_fields__}
        ),
        figures={metric.name: finite(metric.value(result)) for metric in shown_at("several")},
        thresholds=result.thresholds,
    )


class _Fleets:
    """The servers of the sides and their load processes. If possible, the servers are shared for
    the whole comparison."""

    def __init__(self, order: CompareOrder, stack: contextlib.ExitStack) -> None:
        self.order = order
        self._stack = stack
        # One pool of threads serves all rounds. The reason is that a load process ends with the
        # thread that started it (`die_with_parent`). When each round had its own pool, every run
        # needed a new Locust, and a pair took 10 s instead of 6 s.
        self.pool = stack.enter_context(ThreadPoolExecutor(len(order.plan.sides)))
        self._open: dict[tuple[object, ...], Servers] = {}
        # For each side: the load process, and how many runs the process has made so far.
        self._loads: dict[int, tuple[int, LocustSeries]] = {}
        # The faults of all sides. If one side needs proxies, the other sides get proxies, too.
        loads = [side.scenario for side in order.plan.sides]
        self._faults = [
            fault
            for load in loads
            for fault in read_faults(load.faults, seed=load.seed, duration_ms=load.duration_ms)
        ]

    def of(self, index: int) -> contextlib.AbstractContextManager[Servers]:
        """Return the servers for a run of this side. If a fault of any side may outlast a run, the
        side gets its own servers."""
        return self._opened(index) if self._faults else contextlib.nullcontext(self.shared(index))

    def shared(self, index: int, place: int = 0) -> Servers:
        """Return the servers of the side at this position, with the settings of this side. The
        servers stay open until the comparison ends."""
        scenario = self.order.plan.sides[index].scenario
        replicated = find_recipe(scenario.recipe).about.replicated
        key = scenario.targets, scenario.instances, scenario.fsync, replicated, place
        if key not in self._open:
            self._open[key] = self._stack.enter_context(self._opened(index))
        return self._open[key]

    def series(self, index: int) -> LocustSeries:
        """Return the load process for this side's next run. After RUNS runs the function starts a
        new process."""
        runs, load = self._loads.get(index, (RUNS, None))
        if load is None or runs == RUNS:
            if load is not None:
                load.close()
            runs = 0
            load = self._stack.enter_context(contextlib.closing(LocustSeries()))
        self._loads[index] = runs + 1, load
        return load

    def _opened(self, index: int) -> contextlib.AbstractContextManager[Servers]:
        plan = self.order.plan
        server = self.order.server
        return open_servers(
            plan.sides[index].scenario,
            server=server,
            allow_missing=plan.allow_missing,
            faults=self._faults,
        )
