"""`make bench`: *contestants run in turn on the same five servers → cycles/s, CPU per cycle, ratio to the ceiling*.

Rules: a cycle is the acquire and the release of a free resource on five in-memory instances. Contestants of one round
run one after the other in random order, each alone in its process, everything on the same two cores; what is compared
is always of one round. Ratio = (client + server CPU per cycle of the replay) ÷ (the same of the contestant); the
median over rounds is quoted, with its range. The wall-clock ratio stands beside it: it swings with whatever else the
machine does. Source: README, "How fast".
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import median
from typing import Self

from msgspec.structs import asdict

from bench.errors import EnvironmentNotReadyError
from bench.experiments.contest.installed import ours
from bench.experiments.contest.result import (
    OverRounds,
    Speed,
    SpeedConditions,
    SpeedEntry,
    SpeedResult,
    SpeedRow,
    TelemetryCost,
)
from bench.experiments.contest.turn import TurnLoad, contest, median_of, servers_by_kind, two_cores
from bench.measure.environment import describe_environment
from bench.measure.run_result import RunResult
from bench.measure.section import typed
from bench.run.experiment import Show
from bench.topology.fleet import Fleet, start_fleet

INSTANCES = 5
TELEMETRY_BAR_US = 1.5  # what telemetry may add to the load's CPU per cycle


class _Collector(BaseHTTPRequestHandler):
    server: Sink

    def log_message(self, *_: object) -> None:
        """Nothing to say."""

    def do_POST(self) -> None:
        """Read, forget, thank."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.taken += 1
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()


class Sink(ThreadingHTTPServer):
    """A context manager; `endpoint` is what OTEL_EXPORTER_OTLP_ENDPOINT takes. `taken`: requests so far."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Collector)
        self.taken, self.endpoint = 0, f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self.shutdown()
        self.server_close()


WATCHED, UNWATCHED = "Locust, with telemetry", "Locust, fast events"
PLAIN, NATIVE = "replay", "replay, native release"
ENTRIES = (
    SpeedEntry(PLAIN, "replay", "plain", PLAIN),
    SpeedEntry("lockcore gevent", "lockcore gevent", "plain", PLAIN, bar=0.70),
    SpeedEntry("lockcore asyncio + uvloop", "lockcore uvloop", "plain", PLAIN, bar=0.70),
    SpeedEntry("lockcore asyncio", "lockcore asyncio", "plain", PLAIN),
    SpeedEntry("lockcore threads, 64", "lockcore threads", "plain", PLAIN, callers=64),
    SpeedEntry(UNWATCHED, "", "plain", PLAIN, bar=0.65, locust="fast"),
    SpeedEntry(WATCHED, "", "plain", PLAIN, locust="fast", telemetry=True),
    SpeedEntry("Locust, stock events", "", "plain", PLAIN, bar=0.45, locust="stock"),
    SpeedEntry("gevent, 10 in line", "lockcore gevent", "plain", PLAIN, waiting=10),
    SpeedEntry("gevent, 5,000 in line", "lockcore gevent", "plain", PLAIN, waiting=5_000),
    SpeedEntry("lockcore gevent, merged", "lockcore gevent", "plain", PLAIN, merge=True),
    SpeedEntry(NATIVE, "replay", "native", PLAIN),
    SpeedEntry("lockcore gevent, native", "lockcore gevent", "native", PLAIN),
    SpeedEntry("redis-py, one by one", "redis-py by hand", "plain", PLAIN, callers=1),
    SpeedEntry("raw sockets, 1 caller", "raw", "plain", PLAIN, callers=1),
    SpeedEntry("lockcore gevent, 1 caller", "lockcore gevent", "plain", PLAIN, callers=1),
)


def over_rounds(values: Sequence[float]) -> OverRounds:
    """Median and range of one figure."""
    return OverRounds(median=median(values), low=min(values), high=max(values))


def rows_of(rounds: Sequence[Mapping[str, Speed]], entries: Sequence[SpeedEntry]) -> tuple[SpeedRow, ...]:
    """One row per entry from figures by label, one mapping per round; ratios are taken inside a round."""
    rows = []
    for entry in entries:
        pairs = [(figures[entry.ceiling], figures[entry.label]) for figures in rounds]
        own = tuple(figures for _, figures in pairs)
        medians = {name: median_of([getattr(one, name) for one in own]) for name in Speed.__struct_fields__}
        rows.append(
            SpeedRow(
                **(asdict(entry) | medians),
                rounds=own,
                ratio=over_rounds([ceiling.cpu_us / one.cpu_us for ceiling, one in pairs]),
                wall_ratio=over_rounds([(one.cycles_per_s or 0) / (top.cycles_per_s or 1) for top, one in pairs]),
            )
        )
    return tuple(rows)


def telemetry_us(rounds: Sequence[Mapping[str, Speed]]) -> TelemetryCost | None:
    """What telemetry adds to the load's CPU per cycle (µs), taken inside each round; None where it was not run."""
    if not rounds or WATCHED not in rounds[0]:
        return None
    pairs = [(figures[WATCHED].client_us, figures[UNWATCHED].client_us) for figures in rounds]
    added = over_rounds([(watched or 0.0) - (unwatched or 0.0) for watched, unwatched in pairs])
    return TelemetryCost(median=added.median, low=added.low, high=added.high, bar=TELEMETRY_BAR_US)


