"""The data points of one run: *the scenario, operations, attempts, INFO answers, and the notes of
load processes → data points*. The module bench.measure defines all terms.

Rules
- Every record is counted once. When a record appears, its latencies, its outcome and its attempts
  are counted. The votes of the record are counted later, when all rounds of the record have
  certainly closed. So the votes of the newest records are possibly missing from the counts.
- The counts cover the whole run, with warm-up and drain. So the sums are equal to `totals` and
  `releases` in result.json.
- An unknown value makes no data point. The export never shows an unknown value as 0.
- A counter from INFO shows the increase since the first answer, so the counter is 0 at the start of
  the run. If a server restarts, the counter is not reset to 0. A new `run_id` shows the restart.
  While an instance does not answer, the export shows no gauges of this instance.
- The value of a gauge comes from a note or from an INFO answer. The age of a gauge is the age of
  this source. If a gauge is older than two intervals, the gauge is not exported, because its value
  may no longer be true.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from bench.measure import outcomes
from bench.measure.environment import version_of
from bench.measure.facts import Window
from bench.measure.histogram import Histogram, Sums
from bench.measure.latency import WAITS, add_waits, handoffs, waiting_of
from bench.measure.outcomes import acquired
from bench.measure.record import OUTCOME_CODES, Records, records_of
from bench.measure.server_facts import InstanceFacts
from bench.measure.workers import NOTE_S, WorkerNote, added
from bench.scenario import Scenario
from bench.telemetry.load_log import Extension, ObservedAttempt
from bench.telemetry.points import NS_PER_S, Buckets, DataPoint, Exemplar, Totals, point
from bench.telemetry.table import (
    BY_NAME,
    CPU_STATES,
    EXTEND_OUTCOMES,
    RELEASE_OUTCOMES,
    VOTE_ERROR,
    InstrumentKind,
)
from lockcore.clock import NS_PER_MS

Address = tuple[str, int]
# Workers patch votes once a second, so after this time (ns) they have patched an operation.
PATCHED_WITHIN_NS = 2_000 * NS_PER_MS

# The INFO of one instance, or None if the instance did not answer.
Info = Mapping[str, str | float] | None
# The exemplars of acquires, by outcome and bucket.
Exemplars = Mapping[str, Mapping[int, Exemplar]]
# If a gauge is older than this many intervals, it makes no point.
OLD = 2
# The time (s) between two INFOs of the instances.
INFO_S = 2.0
# INFO does not have this field. The owner of the shim adds it, because the shim outlives its
# server.
FSYNCS = "lockbench_fsyncs"

_FIELDS = {
    "redis.keys.expired": "expired_keys",
    "redis.aof.fsyncs": FSYNCS,
    "redis.aof.delayed_fsyncs": "aof_delayed_fsync",
    "redis.aof.size": "aof_current_size",
    "redis.aof.rewrite_in_progress": "aof_rewrite_in_progress",
}
_GAUGES = {
    name: field for name, field in _FIELDS.items() if BY_NAME[name].kind is InstrumentKind.GAUGE
}
_COUNTERS: list[tuple[str, str, dict[str, str]]] = [
    *((name, field, {}) for name, field in _FIELDS.items() if name not in _GAUGES),
    *(("redis.cpu.time", f"used_cpu_{state}", {"state": state}) for state in CPU_STATES),
]


@dataclass(frozen=True, slots=True)
class Run:
    """One run, or the part of a run that one process exports.

    `addresses`: host and port of each instance (port 0: a unix socket). `databases`: for each
    instance, the database index in the URL of the instance. If the indices are unknown, `databases`
    is empty. `fsync`: one of table.POLICIES. `part`: a text that is different for each exporter of
    the run. `name`: the user's name for the run. `started`: the start of the run, as in
    result.json. `name` and `started` are "" if they are unknown.
    """

    id: str
    recipe: str
    fsync: str = "unknown"
    addresses: Sequence[Address] = ()
    processes: int = 1
    rate_per_s: float | None = None
    instance_timeout_ms: float = 0.0
    part: str = ""
    name: str = ""
    started: str = ""
    databases: Sequence[int] = ()

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        run_id: str,
        processes: int,
        name: str = "",
        started: str = "",
        *,
        shares: int = 1,
    ) -> Self:
        """Return the run of a scenario, without the facts that the servers report later.

        `shares`: the number of equal parts into which the rate is divided. Each process that
        exports data about the run reports one part of the rate.
        """
        return cls(
            run_id,
            scenario.recipe,
            processes=processes,
            name=name,
            started=started,
            rate_per_s=scenario.rate_per_s and scenario.rate_per_s / shares,
            instance_timeout_ms=scenario.instance_timeout_ms,
        )

    def on_servers(
        self, facts: Sequence[InstanceFacts], databases: Sequence[int], part: str = ""
    ) -> Self:
        """Return a copy of the run with the facts that its servers have reported."""
        policies = {fact.fsync for fact in facts if fact.fsync is not None}
        addresses = []
        for fact in facts:
            # The address is host:port, [host]:port, or the path of a unix socket.
            host, colon, port = fact.address.rpartition(":")
            addresses.append(
                (host.strip("[]"), int(port)) if colon and port.isdigit() else (fact.address, 0)
            )
        if len(policies) == 1:
            policy = policies.pop()
        else:
            policy = "mixed" if policies else "unknown"
        return replace(self, addresses=addresses, databases=databases, fsync=policy, part=part)

    @property
    def quorum(self) -> int:
        """The number of votes that win."""
        return len(self.addresses) // 2 + 1

    @property
    def common(self) -> tuple[tuple[str, str], ...]:
        """The attributes that every data point of this run has."""
        return ("redlock.recipe", self.recipe), ("redlock.fsync", self.fsync)

    def resource(self, service_name: str) -> dict[str, str]:
        """Return the attributes of OpenTelemetry's resource.

        These attributes identify the exporter.
        """
        return {
            "service.name": service_name,
            "service.instance.id": self.id + self.part,
            "service.version": version_of("lockbench") or "unknown",
            "redlock.run.id": self.id,
            **dict(self.common),
        }

    @property
    def settle_ns(self) -> int:
        """The time (ns) from the end of an operation until the votes of the operation are final."""
        return PATCHED_WITHIN_NS + int(2 * self.instance_timeout_ms * NS_PER_MS)


def where(address: Address) -> dict[str, str | int]:
    """Return the attributes of an instance's points."""
    return {"server_address": address[0], "server_port": address[1]}


