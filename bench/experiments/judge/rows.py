"""What a lock is asked: *a stage → what came of it*, a row each.

Rules: most rows are schedules of the audit, so one text tells what both do. The rows below are
those that only a lock of your own is asked: contention, renewal, takeover, and servers that refuse.
Times are the judge's own. They are taken after a grant was heard and before a release is sent, so
they only shrink a lease.
"""

import signal
import statistics
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

import psutil

from bench.errors import EnvironmentNotReadyError
from bench.experiments.audit.party import CutError, HangsError, Party
from bench.experiments.audit.schedules import SCHEDULES, need
from bench.experiments.audit.stage import Stage
from bench.experiments.judge.judge import CONTENTION
from bench.experiments.judge.result import RowFigure, seconds_text
from bench.experiments.judge.stage import JudgeStage
from bench.measure.record import OperationFacts
from bench.measure.verdict import TESTED_LEAST
from bench.run.own_lock import commands_between
from bench.topology.probe import info_snapshot
from lockcore.clock import NS_PER_MS, NS_PER_S, monotonic_ns

CALLERS = 4
HOLD_S = 0.002
# a slow lock is loaded so much longer
LONGER = 5
# between two looks at the time to live of a key
LOOK_S = 0.01
# a caller that was refused asks again after this time
REST_S = 0.02
# so much longer than a takeover may take a client is waited for
GRANT_S = 10.0


@dataclass(frozen=True, slots=True)
class RowFinding:
    """What came of a row.

    `wrong`: what went wrong, "" for nothing; `remark`: what was seen, or what the caller was told.
    `tested`: leases that another process asked for while they were held.
    """

    wrong: str = ""
    remark: str = ""
    tested: int = 0
    figures: tuple[RowFigure, ...] = ()


Play = Callable[[JudgeStage], RowFinding]


@dataclass(frozen=True, slots=True)
class JudgeRow:
    """A row of the table. `least`: the fewest instances that it needs. `is_safety`: a fault means
    that two clients had the lock. `may_wait`: a client that waits for the end of the other's lease
    does right. `only_tells`: nothing can be right or wrong. `for_one_holder`: a second client that
    gets the lock shows something, so a semaphore cannot be asked."""

    group: str
    name: str
    question: str
    play: Play
    least: int = 1
    is_safety: bool = False
    may_wait: bool = False
    only_tells: bool = False

    @property
    def for_one_holder(self) -> bool:
        """Whether only a mutex can be asked."""
        return self.name == "restart" or (
            self.group in (EXCLUSION, OWNER, TAKEOVER) and self.name != CONTENTION
        )


def _of_audit(
    group: str, name: str, *, is_safety: bool = False, may_wait: bool = False
) -> JudgeRow:
    schedule = SCHEDULES[name]
    return JudgeRow(
        group,
        name,
        schedule.facts.looks_for,
        lambda stage: RowFinding(schedule.play(stage)),
        schedule.least,
        is_safety,
        may_wait,
    )


# -- mutual exclusion ------------------------------------------------------------------------------


@dataclass(slots=True)
class ContendedLoad:
    """What callers did that all wanted one lock. `cpu_s`: of all their processes."""

    operations: list[list[OperationFacts]]
    seconds: float
    commands: int
    cpu_s: float
    errors: list[str] = field(default_factory=list)

    @property
    def leases(self) -> list[OperationFacts]:
        """All leases, by the time of their grant."""
        return sorted(
            (one for own in self.operations for one in own if one.granted_ns),
            key=lambda one: one.granted_ns,
        )


def contend(stage: Stage, seconds: float, callers: int = CALLERS) -> ContendedLoad:
    """Have `callers` processes lock one name, hold it for 2 ms and give it back, for `seconds`."""
    parties = [stage.party() for _ in range(callers)]
    for party in parties:
        party.note = lambda _step: None
    stage.note(f"{callers} processes want one lock for {seconds:g} s and hold it for 2 ms each")
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
        # The callers must not ask clients that are closed.
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
    )


def _cpu_s(parties: Sequence[Party]) -> float:
    """CPU time of the clients, of what they have started, and of what has ended below them."""
    total = 0.0
    for party in parties:
        if not party.ended:
            client = psutil.Process(party.process.pid)
            for one in (client, *client.children(recursive=True)):
                # A child may end between the two looks.
                with suppress(psutil.NoSuchProcess):
                    total += sum(one.cpu_times()[:4])
    return total


def most_at_once(leases: Sequence[OperationFacts]) -> int:
    """How many held the lock at one moment, at most. A lease that was not given back counts until
    it ended."""
    events = []
    for lease in leases:
        events.append((lease.granted_ns, 1))
        events.append((lease.release_sent_ns or lease.valid_until_ns, -1))
    most = count = 0
    # Who leaves at the time of a grant has left.
    for _, change in sorted(events):
        count += change
        most = max(most, count)
    return most


