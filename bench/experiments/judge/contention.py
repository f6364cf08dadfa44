"""Measures the contention of several processes for one lock. The finding holds the leases, the
largest number of holders at once, and the number of tested leases.

The judge's own clock measures all times. A lease begins when the judge has received the grant. A
lease ends when the judge starts to send the release. So a measured lease is never longer than the
real lease.
"""

import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

import psutil

from bench.errors import EnvironmentNotReadyError
from bench.experiments.judge.holders import HeldSpan, crowds, is_too_many
from bench.experiments.judge.judge import AT_ONCE, LEASES
from bench.experiments.judge.library_stage import Stage
from bench.experiments.judge.party import CutError, HangsError, Party
from bench.experiments.judge.result import CourseStep, RowFigure
from bench.experiments.judge.row import RowFinding, need
from bench.experiments.judge.stage import JudgeStage
from bench.measure.record import OperationFacts
from bench.measure.verdict import TESTED_LEAST
from bench.report.figures import counted
from bench.topology.probe import commands_between, info_snapshot
from lockcore.clock import NS_PER_MS

CALLERS = 4
HOLD_S = 0.002
# The load of a slow lock lasts longer by this factor.
LONGER = 5
# A refused caller asks again after this time (s).
REST_S = 0.02


@dataclass(slots=True)
class ContendedLoad:
    """The operations of callers that competed for one lock. `cpu_s` is the CPU time of all
    processes of these callers. `readers` is the number of readers. The readers come first in
    `operations`, and they may hold the lock together.
    """

    operations: list[list[OperationFacts]]
    seconds: float
    commands: int
    cpu_s: float
    errors: list[str] = field(default_factory=list)
    readers: int = 0

    @property
    def leases(self) -> list[OperationFacts]:
        """All leases of the load, in the order of their grants."""
        return sorted(
            (one for own in self.operations for one in own if one.granted_ns),
            key=lambda one: one.granted_ns,
        )

    def spans(self, *, shared: bool) -> list[HeldSpan]:
        """Return a time span for each lease. The span also has the number of the client that got
        the lease. If the client did not release the lease, the span lasts until the lease ends.
        """
        begun_ns = min((one.attempt_ns for own in self.operations for one in own), default=0)
        return [
            HeldSpan(
                number,
                _side(number < self.readers) if shared else "",
                (lease.granted_ns - begun_ns) / NS_PER_MS,
                ((lease.release_sent_ns or lease.valid_until_ns) - begun_ns) / NS_PER_MS,
            )
            for number, own in enumerate(self.operations)
            for lease in own
            if lease.granted_ns
        ]


def contend(
    stage: Stage, seconds: float, callers: int = CALLERS, readers: Sequence[Party] = ()
) -> ContendedLoad:
    """Start `callers` processes, and run them together with the processes in `readers`. For
    `seconds` all these processes lock one name, hold it for 2 ms and release it.
    """
    parties = [*readers, *(stage.party() for _ in range(callers))]
    for party in parties:
        party.note = lambda _step: None
    stage.note(
        f"{len(parties)} processes compete for one lock for {seconds:g} s; each hold takes 2 ms"
    )
    errors: list[str] = []
    deadline_s = time.monotonic() + seconds

    def call(party: Party) -> None:
        try:
            while time.monotonic() < deadline_s:
                reply = party.acquire()
                if not reply.ok:
                    time.sleep(REST_S)
                    continue
                time.sleep(HOLD_S)
                if error := party.release().error:
                    errors.append(error)
        except (HangsError, EnvironmentNotReadyError) as error:
            errors.append(str(error))
        except CutError:
            pass

    before = info_snapshot(stage.fleet.urls)
    cpu_s = _cpu_s(parties)
    threads = [threading.Thread(target=call, args=(party,)) for party in parties]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:
        # The callers must stop before their clients are closed.
        stage.cut()
        for thread in threads:
            thread.join()
        raise
    return ContendedLoad(
        [party.operations for party in parties],
        seconds,
        sum(commands_between(before, info_snapshot(stage.fleet.urls))),
        _cpu_s(parties) - cpu_s,
        errors,
        len(readers),
    )


def _cpu_s(parties: Sequence[Party]) -> float:
    """Return the CPU time (s) of the running clients and of all their descendants. The CPU time of
    descendants that have already ended also counts.
    """
    total = 0.0
    for party in parties:
        if not party.ended:
            client = psutil.Process(party.process.pid)
            for one in (client, *client.children(recursive=True)):
                # A child may end between the two looks.
                with suppress(psutil.NoSuchProcess):
                    total += sum(one.cpu_times()[:4])
    return total


