"""A lock of the user's own under load: *context managers by name → sections of a result, judged
like any run*.

Rules
- Threads in a closed loop, half of them in a second process (own_process.py): a mutex of this
  process must not look like a lock. Callers are shared out in blocks, so callers of both processes
  want each name that several want.
- The lock sends what it likes, so the servers count: a lease is tested only if a caller of another
  process was entering meanwhile, and no more leases are tested than commands came beyond those that
  the leases themselves take.
- Commands without a key (PING, HELLO, …) ask for no lock and are not counted.
- Entering that raises is a failed acquire: `contended` for the exceptions named as refusals, else
  `unreachable` and an unexpected error. Whatever is raised while held or on leaving is unexpected,
  too.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import cast

import numpy as np
from msgspec import structs

from bench.errors import InconclusiveError
from bench.measure.clocks import Integers
from bench.measure.facts import Window
from bench.measure.fold import fold
from bench.measure.history import History
from bench.measure.outcomes import acquired
from bench.measure.record import (
    ACQUIRED,
    CONTENDED,
    GONE,
    OUTCOME_CODES,
    RELEASED,
    Records,
    records_of,
)
from bench.measure.run_result import Measured, SafetyReport
from bench.measure.verdict import TESTED_LEAST
from bench.run.own_process import Link, answer, forked
from bench.safety.judge import Circumstances, Judge
from bench.scenario import load as load_scenario
from bench.topology.probe import InfoSnapshot, delta, info_snapshot
from bench.workloads.raised import sentence_of
from lockcore.clock import NS_PER_S

OwnLock = Callable[[str], AbstractContextManager[object]]
"""From a name to something that is entered to hold the lock of that name, and left to give it
back."""

UNASKED = "the servers took fewer commands than leases were granted, so some leases asked no server"
# after a failure
REST_S = 0.001
# A caller that waits for a lock that nobody gave back gets it so long after a TTL at the latest.
STRAGGLER_S = 15.0
# how long a fork may take
BEGIN_S = 10.0
_NO_KEY = frozenset(
    (
        "acl",
        "auth",
        "client",
        "cluster",
        "command",
        "config",
        "dbsize",
        "echo",
        "flushall",
        "function",
        "hello",
        "info",
        "latency",
        "memory",
        "ping",
        "pubsub",
        "quit",
        "readonly",
        "readwrite",
        "reset",
        "role",
        "script",
        "select",
        "slowlog",
        "time",
        "wait",
    )
)
_BROKEN = OUTCOME_CODES["unreachable"]
_Rows = list[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class OwnLoad:
    """How the lock is loaded. `resources` 0: each caller has its own name; 1: all want the same
    one. `ttl_s`: what the lock promises at most, for the oracle. `processes`: over which the
    callers are shared out."""

    callers: int = 8
    seconds: float = 2.0
    warmup_s: float = 0.2
    resources: int = 0
    hold_s: float = 0.0
    ttl_s: float = 10.0
    refused: tuple[type[BaseException], ...] = ()
    processes: int = 2

    @property
    def shares(self) -> list[range]:
        """The callers of each process, none without one."""
        count = max(min(self.processes, self.callers), 1)
        ends = [self.callers * number // count for number in range(count + 1)]
        return [range(first, last) for first, last in pairwise(ends)]


@dataclass(slots=True)
class Errors:
    """What a lock raised, refusals left out: by type, and how often at which stage.

    `first`: when, and its sentence.
    """

    by_type: Counter[str] = field(default_factory=Counter)
    entering: int = 0
    later: int = 0
    first: tuple[int, str] | None = None

    def note(self, error: BaseException, stage: str, at_ns: int) -> None:
        """Count one."""
        self.by_type[type(error).__name__] += 1
        if stage == "entering":
            self.entering += 1
        else:
            self.later += 1
        if self.first is None:
            self.first = at_ns, sentence_of(error, stage)

    def add(self, more: "Errors") -> None:
        """Count those of another caller, too."""
        self.by_type.update(more.by_type)
        self.entering += more.entering
        self.later += more.later
        self.first = min(filter(None, (self.first, more.first)), default=None)


@dataclass(frozen=True, slots=True)
class ShareOfLoad:
    """What the callers of one process came to. `stuck`: how many of them did not come out."""

    records: Records
    errors: Errors
    stuck: int


@dataclass(frozen=True, slots=True)
class OwnRun:
    """One load. `errors`: of all processes, in the order of `by_process`; `commands` that name a
    key, over all servers, None: nobody counted."""

    measured: Measured
    by_process: tuple[Errors, ...]
    operations: int
    commands: int | None

    @property
    def errors(self) -> Errors:
        """Those of all processes."""
        total = Errors()
        for one in self.by_process:
            total.add(one)
        return total


def measure_own_lock(
    lock: OwnLock, load: OwnLoad, urls: Sequence[str] = (), lone: Sequence[int] = ()
) -> OwnRun:
    """Load `lock` and return what was measured and judged. `urls`: of the servers that it must ask;
    none: nobody counts. `lone`: how many commands a lease takes of each server when nobody else
    wants it, as `lone_commands` counts them. Raises InconclusiveError."""
    before = info_snapshot(urls)
    own, *others = load.shares
    with ExitStack() as copies:
        links = [
            copies.enter_context(forked(partial(_in_the_copy, lock, load, share), urls))
            for share in others
        ]
        for link in links:
            answer(link, BEGIN_S, "begin")
        start_ns = time.monotonic_ns() + int(load.warmup_s * NS_PER_S)
        window = Window(start_ns, start_ns + int(load.seconds * NS_PER_S))
        for link in links:
            link.send(window)
        parts = [_run_callers(lock, load, own, window)]
        parts += [
            cast("ShareOfLoad", answer(link, _left_s(load, window) + BEGIN_S, "end"))
            for link in links
        ]
    if stuck := sum(part.stuck for part in parts):
        raise InconclusiveError(
            f"{stuck} of {load.callers} callers are still inside the lock "
            f"{_patience_s(load):g} s after the end"
        )
    commands = commands_between(before, info_snapshot(urls)) if urls else None
    measured = _judged(
        records_of(np.concatenate([part.records for part in parts])), load, window, commands, lone
    )
    operations = sum(len(part.records) for part in parts)
    return OwnRun(
        measured,
        tuple(part.errors for part in parts),
        operations,
        None if commands is None else sum(commands),
    )


def commands_between(before: Sequence[InfoSnapshot], after: Sequence[InfoSnapshot]) -> list[int]:
    """How many commands with a key each server took between two snapshots.

    A server that does not say took none.
    """
    return [_with_a_key(delta(*looks).calls) for looks in zip(before, after, strict=True)]


def _with_a_key(calls: Mapping[str, int]) -> int:
    return sum(number for name, number in calls.items() if name.partition("|")[0] not in _NO_KEY)


# -- the load --------------------------------------------------------------------------------------


def _in_the_copy(lock: OwnLock, load: OwnLoad, share: range, link: Link) -> ShareOfLoad:
    link.send("ready")
    window: Window = link.recv()
    return _run_callers(lock, load, share, window)


def _run_callers(lock: OwnLock, load: OwnLoad, share: range, window: Window) -> ShareOfLoad:
    callers = [_LoadCaller(lock, load, number) for number in share]
    threads = [
        threading.Thread(target=one.run, args=(window.stop_ns,), daemon=True) for one in callers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(_left_s(load, window), 0))
    stuck = sum(thread.is_alive() for thread in threads)
    errors = Errors()
    rows = _Rows()
    for caller in callers:
        errors.add(caller.errors)
        rows += caller.rows
    return ShareOfLoad(records_of(rows), errors, stuck)


def _patience_s(load: OwnLoad) -> float:
    return load.ttl_s + STRAGGLER_S


def _left_s(load: OwnLoad, window: Window) -> float:
    """How long callers may still be inside the lock."""
    return window.stop_ns / NS_PER_S + _patience_s(load) - time.monotonic()


class _LoadCaller:
    """A thread that takes the lock and gives it back, again and again."""

    def __init__(self, lock: OwnLock, load: OwnLoad, number: int) -> None:
        self._lock = lock
        self._load = load
        self._number = number
        self._resource = number % load.resources if load.resources else number
        self.rows = _Rows()
        self.errors = Errors()

    def run(self, stop_ns: int) -> None:
        """Until then."""
        while time.monotonic_ns() < stop_ns:
            self._once()

    def _once(self) -> None:
        now = time.monotonic_ns
        load = self._load
        granted = left = 0
        stage = "entering"
        start = now()
        try:
            with self._lock(f"lockbench:own:{self._resource}"):
                granted = now()
                stage = "while held"
                try:
                    if load.hold_s:
                        time.sleep(load.hold_s)
                finally:
                    left = now()
                stage = "leaving"
            ended = now()
            outcome = ACQUIRED | RELEASED << 8
        except BaseException as error:  # noqa: BLE001 - whatever the lock raises is a figure here
            ended = now()
            is_refusal = not granted and isinstance(error, load.refused)
            if granted:
                outcome = ACQUIRED | GONE << 8
            elif is_refusal:
                outcome = CONTENDED
            else:
                outcome = _BROKEN
            if not is_refusal:
                self.errors.note(error, stage, ended)
            time.sleep(REST_S)
        # Nobody knows which attempt was granted. A lease ends a TTL after the call began at the
        # earliest. If the caller waited longer than that, nothing is known of its end, and a lease
        # without length accuses nobody.
        valid_until = max(start + int(load.ttl_s * NS_PER_S), granted + 1) if granted else 0
        times = (
            start,
            start,
            start,
            granted,
            valid_until,
            left,
            left,
            ended if left else 0,
            granted or ended,
        )
        owner = self._number << 40 | len(self.rows)
        self.rows.append(
            (*times, self._resource, self._number, outcome, 0, 1, owner, len(self.rows) + 1)
        )


# -- the verdict -----------------------------------------------------------------------------------


def _judged(
    records: Records,
    load: OwnLoad,
    window: Window,
    own_commands: Sequence[int] | None,
    lone: Sequence[int],
) -> Measured:
    scenario = load_scenario(options={"instances": "1", "users": str(load.callers), "warmup": "0s"})
    leases = int(acquired(records).sum())
    sent = _asked(records, load) if load.hold_s else np.empty((0, 2), np.int64)
    if own_commands is not None:
        pairs = zip(own_commands, lone or [1] * len(own_commands), strict=True)
        beyond = max((commands - each * leases for commands, each in pairs), default=0)
        sent = _some(sent, max(beyond, 0))
    oracle = Judge(
        int(load.ttl_s * 1000),
        Circumstances(commands=None if own_commands is None else sum(own_commands)),
    )
    oracle.add(History(records, 0, 0, sent))
    safety = oracle.report()
    unasked = own_commands is not None and sum(own_commands) < leases
    reason = _violation(safety, records, load) if safety.verdict == "VIOLATED" else safety.reason
    if safety.verdict == "NOT TESTED":
        reason = UNASKED if unasked else _untested(safety, load)
    return structs.replace(
        fold(records, window, scenario).values, safety=structs.replace(safety, reason=reason)
    )


# Whether anybody was entering at one moment is answered without comparing pairs. The callers that
# began before that moment, less those that ended before it, are inside. Two sorted arrays and two
# searches answer this for all leases of a resource. The moment is the middle of the lease, so it
# lies within the time that the lease was held.
def _asked(records: Records, load: OwnLoad) -> Integers:
    """The middle of each lease while which somebody else was entering: resource, time (ns). With
    several processes it must have been somebody of another process."""
    several = len(load.shares) > 1
    process = np.searchsorted([share.stop for share in load.shares], records.caller, "right")
    held = (records.granted_ns > 0) & (records.release_sent_ns > records.granted_ns)
    rows = [np.empty((0, 2), np.int64)]
    for resource in np.unique(records.resource[held]):
        of_resource = records.resource == resource
        for own in np.unique(process[of_resource & held]):
            leases = records[of_resource & held & (process == own)]
            others = records[of_resource & (process != own)] if several else records[of_resource]
            middle = (leases.granted_ns + leases.release_sent_ns) // 2
            begun = np.searchsorted(np.sort(others.start_ns), middle, "right")
            ended = np.searchsorted(np.sort(others.ended_ns), middle, "left")
            middle = middle[begun > ended]
            rows.append(np.stack([np.full(len(middle), resource), middle], axis=1))
    return np.concatenate(rows)


def _some(rows: Integers, most: int) -> Integers:
    """At most so many of the rows, evenly chosen."""
    if len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)] if most else rows[:0]


def _violation(safety: SafetyReport, records: Records, load: OwnLoad) -> str:
    """What a violated lock did, as far as it can be told."""
    parts = [str(safety.reason)]
    if (most := most_at_once(records)) > 1:
        wanting = -(-load.callers // (load.resources or load.callers))
        parts.append(f"at most {most} of {wanting} callers held one name at once")
    if len(load.shares) > 1 and safety.service_faults and not _faults_within(records, load):
        parts.append(
            "each process kept its own callers apart: the lock holds only within one process"
        )
    return "; ".join(parts)


def most_at_once(records: Records) -> int:
    """How many callers held one resource at the same time, at most; 0 or 1 if none did beside
    another."""
    most = 0
    held = records[(records.granted_ns > 0) & (records.release_sent_ns > records.granted_ns)]
    for resource in np.unique(held.resource):
        leases = held[held.resource == resource]
        times = np.concatenate([leases.granted_ns, leases.release_sent_ns])
        change = np.repeat([1, -1], len(leases))
        # who leaves at the time of a grant has left
        order = np.lexsort((change, times))
        most = max(most, int(np.cumsum(change[order]).max()))
    return most


def _faults_within(records: Records, load: OwnLoad) -> int:
    """How many leases overlapped another of their own process."""
    faults = 0
    for share in load.shares:
        own = (records.caller >= share.start) & (records.caller < share.stop)
        oracle = Judge(int(load.ttl_s * 1000))
        oracle.add(History(records[own], 0, 0))
        faults += oracle.report().service_faults
    return faults


def _untested(safety: SafetyReport, load: OwnLoad) -> str:
    """Why too few leases were tested, in the words of OwnLoad."""
    if not load.hold_s:
        return "no lease was held for a time: give hold_s"
    whose = "of another process " if len(load.shares) > 1 else ""
    return (
        f"{safety.tested_leases:,} leases were held while a caller {whose}asked for "
        f"them, and {TESTED_LEAST} are "
        "needed: more callers, fewer resources, a longer hold_s or more seconds"
    )