def current(notes: Sequence[WorkerNote], now_ns: int) -> list[WorkerNote]:
    """Return the notes that are new enough for gauges.

    `now_ns`: the present monotonic time.

    The result has the recent notes, and the last notes of workers that have stopped. If a note
    comes from another host, its age counts from the time at which this host wrote the note. So for
    such a note, the maximum age is one interval longer.
    """
    recent = []
    for note in notes:
        oldest_s = (OLD + bool(note.host)) * NOTE_S
        if note.phase == "stopped" or now_ns - note.told_ns <= oldest_s * NS_PER_S:
            recent.append(note)
    return recent


def run_points(
    run: Run, notes: Sequence[WorkerNote], fresh: Sequence[WorkerNote], *, ended: bool
) -> Iterator[DataPoint]:
    """Yield points about the run itself, its users and the reports of its load processes.

    `fresh`: the notes that `current` returns for `notes`.
    """
    spawned = sum(note.spawned_ns > 0 for note in notes)
    # The run is active once every load process has started its users.
    at_it = spawned >= run.processes and any(note.phase == "running" for note in notes)
    yield point("redlock.run.active", int(at_it and not ended))
    yield point("redlock.run.info", 1, redlock_run_name=run.name, redlock_run_started=run.started)
    yield point("redlock.quorum.size", run.quorum)
    if run.rate_per_s is not None:
        yield point("redlock.load.offered", run.rate_per_s)
    yield from worker_points(notes)
    yield from _instance_points(notes, fresh, run.addresses)


def worker_points(notes: Sequence[WorkerNote]) -> Iterator[DataPoint]:
    """Yield data points that show whether the load processes work well."""
    begun_ns = [note.spawned_ns for note in notes if note.spawned_ns]
    if begun_ns:
        # The calculation uses the time of a note instead of the present time, so the number never
        # falls.
        ended_ns = max(note.stopped_ns or note.told_ns for note in notes if note.spawned_ns)
        # This is a planned time, which may still be in the future.
        planned_ns = min(begun_ns)
        yield point("redlock.load.time", max(0, ended_ns - planned_ns) / NS_PER_S)
    yield point("redlock.load.late_starts", sum(note.late_starts for note in notes))
    yield point("redlock.load.queued_starts", sum(note.queued_starts for note in notes))
    for note in notes:
        yield point("redlock.client.cpu", max(note.cpu_s, 0.0), redlock_worker=note.worker)
        if note.lag_histogram:
            lag = Buckets.of_histogram(Histogram.decode(note.lag_histogram))
            yield point("redlock.scheduler.lag", lag, redlock_worker=note.worker)


# -- operations ------------------------------------------------------------------------------------


