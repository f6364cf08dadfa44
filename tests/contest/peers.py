"""`make peers`: *other libraries and lockcore, one after the other on the same servers → their
rows, medians over rounds*.

    cycles   acquire + release of a free resource, N = 1, 3, 5, by 1 and by 64 callers
    hot      64 callers want one resource, each holds it for 1 ms: in one process, and in four
    stopped  one of three instances stands still for 4 s under 64 callers

Rules: as in speed.py; how fast the cores were, and whose, is looked at on free resources only.
Libraries run as they come. Everybody takes part in the first round; in the others, under each load,
ours and the fastest three, who decide the bars.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.errors import EnvironmentNotReadyError
from bench.experiments.audit.result import MissingLibrary
from bench.topology.fleet import Fleet, start_fleet
from tests.contest.contestants import Contestant, contestants, takes_part
from tests.contest.judge import HOT, HOT_LONGER, INSTANCES, MANY, bars, in_processes
from tests.contest.machine import Machine, two_cores
from tests.contest.result import Conditions, PeersResult, RoundFigures, Row
from tests.contest.round import RoundLoad, contest, over_rounds, servers_by_kind

Show = Callable[[str], None]
FASTEST = 3
LOADS = {
    "cycles": tuple(
        RoundLoad(instances, callers, own=True) for instances in (1, 3, 5) for callers in (1, MANY)
    ),
    "hot": tuple(
        RoundLoad(n, MANY, own=False, hold_s=0.001, processes=processes) for n, processes in HOT
    ),
    "stopped": (RoundLoad(3, MANY, own=True, stops=True),),
}


@dataclass(frozen=True, slots=True)
class PeersPlan:
    """What to measure: `parts` of LOADS.

    `only`: words of names (none: all); `seconds` of load per round.
    """

    cache: Path
    parts: tuple[str, ...]
    only: tuple[str, ...]
    rounds: int
    seconds: float
    seed: int


@dataclass(slots=True, eq=False)
class Standing:
    """One contestant under one load: its figures, one per round."""

    contestant: Contestant
    load: RoundLoad
    rounds: list[RoundFigures] = field(default_factory=list)

    def __str__(self) -> str:
        load = self.load
        return (
            f"{self.contestant.library.name}, N={load.instances}, {load.callers} "
            f"callers{in_processes(load.processes)}"
        )


def run_peers(plan: PeersPlan, show: Show) -> PeersResult:
    """Install, measure, and return the result; Ctrl-C ends the rounds. Raises BenchError when
    nothing can be measured here, KeyboardInterrupt when it was cut short before any figure."""
    entries = contestants(plan.cache.resolve(), plan.only, show)
    there = [entry for entry in entries if not isinstance(entry, MissingLibrary)]
    absent = tuple(entry for entry in entries if isinstance(entry, MissingLibrary))
    if not there:
        reasons = "; ".join(f"{one.name}: {one.reason}" for one in absent)
        raise EnvironmentNotReadyError(f"no contestant can run here: {reasons}")
    cells = {
        part: [
            Standing(one, load)
            for load in LOADS[part]
            for one in there
            if takes_part(one, load.instances, load.processes)
        ]
        for part in plan.parts
    }
    (kind, server), *_ = servers_by_kind().items()
    cut = False
    with two_cores() as cores, start_fleet(INSTANCES, "none", server=server) as fleet:
        try:
            _measure(plan, fleet, cells, show)
        except KeyboardInterrupt:
            cut = True
    rows = {
        part: tuple(row_of(cell) for cell in some if cell.rounds) for part, some in cells.items()
    }
    if not any(rows.values()):
        raise KeyboardInterrupt
    cycles, hot, stopped = (rows.get(part, ()) for part in LOADS)
    return PeersResult(
        conditions=Conditions(
            cores=cores,
            rounds=plan.rounds,
            seconds=plan.seconds,
            seed=plan.seed,
            servers={kind: f"{server.name} {server.version}"},
        ),
        contestants=tuple(one.library for one in there),
        absent=absent,
        cycles=cycles,
        hot=hot,
        stopped=stopped,
        bars=bars(cycles, hot, stopped),
        interrupted=cut,
    )


def _measure(
    plan: PeersPlan, fleet: Fleet, cells: Mapping[str, Sequence[Standing]], show: Show
) -> None:
    rng = random.Random(plan.seed)
    hot_s = HOT_LONGER * plan.seconds
    for number in range(1, plan.rounds + 1):
        for part, some in cells.items():
            for cell in _shuffled(some if number == 1 else leading(some), rng):
                show(f"round {number} of {plan.rounds}, {part}: {cell}")
                with Machine() as machine:
                    figures = contest(
                        cell.contestant, fleet, cell.load, hot_s if part == "hot" else plan.seconds
                    )
                # Under the other loads waiting takes longer than work, so the pace of the cores
                # says little.
                if part == "cycles":
                    figures = replace(
                        figures, elsewhere_ratio=machine.elsewhere_ratio, piece_us=machine.piece_us
                    )
                cell.rounds.append(figures)


def leading(cells: Sequence[Standing]) -> list[Standing]:
    """Those that go on after the first round: ours, and under each load the fastest of the others.
    What an instance stopped costs is compared with nobody's."""
    ours = [cell for cell in cells if cell.contestant.library.kind == "lockcore"]
    others = (cell for cell in cells if cell not in ours and not cell.load.stops)
    ranked = sorted(others, key=lambda cell: -cell.rounds[0].cycles_per_s)
    loads = dict.fromkeys(cell.load for cell in ranked)
    return [
        *ours,
        *(cell for load in loads for cell in [one for one in ranked if one.load == load][:FASTEST]),
    ]


def _shuffled(cells: Sequence[Standing], rng: random.Random) -> list[Standing]:
    """Loads in random order, and within a load the contestants: who is compared runs close
    together."""
    places = {load: rng.random() for load in dict.fromkeys(cell.load for cell in cells)}
    return sorted(cells, key=lambda cell: (places[cell.load], rng.random()))


def row_of(cell: Standing) -> Row:
    """A cell's rounds as one row."""
    library = cell.contestant.library
    load = cell.load
    return Row(
        name=library.name,
        kind=library.kind,
        instances=load.instances,
        callers=load.callers,
        processes=load.processes,
        **over_rounds(cell.rounds),
    )
