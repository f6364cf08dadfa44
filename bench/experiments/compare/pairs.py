"""Runs in turn, so that what changes on the machine changes for all: *sides → rounds of short
runs*.

Rules, beside those of README: who begins, and who gets which of the fleets of equal servers, is
random; all have one seed. What the faults of one side need (proxies, the shim) is put under the
servers of all, so that only the fault differs. A round of an open loop whose timer was late is
repeated, too: the same delay hides what differs.
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

# A hold or a rest of at most this time ends well within a time slice.
SHORT_MS = 10.0
LOOK_S = 0.1
UNKNOWN = "not known"
_DESCRIBE = (
    "import json; from bench.measure.environment import describe_environment; found = "
    "describe_environment(); "
    "print(json.dumps({'lockcore': found.lockcore, 'packages': found.packages}))"
)
# A load process is replaced after so many runs. The chance layout of its memory is then not in all
# pairs of a gate.
RUNS = 12
HERE = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Side:
    """One of the things compared.

    `python_path`: where its processes look for packages first; `is_noise`: A/A.
    """

    label: str
    scenario: Scenario
    python_path: tuple[str, ...] = ()
    is_noise: bool = False

    def described(self, run: RunResult) -> RunResult:
        """A run of this side, with the form of lockcore and the packages that a fresh interpreter
        of this side finds: those of the run are of this process, which leads. A side that brings
        nothing along has the same."""
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
        """The environment of its load processes; the bench in it is the one that runs, wherever it
        is started."""
        path = filter(None, [*self.python_path, os.environ.get("PYTHONPATH", ""), str(HERE)])
        return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is asked of `sides`, the first of which the others are held against. `judged`: figures
    the verdict rests on; `pairs`: rounds at most; `looks`: after how many a gate may stop;
    `cpu_share`: of the tolerance, for CPU; `bind`: where hosts join."""

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
    """What was run. `runs`: one entry per run of a finished round; `results`: one of each side, to
    describe it; `repeated`: rounds that were thrown away as a run was INVALID; `stopped`: why the
    rest was not run."""

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
        """One figure of a side, round by round: the geometric mean over its runs, None if one has
        no value."""
        return values_of(self.runs, side, metric)


def take_turns(plan: Comparison) -> bool:
    """Whether processes of all sides can run at once, in turns: own servers, no schedule or fault
    that goes on while they wait, and operations that end well within a turn."""
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

    `so_far`: what is said after each, and whether it is enough. Raises if the first cannot be.
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


# the runs of one round: the index of the side, and the result of its run
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
    """Run every side once, all at the same time.

    When one cannot go on the others are ended, too.
    """
    # The runs go on in threads, where Ctrl-C cannot be raised. All of them look at `wishes`
    # instead. Its count is set by Ctrl-C, and by the first run that fails, so no side goes on
    # alone.
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
    # A side that was ended for another side's sake has a KeyboardInterrupt. The cause comes first.
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

    Raises KeyboardInterrupt when it was cut short: half a run is no measurement.
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
    """Return what a comparison keeps of a run."""
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
    """The servers of the sides, shared for the whole time where that is possible, and their load
    processes."""

    def __init__(self, order: CompareOrder, stack: contextlib.ExitStack) -> None:
        self.order = order
        self._stack = stack
        # One pool for all rounds: a load process ends with the thread that started it
        # (`die_with_parent`). With a pool for each round every run needed a new Locust, and a pair
        # took 10 s instead of 6.
        self.pool = stack.enter_context(ThreadPoolExecutor(len(order.plan.sides)))
        self._open: dict[tuple[object, ...], Servers] = {}
        # by side: how many runs its load process had, and that process
        self._loads: dict[int, tuple[int, LocustSeries]] = {}
        # The faults of all sides: if one side stands behind proxies, the others do, too.
        loads = [side.scenario for side in order.plan.sides]
        self._faults = [
            fault
            for load in loads
            for fault in read_faults(load.faults, seed=load.seed, duration_ms=load.duration_ms)
        ]

    def of(self, index: int) -> contextlib.AbstractContextManager[Servers]:
        """The servers for a run of this side: its own where anybody's faults may outlive a run."""
        return self._opened(index) if self._faults else contextlib.nullcontext(self.shared(index))

    def shared(self, index: int, place: int = 0) -> Servers:
        """Servers as this side wants them, for whichever has this place; open until the end."""
        scenario = self.order.plan.sides[index].scenario
        replicated = find_recipe(scenario.recipe).about.replicated
        key = scenario.targets, scenario.instances, scenario.fsync, replicated, place
        if key not in self._open:
            self._open[key] = self._stack.enter_context(self._opened(index))
        return self._open[key]

    def series(self, index: int) -> LocustSeries:
        """The load process of this side's next run; a fresh one after RUNS runs."""
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
