"""A lock of the user's own under load: *context managers by name → sections of a result, judged like any run*.

Rules: threads of this process, closed loop. What the lock sends is only counted, by its servers: a caller who is
inside it, entering, asks for it all the time. Entering that raises is a failed acquire: `contended` for the exceptions
named as refusals, else `unreachable` and counted by its type.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
from msgspec import structs

from bench.errors import InconclusiveError
from bench.measure.clocks import Integers
from bench.measure.facts import Window
from bench.measure.fold import fold
from bench.measure.record import OUTCOME_CODES, RECORD_DTYPE, History, Records
from bench.measure.run_result import Measured
from bench.safety.judge import Circumstances, Judge
from bench.scenario import load as load_scenario
from bench.topology.probe import delta, info_snapshot
from lockcore.clock import NS_PER_S

OwnLock = Callable[[str], AbstractContextManager[object]]
"""From a name to something that is entered to hold the lock of that name, and left to give it back."""

REST_S = 0.001  # after a failure
STRAGGLER_S = 15.0  # beyond a TTL: who waits for a lock that nobody gave back gets it then
_ACQUIRED, _RELEASED, _GONE = OUTCOME_CODES["acquired"], OUTCOME_CODES["released"], OUTCOME_CODES["gone"]
_Rows = list[tuple[int, ...]]
_REFUSED, _BROKEN = OUTCOME_CODES["contended"], OUTCOME_CODES["unreachable"]


@dataclass(frozen=True, slots=True)
class OwnLoad:
    """How the lock is loaded. `resources` 0: each caller has its own name; 1: all want the same one. `ttl_s`: what the
    lock promises at most, for the oracle."""

    callers: int = 8
    seconds: float = 2.0
    warmup_s: float = 0.2
    resources: int = 0
    hold_s: float = 0.0
    ttl_s: float = 10.0
    refused: tuple[type[BaseException], ...] = ()


def measure_own_lock(lock: OwnLock, load: OwnLoad, urls: Sequence[str] = ()) -> tuple[Measured, dict[str, int]]:
    """Load `lock` and return what was measured and judged, and the errors by type. `urls`: of the servers that it must
    ask; none: nobody counts. Raises InconclusiveError."""
    before = info_snapshot(urls)
    start_ns = time.monotonic_ns() + int(load.warmup_s * NS_PER_S)
    window = Window(start_ns, start_ns + int(load.seconds * NS_PER_S))
    callers, errors = [_Rows() for _ in range(load.callers)], Counter[str]()
    call = partial(_call, lock, load, stop_ns=window.stop_ns, errors=errors)
    threads = [threading.Thread(target=call, args=one, daemon=True) for one in enumerate(callers)]
    for thread in threads:
        thread.start()
    patience_s = load.ttl_s + STRAGGLER_S
    over_s = window.stop_ns / NS_PER_S + patience_s
    for thread in threads:
        thread.join(max(over_s - time.monotonic(), 0))
    if stuck := sum(thread.is_alive() for thread in threads):
        raise InconclusiveError(
            f"{stuck} of {load.callers} callers are still inside the lock {patience_s:g} s after the end"
        )
    scenario = load_scenario(options={"instances": "1", "users": str(load.callers), "warmup": "0s"})
    records = np.array(list(chain.from_iterable(callers)), RECORD_DTYPE)
    taken = [delta(*looks).commands_processed for looks in zip(before, info_snapshot(urls), strict=True)]
    commands = None if None in taken or not taken else sum(filter(None, taken))
    oracle = Judge(int(load.ttl_s * 1000), Circumstances(commands=commands))
    oracle.add(History(records, 0, 0, _asked(records)[: None if load.hold_s else 0]))
    folded = fold(records, window, scenario)
    return structs.replace(folded.values, safety=oracle.report()), dict(errors)


def _call(lock: OwnLock, load: OwnLoad, caller: int, rows: _Rows, *, stop_ns: int, errors: Counter[str]) -> None:
    now = time.monotonic_ns
    resource = caller % load.resources if load.resources else caller
    name, ttl_ns = f"lockbench:own:{resource}", int(load.ttl_s * NS_PER_S)
    while (start := now()) < stop_ns:
        granted = left = 0
        try:
            with lock(name):
                granted = now()
                if load.hold_s:
                    time.sleep(load.hold_s)
                left = now()
            outcome, ended = _ACQUIRED | _RELEASED << 8, now()
        except BaseException as error:  # noqa: BLE001 - whatever the lock raises is a figure here
            ended = now()
            outcome = _ACQUIRED | _GONE << 8 if granted else _REFUSED if isinstance(error, load.refused) else _BROKEN
            if not isinstance(error, load.refused):
                errors[type(error).__name__] += 1
            time.sleep(REST_S)
        row = (start, start, start, granted, start + ttl_ns if granted else 0, left, left, ended if left else 0)
        rows.append((*row, granted or ended, resource, caller, outcome, 0, 1, caller << 40 | len(rows), len(rows) + 1))


def _asked(records: Records) -> Integers:
    """The middle of each lease while which somebody else was entering: resource, time (ns)."""
    held = records[(records["granted_ns"] > 0) & (records["release_sent_ns"] > records["granted_ns"])]
    rows = [np.empty((0, 2), np.int64)]
    for resource in np.unique(held["resource"]):
        all_of_it, leases = (part[part["resource"] == resource] for part in (records, held))
        middle = (leases["granted_ns"] + leases["release_sent_ns"]) // 2
        begun = np.searchsorted(np.sort(all_of_it["start_ns"]), middle, "right")
        ended = np.searchsorted(np.sort(all_of_it["ended_ns"]), middle, "left")
        middle = middle[begun > ended]
        rows.append(np.stack([np.full(len(middle), resource), middle], axis=1))
    return np.concatenate(rows)
