"""`make peers`: *contestants installed side by side → the same load on the same servers, in turn → a table and bars*.

    cycles    acquire + release of a free resource, N = 1, 3, 5, by 1 and by 64 callers
    hot key   64 callers want one resource, each holds it for 1 ms
    stopped   one of three instances stands still for 5 s under 64 callers; ours in every round, others once

Rules: contestants of one round run one after the other in random order, each alone in its process, everything on the
same two cores; ratios are taken inside a round, medians over rounds are quoted. Libraries run as they come. Ctrl-C
keeps what was measured. Source: README, "Beside other libraries".
"""

from __future__ import annotations

import datetime
import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

from bench.errors import EnvironmentNotReadyError
from bench.experiments.contest.ceiling import two_cores
from bench.experiments.contest.installed import Absent, Contestant, install
from bench.experiments.contest.turn import Figures, Load, contest, contest_stopped
from bench.measure.environment import describe_environment
from bench.measure.result import SCHEMA_VERSION, Result
from bench.measure.section import builtins_of
from bench.measure.verdict import BARS_MISSED, BARS_REACHED, INTERRUPTED, NOT_KNOWN, Evidence, conclude
from bench.run.interrupt import Interrupts
from bench.run.verdict import Done, store
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.server import ServerBinary, find_server, found_servers

INSTANCES = 5
EVERY_N, CALLERS = (1, 3, 5), (1, 64)
HOT_N, HOT_HOLD_S = (1, 5), 0.001
STOPPED_N = 3
MANY = 64
PYTHON_BAR, OTHER_BAR, STOPPED_BAR = 20.0, 2.5, 0.9
PARTS = ("cycles", "hot", "stopped")
LATENCIES = ("p50_us", "p99_us")

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PeersOrder:
    """What to measure. `only`: words of names (none: all); `seconds` of load per turn; `hot_seconds` on the hot key."""

    run_id: str
    command: Sequence[str]
    folder: Path
    cache: Path
    parts: tuple[str, ...]
    only: tuple[str, ...]
    rounds: int
    seconds: float
    hot_seconds: float
    seed: int
    server: str | None = None


@dataclass(slots=True)
class _Cell:
    """One contestant under one load: its figures, one per round."""

    contestant: Contestant
    load: Load
    rounds: list[Figures] = field(default_factory=list)


def run_peers(order: PeersOrder, say: Say) -> Done:
    """Install, measure, and return the result, which is written by then.

    Raises BenchError when nothing can be measured here, KeyboardInterrupt when it was cut short before any figure.
    """
    started_at, started_s = datetime.datetime.now(datetime.UTC), time.monotonic()
    found = install(order.cache, order.only, say)
    contestants = _able(found)
    cells, hot, stopped = _cells(contestants), _hot_cells(contestants), _stopped_cells(contestants)
    server = _server(order.server)
    with Interrupts(), two_cores() as cores, start_fleet(INSTANCES, "none", server=server) as fleet:
        interrupted = _measure(order, fleet, {"cycles": cells, "hot": hot, "stopped": stopped}, say)
    parts = zip(PARTS, (cells, hot, stopped), strict=True)
    sections = {name: [_row(cell) for cell in some if cell.rounds] for name, some in parts}
    if interrupted and not any(sections.values()):
        raise KeyboardInterrupt
    result: Result = {
        "schema_version": SCHEMA_VERSION,
        "kind": "peers",
        "id": order.run_id,
        "command": list(order.command),
        "seed": order.seed,
        "started_at": f"{started_at:%Y-%m-%dT%H:%M:%SZ}",
        "duration_s": time.monotonic() - started_s,
        "interrupted": interrupted,
        "environment": builtins_of(describe_environment()),
        "conditions": _conditions(order, server, cores),
        **_taking_part(found),
        **sections,
        "bars": (judged := bars(cells, hot, stopped)),
        "verdict": judge_peers(judged, interrupted=interrupted),
    }
    return store(result, order.folder)


def _conditions(order: PeersOrder, server: ServerBinary, cores: int) -> Figures:
    return {
        "server": asdict(server),
        "cores": cores,
        "rounds": order.rounds,
        "seconds": order.seconds,
        "hot_seconds": order.hot_seconds,
        "hold_s": HOT_HOLD_S,
    }


def _able(found: Sequence[Contestant | Absent]) -> list[Contestant]:
    """Those that can run. Raises EnvironmentNotReadyError when there is none."""
    able = [entry for entry in found if isinstance(entry, Contestant)]
    if not able:
        reasons = "; ".join(f"{entry.peer.name}: {entry.reason}" for entry in found if isinstance(entry, Absent))
        raise EnvironmentNotReadyError(f"no contestant can run here: {reasons or 'none has such a name'}")
    return able


def _taking_part(found: Sequence[Contestant | Absent]) -> dict[str, list[Figures]]:
    """The sections that name who was there, and who was not and why."""
    there, absent = [], []
    for entry in found:
        peer = entry.peer
        if isinstance(entry, Absent):
            absent.append({"name": peer.name, "reason": entry.reason})
        else:
            there.append({"name": peer.name, "kind": peer.kind, "packages": list(peer.packages)})
    return {"contestants": there, "absent": absent}