class OperationCounts:
    """The counts of the operations of a run.

    The hand-offs are counted from `now_ns` on. `quorum`: how many votes win. `operations`: the
    acquires that returned. `leases`: the acquires that got the lock.
    """

    def __init__(self, quorum: int, now_ns: int = 0) -> None:
        self._quorum = quorum
        self._totals = Totals()
        self._waits = Sums(WAITS)
        self.operations = self.leases = 0
        self._looked_ns = self._before_ns = now_ns
        self._last = records_of([])
        self.rest()

    def rest(self) -> None:
        """Set the rate of leases and the number of releasing callers to zero. Call this after the
        load has ended."""
        self._achieved_per_s = self._releasing = 0.0

    def look(self, records: Records, now_ns: int) -> None:
        """Count the new operations at `now_ns`.

        Compute the leases per second and the mean number of callers that wait for the answer to a
        release. This method also counts hand-offs. In each call, the method counts the hand-offs
        whose release was sent between the two previous calls. By the time of this call, the grants
        after these releases have been recorded.
        """
        elapsed_s = max((now_ns - self._looked_ns) / NS_PER_S, 1e-3)
        before = self.leases
        self.add(records)
        self.add_handoffs(
            records_of(np.concatenate([self._last, records])),
            Window(self._before_ns, self._looked_ns),
        )
        self._achieved_per_s = (self.leases - before) / elapsed_s
        released = records[records.release_replied_ns > 0]
        self._releasing = (
            (released.release_replied_ns - released.release_sent_ns).sum() / NS_PER_S / elapsed_s
        )
        self._before_ns = self._looked_ns
        self._looked_ns = now_ns
        self._last = records

    def add(self, records: Records) -> None:
        """Count the durations and outcomes of these operations.

        Every outcome gets a point, even if its count is 0.
        """
        count = self._totals.count
        won = acquired(records)
        self.operations += len(records)
        self.leases += int(won.sum())
        took = records.ended_ns - records.intended_ns
        rounds = outcomes.attempts_of(records)
        for name, number in outcomes.count_acquires(records).items():
            rows = records.acquire_code == OUTCOME_CODES[name]
            count("redlock.acquire.duration", took[rows], redlock_outcome=name)
            count("redlock.acquire.attempts", rounds[rows], redlock_outcome=name)
            count("redlock.acquire.outcomes", number, redlock_outcome=name)
        sent = records.release_sent_ns
        for name in RELEASE_OUTCOMES:
            rows = records.release_code == OUTCOME_CODES[name]
            count(
                "redlock.release.duration",
                (records.release_replied_ns - sent)[rows],
                redlock_outcome=name,
            )
        count("redlock.leases.gone", outcomes.count_releases(records)["gone"])
        count("redlock.hold.duration", (sent - records.ended_ns)[won & (sent > 0)])
        count("redlock.lease.validity", (records.valid_until_ns - records.granted_ns)[won])
        split_votes = outcomes.split_votes_of(records)
        count("redlock.split_votes", int(split_votes.sum()))
        dead = (records.attempt_ns - records.start_ns)[won & (split_votes > 0)]
        count("redlock.split_vote.dead_time", dead)
        add_waits(self._waits, records, records)

    def add_handoffs(self, records: Records, window: Window) -> None:
        """Count the hand-offs whose release was sent in `window`.

        `records` must hold all operations of their resources.
        """
        self._totals.count("redlock.handoff.duration", handoffs(records, window))

    def add_votes(self, records: Records) -> None:
        """Count the votes of these operations, which must be final."""
        for kind, number in outcomes.count_votes(records).items():
            self._totals.count("redlock.votes", number, redlock_vote=kind)
        closed = acquired(records) & (outcomes.votes_of(records, "undecided") == 0)
        self._totals.count(
            "redlock.vote.margin", outcomes.votes_of(records, "granted")[closed] - self._quorum
        )

    def points(
        self,
        exemplars: Exemplars,
        notes: Sequence[WorkerNote] = (),
        fresh: Sequence[WorkerNote] = (),
    ) -> Iterator[DataPoint]:
        """Yield all points of the operations.

        The result also has points about the callers that had to wait. The recipes count some of the
        waits, and `notes` has these counts. `fresh`: the recent notes, which have the numbers of
        holders and waiters. If load processes run but `fresh` has no note of a running process,
        there are no points about holders and waiters.
        """
        for one in self._totals.points():
            timed = one.instrument.name == "redlock.acquire.duration"
            shown = exemplars.get(str(one.attributes[0][1]), {}) if timed else {}
            yield replace(one, exemplars=tuple(shown.values()))
        running = [note for note in fresh if note.phase == "running"]
        if running or not any(note.phase == "running" for note in notes):
            holding = sum(note.holding for note in running)
            asking = sum(note.callers - note.idle for note in running) - holding
            yield point("redlock.leases.held", holding)
            yield point("redlock.callers.waiting", max(asking - self._releasing, 0.0))
        yield point("redlock.load.achieved", self._achieved_per_s)
        waiting = waiting_of(self._waits, 0, [note.figures for note in notes])
        yield point("redlock.handoff.turns", waiting.wakeups)
        yield point("redlock.acquire.polls", waiting.polls)
        if waiting.jain is not None and waiting.longest_s is not None:
            yield point("redlock.acquire.longest", waiting.longest_s)
            yield point("redlock.callers.fairness", waiting.jain)


