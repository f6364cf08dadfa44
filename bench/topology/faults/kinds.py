"""THE table of faults: *a kind and a target → the class that injects it*; a scenario's faults → checked orders.

Rules: kinds are named as scenarios write them; every kind of `bench.scenario` is here. Reading starts nothing. With a
random phase a fault begins up to one second later (servers sync on seconds), drawn from the scenario's seed.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from bench.errors import UsageError
from bench.scenario import Fault
from bench.topology.faults.clock import ClockJump, ClockRate
from bench.topology.faults.commands import ClientKill, ClientPause, ScriptFlush
from bench.topology.faults.disk import DiskFull, FsyncError, FsyncLatency
from bench.topology.faults.injection import FaultOrder, Injection
from bench.topology.faults.network import Drop, ProxyFault
from bench.topology.faults.params import read_params
from bench.topology.faults.power_cut import PowerCut
from bench.topology.faults.processes import KillInstance, KillWorker, RestartInstance, StopInstance, StopWorker
from bench.topology.faults.refusals import Loading, MaxMemory, Misconf, ReadOnly
from bench.topology.faults.site import Need, Site

PHASE_MS = 1000.0


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind: the class for an instance, and for a load worker if it can strike one."""

    name: str
    instance: type[Injection]
    worker: type[Injection] | None = None

    def class_for(self, noun: str) -> type[Injection]:
        """The class that strikes a target of this noun. Raises ValueError."""
        if noun == "instance":
            return self.instance
        if self.worker is None:
            raise ValueError(f"{self.name} strikes instances, not workers")
        return self.worker


KINDS: dict[str, FaultKind] = {
    kind.name: kind
    for kind in (
        FaultKind("kill", KillInstance, KillWorker),
        FaultKind("stop", StopInstance, StopWorker),
        FaultKind("restart", RestartInstance),
        FaultKind("proxy", ProxyFault),
        FaultKind("client-pause", ClientPause),
        FaultKind("client-kill", ClientKill),
        FaultKind("script-flush", ScriptFlush),
        FaultKind("maxmemory", MaxMemory),
        FaultKind("readonly", ReadOnly),
        FaultKind("loading", Loading),
        FaultKind("misconf", Misconf),
        FaultKind("fsync-latency", FsyncLatency),
        FaultKind("fsync-error", FsyncError),
        FaultKind("clock-jump", ClockJump),
        FaultKind("clock-rate", ClockRate),
        FaultKind("power-cut", PowerCut),
        FaultKind("drop", Drop),
        FaultKind("disk-full", DiskFull),
    )
}


def read_faults(faults: Iterable[Fault], *, seed: int = 0, duration_ms: float | None = None) -> tuple[FaultOrder, ...]:
    """Return one order for each fault and target, params resolved, random phases drawn from `seed`.

    `duration_ms`: of the measured window, after whose end no fault lasts. Raises UsageError, naming the fault by its
    position and kind.
    """
    return tuple(chain.from_iterable(_orders(number, fault, seed, duration_ms) for number, fault in enumerate(faults)))


def _orders(number: int, fault: Fault, seed: int, duration_ms: float | None) -> Iterator[FaultOrder]:
    phase = random.Random(f"{seed}:{number}")
    room_ms = PHASE_MS if duration_ms is None else min(PHASE_MS, (duration_ms - fault.at_ms) / 2)
    at_ms = fault.at_ms + (phase.uniform(0, room_ms) if fault.phase == "random" else 0.0)
    try:
        for target in fault.target:
            noun, _, index = target.partition(":")
            kind = KINDS[fault.kind].class_for(noun)
            params = read_params(kind.params, fault.params)
            lasts_ms = kind.lasts_ms(fault.for_ms, params)
            if lasts_ms is not None and duration_ms is not None:
                lasts_ms = min(lasts_ms, duration_ms - at_ms)
            yield FaultOrder(
                kind=fault.kind,
                noun=noun,
                index=int(index),
                at_ms=at_ms,
                lasts_ms=lasts_ms,
                params=params,
                written=dict(fault.params),
                phase=fault.phase,
                seed=f"{seed}:{number}:{target}",
            )
    except ValueError as error:
        raise UsageError(f"fault {number + 1} ({fault.kind}): {error}") from None


def needs_of(orders: Sequence[FaultOrder]) -> frozenset[Need]:
    """What a Site must prepare for all these orders."""
    return frozenset(chain.from_iterable(_class(order).needs(order.params) for order in orders))


def injection(site: Site, order: FaultOrder) -> Injection:
    """The fault of one order, ready to begin."""
    return _class(order)(site, order)


def _class(order: FaultOrder) -> type[Injection]:
    return KINDS[order.kind].class_for(order.noun)
