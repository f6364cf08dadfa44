"""One visit of one cell: *servers, load → closed loop, then open loop at a share of what it reached*.

Rules: the maximum is found first; the open loop asks for 80 % of *this visit's* maximum. Either load has its
own counters of the servers around it (INFO, LATENCY, the shim's fsyncs); those cover its warm-up and drain, too, as do
the leases they are divided by. Values only in what is returned: they are stored, and put together later.

    rewrite   the servers are given something to rewrite; BGREWRITEAOF in the middle of each load, and the fsyncs made
              meanwhile: under `no-appendfsync-on-rewrite` even `always` makes none, and says nothing
    waitaof   once WAITAOF has counted the local fsync, the shim's ledger must hold every byte the file had when the SET
              was answered. Redis 7.4 (repaired later) and Valkey 9.1.2 say so too early under everysec, as long as the
              last fsync is less than a second old (redis/redis#13793)
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import msgspec
import redis

from bench.errors import EnvironmentNotReadyError
from bench.experiments.fsync.cell_servers import CellServers
from bench.experiments.fsync.plan import OPEN_SHARE, WAITAOF_MS, FsyncPlan, LoadOrder, Phase
from bench.experiments.fsync.result import (
    FsyncCell,
    LoadSeen,
    PhaseFigures,
    RewriteSeen,
    VisitSeen,
    WaitaofCounts,
    known_sum,
)  # fmt: skip
from bench.topology.child import Child
from bench.topology.probe import InfoDelta, InfoSnapshot, LatencyMonitor, delta, info_snapshot
from bench.topology.target import client_of, parse_targets

REWRITE_AT = 0.3  # of the measured window
FILLERS, FILLER_BYTES = 200_000, 100
LONGEST_REWRITE_S = 30.0
WAITAOF_PROBES = 2
PATIENCE_S = 60.0  # for an answer of the load process, beyond what a phase itself takes
_TIMEOUT_S = 20.0
_LOOK_S = 0.002
_FILL = """
for i = 1, tonumber(ARGV[1]) do redis.call('set', ARGV[3] .. i, string.rep('x', tonumber(ARGV[2]))) end
return 1
"""


class NothingGrantedError(EnvironmentNotReadyError):
    """The machine, or a server, did not get one lock done: nothing is known of the cell."""


@dataclass(slots=True)
class CellMeasurement:
    """A cell on servers that stand."""

    plan: FsyncPlan
    cell: FsyncCell
    servers: CellServers
    key_prefix: str

    def measure(self, repeat: int) -> VisitSeen:
        """All loads of the visit. Raises NothingGrantedError; EnvironmentNotReadyError: load or server ended early."""
        cell, servers, plan = self.cell, self.servers, self.plan
        if cell.rewrite != "off" and servers.own:
            fill(servers.urls, self.key_prefix)
        truth = waitaof_truth(servers, self.key_prefix) if cell.policy == "waitaof" else WaitaofCounts()
        with load_process(cell, servers.urls, self.key_prefix, plan.seed * 1000 + repeat) as child:
            most = self._load(child, Phase(plan.warmup_s, plan.seconds))
            if not most.granted:
                denied = ", ".join(f"{outcome} {count:,}" for outcome, count in most.denied.items() if count)
                raise NothingGrantedError(
                    f"{cell}: no lock was granted in {plan.seconds:g} s ({denied or 'no answer'})"
                )
            rate_per_s = OPEN_SHARE * most.granted / plan.seconds
            kept = self._load(child, Phase(plan.warmup_s, plan.seconds, rate_per_s))
        if most.waitaof:
            most = msgspec.structs.replace(most, waitaof=WaitaofCounts.sum_of([most.waitaof, truth]))
        return VisitSeen(repeat=repeat, cell=cell, disk=servers.disk, loads={"max": most, "80%": kept})

    def _load(self, child: Child, phase: Phase) -> LoadSeen:
        servers = self.servers
        monitor = LatencyMonitor(servers.urls, own=servers.own)
        before, syncs = info_snapshot(servers.urls), servers.syncs
        child.tell(phase)
        rewrite = None
        if self.cell.rewrite != "off":
            time.sleep(phase.warmup_s + REWRITE_AT * phase.seconds)
            rewrite = rewrite_now(servers)
        figures = child.hear(PhaseFigures, phase.warmup_s + phase.seconds + PATIENCE_S)
        after, fsyncs = info_snapshot(servers.urls), _since(syncs, servers.syncs)
        did = servers_did(before, after)
        return LoadSeen(
            **msgspec.structs.asdict(figures),
            rate_per_s=phase.rate_per_s,
            fsyncs=fsyncs,
            latency_events=monitor.events(),
            rewrite=rewrite,
            elapsed_s=max(one.elapsed_s for one in did),
            server_cpu_s=known_sum(one.cpu_s for one in did),
            aof_delayed_fsync=known_sum(one.delayed_fsyncs for one in did),
        )


@contextmanager
def load_process(cell: FsyncCell, urls: Sequence[str], key_prefix: str, seed: int) -> Iterator[Child]:
    """A connected load process, to be told a Phase and heard PhaseFigures from. Raises EnvironmentNotReadyError."""
    with Child("the load process", "bench.experiments.fsync.load_process") as child:
        child.tell(LoadOrder(urls, key_prefix, cell.clients, cell.pipeline, cell.policy == "waitaof", seed))
        child.hear(str, PATIENCE_S)
        yield child


def servers_did(before: Sequence[InfoSnapshot], after: Sequence[InfoSnapshot]) -> list[InfoDelta]:
    """What each did meanwhile. Raises EnvironmentNotReadyError when one did not live through the load."""
    deltas = [delta(old, new) for old, new in zip(before, after, strict=True)]
    for old, change in zip(before, deltas, strict=True):
        if change.warning and old.values is not None:  # it did answer: it has gone, or is another one now
            raise EnvironmentNotReadyError(
                f"{change.address} did not live through the load ({change.warning}); see why, and measure again"
            )
    return deltas


def _since(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


@contextmanager
def _clients(urls: Sequence[str], aim: str) -> Iterator[list[redis.Redis]]:
    """A client of each. Raises EnvironmentNotReadyError: why the `aim` cannot be reached."""
    with ExitStack() as stack:
        clients = [client_of(target, _TIMEOUT_S) for target in parse_targets(urls)]
        for client in clients:
            stack.callback(client.connection_pool.disconnect)
        try:
            yield clients
        except (redis.RedisError, OSError) as error:
            raise EnvironmentNotReadyError(f"{aim}: {error}") from None


def fill(urls: Sequence[str], key_prefix: str) -> None:
    """Give each server `FILLERS` keys, so that a rewrite takes a while. For servers of our own."""
    with _clients(urls, "a server cannot be filled") as clients:
        for client in clients:
            client.eval(_FILL, 0, str(FILLERS), str(FILLER_BYTES), f"{key_prefix}filler:")


def rewrite_now(servers: CellServers) -> RewriteSeen:
    """Rewrite on all servers at once; return when all have ended. Raises EnvironmentNotReadyError."""
    with _clients(servers.urls, "the append-only file cannot be rewritten") as clients:
        before, begun_s = servers.syncs, time.monotonic()
        for client in clients:
            client.bgrewriteaof()
        running = clients
        while running and time.monotonic() < begun_s + LONGEST_REWRITE_S:
            running = [client for client in running if _rewrites(client)]
            time.sleep(_LOOK_S)  # no server tells when it has ended
        took_s = time.monotonic() - begun_s
        return RewriteSeen(took_s=None if running else took_s, fsyncs=_since(before, servers.syncs))


def _rewrites(client: redis.Redis) -> bool:
    state: dict[str, object] = client.info("persistence")
    return any(bool(state[f"aof_rewrite_{what}"]) for what in ("in_progress", "scheduled"))


def waitaof_truth(servers: CellServers, key_prefix: str) -> WaitaofCounts:
    """Single tries that the first server confirmed, and how many of those were untrue; none without a shim."""
    if not servers.controls:
        return WaitaofCounts()
    control, folder = servers.controls[0], servers.folders[0]
    probes = untrue = 0
    with _clients(servers.urls[:1], "WAITAOF cannot be tried") as clients:
        for number in range(WAITAOF_PROBES):
            key = f"{key_prefix}truth:{number}"
            clients[0].set(key, "held", px=10_000)
            sizes = {path: path.stat().st_size for path in folder.glob("appendonlydir/*.incr.aof")}
            reply: list[int] = clients[0].waitaof(1, 0, WAITAOF_MS)
            if reply[0] >= 1:
                probes += 1
                untrue += any(control.synced(path).durable_bytes < sizes[path] for path in sizes if path.exists())
            clients[0].delete(key)
    return WaitaofCounts(probes=probes, untrue=untrue)
