"""This module carries out the part of a run that one process has to do: *a plan → a connected lock
with callers*. At the end, this module writes the last note and the final counts in Locust's table.

Rules: this module opens connections and files in the process that uses them. The connections and
files are opened before the users start, and never when this module is imported. During its
operations, a user calls only the functions in its `Caller`. During the run, two greenlets do all
other work, once a second. The first greenlet writes the note. The second greenlet counts the new
records. It works for about 100 µs, makes a pause of one millisecond, and then continues. The first
greenlet does not wait for the second greenlet, because readers need the note most when the counting
is late.
"""

import gc
import inspect
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields, replace
from heapq import heappop, heappush
from itertools import chain
from pathlib import Path
from typing import Self, TypeVar, cast

import gevent
from gevent import get_hub
from gevent.event import Event
from locust.env import Environment
from msgspec import structs

from bench.errors import BenchError, EnvironmentNotReadyError
from bench.measure.fleet_facts import InstanceSeen
from bench.measure.histogram import Histogram
from bench.measure.record import CALLERS_PER_WORKER
from bench.measure.workers import NOTE_S, Phase, WorkerNote, write_note
from bench.recipes.protocol import Acquire, Recipe, SharedRecipe
from bench.recipes.registry import find_recipe
from bench.telemetry.settings import is_wanted
from bench.workloads.demand import ALONE, Contention, Seat
from bench.workloads.history import WorkerHistory
from bench.workloads.operation import Caller, CallerSetting, Ledger
from bench.workloads.plan import Plan
from bench.workloads.probe import GeneratorProbe, count
from bench.workloads.raised import Raised
from bench.workloads.waits import Waits
from lockcore import InstanceStatus
from lockcore.clock import NS_PER_MS, monotonic_ns

# The scheduler lag is encoded once per this many notes.
ENCODE_EVERY = 5
# If a run has no planned end, its history keeps this many segments. They hold 2 million operations,
# or 270 MB.
SEGMENTS_KEPT = 16
# The sleep (s) between two pieces of housekeeping. A sleep of 0 would end before the hub reads the
# replies that wait in the sockets.
PAUSE_S = 0.001
# `asdict` would make a deep copy, which takes 17 µs for each status.
_SEEN = tuple(field.name for field in fields(InstanceStatus))
Broke = Callable[[BenchError], None]
Answer = TypeVar("Answer")


