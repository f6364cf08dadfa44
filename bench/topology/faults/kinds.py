"""THE table of faults: *a kind and a target → the class that injects it*; a scenario's faults → checked orders.

Rules: reading starts nothing. With a random phase a fault begins up to one second later (servers sync on seconds),
drawn from the scenario's seed.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from bench.errors import UsageError
from bench.scenario import Fault
from bench.topology.faults import answers, machine
from bench.topology.faults.injection import FaultOrder, Injection, Need, Site, read_params

PHASE_MS = 1000.0

KINDS: Mapping[str, type[Injection]] = {
    "kill": machine.KillInstance,
    "stop": machine.StopInstance,
    "restart": machine.RestartInstance,
    "proxy": answers.ProxyFault,
    "client-pause": answers.ClientPause,
    "client-kill": answers.ClientKill,
    "script-flush": answers.ScriptFlush,
    "maxmemory": answers.MaxMemory,
    "readonly": answers.ReadOnly,
    "loading": answers.Loading,
    "misconf": answers.Misconf,
    "fsync-latency": machine.FsyncLatency,
    "fsync-error": machine.FsyncError,
    "clock-jump": machine.ClockJump,
    "clock-rate": machine.ClockRate,
    "power-cut": machine.PowerCut,
    "drop": answers.Drop,
    "disk-full": machine.DiskFull,
}
WORKER_KINDS: Mapping[str, type[Injection]] = {"kill": machine.KillWorker, "stop": machine.StopWorker}


def read_faults(faults: Iterable[Fault], *, seed: int = 0, duration_ms: float | None = None) -> tuple[FaultOrder, ...]:
    """Return one order for each fault and target, random phases drawn from `seed`; none lasts beyond `duration_ms`.

    Raises UsageError, naming the fault by its position and kind.
    """
    return tuple(chain.from_iterable(_orders(number, fault, seed, duration_ms) for number, fault in enumerate(faults)))


def _orders(number: int, fault: Fault, seed: int, duration_ms: float | None) -> Iterator[FaultOrder]:
    phase = random.Random(f"{seed}:{number}")
    room_ms = PHASE_MS if duration_ms is None else min(PHASE_MS, (duration_ms - fault.at_ms) / 2)
    at_ms = fault.at_ms + (phase.uniform(0, room_ms) if fault.phase == "random" else 0.0)
    try:
        for target in fault.target:
            noun, _, index = target.partition(":")
            kind = _class(fault.kind, noun)
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
    return frozenset(chain.from_iterable(_class(order.kind, order.noun).needs for order in orders))


def injection(site: Site, order: FaultOrder) -> Injection:
    """The fault of one order, ready to begin."""
    return _class(order.kind, order.noun)(site, order)


def _class(kind: str, noun: str) -> type[Injection]:
    table = KINDS if noun == "instance" else WORKER_KINDS
    if kind not in table:
        raise ValueError(f"{kind} strikes instances, not workers")
    return table[kind]
