"""One process's share of a run: *a plan → a connected lock, a history, counts; at the end a note
and Locust's table*.

Rules: everything is opened here, in the process that uses it, before its users start and never at
import. Users call only what a `Caller` holds. All else happens once a second in two greenlets, and
at the end. The first one writes the note. The second one catches up with the record, in pieces of
about 100 µs a millisecond apart. The note never waits for that work: readers need it most when the
load is behind.
"""

import gc
import inspect
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from heapq import heappop, heappush
from itertools import chain
from pathlib import Path
from typing import Self, TypeVar

import gevent
import numpy as np
from gevent import get_hub
from gevent.event import Event
from greenlet import greenlet
from locust.env import Environment
from msgspec import structs

from bench.errors import BenchError, EnvironmentNotReadyError
from bench.measure.begun import Begun
from bench.measure.histogram import Histogram
from bench.measure.record import CALLERS_PER_WORKER
from bench.measure.recorder import Recorder
from bench.measure.run_result import InstanceReport
from bench.measure.workers import NOTE_S, Phase, WorkerNote, write_note
from bench.recipes.protocol import Recipe
from bench.recipes.registry import find_recipe
from bench.scenario import Scenario
from bench.telemetry.settings import is_wanted
from bench.workloads.alarm import Alarm, Pacer, PreciseAlarm, Rests
from bench.workloads.demand import ALONE, Contention, Seat, offsets_ns
from bench.workloads.gap_log import GapLog
from bench.workloads.operation import Caller, OpenVotes, PackedVotes
from bench.workloads.plan import Plan
from bench.workloads.raised import Raised
from bench.workloads.table import FOLD, Row, acquires_of, releases_of
from bench.workloads.turns import RingPlace
from lockcore import InstanceStatus
from lockcore.clock import NS_PER_MS, monotonic_ns

PROBE_NS = 10 * NS_PER_MS
# notes from one encoding of the scheduler lag to the next
ENCODE_EVERY = 5
# segments of a judged history whose length nobody knows: 2 million operations, 270 MB
SEGMENTS_KEPT = 16
# votes patched at a time
PATCH = 64
# between two pieces of housekeeping; a sleep of 0 would come before the replies waiting in the
# sockets
PAUSE_S = 0.001
# asdict would copy deeply, for 17 µs each
_SEEN = tuple(field.name for field in fields(InstanceStatus))
Broke = Callable[[BenchError], None]
Answer = TypeVar("Answer")