def leases_tested(contention: ContendedLoad) -> int:
    """How many leases were held while another process was asking for the lock."""
    count = 0
    for number, own in enumerate(contention.operations):
        others = [
            one
            for other, ones in enumerate(contention.operations)
            if other != number
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


def contention(stage: JudgeStage) -> RowFinding:
    """Four processes want one lock."""
    seen = contend(stage, stage.seconds, stage.capacity + CALLERS - 1)
    is_broken = most_at_once(seen.leases) > stage.capacity
    if leases_tested(seen) < TESTED_LEAST and not is_broken:
        stage.end_parties()
        seen = contend(stage, LONGER * stage.seconds, stage.capacity + CALLERS - 1)
    most = most_at_once(seen.leases)
    tests = leases_tested(seen)
    figures = (
        RowFigure("leases", float(len(seen.leases)), ""),
        RowFigure("at once", float(most), ""),
    )
    if most > stage.capacity:
        allowed = "one" if stage.capacity == 1 else str(stage.capacity)
        return RowFinding(
            f"{most} processes held the lock at once, and {allowed} may", figures=figures
        )
    need(
        tests >= TESTED_LEAST,
        f"{TESTED_LEAST} leases were held while another process asked; there were {tests}"
        + (f", and the lock raised {seen.errors[0]!r}" if seen.errors else ""),
    )
    remark = f"never more than {most} of {len(seen.operations)} at once, in {tests:,} tested leases"
    return RowFinding(remark=remark, tested=tests, figures=figures)


# -- renewal and takeover --------------------------------------------------------------------------


def renewal(stage: JudgeStage) -> RowFinding:
    """One client holds the lock, and the time to live of its keys is watched."""
    ttl_ms = stage.require_ttl()
    holder = stage.party()
    need(holder.acquire().ok, "the client was granted")
    times = _renewals(stage, ttl_ms)
    if not times:
        remark = (
            f"it does not renew: a lease ends {seconds_text(ttl_ms)} after its grant, work or not"
        )
        return RowFinding(remark=remark, figures=(RowFigure("renewals that may fail", 0.0, ""),))
    every_ms = statistics.median(b - a for a, b in pairwise([0.0, *times]))
    may_fail = max(0, int((ttl_ms - 1) // every_ms) - 1)
    figures = (
        RowFigure("renewal every", every_ms / 1000, "s"),
        RowFigure("renewals that may fail", float(may_fail), ""),
    )
    lost = "renewal" if may_fail == 1 else "renewals"
    remark = (
        f"it renews every {every_ms / 1000:.2g} s a lease of {seconds_text(ttl_ms)}: {may_fail} "
        f"{lost} in a row may fail, one more lets a second holder in"
    )
    if not may_fail:
        return RowFinding(f"{remark}: renew at least three times in a TTL", figures=figures)
    # A holder that stands still for k renewals and a half has lost k of them.
    holder.pause()
    time.sleep((may_fail + 0.5) * every_ms / 1000)
    kept = any(stage.keys())
    holder.resume()
    need(kept, f"its keys were there after {may_fail} lost {lost}")
    return RowFinding(remark=remark, figures=figures)


def _renewals(stage: JudgeStage, ttl_ms: int) -> list[float]:
    """When (ms after now) the time to live of the lock's keys grew, within one TTL and a half."""
    begun_ns = monotonic_ns()
    times = []
    last_ms = stage.left_ms()
    while (now_ms := (monotonic_ns() - begun_ns) / NS_PER_MS) < 1.5 * ttl_ms:
        left_ms = stage.left_ms()
        if left_ms < -1 and last_ms < -1:
            break
        if left_ms > last_ms + 5:
            times.append(now_ms)
        last_ms = left_ms
        stage.rest(LOOK_S)
    return times


def _takeover(how: str, end: Callable[[JudgeStage, Party], None], *, proxied: bool = False) -> Play:
    def play(stage: JudgeStage) -> RowFinding:
        ttl_ms = stage.ttl_ms if stage.ttl_ms is not None else 0
        if ttl_ms:
            stage.require_ttl()
        holder = stage.party_behind_proxy() if proxied else stage.party()
        other = stage.party()
        need(holder.acquire().ok, "the first client was granted")
        end(stage, holder)
        ended_ns = monotonic_ns()
        patience_s = 2 * ttl_ms / 1000 + 5
        while monotonic_ns() - ended_ns < patience_s * NS_PER_S:
            other.begin_acquire()
            try:
                reply = other.acquired(patience_s + GRANT_S)
            except HangsError:
                break
            if reply.ok:
                took_s = (other.operations[-1].granted_ns - ended_ns) / NS_PER_S
                figures = (RowFigure("takeover", took_s, "s"),)
                beside = f", with a TTL of {seconds_text(ttl_ms)}" if ttl_ms else ""
                return RowFinding(
                    remark=f"the next client has it after {took_s:.2f} s{beside}", figures=figures
                )
            stage.rest(REST_S)
        return RowFinding(f"{patience_s:.0f} s after its holder {how} nobody else gets the lock")

    return play


def _terminate(stage: JudgeStage, party: Party) -> None:
    party.signal(signal.SIGTERM)
    stage.note("SIGTERM", "A")


def _kill(stage: JudgeStage, party: Party) -> None:
    party.signal(signal.SIGKILL)
    stage.note("SIGKILL", "A")


def _freeze(_stage: JudgeStage, party: Party) -> None:
    party.pause()


def _cut(stage: JudgeStage, _party: Party) -> None:
    stage.cut_network()


# -- servers that refuse ---------------------------------------------------------------------------


def _refusing(do: Callable[[JudgeStage], None], undo: Callable[[JudgeStage], None]) -> Play:
    """Servers that refuse to write: one client gives its lock back, another one asks for it."""

    def play(stage: JudgeStage) -> RowFinding:
        client = stage.party()
        other = stage.party()
        need(other.acquire().ok, "the client was granted")
        do(stage)
        try:
            released = other.release()
            before = stage.keys()
            asked = client.acquire()
            is_written = stage.keys() != before
        finally:
            undo(stage)
        # A script that has written something goes on without memory, so a grant may be right.
        if asked.ok and not is_written:
            return RowFinding("a client is granted the lock, and no server has written it")
        is_free = asked.ok or stage.until_lockable(0.5)
        answer = "granted, as the server did write" if asked.ok else asked.error or "no"
        remark = f"acquire: {answer}; release: {released.error or 'no error'}"
        return RowFinding(remark=remark if is_free else f"{remark}; keys stay until their TTL ends")

    return play


def restarted(stage: JudgeStage) -> RowFinding:
    """A client holds the lock; all servers restart without persistence; another client asks."""
    holder = stage.party()
    other = stage.party()
    need(holder.acquire().ok, "the first client was granted")
    stage.restart_all()
    reply = other.acquire()
    released = holder.release()
    if reply.ok:
        remark = "a second client is granted the lock that the servers forgot"
    else:
        remark = f"a second client is refused: {reply.error or 'no'}"
    return RowFinding(remark=f"{remark}; the first one's release: {released.error or 'no error'}")


# -- the table -------------------------------------------------------------------------------------

EXCLUSION = "mutual exclusion"
OWNER = "owner check"
RENEWAL = "renewal"
TAKEOVER = "takeover"
SERVERS = "servers"
ENDS = "cancellation and crash"

ROWS: tuple[JudgeRow, ...] = (
    JudgeRow(EXCLUSION, CONTENTION, "two holders at once under load", contention, is_safety=True),
    _of_audit(EXCLUSION, "paused-in-acquire", is_safety=True, may_wait=True),
    _of_audit(EXCLUSION, "clock-ahead", is_safety=True, may_wait=True),
    _of_audit(EXCLUSION, "body-without-lock", is_safety=True, may_wait=True),
    _of_audit(EXCLUSION, "forked", is_safety=True, may_wait=True),
    _of_audit(OWNER, "release-after-expiry", is_safety=True),
    _of_audit(OWNER, "paused-holder"),
    JudgeRow(RENEWAL, "renewal", "how many renewals may fail", renewal, only_tells=True),
    JudgeRow(
        TAKEOVER,
        "sigterm",
        "its holder ends by SIGTERM",
        _takeover("ended by SIGTERM", _terminate),
        only_tells=True,
    ),
    JudgeRow(
        TAKEOVER, "sigkill", "its holder is killed", _takeover("was killed", _kill), only_tells=True
    ),
    JudgeRow(
        TAKEOVER,
        "stopped",
        "its holder stands still",
        _takeover("stood still", _freeze),
        only_tells=True,
    ),
    JudgeRow(
        TAKEOVER,
        "network",
        "its holder loses the network",
        _takeover("lost the network", _cut, proxied=True),
        only_tells=True,
    ),
    JudgeRow(SERVERS, "restart", "servers restart without persistence", restarted, only_tells=True),
    JudgeRow(
        SERVERS,
        "readonly",
        "READONLY: the server became a replica",
        _refusing(JudgeStage.make_replicas, JudgeStage.make_masters),
        only_tells=True,
    ),
    JudgeRow(
        SERVERS,
        "out-of-memory",
        "OOM: the server takes no writes",
        _refusing(JudgeStage.fill_memory, JudgeStage.free_memory),
        only_tells=True,
    ),
    _of_audit(SERVERS, "script-flush"),
    _of_audit(SERVERS, "late-set"),
    _of_audit(SERVERS, "one-stopped"),
    _of_audit(SERVERS, "one-killed"),
    _of_audit(SERVERS, "majority-down"),
    _of_audit(ENDS, "exception-in-body"),
    _of_audit(ENDS, "interrupted-acquire"),
    _of_audit(ENDS, "interrupted-release"),
)
BY_NAME = {row.name: row for row in ROWS}