def _server(wanted: str | None) -> ServerBinary:
    """The server asked for; else one with scripts only, which every library uses, if there is one."""
    plain = [one for one in found_servers() if isinstance(one, ServerBinary) and not one.native_release]
    return find_server(wanted) if wanted or not plain else plain[0]


def _cells(contestants: Sequence[Contestant]) -> list[_Cell]:
    return [
        _Cell(one, Load(instances, callers, own=True, seconds=0.0))
        for instances in EVERY_N
        for callers in CALLERS
        for one in contestants
        if instances in one.peer.instances
    ]


def _hot_cells(contestants: Sequence[Contestant]) -> list[_Cell]:
    return [
        _Cell(one, Load(instances, MANY, own=False, seconds=0.0, hold_s=HOT_HOLD_S))
        for instances in HOT_N
        for one in contestants
        if instances in one.peer.instances
    ]


def _stopped_cells(contestants: Sequence[Contestant]) -> list[_Cell]:
    able = [one for one in contestants if STOPPED_N in one.peer.instances]
    return [_Cell(one, Load(STOPPED_N, MANY, own=True, seconds=0.0)) for one in able]


def _measure(order: PeersOrder, fleet: Fleet, cells: dict[str, list[_Cell]], say: Say) -> bool:
    """Round after round; whether it was cut short. An instance is stopped in every round for ours, once for others."""
    dice = random.Random(order.seed)
    try:
        for number in range(1, order.rounds + 1):
            for part, seconds in (("cycles", order.seconds), ("hot", order.hot_seconds)):
                if part not in order.parts:
                    continue
                for cell in _shuffled(cells[part], dice):
                    say(f"round {number} of {order.rounds}, {part}: {_what(cell)}")
                    load = Load(cell.load.instances, cell.load.callers, cell.load.own, seconds, cell.load.hold_s)
                    cell.rounds.append(contest(cell.contestant, fleet, load))
            if "stopped" in order.parts:
                wanted = [cell for cell in cells["stopped"] if number == 1 or _is_ours(cell)]
                for cell in _shuffled(wanted, dice):
                    say(f"round {number} of {order.rounds}, stopped: {_what(cell)}")
                    cell.rounds.append(contest_stopped(cell.contestant, fleet, cell.load))
    except KeyboardInterrupt:
        return True
    return False


def _shuffled(cells: Iterable[_Cell], dice: random.Random) -> list[_Cell]:
    """Loads in random order, and within a load the contestants: who is compared runs close together."""
    by_load: dict[tuple[int, int], list[_Cell]] = {}
    for cell in cells:
        by_load.setdefault((cell.load.instances, cell.load.callers), []).append(cell)
    loads = dice.sample(list(by_load.values()), len(by_load))
    return [cell for load in loads for cell in dice.sample(load, len(load))]


def _what(cell: _Cell) -> str:
    return f"{cell.contestant.peer.name}, N={cell.load.instances}, {cell.load.callers} callers"


def _row(cell: _Cell) -> Figures:
    """The medians over a cell's rounds, failures summed, and the rounds themselves."""
    medians: Figures = {}
    for name in cell.rounds[0]:
        values = [figures[name] for figures in cell.rounds]
        if name == "errors":
            medians[name] = _summed(values)
        elif name in ("gave_up", "failed", "leases", "cycles", "keys_left"):
            medians[name] = sum(values)
        elif name in LATENCIES:
            middle = median(_waited(figures, name) for figures in cell.rounds)
            medians[name] = None if math.isinf(middle) else middle
        else:
            known = [value for value in values if value is not None]
            medians[name] = median(known) if known else None
    peer, load = cell.contestant.peer, cell.load
    return {
        "name": peer.name,
        "kind": peer.kind,
        "instances": load.instances,
        "callers": load.callers,
        **medians,
        "rounds": cell.rounds,
    }


def _waited(figures: Figures, name: str) -> float:
    """A percentile of the waits; who is not among those that were granted waited for ever."""
    return math.inf if figures[name] is None else float(figures[name])