def count_observed(
    totals: Totals,
    attempts: Sequence[ObservedAttempt],
    extensions: Sequence[Extension],
    addresses: Sequence[Address],
) -> None:
    """Add the durations of extensions and SETs to `totals`.

    The duration of a SET is the time until an instance answered the SET. If `extensions` is empty,
    no points about extensions are made. If an instance did not answer a SET, the function counts
    the time from the SET to the end of the round.
    """
    for name in EXTEND_OUTCOMES if extensions else ():
        took = [one.replied_ns - one.sent_ns for one in extensions if one.outcome == name]
        totals.count("redlock.extend.duration", np.array(took, np.int64), redlock_outcome=name)
    took_ns = defaultdict[tuple[int, str], list[int]](list)
    for attempt in attempts:
        for index, ask in enumerate(attempt.asks):
            if ask.sent_ns:
                took_ns[index, ask.vote].append(
                    max((ask.replied_ns or attempt.closed_ns) - ask.sent_ns, 0)
                )
    for (index, vote), times in took_ns.items():
        failed = {"error_type": vote} if vote in VOTE_ERROR.values else {}
        set_ = {
            "db_system_name": "redis",
            "db_operation_name": "SET",
            **where(addresses[index]),
            **failed,
        }
        totals.count("db.client.operation.duration", np.array(times, np.int64), **set_)


# -- instances -------------------------------------------------------------------------------------


class InfoTotals(Totals):
    """The increase of each INFO counter since the run began, for each instance in `addresses`."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        super().__init__()
        self._where = [where(address) for address in addresses]
        self._before: list[dict[str, str | float]] = [{} for _ in addresses]
        self._now: Sequence[Info] = ()
        self._answered_ns = 0

    def note(self, infos: Sequence[Info], now_ns: int) -> None:
        """Add the INFO answers that the instances sent at `now_ns` (monotonic clock).

        If the instances have sent no new answers, `infos` is the same object as in the last call.
        """
        if infos is not self._now:
            self._answered_ns = now_ns
        self._now = infos
        for here, info, before in zip(self._where, infos, self._before, strict=False):
            if info is None:
                continue
            restarted = bool(before) and before.get("run_id") != info.get("run_id")
            self.count("redis.restarts", int(restarted), **here)
            for name, field, attributes in _COUNTERS:
                if field in info:
                    now = float(info[field])
                    last = float(before.get(field, info[field]))
                    if field != FSYNCS and (restarted or now < last):
                        last = 0
                    self.count(name, max(now - last, 0), **attributes, **here)
            before.update(info)

    def points_at(self, now_ns: int) -> Iterator[DataPoint]:
        """Yield the counters and gauges of the instances.

        Every instance that has answered at least once has counters. Only an instance that answered
        recently has gauges.
        """
        yield from self.points()
        if now_ns - self._answered_ns > OLD * INFO_S * NS_PER_S:
            return
        for here, info in zip(self._where, self._now, strict=False):
            for name, field in _GAUGES.items():
                if info is not None and field in info:
                    yield point(name, int(info[field]), **here)


def _instance_points(
    notes: Sequence[WorkerNote], fresh: Sequence[WorkerNote], addresses: Sequence[Address]
) -> Iterator[DataPoint]:
    """Yield data points about each instance, from the notes of all load processes.

    The state of an instance comes from the `fresh` notes.
    """
    for index, address in enumerate(addresses):
        statuses = [note.instances[index] for note in notes if len(note.instances) > index]
        if not statuses:
            continue
        here = where(address)
        states = [note.instances[index].state for note in fresh if len(note.instances) > index]
        if states:
            yield point(
                "redlock.instance.voting", int(all(state == "voting" for state in states)), **here
            )
            yield point("redlock.instance.abstaining", int("abstaining" in states), **here)
        yield point(
            "redlock.instance.commands", sum(status.commands for status in statuses), **here
        )
        yield point(
            "redlock.instance.reconnects", sum(status.reconnects for status in statuses), **here
        )
        for kind, number in added(status.errors for status in statuses).items():
            yield point("redlock.instance.errors", number, error_type=kind, **here)
