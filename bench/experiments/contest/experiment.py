"""`make bench` and `make peers`: *contestants run in turn on the same servers → their rows, medians over rounds*.

    bench   acquire + release of a free resource on five in-memory instances, beside the replay, which is the ceiling
    peers   cycles   the same, N = 1, 3, 5, by 1 and by 64 callers
            hot      64 callers want one resource, each holds it for 1 ms
            stopped  one of three instances stands still for 5 s under 64 callers; ours in every round, others once

Rules: contestants of one round run one after the other in random order, each alone in its process, everything on the
same two cores. What is compared is always of one round; its median over rounds is quoted, with its range. Rates swing
with whatever else the machine does, CPU per cycle does not. Libraries run as they come.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from operator import sub, truediv
from pathlib import Path
from typing import Any, Literal

from msgspec.structs import asdict

from bench.errors import EnvironmentNotReadyError
from bench.experiments.contest.installed import Contestant, install, ours
from bench.experiments.contest.judge import HOT_N, INSTANCES, MANY, bars, judge_peers
from bench.experiments.contest.result import (
    Missing,
    PeersConditions,
    PeersResult,
    SpeedBar,
    SpeedConditions,
    SpeedResult,
    SpeedRow,
    StopFigures,
    StopRow,
    TurnFigures,
    TurnRow,
)
from bench.experiments.contest.turn import TurnLoad, contest, contest_stopped, over_rounds, servers_by_kind, two_cores
from bench.measure.environment import describe_environment
from bench.measure.run_result import RunResult
from bench.measure.section import typed
from bench.measure.statistics import Spread
from bench.run.experiment import Done, Experiment, ExperimentOrder, Show
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.server import find_server


@dataclass(frozen=True, slots=True)
class SpeedEntry:
    """What a row runs: `driver` alone, or with `locust` events a whole `lockbench run`, which exports metrics and
    traces if it has `telemetry`, and has servers of its own and any of so many `resources` if they are not 0. `bar`:
    the CPU ratio to be reached; `merge`, `waiting`: see ClientOrder."""

    name: str
    driver: str = ""
    server: Literal["plain", "native"] = "plain"
    callers: int = 200
    merge: bool = False
    waiting: int = 0
    bar: float | None = None
    locust: str = ""
    telemetry: bool = False
    resources: int = 0


REPLAY, CORE, RAW, ALONE = "replay", "lockcore gevent", "raw sockets, 1 caller", "lockcore gevent, 1 caller"
RUN, WATCHED, UNWATCHED = "lockbench run", "Locust, with telemetry", "Locust, fast events"
ENTRIES = (
    SpeedEntry(REPLAY, "replay"),
    SpeedEntry(CORE, "lockcore gevent", bar=0.80),
    SpeedEntry("lockcore asyncio + uvloop", "lockcore uvloop", bar=0.80),
    SpeedEntry("lockcore asyncio", "lockcore asyncio"),
    SpeedEntry("lockcore threads, 64", "lockcore threads", callers=64),
    SpeedEntry(RUN, bar=0.65, locust="fast", resources=100_000),
    SpeedEntry(UNWATCHED, bar=0.72, locust="fast"),
    SpeedEntry(WATCHED, locust="fast", telemetry=True),
    SpeedEntry("Locust, stock events", bar=0.45, locust="stock"),
    SpeedEntry("gevent, 10 in line", "lockcore gevent", waiting=10),
    SpeedEntry("gevent, 5,000 in line", "lockcore gevent", waiting=5_000),
    SpeedEntry("lockcore gevent, merged", "lockcore gevent", merge=True),
    SpeedEntry("replay, native release", "replay", "native"),
    SpeedEntry("lockcore gevent, native", "lockcore gevent", "native", bar=1.0),
    SpeedEntry("redis-py, one by one", "redis-py by hand", callers=1),
    SpeedEntry(RAW, "raw", callers=1),
    SpeedEntry(ALONE, "lockcore gevent", callers=1),
)
Beside = Callable[[float, float], float]
BARS: tuple[tuple[str, str, str, str, Beside, float], ...] = (  # name, two rows, the figure, how they compare, the bar
    (f"{CORE}: cycles/s ÷ the replay's", CORE, REPLAY, "cycles_per_s", truediv, 0.75),
    (f"{RUN}: cycles/s ÷ the replay's", RUN, REPLAY, "cycles_per_s", truediv, 0.65),
    (f"{RUN}: client CPU ÷ that of {CORE}", RUN, CORE, "client_us", truediv, 1.5),
    (f"{RUN}: beside its load, of a core", RUN, "", "beside_ratio", sub, 0.05),  # by itself
    ("what telemetry adds to the client, µs", WATCHED, UNWATCHED, "client_us", sub, 1.5),
    ("1 caller: acquire p50 ÷ raw sockets'", ALONE, RAW, "p50_us", truediv, 1.0),
)
Measured = Mapping[SpeedEntry, Sequence[TurnFigures]]  # its turns, one per round


def measure(rounds: int, seconds: float, seed: int, show: Show) -> SpeedResult:
    """Run all contestants `rounds` times, `seconds` each. Raises EnvironmentNotReadyError."""
    servers = servers_by_kind()
    entries = [entry for entry in ENTRIES if entry.server in servers]
    if "plain" not in servers:  # then the native server's replay is the ceiling of everything there is
        entries[:1] = [SpeedEntry(REPLAY, "replay", "native")]
    rng = random.Random(seed)
    measured: dict[SpeedEntry, list[TurnFigures]] = {entry: [] for entry in entries}
    with two_cores() as cores, ExitStack() as stack:
        fleets = {
            kind: stack.enter_context(start_fleet(INSTANCES, "none", server=server)) for kind, server in servers.items()
        }
        for number in range(1, rounds + 1):
            for entry in rng.sample(entries, len(entries)):
                show(f"round {number} of {rounds}: {entry.name}")
                turn = figures_of_run if entry.locust else _alone
                measured[entry].append(turn(entry, fleets[entry.server], seconds))
    conditions = SpeedConditions(
        instances=INSTANCES, cores=cores, rounds=rounds, seconds=seconds, seed=seed,
        servers={kind: f"{server.name} {server.version}" for kind, server in servers.items()},
    )  # fmt: skip
    return SpeedResult(
        conditions=conditions,
        environment=describe_environment(),
        rows=rows_of(measured),
        bars=tuple(bars_of(measured)),
    )


def rows_of(measured: Measured) -> tuple[SpeedRow, ...]:
    """One row per entry; ratios to the replay are taken inside a round."""
    top = _rounds_of(measured, REPLAY)
    return tuple(
        SpeedRow(
            name=entry.name,
            kind="lockcore",
            instances=INSTANCES,
            callers=entry.callers,
            server=entry.server,
            bar=entry.bar,
            ratio=Spread.of(most.cpu_us / one.cpu_us for most, one in zip(top, rounds, strict=True)),
            wall_ratio=Spread.of(one.cycles_per_s / most.cycles_per_s for most, one in zip(top, rounds, strict=True)),
            **over_rounds(rounds),
        )
        for entry, rounds in measured.items()
    )


def bars_of(measured: Measured) -> Iterator[SpeedBar]:
    """What rows are to each other, taken inside each round; without those that were not run. What we did not measure
    counts as endless, what they did not is no bar."""
    for name, one, other, figure, compare, bar in BARS:
        us = [inf if (value := getattr(turn, figure)) is None else value for turn in _rounds_of(measured, one)]
        them = [getattr(turn, figure) for turn in _rounds_of(measured, other)]
        if found := [compare(*pair) for pair in zip(us, them, strict=False) if pair[1]] if other else us:
            yield SpeedBar(**asdict(Spread.of(found)), name=name, bar=bar, at_least=figure == "cycles_per_s")


def _rounds_of(measured: Measured, name: str) -> Sequence[TurnFigures]:
    return next((rounds for entry, rounds in measured.items() if entry.name == name), ())


def _alone(entry: SpeedEntry, fleet: Fleet, seconds: float) -> TurnFigures:
    load = TurnLoad(INSTANCES, entry.callers, own=True, merge=entry.merge, waiting=entry.waiting)
    for longer in (1, 2, 4):  # a busy machine may not get one cycle done in so short a time
        figures = contest(ours(entry.driver), fleet, load, longer * seconds)
        if figures.cycles_per_s:
            return figures
    raise _nothing(entry, ", ".join(figures.errors))


def figures_of_run(entry: SpeedEntry, fleet: Fleet, seconds: float) -> TurnFigures:
    """A whole `lockbench run`, as a user would: its own cost figures are the answer, if it stands by them."""
    for _ in range(3):  # a busy machine may make a run invalid
        run = _run(entry, fleet, seconds)
        rate, cost, p50_s = run.rate.achieved_per_s, run.cost, run.latency_s.acquire.p50
        client_us, server_us, beside = cost.client_cpu_us_per_cycle, cost.server_cpu_us_per_cycle, cost.beside_cpu_ratio
        if not run.verdict.exit_code and rate and client_us and server_us:
            client_us += (beside or 0.0) * 1e6 / rate if entry.resources else 0.0  # all processes of the command
            p50_us = None if p50_s is None else p50_s * 1e6
            return TurnFigures(
                cycles_per_s=rate, p50_us=p50_us, client_us=client_us, server_us=server_us, beside_ratio=beside
            )
    raise _nothing(entry, "; ".join(run.verdict.reasons))


def _run(entry: SpeedEntry, fleet: Fleet, seconds: float) -> RunResult:
    environ = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
    with tempfile.TemporaryDirectory(prefix="lockbench-speed-") as folder, collector() as (endpoint, taken):
        command = [sys.executable, "-m", "bench", "run", "--json", "--quiet", "--out", f"{folder}/run"]
        command += ["--users", str(entry.callers), "--duration", f"{max(seconds, 3):g}s", "--events", entry.locust]
        command += ["--warmup", "1s", "--hold", "0"]
        if entry.resources:
            command += ["--instances", str(INSTANCES), "--fsync", "none", "--server", str(fleet.server.path)]
            command += ["--resources", str(entry.resources)]
        else:
            command += [word for url in fleet.urls for word in ("--target", url)]
            command += ["--resources", str(entry.callers), "--skew", "own"]
        if entry.telemetry:
            environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint
        done = subprocess.run(command, env=environ, capture_output=True, timeout=120 + 2 * seconds, check=False)
    try:
        run = typed(json.loads(done.stdout), RunResult)
    except ValueError:
        raise _nothing(entry, done.stderr.decode(errors="replace").strip().rpartition("\n")[2]) from None
    if entry.telemetry and not taken:
        raise EnvironmentNotReadyError(f"{entry.name} exported nothing; install the extra `telemetry`")
    return run


def _nothing(entry: SpeedEntry, said: str) -> EnvironmentNotReadyError:
    return EnvironmentNotReadyError(f"{entry.name} gave no figures; it said: {said or 'nothing'}")


@contextmanager
def collector() -> Iterator[tuple[str, list[str]]]:
    """A collector that reads, forgets and thanks: its OTEL_EXPORTER_OTLP_ENDPOINT, and the paths asked for so far."""
    taken: list[str] = []

    class Collector(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nothing to say."""

        def do_POST(self) -> None:
            """Read, forget, thank."""
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            taken.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", taken
        finally:
            server.shutdown()