def _summed(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for count in counts:
        for name, number in count.items():
            total[name] = total.get(name, 0) + number
    return total


# -- the bars --------------------------------------------------------------------------------------------------------


def bars(cells: Sequence[_Cell], hot: Sequence[_Cell], stopped: Sequence[_Cell]) -> list[Figures]:
    """What lockcore is to reach beside the peers, and whether it does; a bar whose peers are absent is left out."""
    many = [cell for cell in cells if cell.load.instances == INSTANCES and cell.load.callers == MANY and cell.rounds]
    single = [cell for cell in cells if cell.load.instances == INSTANCES and cell.load.callers == 1 and cell.rounds]
    found = [
        _rate_bar("N=5, 64 callers: cycles/s ÷ the fastest Python peer's", many, ("python",), PYTHON_BAR),
        _rate_bar("N=5, 64 callers: cycles/s ÷ the fastest other peer's", many, ("node", "go"), OTHER_BAR),
        _least_bar("N=5, 1 caller: acquire p50 ÷ the lowest of the peers", single, "p50_us"),
    ]
    for instances in HOT_N:
        wanted = [cell for cell in hot if cell.load.instances == instances and cell.rounds]
        fair = [cell for cell in wanted if _is_ours(cell) or not any(one["gave_up"] for one in cell.rounds)]
        found += [
            _rate_bar(f"hot key, N={instances}: leases/s ÷ the most of those that never give up", fair, None, 1.0),
            _least_bar(f"hot key, N={instances}: p99 wait ÷ the lowest of those that never give up", fair, "p99_us"),
        ]
    found.append(_stopped_bar(stopped))
    return [bar for bar in found if bar is not None]


def judge_peers(judged: Sequence[Figures], *, interrupted: bool = False) -> Figures:
    """The section `verdict`: a bar is certain when all rounds are on one side of it, and not known when they differ."""
    sides = [(bar["name"], {_reaches(bar, bar[end]) for end in ("low", "high")}) for bar in judged]
    found = {
        BARS_MISSED: [f"missed in every round: {name}" for name, side in sides if side == {False}],
        NOT_KNOWN: [f"reached in some rounds only: {name}" for name, side in sides if len(side) > 1],
        INTERRUPTED: ["interrupted: what was not measured is missing"] if interrupted else [],
    }
    return conclude(BARS_REACHED, [Evidence("bars measured", len(judged))], found).to_json()


def _reaches(bar: Figures, value: float) -> bool:
    return bool(value >= bar["bar"] if bar["at_least"] else value < bar["bar"])


def _is_ours(cell: _Cell) -> bool:
    return cell.contestant.peer.kind == "lockcore"


def _rate_bar(name: str, cells: Sequence[_Cell], kinds: Sequence[str] | None, bar: float) -> Figures | None:
    peers = [cell for cell in cells if (cell.contestant.peer.kind in kinds if kinds else not _is_ours(cell))]
    return _ratio_bar(name, cells, peers, "cycles_per_s", bar)


def _least_bar(name: str, cells: Sequence[_Cell], figure: str) -> Figures | None:
    return _ratio_bar(name, cells, [cell for cell in cells if not _is_ours(cell)], figure, 1.0)


def _ratio_bar(name: str, cells: Sequence[_Cell], peers: Sequence[_Cell], figure: str, bar: float) -> Figures | None:
    """Our best contestant's figure ÷ the best of the peers', round by round; its median against the bar."""
    at_least = figure == "cycles_per_s"  # of a rate more is better, of a latency less
    ours, best = [cell for cell in cells if _is_ours(cell)], max if at_least else min
    champions = [_champion(some, figure, best) for some in (ours, peers)]
    if None in champions:
        return None
    us, them = champions
    assert us is not None
    assert them is not None
    pairs = zip(us.rounds, them.rounds, strict=False)
    ratios = [_of(one, figure) / _of(other, figure) for one, other in pairs if _is_known(one, other, figure)]
    if not ratios:
        return None
    value = median(ratios)
    return {
        "name": name,
        "ours": us.contestant.peer.name,
        "theirs": them.contestant.peer.name,
        **{name: None if math.isinf(ratio) else ratio for name, ratio in _spread(ratios)},
        "bar": bar,
        "at_least": at_least,
        "reached": value >= bar if at_least else value < bar,
    }


def _spread(ratios: Sequence[float]) -> tuple[tuple[str, float], ...]:
    return ("value", median(ratios)), ("low", min(ratios)), ("high", max(ratios))


def _of(figures: Figures, figure: str) -> float:
    return _waited(figures, figure) if figure in LATENCIES else float(figures[figure])


def _is_known(ours: Figures, theirs: Figures, figure: str) -> bool:
    """Whether there is a ratio: what we did not get done in time counts against us, what they did not is no bar."""
    return bool(theirs[figure] and (ours[figure] or figure in LATENCIES))


def _champion(cells: Sequence[_Cell], figure: str, best: Callable[..., int]) -> _Cell | None:
    medians = {}
    for index, cell in enumerate(cells):
        known = [_of(figures, figure) for figures in cell.rounds if figure in LATENCIES or figures[figure]]
        if known and (figure not in LATENCIES or _is_ours(cell) or median(known) < math.inf):
            medians[index] = median(known)
    return cells[best(medians, key=lambda index: medians[index])] if medians else None


def _stopped_bar(cells: Sequence[_Cell]) -> Figures | None:
    """The share of the rate that ours keep while an instance stands still: the median of all their rounds."""
    ours = [cell for cell in cells if _is_ours(cell)]
    kept = [one["kept_ratio"] for cell in ours for one in cell.rounds if one["kept_ratio"] is not None]
    if not kept:
        return None
    value, text = median(kept), "one of three stopped: rate ÷ the mean of before and after, median of ours"
    base = {"name": text, "ours": "lockcore", "theirs": None, "value": value, "low": min(kept), "high": max(kept)}
    return {**base, "bar": STOPPED_BAR, "at_least": True, "reached": value >= STOPPED_BAR}