def _side(is_reader: bool) -> Literal["read", "write"]:
    return "read" if is_reader else "write"


def leases_tested(load: ContendedLoad) -> int:
    """Return the number of tested leases. A lease is tested if another process asked for the lock
    during the lease. If both processes are readers, the lease is not tested, because readers may
    hold the lock together.
    """
    count = 0
    for number, own in enumerate(load.operations):
        others = [
            one
            for other, ones in enumerate(load.operations)
            if other != number and max(number, other) >= load.readers
            for one in ones
        ]
        begun = sorted(one.attempt_ns for one in others)
        ended = sorted(one.ended_ns for one in others)
        for lease in own:
            if not lease.granted_ns or not lease.release_sent_ns:
                continue
            middle = (lease.granted_ns + lease.release_sent_ns) // 2
            count += bisect_right(begun, middle) > bisect_left(ended, middle)
    return count


@dataclass(frozen=True, slots=True)
class HoldersSeen:
    """The holders during a load. If too many clients held the lock at some moment, `worst` is the
    largest set of these clients. If the lock never had too many holders, `worst` is the largest set
    of holders at any moment. `faults` is the number of grants after which too many clients held the
    lock.
    """

    worst: Sequence[HeldSpan]
    faults: int


def holders_seen(load: ContendedLoad, capacity: int, *, shared: bool) -> HoldersSeen:
    """Return the worst set of holders during a load, and the number of faulty grants."""

    def is_fault(held: Sequence[HeldSpan]) -> bool:
        return is_too_many(held, capacity, shared=shared)

    all_held = list(crowds(load.spans(shared=shared)))
    worst = max(all_held, key=lambda held: (is_fault(held), len(held)), default=[])
    return HoldersSeen(worst, sum(map(is_fault, all_held)))


def contention(stage: JudgeStage) -> RowFinding:
    """Several processes compete for one lock. The number of processes is the number of allowed
    holders plus three. If the lock is shared, these processes are writers, and four readers also
    compete.
    """
    load = _load(stage, stage.seconds)
    seen = holders_seen(load, stage.capacity, shared=stage.is_shared)
    if leases_tested(load) < TESTED_LEAST and not seen.faults:
        stage.end_parties()
        load = _load(stage, LONGER * stage.seconds)
        seen = holders_seen(load, stage.capacity, shared=stage.is_shared)
    most = len(seen.worst)
    tests = leases_tested(load)
    figures = (
        RowFigure(LEASES, float(len(load.leases)), ""),
        RowFigure(AT_ONCE, float(most), ""),
    )
    holders = tuple(seen.worst)
    errors = ""
    if load.errors:
        errors = f"; {counted(len(load.errors), 'error')}, the first: {load.errors[0]}"
    if seen.faults:
        stage.course += _course(seen.worst)
        allowed = "one" if stage.capacity == 1 else str(stage.capacity)
        fault = f"{most} processes held the lock at once, but only {allowed} may"
        if stage.is_shared:
            fault = f"a writer held the lock together with another client {seen.faults} times"
        return RowFinding(fault + errors, figures=figures, holders=holders)
    need(
        tests >= TESTED_LEAST,
        f"another process requested the lock during at least {TESTED_LEAST} leases (in this "
        f"load: {tests} leases){errors}",
    )
    limit = (
        f"at most {most} readers held the lock at once, and no writer shared it"
        if stage.is_shared
        else f"at most {most} of {len(load.operations)} processes held the lock at once"
    )
    remark = f"{limit}, in {tests:,} tested leases{errors}"
    return RowFinding(remark=remark, tested=tests, figures=figures, holders=holders)


def _load(stage: JudgeStage, seconds: float) -> ContendedLoad:
    readers = [stage.reader() for _ in range(CALLERS if stage.is_shared else 0)]
    return contend(stage, seconds, stage.capacity + CALLERS - 1, readers)


def _course(held: Sequence[HeldSpan]) -> list[CourseStep]:
    """Return the grant and the release of each lease in `held` as steps, sorted by time."""
    steps = []
    for number, span in enumerate(held):
        who = chr(ord("A") + number)
        side = f" ({span.side})" if span.side else ""
        steps += [
            CourseStep(span.from_ms, who, f"acquire{side}"),
            CourseStep(span.from_ms, who, "→ yes"),
            CourseStep(span.until_ms, who, "release"),
        ]
    return sorted(steps, key=lambda step: step.after_ms)
