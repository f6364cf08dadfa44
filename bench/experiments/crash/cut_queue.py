"""All cuts of a plan, many fleets at once: *what the journal lacks → cuts, each in the journal when it is over*.

Rules: one event loop; a lane works off cut after cut and keeps its fleet while the next one is of the same N and
policy. What each cut throws its dice with depends on seed, crash and number alone, never on the lane. A cut that fails
is tried again on a new fleet; a group whose cut failed too often is given up, with the reason. Source: README, "What
crashes cost".
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from random import Random

from bench.errors import BenchError
from bench.experiments.crash.crashing_fleet import CrashPlace
from bench.experiments.crash.cut import OneCut, finish
from bench.experiments.crash.judge import Crash, CutFacts
from bench.experiments.crash.plan import DEPTH, CrashPlan, lanes_of, seconds_of
from bench.run.journal import Journal
from bench.topology.fleet import require_descriptors
from bench.topology.server import ServerBinary
from lockcore.errors import LockcoreError

TRIES = 3
_LOOK_S = 0.05
_THREADS_PER_LANE = 8  # fleets start and end in threads, and every client shakes hands in some
_CLIENTS = 6  # connections to an instance: one client per margin, two second ones, our own questions
_SHOW_S = 0.5
_ROUNDS = 2  # of all lanes: then it is known how fast it goes here
_CUT_S = 90.0  # a cut that takes so long hangs


class CutQueue:
    """The cuts that are to be made yet. `failures`: in words, what was given up."""

    def __init__(
        self,
        plan: CrashPlan,
        run_id: str,
        server: ServerBinary,
        journal: Journal[CutFacts],
        show: Callable[[str], None],
    ) -> None:
        done = {(cut.crash, cut.number) for cut in journal.pieces}
        self._plan, self._run_id, self._server, self._journal, self._show = plan, run_id, server, journal, show
        self._waiting = [order for order in plan.orders if (order[1], order[2]) not in done]
        self._waiting.reverse()  # the next one is at the end
        self._began_s = self._shown_s = 0.0
        self._planned_s = sum(seconds_of(crash) for _, crash, _ in self._waiting)
        self._lanes = max(1, min(plan.concurrent, len(self._waiting)))
        self._round_s = self._planned_s * self._lanes / max(1, len(self._waiting))
        self._worked_s = 0.0
        self._free, self._moved = float(plan.concurrent), asyncio.Condition()
        self._given_up: dict[Crash, str] = {}

    @property
    def failures(self) -> list[str]:
        """What was given up, and why."""
        return [f"{crash.key}: given up: {reason}" for crash, reason in self._given_up.items()]

    def work(self, is_over: Callable[[], bool]) -> None:
        """Do every cut that is missing, until `is_over`. Raises BenchError when the journal cannot go on."""
        require_descriptors(DEPTH * self._lanes, _CLIENTS)
        self._began_s = time.monotonic()
        total, missing = len(self._plan.orders), len(self._waiting)
        kept = f", {total - missing:,} of them done before" if total > missing else ""
        self._show(f"plan: {total:,} cuts in {len(self._plan.crashes)} groups{kept}; {self._remaining()}")
        if missing and not is_over():
            asyncio.run(self._work(is_over))

    async def _work(self, is_over: Callable[[], bool]) -> None:
        threads = ThreadPoolExecutor(_THREADS_PER_LANE * self._plan.concurrent, thread_name_prefix="crash")
        asyncio.get_running_loop().set_default_executor(threads)
        lanes = [asyncio.ensure_future(self._lane()) for _ in range(self._lanes)]
        try:
            while not is_over() and not all(lane.done() for lane in lanes):
                await asyncio.wait(lanes, timeout=_LOOK_S, return_when=asyncio.FIRST_EXCEPTION)
                if any(lane.done() and lane.exception() for lane in lanes):
                    break
        finally:
            for lane in lanes:
                lane.cancel()
            ended = await asyncio.gather(*lanes, return_exceptions=True)
        for end in ended:
            if isinstance(end, Exception):
                raise end

    async def _lane(self) -> None:
        place = _LaneFleet()
        try:
            while self._waiting:
                order, crash, number = self._waiting.pop()
                async with self._room(crash):
                    facts = None if crash in self._given_up else await self._tried(place, order, crash, number)
                if facts is not None:
                    self._journal.add(facts)
                    self._note(crash)
        finally:
            place.close()

    @asynccontextmanager
    async def _room(self, crash: Crash) -> AsyncIterator[None]:
        """Wait until the machine has room for a fleet of this size, and keep it so long."""
        lanes = min(lanes_of(crash), self._plan.concurrent)
        async with self._moved:
            await self._moved.wait_for(lambda: self._free >= lanes)
            self._free -= lanes
        try:
            yield
        finally:
            self._free += lanes
            async with self._moved:
                self._moved.notify_all()

    async def _tried(self, held: _LaneFleet, order: int, crash: Crash, number: int) -> CutFacts | None:
        """The cut, tried a few times; None when it was given up."""
        prefix = f"lockbench:{self._run_id}:{order}-{number}:"
        for _ in range(TRIES):
            dice = Random(f"{self._plan.seed} {crash.key} {number}")
            try:
                async with asyncio.timeout(_CUT_S):
                    place = await held.of(crash, self._server)
                    return await OneCut(place, crash, number, prefix, dice, self._plan.locks_per_s).run()
            except (BenchError, LockcoreError, OSError) as error:
                reason = str(error) or type(error).__name__
                await held.leave()
        self._given_up[crash] = reason
        return None

    def _note(self, crash: Crash) -> None:
        self._worked_s += seconds_of(crash)
        now_s = time.monotonic()
        if now_s - self._shown_s >= _SHOW_S:
            self._shown_s = now_s
            done = len(self._journal.pieces)
            self._show(f"{crash.key}: cut {done:,} of {len(self._plan.orders):,}, {self._remaining()}")

    def _remaining(self) -> str:
        """How long the rest will take: as planned at first, then as it has gone so far."""
        lanes, passed_s = self._lanes, time.monotonic() - self._began_s
        left_s = max(self._planned_s / lanes - passed_s, (self._planned_s - self._worked_s) / lanes / 2)
        if self._worked_s > _ROUNDS * self._round_s:
            left_s = passed_s * (self._planned_s - self._worked_s) / self._worked_s
        minutes, seconds = divmod(round(left_s), 60)
        return f"about {minutes} min {seconds:02} s left"


class _LaneFleet:
    """The place that a lane holds, if any."""

    def __init__(self) -> None:
        self._place: CrashPlace | None = None

    async def of(self, crash: Crash, server: ServerBinary) -> CrashPlace:
        """A place for `crash`: the one that is held, or a new one instead. Raises BenchError."""
        if self._place is None or not self._place.is_of(crash):
            await self.leave()
            self._place = CrashPlace(crash.instances, crash.policy, server)
            await finish(self._place.open)
        return self._place

    async def leave(self) -> None:
        """Let go of it."""
        if self._place is not None:
            await finish(self._place.close)
            self._place = None

    def close(self) -> None:
        """End what is held, at once."""
        if self._place is not None:
            self._place.close()
