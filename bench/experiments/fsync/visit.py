"""One visit of one cell: *servers, load → closed loop, then open loop at shares of what it reached*.

Rules: the maximum is found first; the open loops ask for 50 % and 80 % of *this visit's* maximum. Every load has its
own counters of the servers around it (INFO, LATENCY, the shim's fsyncs); those cover its warm-up and drain, too, as do
the leases they are divided by. Values only in what is returned: they are stored, and put together later.
Source: bench.experiments.fsync.load_process, bench.topology.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bench.errors import EnvironmentNotReadyError
from bench.experiments.fsync.cell_servers import Ground
from bench.experiments.fsync.generator import Generator
from bench.experiments.fsync.load import WAITAOF, Phase
from bench.experiments.fsync.plan import RATES, FsyncCell, FsyncPlan
from bench.experiments.fsync.rewrite import fill, rewrite_now
from bench.experiments.fsync.waitaof import waitaof_truth
from bench.topology.latency_events import LatencyMonitor
from bench.topology.probe import InfoDelta, InfoSnapshot, delta, info_snapshot

MAXIMUM = "max"
REWRITE_AT = 0.3  # of the measured window

Row = dict[str, Any]


def load_names() -> list[str]:
    """The loads of a visit, in order."""
    return [MAXIMUM, *(f"{share:.0%}" for share in RATES)]


@dataclass(slots=True)
class Visit:
    """A cell on servers that stand. `number`: of the visit, in the names of its keys."""

    plan: FsyncPlan
    cell: FsyncCell
    ground: Ground
    key_prefix: str

    def measure(self, seed: int) -> Row:
        """All loads of the visit. Raises EnvironmentNotReadyError when the load or a server ends early."""
        cell, ground, plan = self.cell, self.ground, self.plan
        if cell.rewrite != "off" and ground.own:
            fill(ground.urls, self.key_prefix)
        truth = waitaof_truth(ground, self.key_prefix) if cell.policy == WAITAOF else {}
        loads: dict[str, Row] = {}
        with Generator(cell, ground.urls, self.key_prefix, seed, ground.folder / "load.log") as generator:
            loads[MAXIMUM] = self._load(generator, Phase(plan.warmup_s, plan.seconds))
            rate = loads[MAXIMUM]["granted"] / plan.seconds
            if not rate:
                raise EnvironmentNotReadyError(f"{cell}: no lock was granted in {plan.seconds:g} s")
            for share, name in zip(RATES, load_names()[1:], strict=True):
                loads[name] = self._load(generator, Phase(plan.warmup_s, plan.open_seconds, share * rate))
        if cell.policy == WAITAOF:
            loads[MAXIMUM]["waitaof"] |= truth
        disk = asdict(ground.disk) if ground.disk else None
        return {"disk": disk, "loads": loads}

    def _load(self, generator: Generator, phase: Phase) -> Row:
        ground = self.ground
        monitor = LatencyMonitor(ground.urls, own=ground.own)
        before, syncs = info_snapshot(ground.urls), ground.syncs
        generator.begin(phase)
        rewrite = None
        if self.cell.rewrite != "off":
            time.sleep(phase.warmup_s + REWRITE_AT * phase.seconds)
            rewrite = rewrite_now(ground)
        figures = generator.figures()
        after, syncs_after = info_snapshot(ground.urls), ground.syncs
        events = monitor.events()
        return {
            **asdict(figures),
            "rate_per_s": phase.rate_per_s,
            "fsyncs": None if syncs is None or syncs_after is None else syncs_after - syncs,
            "latency_events": None if events is None else {name: asdict(event) for name, event in events.items()},
            "rewrite": rewrite,
            **_of_servers(before, after),
        }


def _of_servers(before: Sequence[InfoSnapshot], after: Sequence[InfoSnapshot]) -> Row:
    """What the servers' own counters say of a load."""
    deltas = [delta(old, new) for old, new in zip(before, after, strict=True)]
    for old, change in zip(before, deltas, strict=True):
        if change.warning and old.values is not None:  # it did answer: it has gone, or is another one now
            raise EnvironmentNotReadyError(
                f"{change.address} did not live through the load ({change.warning}); see why, and measure again"
            )
    cpu_s = [change.cpu_s for change in deltas if change.cpu_s is not None]
    whole = len(cpu_s) == len(deltas)
    return {
        "elapsed_s": max(change.elapsed_s for change in deltas),
        "server_cpu_s": sum(cpu_s) if whole else None,
        "busiest_server_ratio": max(_ratio(change) for change in deltas) if whole else None,
        "aof_delayed_fsync": _sum(deltas, "aof_delayed_fsync"),
        "aof_rewrites": _sum(deltas, "aof_rewrites"),
    }


def _ratio(change: InfoDelta) -> float:
    return (change.cpu_s or 0.0) / change.elapsed_s


def _sum(deltas: Sequence[InfoDelta], name: str) -> int | None:
    values = [change.aof.get(name) for change in deltas]
    known = [value for value in values if isinstance(value, int)]
    return sum(known) if len(known) == len(values) else None
