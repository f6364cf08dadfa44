"""Measures which locks each AOF policy loses in a crash: *a plan of crashes → many cuts on small
fleets → a judged result*.

The experiment starts its own servers on loopback, under the fault shim. The experiment writes each
finished cut to the journal at once. Several lanes work in parallel. Each lane makes its cuts one
after another. A lane keeps its fleet if the next cut has the same policy and the same number of
instances as the previous cut. The experiment uses fewer lanes for large fleets than for small
fleets. The random choices of a cut depend on the seed, the crash and the cut's number, but not on
the lane.

If a cut fails, the lane tries the cut again on a new fleet. If the cut fails several times, the
experiment continues with another group. When all other groups are finished, the experiment tries
the group of the failed cut a second time. Fewer fleets run at the same time during the second try.
If the group fails again, the experiment gives up this group, and the result names the reason.
"""

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import count, groupby
from pathlib import Path

import numpy as np
from msgspec import structs
from redis import RedisError

from bench.errors import BenchError
from bench.experiments.durability.cut import CrashPlace, OneCut, finish
from bench.experiments.durability.loss_judge import GIVEN_UP, CutFacts, cells, group, judge_crash
from bench.experiments.durability.loss_plan import (
    DEPTH,
    TTL_MS,
    CrashPlan,
    lanes_of,
    seconds_of,
)
from bench.experiments.durability.loss_result import Crash, CrashConditions, CrashResult
from bench.experiments.durability.sitting import Pace, sit
from bench.measure.fleet_facts import OwnFleet
from bench.measure.server_facts import ServerBinary
from bench.run.experiment import Done, Experiment, ExperimentOrder, Header, Show
from bench.run.journal import Journal
from bench.telemetry.points import Buckets, point
from bench.telemetry.run import Run
from bench.telemetry.settings import is_wanted
from bench.topology.disk import fdatasync_latency
from bench.topology.fleet import require_descriptors
from bench.topology.server import find_server
from lockcore.bench import LockcoreError
from lockcore.clock import NS_PER_S

# How many fleets of DEPTH instances work at once, per core.
FLEETS_PER_CORE = 7
MOST_FLEETS = 16
TRIES = 3
# At the end, failed groups get one more try. For this try, the number of concurrent fleets is
# divided by this factor.
_FEWER = 4
_LOOK_S = 0.05
# Threads start and end fleets, and also run the handshake of every client.
_THREADS_PER_LANE = 8
# How many connections one instance needs. They serve one client per margin, two second clients, and
# the experiment's own questions.
_CLIENTS = 6
# A cut that takes this long (s) is stuck.
_CUT_S = 90.0


def run_crash(order: ExperimentOrder[CrashPlan], show: Show) -> Done[CrashResult]:
    """Make all cuts of `order` that the journal does not contain yet. Store the result when the
    journal contains all cuts. Raises BenchError if crashes of servers are impossible on this
    machine. Raises KeyboardInterrupt if the user presses Ctrl-C before the first cut is
    finished."""
    server = find_server(order.server)
    with Experiment(order) as experiment:
        experiment.raising = False
        with closing(CrashPlace(server)) as place:
            # The experiment opens one fleet first, to check whether this server loads the shim.
            place.open(1, "none")
        same = {**order.plan.to_json(), "server": server.sha256}
        cuts = partial(_Cuts, order, server, show)
        return sit(experiment, order, same, CutFacts, cuts)


def concluded(
    header: Header,
    fleet: OwnFleet,
    plan: CrashPlan,
    cuts: Sequence[CutFacts],
    failures: Sequence[str] = (),
) -> CrashResult:
    """Compute the result from the finished cuts. The result leaves out a group if any cut of the
    group is missing."""
    of_groups = ([cut for cut in cuts if cut.crash == crash] for crash in plan.crashes)
    finished = [group_cuts for group_cuts in of_groups if len(group_cuts) >= plan.cuts]
    rows = [row for of_group in finished for row in cells(of_group)]
    groups = [group(of_group) for of_group in finished]
    return CrashResult(
        **header,
        fleet=fleet,
        conditions=CrashConditions(
            quick=plan.quick,
            ttl_ms=TTL_MS,
            cuts_per_cell=plan.cuts,
            locks_per_s=plan.locks_per_s,
            instances=tuple(sorted({crash.instances for crash in plan.crashes})),
            finished_cuts=len(cuts),
            latency_ms=plan.latency_ms,
        ),
        groups=tuple(groups),
        rows=tuple(rows),
        warnings=tuple(failures),
        verdict=judge_crash(groups, rows, failures, interrupted=header["interrupted"]),
    )