class Worker:
    """The running share.

    Made by `open`; `begin` when all users of all workers run; `finish` when all have ended.
    """

    def __init__(
        self,
        plan: Plan,
        index: int,
        recipe: Recipe,
        workdir: Path,
        *,
        environment: Environment,
        broke: Broke,
        seat: Seat,
    ) -> None:
        scenario = plan.scenario
        self.plan = plan
        self.index = index
        self.recipe = recipe
        self.broke = broke
        self.acquire = recipe.acquire
        self.raised = Raised()
        self.misreports: Counter[str] = Counter()
        self._held: set[int] = set()
        self._stalls = any(pause.point == "after-grant" for pause in scenario.pause)
        self.rows = _rows(scenario, environment)
        self._workdir = workdir
        self._stats = environment.stats
        self._recorder = Recorder(workdir, index)
        self._begun = Begun(workdir, index)
        self.turns = RingPlace(plan.ring, scenario.users) if plan.ring else None
        self._contention = _contention(scenario, seat)
        self._votes = PackedVotes()
        self._open = OpenVotes(self._recorder.patch_votes, self._votes)
        # `callers`: how many there are, or were
        self.callers = self._cuts = self._folded = 0
        self._left: list[int] = []
        self._started = Event()
        self._naps = Alarm()
        self._rests = Rests()
        self._arrivals = PreciseAlarm() if scenario.rate_per_s else None
        self._pacer: Pacer | None = None
        self._origin_ns = self._stopped_ns = self._scheduled = 0
        self._cpu_s = time.process_time()
        self._lags_ns: list[int] = []
        # callers were kept from their next operation by turns of the hub
        self._kept_ns = 0
        self._lag = Histogram()
        self._lag_text = ""
        self._lateness = Histogram()
        self._replies = tuple(Histogram() for _ in recipe.instances)
        self._gaps = GapLog(workdir, index)
        self._ending = Event()
        self._prober = gevent.spawn(self._probe)
        self._housekeeper = gevent.spawn(self._housekeep)
        self._reporter = gevent.spawn(self._report)
        self.finished = False
        self.probed_ns = 0
        self._end_export: Callable[[], None] | None = None
        self._end_watch = self.raised.watch(get_hub())

    @classmethod
    def open(
        cls, plan: Plan, index: int, environment: Environment, broke: Broke, seat: Seat = ALONE
    ) -> Self:
        """Connect the recipe and open the history. `broke` is called with what ends the run while
        it runs; `seat`: which worker of how many. Raises UsageError or EnvironmentNotReadyError;
        nothing is left open then."""
        workdir = plan.workdir or Path(tempfile.mkdtemp(prefix="lockbench-"))
        settings = replace(
            plan.recipe_settings, process=index, attempts=workdir if is_wanted(os.environ) else None
        )
        recipe: Recipe | None = None
        try:
            recipe = find_recipe(plan.scenario.recipe).connect(plan.targets, settings)
            if not plan.allow_missing:
                _require_all(recipe)
            worker = cls(
                plan, index, recipe, workdir, environment=environment, broke=broke, seat=seat
            )
            # nobody follows the history and exports what it says
            if not plan.timed and is_wanted(os.environ):
                from bench.workloads.export import export_beside

                worker._end_export = export_beside(plan, index, workdir, seat[1])
        except BaseException:
            if recipe is not None:
                recipe.close()
            if plan.workdir is None:
                shutil.rmtree(workdir, ignore_errors=True)
            raise
        # Locust looks where it was stopped from; its first look through all modules takes 30 ms
        inspect.stack()
        gc.collect()
        # a full collection over all of Locust would stop everybody for tens of milliseconds
        gc.freeze()
        # a cycle leaves nothing to collect: looking every 700 objects cost it 4 %
        gc.set_threshold(100_000, 50, 100)
        return worker

    # -- for users ---------------------------------------------------------------------------------

    def caller(self) -> Caller:
        """A new caller; it takes the number of one that has left. Raises UsageError.

        Callers of a planned run begin together, when all are there: the first thousand at work
        would keep the others from being spawned for seconds, and the run would measure fewer than
        it was told.
        """
        place_in_row = heappop(self._left) if self._left else self.callers
        self.callers = max(self.callers, place_in_row + 1)
        number = self.index * CALLERS_PER_WORKER + place_in_row
        contention = self._contention
        acquires = self.rows[0]
        begun, place = self._begun.place()
        if self.plan.timed:
            self._started.wait()
        take = self.turns.take if self.turns else None
        if self._arrivals:
            take = self._take
        tell = acquires.tell if acquires.fire else None
        caller = Caller(
            acquire=self.acquire,
            release=self.recipe.release,
            ttl_ms=self.plan.scenario.ttl_ms,
            wait_ms=self.plan.scenario.wait_ms,
            number=number,
            resources=contention.resources(number),
            take=take,
            holds_ns=contention.holds_ns(number),
            thinks_ns=contention.thinks_ns(number),
            nap_until=self._naps.wait_until,
            rest_until=self._rests.rest,
            recorder=self._recorder,
            begun=begun,
            place=place,
            lost=self._lost,
            votes=self._votes,
            still_open=len(self._replies) << 40,
            pending=self._open.add,
            tell=tell,
            cut=self._cut,
            keep=self._keep,
        )
        caller.misreport = self._misreport
        caller.held = self._held
        caller.believes_grant = self._stalls
        return caller

    def _misreport(self, sentence: str) -> None:
        self.misreports[sentence] += 1

    def _lost(self, resource: int, times_ns: Sequence[int]) -> None:
        waited_ns = self.turns.waited_ns if self.turns else 0
        self._begun.lost(resource, [time_ns - waited_ns for time_ns in times_ns])

    def _told(self, ask: Callable[[], Answer], nothing: Answer) -> Answer:
        """What the recipe tells of itself; `nothing` where it raises, which is noted like all that
        it raises."""
        try:
            return ask()
        except Exception as error:  # noqa: BLE001
            # whatever it is, the record of the run is not lost for it
            self.raised.note(error)
            return nothing

    def _keep(self, kept_ns: int) -> None:
        self._kept_ns += kept_ns

    def leave(self, caller: Caller) -> None:
        """A caller has ended: its number, and with it a resource of its own, is free."""
        heappush(self._left, caller.number % CALLERS_PER_WORKER)

    def _cut(self) -> None:
        self._cuts += 1

    def _take(self) -> int:
        """The next arrival of the schedule, which is there once all users run."""
        if self._pacer is None:
            self._started.wait()
        return self._pacer.take() if self._pacer else 0

    def wake(self, user: greenlet) -> None:
        """End the rest of a user that shall stop: a wait for others or for an arrival, a think
        time. A hold goes on."""
        self._started.set()
        self._rests.cancel(user)
        if self.turns is not None:
            self.turns.free()
        if self._arrivals is not None:
            self._arrivals.cancel(user)

    # -- the course of a run -----------------------------------------------------------------------

    def begin(self, end: Callable[[], None], origin_ns: int, part: int, parts: int) -> None:
        """All users run: the schedule starts at `origin_ns` (monotonic), of which this worker is
        `part` of `parts`. `end` ends a run that takes turns."""
        if self._origin_ns:
            return
        scenario = self.plan.scenario
        if self._arrivals and scenario.rate_per_s:
            schedule = offsets_ns(
                scenario.rate_per_s, scenario.arrivals, scenario.seed, part, parts
            )
            self._pacer = Pacer(
                self._arrivals.wait_until, schedule, origin_ns, *self.plan.window_ns
            )
        self._origin_ns = origin_ns
        # In a run without a plan callers work already, and their CPU time counts.
        self._cpu_s = time.process_time() if self.plan.timed else self._cpu_s
        self._started.set()
        write_note(self._workdir, self._note("running"))
        if (turns := self.turns) is not None:

            def take_turns() -> None:
                turns.run(origin_ns, self.plan.window_ns[1] or 0, lambda: self._recorder.written)
                end()

            gevent.spawn(take_turns)

    # The order of these steps is what makes the last note complete. The reporter ends first, as its
    # note would replace the last one. Votes are settled and records folded before the note is made.
    # The note is written before the lock closes, and once more if closing raised something. Times
    # are shifted only after the recorder has closed the files.
    def finish(self) -> None:
        """All users have ended: settle votes, fold everything into Locust's table, leave the last
        note, close. Once."""
        if self.finished:
            return
        self.finished = True
        self._stopped_ns = self.turns.own_ns() if self.turns else monotonic_ns()
        self._origin_ns = self._origin_ns or self._stopped_ns
        cpu_s = time.process_time()
        if self._pacer is not None:
            self._scheduled = self._pacer.scheduled(self._stopped_ns)
        self._ending.set()
        self._housekeeper.join()
        # its note would replace the last one
        self._reporter.join()
        self._prober.kill()
        # a stop that nobody has looked at since
        self._look_for_gap(self.probed_ns + PROBE_NS)
        self._gaps.close()
        self._settle_votes()
        self._end_watch()
        for _ in self._fold():
            pass
        self._count_times()
        for row in self.rows:
            row.report(self._stats)
        # before the lock closes: as the last users saw it
        note = self._note("stopped", cpu_s)
        write_note(self._workdir, note)
        self._told(self.recipe.close, None)
        if self.raised.counts != note.errors:
            write_note(self._workdir, structs.replace(note, errors=dict(self.raised.counts)))
        self._recorder.close()
        self._begun.close()
        if self.turns is not None:
            self.turns.shift(self._workdir, self.index)
            # what is done here costs the others nothing
            self.turns.leave()
        for alarm in (self._naps, self._rests, self._arrivals):
            if alarm is not None:
                alarm.close()
        if self._end_export is not None:
            self._end_export()
        if self.plan.workdir is None:
            shutil.rmtree(self._workdir, ignore_errors=True)

    def _settle_votes(self) -> None:
        """Give the rounds still open as long as they can last."""
        deadline_ns = monotonic_ns() + 2 * int(self.plan.scenario.instance_timeout_ms * NS_PER_MS)
        self._open.look(len(self._open))
        while len(self._open) and monotonic_ns() < deadline_ns:
            gevent.sleep(0.002)
            self._open.look(len(self._open))
        self._open.look(len(self._open), last=True)

    # -- once a second -----------------------------------------------------------------------------

    # The note has a greenlet of its own, so it never waits for the catching up of `_housekeep`. A
    # loop that did both wrote its note after it had caught up, and in an overload that took 8 s and
    # more (`_fold`). Then nobody heard of the load when it mattered most. A thread writes the file,
    # as the system calls would stop every caller for 0.3 ms.
    def _report(self) -> None:
        """Write a note every `NOTE_S`, however far the housekeeping is behind."""
        notes = 0
        while not self._ending.wait(NOTE_S):
            if not self._origin_ns:
                continue
            if notes % ENCODE_EVERY == 0:
                _count(self._lag, self._lags_ns)
                self._lag_text = self._lag.encode()
                gevent.sleep(PAUSE_S)
            notes += 1
            note = self._note("running")
            # 0.3 ms of system calls
            get_hub().threadpool.apply(write_note, (self._workdir, note))

    def _housekeep(self) -> None:
        while not self._ending.wait(1):
            self._count_times()
            for _ in chain(self._patch(), self._fold()):
                gevent.sleep(PAUSE_S)
                if self._ending.is_set():
                    return
            # A planned run has no reader of Locust's table; otherwise it is kept up to date.
            if not self.plan.timed:
                for row in self.rows:
                    row.report(self._stats)
                self._forget_history()

    def _probe(self) -> None:
        """How late greenlets run here: a nap until every tenth millisecond."""
        due_ns = monotonic_ns()
        while True:
            self.probed_ns = due_ns
            due_ns += PROBE_NS
            late_ns = self._naps.wait_until(due_ns)
            self._look_for_gap(due_ns)
            # a stall counts for every tick that nobody looked at
            lags_ns = list(range(late_ns, -1, -PROBE_NS)) or [0]
            self._lags_ns += lags_ns
            due_ns += PROBE_NS * (len(lags_ns) - 1)

    def _look_for_gap(self, due_ns: int) -> None:
        """Keep the time in which this process was away; one that waits for its turn of several is
        not."""
        turns = self.turns
        try:
            waited_ns, idle = (turns.waited_ns, not turns.holding) if turns else (0, False)
            self._gaps.look(due_ns, monotonic_ns(), waited_ns, idle=idle)
        except BenchError as error:
            # the disk is full
            self.broke(error)

    def _patch(self) -> Iterator[None]:
        """Patch the votes of rounds closed since, a few at a time."""
        for _ in range(0, len(self._open), PATCH):
            self._open.look(PATCH)
            yield

    def _fold(self) -> Iterator[None]:
        """Count what has been recorded by now, some operations at a time.

        What comes while it counts is for the next second. Each pause brings new records, so a loop
        that ran until there were none left had no end in an overload: everything that came after it
        waited, for 8 s and more.
        """
        until = self._recorder.written
        while len(records := self._recorder.read(self._folded, min(FOLD, until - self._folded))):
            for row in self.rows:
                row.fold(records)
            self._folded += len(records)
            yield

    def _count_times(self) -> None:
        """Count delays and reply times; once a second, as the recipe writes its observed attempts
        then."""
        _count(self._lag, self._lags_ns)
        none: tuple[list[int], ...] = ()
        replies_ns = self._told(self.recipe.take_reply_times_ns, none)
        for histogram, times_ns in zip(self._replies, replies_ns, strict=False):
            _count(histogram, times_ns)
        _count(
            self._lateness, self._rests.late_ns if self._pacer is None else self._pacer.lateness_ns
        )

    def _forget_history(self) -> None:
        segments = sorted(
            self._workdir.glob("history-*.bin"), key=lambda path: path.stat().st_mtime_ns
        )
        for path in segments[: -(SEGMENTS_KEPT if self.plan.workdir else 2)]:
            path.unlink(missing_ok=True)
            self._begun.forget()

    def _paced_starts(self) -> tuple[int, int, int]:
        """How many starts were late, how many were queued and how many happened; without a rate
        there are none."""
        if self._pacer is None:
            return 0, 0, 0
        return self._pacer.late, self._pacer.queued, self._pacer.started

    def _note(self, phase: Phase, cpu_s: float | None = None) -> WorkerNote:
        last = phase == "stopped"
        told_ns = monotonic_ns()
        if cpu_s is None:
            # before the histograms are encoded, which takes milliseconds and is no work of callers
            cpu_s = time.process_time()
        kept_ns = self._kept_ns + self._rests.kept_ns
        waited_cpu_s = 0.0
        if self.turns:
            kept_ns += self.turns.kept_ns
            waited_cpu_s = self.turns.waited_cpu_ns / 1e9
        late_starts, queued_starts, started_starts = self._paced_starts()
        lateness_text = ""
        reply_texts: tuple[str, ...] = ()
        if last:
            lateness_text = self._lateness.encode()
            reply_texts = tuple(histogram.encode() for histogram in self._replies)
        lag_text = self._lag.encode() if last else self._lag_text
        return WorkerNote(
            worker=self.index,
            pid=os.getpid(),
            phase=phase,
            spawned_ns=self._origin_ns,
            stopped_ns=self._stopped_ns,
            told_ns=told_ns,
            cpu_s=cpu_s - self._cpu_s - waited_cpu_s,
            lag_histogram=lag_text,
            lateness_histogram=lateness_text,
            kept_ns=kept_ns,
            late_starts=late_starts,
            queued_starts=queued_starts,
            started_starts=started_starts,
            scheduled_starts=self._scheduled,
            cut=self._cuts,
            recorded=self._recorder.written,
            callers=self.callers,
            # without the prober
            holding=max(self._naps.waiting - 1, 0),
            idle=self._rests.waiting + (self._arrivals.waiting if self._arrivals else 0),
            instances=self._told(lambda: tuple(map(instance_report, self.recipe.instances)), ()),
            figures=self._told(lambda: dict(self.recipe.figures), {}),
            reply_histograms=reply_texts,
            errors=dict(self.raised.counts),
            misreports=dict(self.misreports),
            locust={row.name: row.counts for row in self.rows},
        )


def _contention(scenario: Scenario, seat: Seat) -> Contention:
    """Which resources this worker's callers ask for, and how long they hold and rest."""
    return Contention(
        scenario.skew,
        scenario.resources,
        scenario.hold,
        scenario.think,
        scenario.seed,
        seat=seat,
    )


def _rows(scenario: Scenario, environment: Environment) -> tuple[Row, Row]:
    fire = environment.events.request.fire if scenario.events == "stock" else None
    return Row(scenario.recipe, "acquire", acquires_of, fire), Row(
        scenario.recipe, "release", releases_of
    )


def instance_report(status: InstanceStatus) -> InstanceReport:
    """One instance as this process sees it."""
    return InstanceReport(
        **{**{name: getattr(status, name) for name in _SEEN}, "errors": dict(status.errors)}
    )


def _count(histogram: Histogram, times_ns: list[int]) -> None:
    histogram.add(np.array(times_ns, np.int64))
    times_ns.clear()


def _require_all(recipe: Recipe) -> None:
    for status in recipe.instances:
        if status.state in ("down", "refused"):
            raise EnvironmentNotReadyError(
                f"{status.address} cannot be used ({status.reason or status.state}); "
                "mend that, or name other instances with --target"
            )