class Worker:
    """The part of a run that one process carries out.

    Create a Worker with `open`. Call `begin` when all users of all workers run, and call `finish`
    when all users have ended.
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
        self.raised = Raised()
        self.waits = Waits(scenario, plan.ring)
        self.history = WorkerHistory(
            workdir, index, scenario, environment, self.waits.turns, instances=len(recipe.instances)
        )
        self.probe = GeneratorProbe(workdir, index, self.waits, broke)
        self._contention = Contention(
            scenario.skew,
            scenario.resources,
            scenario.hold,
            scenario.think,
            scenario.seed,
            seat=seat,
        )
        pause_ms = 0 if scenario.rate_per_s else scenario.retry.window_ms
        self._load = CallerSetting(
            acquire=recipe.acquire,
            acquire_shared=_acquire_shared(recipe, scenario.shared),
            release=recipe.release,
            ttl_ms=scenario.ttl_ms,
            wait_ms=scenario.wait_ms,
            take=self.waits.take,
            nap_until=self.waits.naps.wait_until,
            rest_until=self.waits.rests.rest,
            keep=self.waits.keep,
            pause_ns=int(pause_ms * NS_PER_MS),
            believes_grant=any(pause.point == "after-grant" for pause in scenario.pause),
        )
        self._replies = tuple(Histogram() for _ in recipe.instances)
        # The highest number of simultaneous callers so far.
        self.callers = 0
        # The numbers of callers that have left.
        self._left: list[int] = []
        self._origin_ns = 0
        self._ending = Event()
        self._tasks = [gevent.spawn(self._housekeep), gevent.spawn(self._report)]
        # The steps that close everything at the end. They run in reverse order.
        self._closing = ExitStack()
        self._end_watch = self.raised.watch(get_hub())

    @classmethod
    def open(
        cls, plan: Plan, index: int, environment: Environment, broke: Broke, seat: Seat = ALONE
    ) -> Self:
        """Connect the recipe and open the history.

        `broke`: this function receives an error that ends the run. `seat`: the number of this
        worker, and the total number of workers. Raises UsageError or EnvironmentNotReadyError. If
        this method raises an exception, it first closes everything that it has opened.
        """
        with ExitStack() as closing:
            workdir = plan.workdir
            if workdir is None:
                workdir = Path(tempfile.mkdtemp(prefix="lockbench-"))
                closing.callback(shutil.rmtree, workdir, ignore_errors=True)
            is_exported = is_wanted(os.environ)
            settings = replace(
                plan.recipe_settings, process=index, attempts=workdir if is_exported else None
            )
            with ExitStack() as failing:
                recipe = find_recipe(plan.scenario.recipe).connect(plan.targets, settings)
                failing.callback(recipe.close)
                if not plan.allow_missing:
                    _require_all(recipe)
                worker = cls(
                    plan, index, recipe, workdir, environment=environment, broke=broke, seat=seat
                )
                # No other process follows this history, so the worker starts an exporter.
                if not plan.timed and is_exported:
                    from bench.workloads.export import export_beside

                    closing.callback(export_beside(plan, index, workdir, seat[1]))
                failing.pop_all()
            worker._closing = closing.pop_all()
        # When Locust stops, it inspects the call stack. The first inspection reads all modules and
        # takes 30 ms, so it happens now.
        inspect.stack()
        gc.collect()
        # A full garbage collection over all objects of Locust would stop every caller for tens of
        # milliseconds.
        gc.freeze()
        # An operation leaves no garbage cycles. The default collection after every 700 objects made
        # an operation 4 % slower.
        gc.set_threshold(100_000, 50, 100)
        return worker

    # -- for users ---------------------------------------------------------------------------------

    def caller(self) -> Caller:
        """Return a new caller. If an earlier caller has left, the new caller gets the number of
        that caller. Raises UsageError.

        In a planned run, no caller begins before all callers exist. In an earlier version, each
        caller began as soon as it existed. The work of the first thousand callers delayed the start
        of the other callers for seconds. So the run measured fewer callers than the scenario
        requests.
        """
        place_in_row = heappop(self._left) if self._left else self.callers
        self.callers = max(self.callers, place_in_row + 1)
        number = self.index * CALLERS_PER_WORKER + place_in_row
        ledger = Ledger(self.history.books, number, *self.history.begun.place())
        if self.plan.timed:
            self.waits.started.wait()
        draws = self._contention
        return Caller(
            self._load,
            ledger,
            draws.resources(number),
            draws.holds_ns(number),
            draws.thinks_ns(number),
            readers=draws.readers(number) if self.plan.scenario.shared else None,
        )

    def leave(self, caller: Caller) -> None:
        """Free the number of a caller that has ended.

        With the skew `own`, this also frees the resource of the caller.
        """
        heappush(self._left, caller.ledger.number % CALLERS_PER_WORKER)

    # -- the course of a run -----------------------------------------------------------------------

    @property
    def is_ending(self) -> bool:
        """True if all users have ended."""
        return bool(self._ending.is_set())

    def begin(self, end: Callable[[], None], origin_ns: int, part: int, parts: int) -> None:
        """Start the schedule at `origin_ns` (monotonic). Call this when all users run. Only the
        first call has an effect.

        The schedule is divided among `parts` workers, and `part` is the number of this worker. The
        function `end` ends a run that shares time slices.
        """
        if self._origin_ns:
            return
        self._origin_ns = origin_ns
        # In a run without a planned end, callers are already working at this point, so their
        # earlier CPU time counts.
        if self.plan.timed:
            self.probe.begin()
        self.waits.begin(origin_ns, self.plan.window_ns, part, parts)
        write_note(self.history.workdir, self._note("running", self.probe.cpu_s))
        if (turns := self.waits.turns) is not None:
            length_ns = self.plan.window_ns[1] or 0
            written = lambda: self.history.recorder.written  # noqa: E731 - of now, not of here
            gevent.spawn(turns.run, origin_ns, length_ns, written).link(lambda _: end())

    # The last note is complete only because of the order of these steps. The reporting greenlet
    # ends first, because otherwise its next note would replace the last note. Votes are settled and
    # records are counted before the last note is made. The note is written before the lock closes,
    # and it is written again if closing raised an exception. Times are shifted only after the
    # recorder has closed the files.
    def finish(self) -> None:
        """Finish after all users have ended. Only the first call has an effect.

        Settle the votes, count everything in Locust's table, write the last note, and close.
        """
        if self.is_ending:
            return
        turns = self.waits.turns
        stopped_ns = turns.own_ns() if turns else monotonic_ns()
        self._origin_ns = self._origin_ns or stopped_ns
        cpu_s = self.probe.cpu_s
        self._ending.set()
        gevent.joinall(self._tasks)
        self.probe.close()
        self._end_watch()
        self.history.settle(self.plan.scenario.instance_timeout_ms)
        self._count_times()
        # This note is made before the lock closes, so it shows the instances as the last users saw
        # them.
        note = structs.replace(
            self._note("stopped", cpu_s),
            stopped_ns=stopped_ns,
            lag_histogram=self.probe.lag.encode(),
            lateness_histogram=self.probe.lateness.encode(),
            reply_histograms=tuple(histogram.encode() for histogram in self._replies),
        )
        write_note(self.history.workdir, note)
        self._told(self.recipe.close, None)
        if self.raised.counts != note.errors:
            write_note(self.history.workdir, structs.replace(note, errors=dict(self.raised.counts)))
        self.history.close()
        if turns is not None:
            # This process passes its time slice on only now, so the work above takes no time from
            # the other processes.
            turns.leave()
        self.waits.close()
        self._closing.close()

    def _told(self, ask: Callable[[], Answer], nothing: Answer) -> Answer:
        """Call `ask`, a function that calls the recipe, and return the result. If `ask` raises an
        exception, this method counts the exception and returns `nothing`."""
        try:
            return ask()
        except Exception as error:  # noqa: BLE001
            # An exception of a recipe must never destroy the record of the run.
            self.raised.note(error)
            return nothing

    # -- once a second -----------------------------------------------------------------------------

    # A separate greenlet writes the note, so the note never waits for the counting in `_housekeep`.
    # In an earlier version, one loop counted first and then wrote the note. In an overload, the
    # counting took 8 s and more (`WorkerHistory.fold`). So readers got no news about the load when
    # they needed it most. A thread writes the file, because the system calls would stop every
    # caller for 0.3 ms.
    def _report(self) -> None:
        """Write a note every `NOTE_S` seconds, even if `_housekeep` is late."""
        notes = 0
        lag_text = ""
        while not self._ending.wait(NOTE_S):
            if not self._origin_ns:
                continue
            if notes % ENCODE_EVERY == 0:
                self.probe.count()
                lag_text = self.probe.lag.encode()
                gevent.sleep(PAUSE_S)
            notes += 1
            note = structs.replace(self._note("running", self.probe.cpu_s), lag_histogram=lag_text)
            # Writing the note takes 0.3 ms of system calls.
            get_hub().threadpool.apply(write_note, (self.history.workdir, note))

    def _housekeep(self) -> None:
        while not self._ending.wait(1):
            self._count_times()
            for _ in chain(self.history.patch(), self.history.fold()):
                gevent.sleep(PAUSE_S)
                if self.is_ending:
                    return
            # During a planned run, nobody reads Locust's table. During any other run, the table is
            # kept up to date.
            if not self.plan.timed:
                self.history.report()
                self.history.forget(SEGMENTS_KEPT if self.plan.workdir else 2)

    def _count_times(self) -> None:
        """Count delays and reply times. Call this method once a second, because the recipe also
        writes its observed attempts during this call."""
        self.probe.count()
        none: tuple[list[int], ...] = ()
        replies_ns = self._told(self.recipe.take_reply_times_ns, none)
        for histogram, times_ns in zip(self._replies, replies_ns, strict=False):
            count(histogram, times_ns)

    def _note(self, phase: Phase, cpu_s: float) -> WorkerNote:
        """Return the note of this process, without histograms.

        Encoding histograms takes milliseconds, and this time must not count as work of the callers.
        """
        history = self.history
        waits = self.waits
        pacer = waits.pacer
        late_starts = pacer.late if pacer else 0
        queued_starts = pacer.queued if pacer else 0
        rows = (history.acquires, history.releases)
        return WorkerNote(
            worker=self.index,
            pid=os.getpid(),
            phase=phase,
            spawned_ns=self._origin_ns,
            told_ns=monotonic_ns(),
            cpu_s=cpu_s,
            kept_ns=waits.kept_ns,
            late_starts=late_starts,
            queued_starts=queued_starts,
            cut=history.cuts,
            recorded=history.recorder.written,
            callers=self.callers,
            # The wait of the probe itself is not counted.
            holding=max(waits.naps.waiting - 1, 0),
            idle=waits.idle,
            instances=self._told(lambda: tuple(map(instance_report, self.recipe.instances)), ()),
            figures=self._told(lambda: dict(self.recipe.figures), {}),
            errors=dict(self.raised.counts),
            misreports=dict(history.misreports),
            locust={row.name: row.counts for row in rows},
        )


def instance_report(status: InstanceStatus) -> InstanceSeen:
    """Return the state of one instance as this process sees it."""
    return InstanceSeen(
        **{**{name: getattr(status, name) for name in _SEEN}, "errors": dict(status.errors)}
    )


def _acquire_shared(recipe: Recipe, shared: bool) -> Acquire:
    """Return the acquire function for readers. If the scenario has no readers, this function
    returns the normal acquire function. In this case, no caller uses the result."""
    return cast("SharedRecipe", recipe).acquire_shared if shared else recipe.acquire


def _require_all(recipe: Recipe) -> None:
    for status in recipe.instances:
        if status.state in ("down", "refused"):
            raise EnvironmentNotReadyError(
                f"{status.address} cannot be used ({status.reason or status.state}); correct "
                "that, or name other instances with --target"
            )
