"""`make peers`: *contestants installed side by side → the same load on the same servers, in turn → a table and bars*.

    cycles    acquire + release of a free resource, N = 1, 3, 5, by 1 and by 64 callers
    hot key   64 callers want one resource, each holds it for 1 ms
    stopped   one of three instances stands still for 5 s under 64 callers; ours in every round, others once

Rules: contestants of one round run one after the other in random order, each alone in its process, everything on the
same two cores; ratios are taken inside a round, medians over rounds are quoted. Libraries run as they come. Ctrl-C
keeps what was measured. Source: README, "Beside other libraries".
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Generic, TypeVar

from bench.errors import EnvironmentNotReadyError
from bench.experiments.contest.installed import Absent, Contestant, install
from bench.experiments.contest.judge import HOT_N, INSTANCES, MANY, bars, judge_peers
from bench.experiments.contest.result import (
    Missing,
    Participant,
    PeersConditions,
    PeersResult,
    StopFigures,
    StopRow,
    TurnFigures,
    TurnRow,
)
from bench.experiments.contest.turn import TurnLoad, contest, contest_stopped, two_cores
from bench.measure.run_result import ServerBinary
from bench.run.experiment import Experiment, ExperimentOrder, Show
from bench.run.verdict import Done
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.server import find_server, found_servers

EVERY_N, CALLERS = (1, 3, 5), (1, MANY)
HOT_HOLD_S = 0.001
STOPPED_N = 3
PARTS = ("cycles", "hot", "stopped")
_SUMMED = {"gave_up", "failed", "leases", "cycles", "keys_left"}
_WAITS = {"p50_us", "p99_us"}

Figures = TypeVar("Figures", TurnFigures, StopFigures)


@dataclass(frozen=True, slots=True)
class PeersPlan:
    """What to measure. `only`: words of names (none: all); `seconds` of load per turn; `hot_seconds` on the hot key."""

    cache: Path
    parts: tuple[str, ...]
    only: tuple[str, ...]
    rounds: int
    seconds: float
    hot_seconds: float
    seed: int


@dataclass(slots=True)
class Cell(Generic[Figures]):
    """One contestant under one load: its figures, one per round."""

    contestant: Contestant
    load: TurnLoad
    rounds: list[Figures] = field(default_factory=list)

    @property
    def is_ours(self) -> bool:
        """Whether it is lockcore."""
        return self.contestant.peer.kind == "lockcore"

    def __str__(self) -> str:
        return f"{self.contestant.peer.name}, N={self.load.instances}, {self.load.callers} callers"


@dataclass(slots=True)
class Cells:
    """All of them, by part."""

    cycles: list[Cell[TurnFigures]]
    hot: list[Cell[TurnFigures]]
    stopped: list[Cell[StopFigures]]

    @classmethod
    def of(cls, contestants: Sequence[Contestant]) -> Cells:
        """Everything that these contestants are able to do."""
        free = [TurnLoad(instances, callers, own=True) for instances in EVERY_N for callers in CALLERS]
        hot = [TurnLoad(instances, MANY, own=False, hold_s=HOT_HOLD_S) for instances in HOT_N]
        stopped = [TurnLoad(STOPPED_N, MANY, own=True)]
        return cls(*([Cell(*pair) for pair in _able(contestants, loads)] for loads in (free, hot, stopped)))  # type: ignore[arg-type]

    @property
    def measured(self) -> list[object]:
        """Those that have at least one round."""
        return [cell for cells in (self.cycles, self.hot, self.stopped) for cell in cells if cell.rounds]


def _able(contestants: Sequence[Contestant], loads: Sequence[TurnLoad]) -> list[tuple[Contestant, TurnLoad]]:
    return [(one, load) for load in loads for one in contestants if load.instances in one.peer.instances]


def run_peers(order: ExperimentOrder[PeersPlan], show: Show) -> Done[PeersResult]:
    """Install, measure, and return the result, which is written by then.

    Raises BenchError when nothing can be measured here, KeyboardInterrupt when it was cut short before any figure.
    """
    plan = order.plan
    found = install(plan.cache.resolve(), plan.only, show)
    contestants = [entry for entry in found if isinstance(entry, Contestant)]
    absent = tuple(Missing(name=one.peer.name, reason=one.reason) for one in found if isinstance(one, Absent))
    if not contestants:
        reasons = "; ".join(f"{one.name}: {one.reason}" for one in absent)
        raise EnvironmentNotReadyError(f"no contestant can run here: {reasons or 'none has such a name'}")
    cells, server = Cells.of(contestants), _server(order.server)
    with Experiment(order) as experiment:
        with two_cores() as cores, start_fleet(INSTANCES, "none", server=server) as fleet, experiment.cuttable():
            _measure(plan, fleet, cells, show)
        experiment.require(cells.measured)
        cycles, hot = (tuple(_row(cell, TurnRow) for cell in some if cell.rounds) for some in (cells.cycles, cells.hot))
        stopped = tuple(_row(cell, StopRow) for cell in cells.stopped if cell.rounds)
        judged = bars(cycles, hot, stopped)
        result = PeersResult(
            **experiment.header(seed=plan.seed, interrupted=experiment.cut),
            conditions=PeersConditions(
                server=server, cores=cores, rounds=plan.rounds, seconds=plan.seconds, hot_seconds=plan.hot_seconds,
                hold_s=HOT_HOLD_S,
            ),
            contestants=tuple(
                Participant(name=one.peer.name, kind=one.peer.kind, packages=one.peer.packages) for one in contestants
            ),
            absent=absent,
            cycles=cycles,
            hot=hot,
            stopped=stopped,
            bars=judged,
            verdict=judge_peers(judged, interrupted=experiment.cut),
        )  # fmt: skip
        return experiment.store(result)


def _server(wanted: str | None) -> ServerBinary:
    """The server asked for; else one with scripts only, which every library uses, if there is one."""
    plain = [one for one in found_servers() if isinstance(one, ServerBinary) and not one.native_release]
    return find_server(wanted) if wanted or not plain else plain[0]


def _measure(plan: PeersPlan, fleet: Fleet, cells: Cells, show: Show) -> None:
    """Round after round. An instance is stopped in every round for ours, once for others."""
    dice = random.Random(plan.seed)
    for number in range(1, plan.rounds + 1):
        say = f"round {number} of {plan.rounds}"
        for part, some, seconds in (("cycles", cells.cycles, plan.seconds), ("hot", cells.hot, plan.hot_seconds)):
            for cell in _shuffled(some, dice) if part in plan.parts else ():
                show(f"{say}, {part}: {cell}")
                cell.rounds.append(contest(cell.contestant, fleet, cell.load, seconds))
        if "stopped" in plan.parts:
            for stop in _shuffled([cell for cell in cells.stopped if number == 1 or cell.is_ours], dice):
                show(f"{say}, stopped: {stop}")
                stop.rounds.append(contest_stopped(stop.contestant, fleet, stop.load))


def _shuffled(cells: Iterable[Cell[Figures]], dice: random.Random) -> list[Cell[Figures]]:
    """Loads in random order, and within a load the contestants: who is compared runs close together."""
    by_load: dict[TurnLoad, list[Cell[Figures]]] = {}
    for cell in cells:
        by_load.setdefault(cell.load, []).append(cell)
    loads = dice.sample(list(by_load.values()), len(by_load))
    return [cell for load in loads for cell in dice.sample(load, len(load))]


Row = TypeVar("Row", TurnRow, StopRow)


def _row(cell: Cell[Any], made: type[Row]) -> Row:
    """The medians over a cell's rounds, failures summed, and the rounds themselves."""
    peer, load = cell.contestant.peer, cell.load
    figures = {
        name: _middle(name, [getattr(one, name) for one in cell.rounds]) for name in cell.rounds[0].__struct_fields__
    }
    return made(
        name=peer.name, kind=peer.kind, instances=load.instances, callers=load.callers, rounds=tuple(cell.rounds),
        **figures,
    )  # fmt: skip


def _middle(name: str, values: Sequence[Any]) -> Any:
    if name == "errors":
        return dict(sum(map(Counter, values), Counter[str]()))
    if name in _SUMMED:
        return sum(values)
    if name in _WAITS:  # who is not among those that were granted waited for ever
        middle = median(math.inf if value is None else value for value in values)
        return None if math.isinf(middle) else middle
    known = [value for value in values if value is not None]
    return median(known) if known else None