def _speed(entry: SpeedEntry, fleet: Fleet, seconds: float) -> Speed:
    if entry.locust:
        return _locust(entry, fleet, seconds)
    load = TurnLoad(INSTANCES, entry.callers, own=True, merge=entry.merge, waiting=entry.waiting)
    for longer in (1, 2, 4):  # a busy machine may not get one cycle done in so short a time
        figures = contest(ours(entry.contestant), fleet, load, longer * seconds)
        if figures.cycles_per_s:
            break
    else:
        raise EnvironmentNotReadyError(
            f"{entry.label} gave no figures; it said: {', '.join(figures.errors) or 'nothing'}"
        )
    return Speed(
        cycles_per_s=figures.cycles_per_s, client_us=figures.client_us, server_us=figures.server_us,
        p50_us=figures.p50_us,
    )  # fmt: skip


def _locust(entry: SpeedEntry, fleet: Fleet, seconds: float) -> Speed:
    """A whole `lockbench run`, as a user would: its own cost figures are the answer."""
    with tempfile.TemporaryDirectory(prefix="lockbench-speed-") as folder, Sink() as sink:
        command = [sys.executable, "-m", "bench", "run", "--json", "--quiet", "--out", f"{folder}/run"]
        for url in fleet.urls:
            command += ["--target", url]
        command += ["--users", str(entry.callers), "--resources", str(entry.callers), "--skew", "own", "--warmup", "1s"]
        command += ["--duration", f"{max(seconds, 3):g}s", "--events", entry.locust or "fast"]
        environ = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
        if entry.telemetry:
            environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = sink.endpoint
        done = subprocess.run(command, env=environ, capture_output=True, timeout=120 + 2 * seconds, check=False)
    try:
        run = typed(json.loads(done.stdout), RunResult)
    except ValueError:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["nothing"])[-1]
        raise EnvironmentNotReadyError(f"{entry.label} gave no figures; it said: {last}") from None
    if entry.telemetry and not sink.taken:
        raise EnvironmentNotReadyError(f"{entry.label} exported nothing; install the extra `telemetry`")
    p50_s, cost = run.latency_s.acquire.p50, run.cost
    return Speed(
        cycles_per_s=run.rate.achieved_per_s, client_us=cost.client_cpu_us_per_cycle,
        server_us=cost.server_cpu_us_per_cycle, p50_us=None if p50_s is None else p50_s * 1e6,
    )  # fmt: skip


def measure(rounds: int, seconds: float, seed: int, show: Show) -> SpeedResult:
    """Run all contestants `rounds` times, `seconds` each. Raises EnvironmentNotReadyError."""
    servers = servers_by_kind()
    entries = [entry for entry in ENTRIES if entry.server in servers]
    if "plain" not in servers:  # then the native server's replay is the ceiling of everything there is
        entries = [SpeedEntry(PLAIN, "replay", "native", PLAIN), *(e for e in entries if e.label != NATIVE)]
    dice = random.Random(seed)
    results: list[dict[str, Speed]] = []
    with two_cores() as cores, ExitStack() as stack:
        fleets = {
            kind: stack.enter_context(start_fleet(INSTANCES, "none", server=server)) for kind, server in servers.items()
        }
        for number in range(1, rounds + 1):
            figures = {}
            for entry in dice.sample(entries, len(entries)):
                show(f"round {number} of {rounds}: {entry.label}")
                figures[entry.label] = _speed(entry, fleets[entry.server], seconds)
            results.append(figures)
    conditions = SpeedConditions(
        instances=INSTANCES, cores=cores, rounds=rounds, seconds=seconds, seed=seed,
        servers={kind: f"{server.name} {server.version}" for kind, server in servers.items()},
    )  # fmt: skip
    return SpeedResult(
        conditions=conditions,
        environment=describe_environment(),
        telemetry_us=telemetry_us(results),
        rows=rows_of(results, entries),
    )