class _Cuts:
    """The cuts of a matrix, which run on many fleets in parallel."""

    def __init__(
        self,
        order: ExperimentOrder[CrashPlan],
        server: ServerBinary,
        show: Show,
        journal: Journal[CutFacts],
    ) -> None:
        self._plan = order.plan
        self._run_id = order.run_id
        self._server = server
        self._journal = journal
        self._show = show
        self._tries = count()
        self._given_up = dict[Crash, str]()
        missing = self._missing()
        self._lanes = max(
            1, min(FLEETS_PER_CORE * len(os.sched_getaffinity(0)), MOST_FLEETS, len(missing))
        )
        self._pace = Pace(sum(seconds_of(crash) for crash, _ in missing), self._lanes)

    def _missing(self) -> list[tuple[Crash, int]]:
        done = {(cut.crash, cut.number) for cut in self._journal.pieces}
        return [one for one in self._plan.orders if one not in done]

    def result(self, header: Header) -> CrashResult:
        """Return the result of all finished cuts. The result has a warning for each group that the
        experiment could not finish. If telemetry is on, the method also exports the figures."""
        cuts = self._journal.pieces
        disk = fdatasync_latency(Path(tempfile.gettempdir()))
        fleet = OwnFleet(server=self._server, fdatasync_s=disk)
        failures = [f"{crash.key}{GIVEN_UP}{reason}" for crash, reason in self._given_up.items()]
        result = concluded(header, fleet, self._plan, cuts, failures)
        exported = export_crashes(self._run_id, cuts, os.environ)
        return structs.replace(result, warnings=(*result.warnings, *exported))

    def measure(self, is_over: Callable[[], bool]) -> None:
        """Make all missing cuts. Stop when `is_over` returns True.

        Raises BenchError if the journal cannot be written.
        """
        require_descriptors(DEPTH * self._lanes, _CLIENTS)
        total = len(self._plan.orders)
        cuts_done = len(self._journal.pieces)
        before = f" ({cuts_done:,} cuts are already done)" if cuts_done else ""
        self._show(
            f"plan: {total:,} cuts in {len(self._plan.crashes)} groups{before}; {self._pace.left}"
        )
        try:
            asyncio.run(self._work(is_over))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _work(self, is_over: Callable[[], bool]) -> None:
        threads = ThreadPoolExecutor(_THREADS_PER_LANE * self._lanes, thread_name_prefix="crash")
        asyncio.get_running_loop().set_default_executor(threads)
        # A cut may have failed because the machine was too busy. So the second try has fewer fleets
        # at once.
        for lanes in (self._lanes, max(1, self._lanes // _FEWER)):
            if is_over():
                break
            self._given_up = {}
            for worth, of_it in groupby(self._missing(), lambda one: lanes_of(one[0])):
                cuts = list(of_it)
                async with asyncio.TaskGroup() as tasks:
                    waiting = iter(cuts)
                    lane_count = min(len(cuts), max(1, int(lanes / worth)))
                    at_work = [tasks.create_task(self._lane(waiting)) for _ in range(lane_count)]
                    while not is_over() and not all(lane.done() for lane in at_work):
                        await asyncio.wait(at_work, timeout=_LOOK_S)
                    for lane in at_work:
                        lane.cancel()

    async def _lane(self, waiting: Iterator[tuple[Crash, int]]) -> None:
        with closing(CrashPlace(self._server)) as place:
            for crash, number in waiting:
                facts = None if crash in self._given_up else await self._tried(place, crash, number)
                if facts is not None:
                    self._journal.add(facts)
                    self._pace.did(seconds_of(crash))
                    done = f"cut {len(self._journal.pieces):,} of {len(self._plan.orders):,}"
                    self._show(f"{crash.key}: {done}, {self._pace.left}")

    async def _tried(self, place: CrashPlace, crash: Crash, number: int) -> CutFacts | None:
        """Try up to TRIES times to make the cut. Return None if all tries failed."""
        for _ in range(TRIES):
            prefix = f"lockbench:{self._run_id}:{next(self._tries)}:"
            try:
                async with asyncio.timeout(_CUT_S):
                    await finish(place.open, crash.instances, crash.policy)
                    return await OneCut(place, self._plan, crash, number, prefix).run()
            except (BenchError, LockcoreError, OSError, RedisError) as error:
                reason = str(error) or type(error).__name__
                await finish(place.close)
        self._given_up[crash] = reason
        return None


def export_crashes(run_id: str, cuts: Sequence[CutFacts], environ: Mapping[str, str]) -> list[str]:
    """Export the figures of `cuts` as telemetry if the variables in `environ` turn telemetry on.

    Returns warnings. If an export fails, the result is still stored.
    """
    if not is_wanted(environ):
        return []
    from bench.telemetry.otlp import export_once

    warnings: list[str] = []
    for policy in dict.fromkeys(cut.crash.policy for cut in cuts):
        of_policy = [cut for cut in cuts if cut.crash.policy == policy]
        losses = [cut.of() for cut in of_policy]
        doubled = [one.double_grants for cut in of_policy for one in cut.asked]
        windows = Buckets()
        windows_s = [loss.window_s for loss in losses if loss.window_s is not None]
        windows.add((np.array(windows_s) * NS_PER_S).round().astype(np.int64))
        points = (
            point("redlock.crash.lost_locks", sum(loss.lost for loss in losses)),
            point("redlock.crash.lost_window", windows),
            point("redlock.crash.double_grants", sum(doubled)),
        )
        most = max(cut.crash.instances for cut in of_policy)
        try:
            run = Run(run_id, "redlock", policy, [("127.0.0.1", 0)] * most, part=f"-{policy}")
            warnings += export_once(run, points, environ)
        except BenchError as error:
            warnings.append(str(error))
    return list(dict.fromkeys(warnings))
