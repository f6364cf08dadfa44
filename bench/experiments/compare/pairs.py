"""Runs the sides of a comparison alternately, so that a change of the machine affects all sides: *a
list of sides → rounds of short runs*.

The README of this folder contains the general rules. This module adds the following rules. In every
round, the order of the sides is random. If several fleets are equal, the fleet of each side is also
random. All sides of a round have the same seed. If the faults of one side need proxies or the shim,
the servers of every side run with proxies or the shim. So the sides differ only in their faults. In
an open loop, the timer of the load process may be late. A late timer adds the same delay to all
sides, so it hides their difference. If the timer was late in a round, the comparison discards the
round and repeats it.
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

    `python_path` lists the folders in which the side's processes search for packages first.
    `is_noise` is true if this side only repeats the first side to measure the noise (A/A).
    """

    label: str
    scenario: Scenario
    python_path: tuple[str, ...] = ()
    is_noise: bool = False

    def described(self, run: RunResult) -> RunResult:
        """Return a copy of `run` with the package versions of this side, and with the form of
        lockcore (compiled or source) that this side uses. The input `run` has the versions of the
        current process. So the method starts a fresh interpreter with the side's packages, and this
        interpreter reports the versions. If the side has no `python_path`, the method returns `run`
        unchanged."""
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
        """Return the environment variables for the side's load processes. With these variables, the
        load processes import the same `bench` as the current process, even if they start in another
        folder."""
        path = filter(None, [*self.python_path, os.environ.get("PYTHONPATH", ""), str(HERE)])
        return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


@dataclass(frozen=True, slots=True)
class Comparison:
    """The plan of a comparison. The comparison compares each side with the first element of
    `sides`. `judged` holds the metrics that decide the verdict. There are at most `pairs` rounds.
    `looks` holds the numbers of rounds after which a gate may stop. The tolerance of CPU is
    `cpu_share` times the general tolerance. Workers on other hosts connect to the address
    `bind`."""

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
    """The finished rounds of a comparison. `runs` has one entry per run. `results` has one result
    per side, and this result shows the side's settings. `repeated` is the number of rounds that
    were discarded and run again, because a run was INVALID or a side ended early. `stopped` gives
    the reason if an error prevented more rounds."""

    runs: list[ComparedRun]
    results: dict[int, RunResult]
    repeated: int = 0
    stopped: str = ""
    interrupted: bool = False
    paired: bool = True

    @property
    def finished(self) -> int:
        """The number of rounds in which the runs of all sides finished."""
        return len({run.pair for run in self.runs})

    def values(self, side: int, metric: Metric) -> list[float | None]:
        """Return the values of one figure on one side. There is one value per round. A round's
        value is the geometric mean over the side's runs in this round. The value is None if one of
        these runs has no value."""
        return values_of(self.runs, side, metric)


def take_turns(plan: Comparison) -> bool:
    """Return whether all sides can run in parallel and alternate in time slices.

    The result is True if all of these conditions are true:
    - lockbench starts the servers.
    - Each side has exactly one load process.
    - No other host takes part, and no telemetry is exported.
    - The load is a closed loop, and there are no faults. An arrival schedule or a fault would
      continue while a side is paused.
    - Each hold and each rest lasts at most SHORT_MS. So an operation is much shorter than a time
      slice.
    """
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

    The function calls `so_far` after each round. `so_far` returns two values. The first value is an
    interim result for the progress line. The second value is True if no more rounds are needed. If
    the first round fails, the function raises BenchError or KeyboardInterrupt.
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
    """Run each side once. The runs of all sides take place in parallel.

    If the run of one side fails, the function ends the runs of the other sides, too.
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

    Raises KeyboardInterrupt if the run was interrupted. The function does not return incomplete
    runs.
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
    """Return the entry about one run that a comparison stores in its result."""
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
    """The servers and the load processes of all sides. If no side has faults, the same servers
    serve the whole comparison."""

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
        """Return a context manager with the servers for the next run of a side. If any side has
        faults, this run gets new servers, because a fault may outlast a run."""
        return self._opened(index) if self._faults else contextlib.nullcontext(self.shared(index))

    def shared(self, index: int, place: int = 0) -> Servers:
        """Return servers with the settings of a side. `place` is the position of the side's run in
        a round. If two sides have equal settings, their runs at the same position use the same
        servers. The servers stay open until the comparison ends."""
        scenario = self.order.plan.sides[index].scenario
        replicated = find_recipe(scenario.recipe).about.replicated
        key = scenario.targets, scenario.instances, scenario.fsync, replicated, place
        if key not in self._open:
            self._open[key] = self._stack.enter_context(self._opened(index))
        return self._open[key]

    def series(self, index: int) -> LocustSeries:
        """Return the load process for the next run of this side. After RUNS runs, a new load
        process replaces the old load process."""
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