# -- make peers ------------------------------------------------------------------------------------------------------


HOT_HOLD_S = 0.001
LOADS = {
    "cycles": tuple(TurnLoad(instances, callers, own=True) for instances in (1, 3, 5) for callers in (1, MANY)),
    "hot": tuple(TurnLoad(instances, MANY, own=False, hold_s=HOT_HOLD_S) for instances in HOT_N),
    "stopped": (TurnLoad(3, MANY, own=True),),
}


@dataclass(frozen=True, slots=True)
class PeersPlan:
    """What to measure: `parts` of LOADS. `only`: words of names (none: all); `seconds` of load per turn; `hot_seconds`
    on the hot key."""

    cache: Path
    parts: tuple[str, ...]
    only: tuple[str, ...]
    rounds: int
    seconds: float
    hot_seconds: float
    seed: int


@dataclass(slots=True)
class Cell:
    """One contestant under one load: its figures, one per round."""

    contestant: Contestant
    load: TurnLoad
    rounds: list[TurnFigures] | list[StopFigures] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.contestant.peer.name}, N={self.load.instances}, {self.load.callers} callers"


def run_peers(order: ExperimentOrder[PeersPlan], show: Show) -> Done[PeersResult]:
    """Install, measure, and return the result, which is written by then.

    Raises BenchError when nothing can be measured here, KeyboardInterrupt when it was cut short before any figure.
    """
    plan = order.plan
    found = install(plan.cache.resolve(), plan.only, show)
    contestants = [entry for entry in found if isinstance(entry, Contestant)]
    absent = tuple(entry for entry in found if isinstance(entry, Missing))
    if not contestants:
        reasons = "; ".join(f"{one.name}: {one.reason}" for one in absent)
        raise EnvironmentNotReadyError(f"no contestant can run here: {reasons or 'none has such a name'}")
    cells = {
        part: [Cell(one, load) for load in LOADS[part] for one in contestants if load.instances in one.peer.instances]
        for part in plan.parts
    }
    server = find_server(order.server) if order.server else next(iter(servers_by_kind().values()))
    with Experiment(order) as experiment:
        with two_cores() as cores, start_fleet(INSTANCES, "none", server=server) as fleet, experiment.cuttable():
            _measure(plan, fleet, cells, show)
        rows = {part: tuple(row_of(cell) for cell in some if cell.rounds) for part, some in cells.items()}
        experiment.require([row for part in rows.values() for row in part])
        cycles, hot, stopped = (rows.get(part, ()) for part in LOADS)
        judged = bars(cycles, hot, stopped)
        result = PeersResult(
            **experiment.header(seed=plan.seed, interrupted=experiment.cut),
            conditions=PeersConditions(
                server=server, cores=cores, rounds=plan.rounds, seconds=plan.seconds, hot_seconds=plan.hot_seconds,
                hold_s=HOT_HOLD_S,
            ),
            contestants=tuple(one.peer for one in contestants), absent=absent,
            cycles=cycles, hot=hot, stopped=stopped, bars=judged,
            verdict=judge_peers(judged, interrupted=experiment.cut),
        )  # fmt: skip
        return experiment.store(result)


