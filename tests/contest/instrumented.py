"""`make bench ARGS=--telemetry`: *lockcore on each way of waiting → what `lockcore.otel` adds to a
cycle's CPU*.

Rules: four locks of one process take turns in every round, in random order, on the same servers: as
they are, instrumented without an SDK, instrumented with one, and once more as they are. The last is
the null control: what nothing adds to nothing. A figure within its spread is not measurable here. A
turn is a short load; what making and counting it takes is not in it. A longer turn of each comes
before them, after which as few cycles are samples as of a lock that is always busy; nobody collects
meanwhile. The estimate over the rounds is Hodges and Lehmann's, its interval of 95 % Wilcoxon's.
`forked`: all happens in a forked child, through providers that its parent has used. Threads: whole
cycles of two locks that are alike differ by more than the bar (lockcore/applications.md), so what
is measured is what one thread's calls take, as an operation makes them, at the rate of a busy lock.
"""

import json
import os
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from opentelemetry.metrics import MeterProvider as Meters
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import NoOpTracerProvider
from opentelemetry.trace import TracerProvider as Traces

from bench.errors import EnvironmentNotReadyError
from bench.experiments.judge.clients.lock import Lock, at_once
from bench.measure.statistics import Spread, paired_shift
from bench.topology.child import Child
from bench.topology.fleet import start_fleet
from lockcore import AsyncRedlock, Denied, Lease, Outcome, Redlock
from lockcore.otel import instrument
from tests.contest.clients.loops import LoadOrder, run_blocking, run_tasks
from tests.contest.judge import INSTANCES, bar_of, spread_of_rounds
from tests.contest.machine import Machine, two_cores
from tests.contest.peers import Show
from tests.contest.result import BUSY_RATIO, Bar, Conditions, SpeedResult
from tests.contest.round import TTL_MS, servers_by_kind

# by way of waiting: how many callers it has
SHELLS = {"gevent": 64, "uvloop": 64, "asyncio": 64, "threads": 1, "asyncio forked": 64}
# So many rounds are run for each one that --rounds asks for.
TURNS = 6
TURN_S = 0.2
WARMUP_S = 0.02
PATIENCE_S = 120.0
BARS = {"without an SDK": 0.5, "with one": 1.0}  # µs
CONFIDENCE = 0.95
# The warm-up is longer than one second, the time in which lockcore.otel makes its spans fewer.
LONG_S = 2.0
BLOCKING = ("gevent", "threads")
AnyRedlock = Redlock | AsyncRedlock
# So many leases are reported at once, and then a rest follows: 10,000 a second, as threads make.
LEASES = 100
REST_S = 0.01


def measure_telemetry(rounds: int, show: Show) -> SpeedResult:
    """Take `TURNS` × `rounds` turns of each lock on each shell. Raises EnvironmentNotReadyError."""
    kind, server = next(iter(servers_by_kind().items()))
    with two_cores() as cores, start_fleet(INSTANCES, "none", server=server) as fleet:
        bars = [bar for shell in SHELLS for bar in _bars(shell, rounds * TURNS, fleet.urls, show)]
    conditions = Conditions(
        cores=cores,
        rounds=rounds * TURNS,
        seconds=TURN_S,
        seed=0,
        servers={kind: f"{server.name} {server.version}"},
    )
    return SpeedResult(conditions=conditions, rows=(), bars=tuple(bars))


def _bars(shell: str, rounds: int, urls: Sequence[str], show: Show) -> Iterator[Bar]:
    show(f"what lockcore.otel adds: {shell}, {rounds} rounds")
    way, *forked = shell.split()
    order = LoadOrder(
        shell,
        urls,
        pids=[],
        seconds=TURN_S,
        warmup_s=WARMUP_S,
        callers=SHELLS[shell],
        own=True,
        ttl_ms=TTL_MS,
        wait_ms=0,
    )
    with (
        Machine() as machine,
        Child(shell, [sys.executable, "-m", __name__, way, str(rounds), *forked]) as child,
    ):
        child.tell(order)
        took = child.hear(list[list[float]], 2 * rounds + PATIENCE_S)
        # The process must end by itself. If it were killed, the CPU of its forked child would not
        # count as ours.
        child.finish(PATIENCE_S)
    if not took:
        raise EnvironmentNotReadyError(f"{shell} got no round done; try again on a quieter machine")
    plain_us = paired_shift([us[0] for us in took], CONFIDENCE).shift
    null = spread_of_rounds(us[-1] - us[0] for us in took)
    for index, (how, bar) in enumerate(BARS.items(), 1):
        added = paired_shift([us[index] - us[0] for us in took], CONFIDENCE)
        where = f"{SHELLS[shell]} callers, {plain_us:.1f} µs a cycle: what lockcore.otel adds"
        name = (
            f"{shell}, {'its calls alone: what they take' if shell == 'threads' else where} "
            f"{how}, µs"
        )
        spread = Spread(median=added.shift, low=added.low, high=added.high)
        yield bar_of(name, spread, bar, busy=machine.elsewhere_ratio >= BUSY_RATIO, null=null)


