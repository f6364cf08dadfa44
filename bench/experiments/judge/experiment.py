"""Judges a lock. The judge plays the rows, several at once, and stores the verdicts and their
evidence.

Each row has its own servers and its own clients, and the servers start empty. If a row's result is
unknown, the judge plays the row again, while no other row runs. The loads run at the end, one after
the other, because they measure time. Ctrl-C ends every wait within a moment, and the judge then
drops unfinished rows.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from threading import Event

from bench.errors import EnvironmentNotReadyError
from bench.experiments.judge.contention import CALLERS, ContendedLoad, contend
from bench.experiments.judge.judge import earned, judge_rows
from bench.experiments.judge.lifetime import place_ms
from bench.experiments.judge.needs import CONTENTION, Observed, needs_of
from bench.experiments.judge.party import HangsError, NotApplicableError
from bench.experiments.judge.playing import Plays, judged, play_together
from bench.experiments.judge.result import JudgedRow, JudgeResult, WaitingCost
from bench.experiments.judge.row import JudgeRow, RowFinding
from bench.experiments.judge.stage import JudgeStage
from bench.experiments.judge.subject import Subject
from bench.measure.fleet_facts import OwnFleet
from bench.measure.server_facts import ServerBinary
from bench.run.experiment import Done, Experiment, ExperimentOrder, Show
from bench.topology.server import find_server
from lockcore.clock import NS_PER_S

# The number of rows per core that play at once, because a row mostly waits.
AT_ONCE = 4
# A 99th percentile needs this many hand-offs.
LEAST_P99 = 1000
BESIDE = (
    Subject("redis-py Lock", "bench.experiments.judge.beside:redis_py"),
    Subject("lockcore threads", "bench.experiments.judge.beside:lockcore"),
)
# These rows measure time or use both cores, so each is played alone.
ALONE = (CONTENTION, "search", "renewal", "busy")
# A row that is not applicable shows that this is lacking.
SHOWN_BY: Mapping[str, Observed] = {"search": "virtual time", "loading": "debug"}


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgePlan:
    """The conditions of a judgement. `shared` is true for a lock that has readers and a writer.
    `seconds` is the duration of each load. `plays` is the number of plays of a row. However, a row
    is played just once if its only purpose is to inform the user, or if no other row may run at the
    same time. `takeovers` is the number of takeovers that the judge measures at the same time.
    `chosen` holds the names of the rows that the user requested. If `with_costs` is true, the judge
    also measures the costs of waiting.
    """

    subject: Subject
    instances: int
    capacity: int
    shared: bool
    seconds: float
    plays: int
    takeovers: int
    rows: Sequence[JudgeRow[JudgeStage]]
    chosen: tuple[str, ...] = ()
    with_costs: bool = True


def run_judge(order: ExperimentOrder[JudgePlan], show: Show) -> Done[JudgeResult]:
    """Judge the lock of `order`.

    Raises UsageError if the judge cannot drive the lock. Raises BenchError if the machine cannot
    play the rows. Raises KeyboardInterrupt if the user interrupts the judgement before the first
    row has ended.
    """
    plan = order.plan
    server = find_server(order.server)
    with Experiment(order) as experiment:
        playing = _Questioning(plan, server, show)
        with experiment.cuttable():
            playing.run()
        experiment.require(playing.rows)
        rows = tuple(sorted(playing.rows, key=lambda row: _place(plan, row)))
        result = JudgeResult(
            **experiment.header(seed=None, interrupted=experiment.cut),
            fleet=OwnFleet(server=server),
            lock=plan.subject.typed,
            instances=plan.instances,
            capacity=plan.capacity,
            shared=plan.shared,
            planned=len(plan.rows),
            chosen=plan.chosen,
            ttl_ms=playing.ttl_ms,
            keys=playing.keys,
            lacks=tuple(sorted(playing.lacks)),
            rows=rows,
            costs=tuple(playing.costs),
            verdict=judge_rows(rows),
        )
        return experiment.store(earned(result))


def _place(plan: JudgePlan, row: JudgedRow) -> int:
    return [one.name for one in plan.rows].index(row.topic)


class _Questioning:
    """An object that plays the rows for one lock. Once `_stop` is set, every wait ends and
    unfinished rows are dropped.
    """

    def __init__(self, plan: JudgePlan, server: ServerBinary, show: Show) -> None:
        self._plan = plan
        self._server = server
        self._show = show
        self._stop = Event()
        self._keys: list[frozenset[bytes]] = []
        self._other_keys = frozenset[bytes]()
        self.ttl_ms: int | None = None
        self._place_ms: float | None = None
        self.lacks = set[Observed]()
        self.rows: list[JudgedRow] = []
        self.costs: list[WaitingCost] = []

    @property
    def keys(self) -> int:
        """The number of keys that a lease creates on all servers."""
        return sum(map(len, self._keys))

    def run(self) -> None:
        """Find out which keys a lease creates, play all rows, and measure the costs of waiting."""
        with self._stage() as stage:
            stage.learn()
            self._keys = stage.lock_keys
            self._other_keys = stage.other_keys
            self.ttl_ms = stage.ttl_ms
            self.lacks.update(stage.parties[0].lacks)
            if stage.capacity > 1:
                self._place_ms = place_ms(stage)
        jobs = {
            row.name: partial(self._add, row) for row in self._plan.rows if row.name not in ALONE
        }
        play_together(jobs, AT_ONCE, self._stop, self._show)
        rows = {row.name: row for row in self._plan.rows}
        for index, row in enumerate(self.rows):
            if row.verdict == "not known":
                self._show(f"again, alone: {row.topic}")
                self.rows[index] = self._play(rows[row.topic])
        for name in ALONE:
            if name in rows:
                self._show(name)
                self._add(rows[name])
        if self._plan.with_costs:
            self._measure_costs()

    def _stage(self) -> JudgeStage:
        stage = JudgeStage(self._plan.subject, self._plan.instances, self._server, self._stop)
        stage.capacity = self._plan.capacity
        stage.seconds = self._plan.seconds
        stage.takeovers = self._plan.takeovers
        stage.side = "write" if self._plan.shared else ""
        if self._keys:
            stage.lock_keys = self._keys
            stage.other_keys = self._other_keys
            stage.ttl_ms = self.ttl_ms
            stage.place_ms = self._place_ms
        return stage

    def _add(self, row: JudgeRow[JudgeStage]) -> None:
        judgement = self._play(row)
        self.rows.append(judgement)
        shows = SHOWN_BY.get(row.name)
        if shows and judgement.verdict == "not applicable":
            self.lacks.add(shows)

    def _play(self, row: JudgeRow[JudgeStage]) -> JudgedRow:
        plays = Plays(1 if row.name in ALONE else self._plan.plays)
        with self._stage() as stage:
            return judged(stage, row, asked, plays, self._stop)

    def _measure_costs(self) -> None:
        for subject in (self._plan.subject, *BESIDE):
            name = subject.typed
            self._show(f"what waiting costs: {name}")
            try:
                with JudgeStage(subject, self._plan.instances, self._server, self._stop) as stage:
                    self.costs.append(cost_of(name, contend(stage, self._plan.seconds)))
            except (EnvironmentNotReadyError, HangsError) as error:
                self._show(f"{name} could not be measured: {error}")


def asked(stage: JudgeStage, row: JudgeRow[JudgeStage]) -> RowFinding:
    """Play a row with the user's lock, and return the finding. Raises NotApplicableError if the row
    does not apply to the lock.
    """
    if stage.instances < row.least:
        raise NotApplicableError(f"this row needs {row.least} servers; use --instances {row.least}")
    if not any(stage.lock_keys) and row.name != CONTENTION:
        raise NotApplicableError("a lease creates no key on these servers")
    if "one holder" in needs_of(row.name) and stage.capacity > 1:
        raise NotApplicableError("this row needs a lock that only one client may hold at once")
    finding = row.play(stage)
    if _is_exclusive(stage, row):
        finding = replace(finding, wrong=finding.wrong or stage.broken())
    return replace(finding, remark=finding.remark or f"the fault did not appear: {row.question}")


def _is_exclusive(stage: JudgeStage, row: JudgeRow[JudgeStage]) -> bool:
    """Return whether two overlapping leases in this row are a fault."""
    if row.name == CONTENTION and stage.is_shared:
        return False
    return row.is_safety and not row.only_tells and stage.capacity == 1


def cost_of(name: str, load: ContendedLoad) -> WaitingCost:
    """Compute the costs of the lock called `name` from the operations of its load."""
    leases = load.leases
    handoffs = sorted(_handoffs(load))
    half_s = statistics.median(handoffs) if handoffs else None
    per_caller = [sum(one.granted_ns > 0 for one in own) for own in load.operations]
    squares = sum(count * count for count in per_caller)
    count = len(leases)
    return WaitingCost(
        lock=name,
        leases_per_s=count / load.seconds,
        handoff_p50_s=half_s,
        handoff_p99_s=_p99(handoffs),
        fairness=count * count / (CALLERS * squares) if squares else None,
        attempts_per_lease=_each(sum(map(len, load.operations)), count),
        commands_per_lease=_each(load.commands, count),
        client_cpu_us_per_lease=_each(load.cpu_s * 1e6, count),
    )


def _each(amount: float, count: int) -> float | None:
    return amount / count if count else None


def _p99(handoffs: Sequence[float]) -> float | None:
    return handoffs[int(0.99 * len(handoffs))] if len(handoffs) >= LEAST_P99 else None


def _handoffs(load: ContendedLoad) -> list[float]:
    """Return the times (s) from a release to the next grant. A grant counts only if its caller
    asked for the lock before the release.
    """
    leases = load.leases
    return [
        (after.granted_ns - before.release_sent_ns) / NS_PER_S
        for before, after in pairwise(leases)
        if before.release_sent_ns and after.attempt_ns < before.release_sent_ns < after.granted_ns
    ]