def _measure(plan: PeersPlan, fleet: Fleet, cells: Mapping[str, Sequence[Cell]], show: Show) -> None:
    """Round after round. An instance is stopped in every round for ours, once for others."""
    rng, seconds = random.Random(plan.seed), {"cycles": plan.seconds, "hot": plan.hot_seconds}
    for number in range(1, plan.rounds + 1):
        for part, some in cells.items():
            for cell in _shuffled(some, rng):
                if part == "stopped" and number > 1 and cell.contestant.peer.kind != "lockcore":
                    continue
                show(f"round {number} of {plan.rounds}, {part}: {cell}")
                turn: Any = contest_stopped if part == "stopped" else partial(contest, seconds=seconds[part])
                cell.rounds.append(turn(cell.contestant, fleet, cell.load))


def _shuffled(cells: Sequence[Cell], rng: random.Random) -> list[Cell]:
    """Loads in random order, and within a load the contestants: who is compared runs close together."""
    places = {load: rng.random() for load in dict.fromkeys(cell.load for cell in cells)}
    return sorted(cells, key=lambda cell: (places[cell.load], rng.random()))


def row_of(cell: Cell) -> Any:
    """A cell's rounds as one row: a TurnRow or a StopRow."""
    peer, load = cell.contestant.peer, cell.load
    return (StopRow if isinstance(cell.rounds[0], StopFigures) else TurnRow)(
        name=peer.name, kind=peer.kind, instances=load.instances, callers=load.callers, **over_rounds(cell.rounds)
    )