# -- in the shell's process ------------------------------------------------------------------------


# One pair for each of `BARS`, in that order. They are made at import, so a forked child has them,
# too.
PROVIDERS: tuple[tuple[Meters, Traces], ...] = (
    (NoOpMeterProvider(), NoOpTracerProvider()),
    (MeterProvider([InMemoryMetricReader()]), TracerProvider()),
)


async def rounds_of(shell: str, rounds: int, order: LoadOrder) -> list[list[float]]:
    """The CPU of a cycle of each lock (µs) in each round, the null control's last."""
    locks = [await _connected(shell, order) for _ in range(1 + len(PROVIDERS) + 1)]
    costs_us = []
    for lock, (meters, traces) in zip(locks[1:-1], PROVIDERS, strict=True):
        instrument(lock, meter_provider=meters, tracer_provider=traces)
    for lock in locks:
        await _turn(shell, lock, replace(order, seconds=LONG_S))
    for _ in range(rounds):
        us = {lock: await _turn(shell, lock, order) for lock in random.sample(locks, len(locks))}
        # A busy machine may not finish one cycle in so short a time. Such a round is left out.
        if all(us.values()):
            costs_us.append([us[lock] for lock in locks])
    return costs_us


def _calls_us(lock: Any, seconds: float) -> float:
    """The CPU of one thread for what it tells of a cycle; of a lock that tells nobody, for asking
    whether to."""
    listener = lock._driver.engine.listener
    granted = [lock.try_acquire(str(name), TTL_MS) for name in range(LEASES)]
    leases = [lease for lease in granted if isinstance(lease, Lease)]
    took_ns = 0
    cycles = 0
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s and leases:
        began_ns = time.thread_time_ns()
        for lease in leases:
            if listener is not None:
                listener.begun()
                listener.ended(lease.resource, lease, lease.started_ns)
                listener.released(lease, Outcome.RELEASED, lease.granted_ns)
        took_ns = took_ns + time.thread_time_ns() - began_ns
        cycles = cycles + len(leases)
        time.sleep(REST_S)
    for lease in leases:
        lock.try_release(lease)
    return took_ns / 1000 / cycles if cycles else 0.0


async def _connected(shell: str, order: LoadOrder) -> AnyRedlock:
    if shell in BLOCKING:
        return Redlock.connect(
            order.urls, shell="gevent" if shell == "gevent" else "threads", rejoin="trust-first"
        )
    return await AsyncRedlock.connect(order.urls, rejoin="trust-first")


async def _turn(shell: str, lock: AnyRedlock, order: LoadOrder) -> float:
    if shell == "threads":
        return _calls_us(lock, order.seconds)
    same = Lock(lock.try_acquire, lock.try_release, Denied, Outcome.RELEASED)
    gevent = shell == "gevent"

    def connect(_order: LoadOrder) -> Lock:
        return same

    answer = (
        run_blocking(connect, order, greenlets=True) if gevent else await run_tasks(connect, order)
    )
    return answer.client_us / answer.cycles if answer.cycles else 0.0


def main() -> None:
    """Run the order on stdin in the shell, and so often, as the words say."""
    (shell, rounds, *forked) = sys.argv[1:]
    order = LoadOrder(**json.loads(sys.stdin.readline()))
    if forked:
        at_once(rounds_of("threads", 1, order))
        if child := os.fork():
            os.waitpid(child, 0)
            os._exit(0)
    work = rounds_of(shell, int(rounds), order)
    print(
        json.dumps(at_once(work) if shell in BLOCKING else import_module(shell).run(work)),
        flush=True,
    )
    os._exit(0)


if __name__ == "__main__":
    main()
