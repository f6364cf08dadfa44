"""The table of all faults: *a kind of fault and a target → the functions that inject the fault*;
*the faults of a scenario → checked plans of faults*.

Rules: reading a scenario starts no process. A fault with a random phase begins up to one second
after its time in the scenario. A random phase is useful because servers sync on whole seconds. The
seed of the scenario determines this random delay.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from bench.errors import UsageError
from bench.scenario import Fault
from bench.scenario.keys import KeyKind, choice, duration
from bench.scenario.quantity import nearest, parse_duration
from bench.topology.faults import answers, machine
from bench.topology.faults.answers import commanding
from bench.topology.faults.injection import (
    FaultKind,
    FaultOrder,
    Injection,
    Need,
    Params,
    Table,
    Workers,
    read_params,
)
from bench.topology.fleet import HOST, Fleet

PHASE_MS = 1000.0
_MINUTE_MS = 60_000.0
_DAY_MS = 86_400_000.0


def _jump_ms(raw: object) -> float:
    """Return a time such as "5s" or "-5s" in ms. Zero is not allowed."""
    text = raw.strip() if isinstance(raw, str) else ""
    ms = parse_duration(text.lstrip("+-") or raw)
    if not 0 < ms <= _DAY_MS:
        raise ValueError(
            f"{raw!r} is not a time of at most 24h, forward or backward (write it like 5s or -5s)"
        )
    return -ms if text.startswith("-") else ms


def _rate(raw: object) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not 0.1 <= raw <= 10:
        raise ValueError(f"{raw!r} is not a number from 0.1 to 10")
    return float(raw)


_SHIM = frozenset({Need.SHIM})
_DELAY = {"delay": (duration(0, _DAY_MS), "0")}
_DIRECTION = {"direction": (choice(*answers.DIRECTIONS), "both")}
_LINK: Table = {
    "mode": (choice("delay", "black-hole", "reset"), "delay"),
    "delay": (duration(0, _MINUTE_MS), "0"),
    "jitter": (duration(0, _MINUTE_MS), "0"),
    **_DIRECTION,
}
_EVICTION = {"policy": (choice("noeviction", "volatile-ttl"), "noeviction")}
_SLOWER = {"delay": (duration(0.001, _MINUTE_MS), "2ms")}
_BY = {"by": (KeyKind('"5s"', _jump_ms), None)}
_RATE = {"rate": (KeyKind("1.1", _rate), None)}

KINDS: Mapping[str, FaultKind] = {
    "kill": FaultKind(machine.kill_instance),
    "stop": FaultKind(machine.stop_instance),
    "restart": FaultKind(machine.kill_instance, _DELAY, lasts="cannot"),
    "proxy": FaultKind(
        answers.bend_link, _LINK, frozenset({Need.PROXY}), check=answers.require_one_bend
    ),
    "client-pause": FaultKind(
        commanding(("CLIENT", "PAUSE", "86400000", "WRITE"), ("CLIENT", "UNPAUSE"))
    ),
    "client-kill": FaultKind(commanding(("CLIENT", "KILL", "TYPE", "normal")), lasts="cannot"),
    "script-flush": FaultKind(commanding(("SCRIPT", "FLUSH", "SYNC")), lasts="cannot"),
    "maxmemory": FaultKind(answers.fill_memory, _EVICTION),
    "readonly": FaultKind(commanding(("REPLICAOF", HOST, "1"), ("REPLICAOF", "NO", "ONE"))),
    "loading": FaultKind(answers.load, {}, frozenset({Need.DEBUG}), lasts="must"),
    "misconf": FaultKind(answers.fail_snapshots),
    "fsync-latency": FaultKind(machine.slow_fsync, _SLOWER, _SHIM, require=machine.require_syncs),
    "fsync-error": FaultKind(machine.fail_fsync, {}, _SHIM, require=machine.require_syncs),
    "clock-jump": FaultKind(machine.jump_clock, _BY, _SHIM),
    "clock-rate": FaultKind(machine.bend_clock, _RATE, _SHIM),
    "power-cut": FaultKind(machine.cut_instance, _DELAY, _SHIM, lasts="cannot"),
    "drop": FaultKind(answers.drop_packets, _DIRECTION, require=answers.require_nft),
    "disk-full": FaultKind(machine.fill_disk, {}, _SHIM, require=machine.require_writes),
}
WORKER_KINDS: Mapping[str, FaultKind] = {
    "kill": FaultKind(machine.kill_worker, lasts="cannot"),
    "stop": FaultKind(machine.stop_worker),
}


def read_faults(
    faults: Iterable[Fault], *, seed: int = 0, duration_ms: float | None = None
) -> tuple[FaultOrder, ...]:
    """Return one `FaultOrder` for each target of each fault.

    `seed` decides the random phases. No fault lasts beyond `duration_ms`, the measured window.

    Raises UsageError. The message names the fault by its position and kind.
    """
    return tuple(
        chain.from_iterable(
            _orders(number, fault, seed, duration_ms) for number, fault in enumerate(faults)
        )
    )


def _orders(
    number: int, fault: Fault, seed: int, duration_ms: float | None
) -> Iterator[FaultOrder]:
    phase = random.Random(f"{seed}:{number}")
    room_ms = PHASE_MS if duration_ms is None else min(PHASE_MS, (duration_ms - fault.at_ms) / 2)
    at_ms = fault.at_ms + (phase.uniform(0, room_ms) if fault.phase == "random" else 0.0)
    try:
        for target in fault.target:
            noun, _, index = target.partition(":")
            kind = _kind(fault.kind, noun)
            params = read_params(kind.params, fault.params)
            lasts_ms = _lasts_ms(kind, fault.for_ms, params)
            if lasts_ms is not None and duration_ms is not None:
                lasts_ms = min(lasts_ms, duration_ms - at_ms)
            yield FaultOrder(
                fault.kind,
                noun,
                int(index),
                at_ms,
                lasts_ms,
                params,
                dict(fault.params),
                fault.phase,
            )
    except ValueError as error:
        raise UsageError(f"fault {number + 1} ({fault.kind}): {error}") from None


def _lasts_ms(kind: FaultKind, for_ms: float | None, params: Params) -> float | None:
    """Return the duration of the fault (ms), or None if the fault lasts to the end of the window.

    Raises ValueError if the params contradict each other. Raises ValueError if this kind of fault
    needs a `for` and the scenario has none. Raises ValueError if this kind cannot have a `for` and
    the scenario has one.
    """
    kind.check(params)
    if kind.lasts == "must" and for_ms is None:
        raise ValueError("this fault must end before the run ends; set `for` to its length")
    if kind.lasts != "cannot":
        return for_ms
    if for_ms is not None:
        lasts = "the param `delay` sets its length" if "delay" in params else "it has no length"
        raise ValueError(f"this kind of fault has no `for`, because {lasts}; remove `for`")
    return float(params.get("delay", 0.0))


def needs_of(orders: Sequence[FaultOrder]) -> frozenset[Need]:
    """Return all preparations that a fleet needs for these orders."""
    return frozenset(chain.from_iterable(_kind(order.kind, order.noun).needs for order in orders))


def injection(fleet: Fleet | None, order: FaultOrder, workers: Workers = dict) -> Injection:
    """Return the fault of one order, ready to begin.

    `fleet`: None if lockbench did not start the servers.
    """
    return Injection(fleet, order, _kind(order.kind, order.noun), workers)


def _kind(kind: str, noun: str) -> FaultKind:
    table = KINDS if noun == "instance" else WORKER_KINDS
    if kind not in KINDS:
        raise ValueError(
            "there is no such kind of fault (the kinds are "
            f"{', '.join(KINDS)}){nearest(kind, KINDS)}"
        )
    if kind not in table:
        raise ValueError(f"the fault {kind} is only possible on an instance, not on a worker")
    return table[kind]
