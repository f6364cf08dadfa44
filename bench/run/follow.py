"""This module follows the load of a run until the last worker has ended: *a running Locust → the
measured window, the reasons for an early end*.

Rules
- Three events end the run early: a worker dies or leaves, Locust never starts, or the user presses
  Ctrl-C. In each case, the measured window ends at the time of the event. If a worker dies while
  the load is already ending, the run continues, and the result reports this death.
- If the measured window is shorter than the requested duration, the run counts as interrupted. If
  the window has the requested duration, the run is complete only if every worker has reported an
  end after the window.
"""

import time
from dataclasses import dataclass, field

from bench.errors import BenchError, EnvironmentNotReadyError, InconclusiveError
from bench.measure import workers
from bench.measure.facts import Window
from bench.run.faults import FaultTimeline
from bench.run.follower import Follower, Show
from bench.run.interrupt import Interrupts
from bench.topology.child import is_alive
from bench.workloads.launch import Load
from lockcore.clock import NS_PER_MS, NS_PER_S

# The interval (s) of the live display. It is short enough for a viewer and long enough for a p99.
LOOK_S = 1.0
# All users must run within this time (s) after the launch. Usually this takes a few seconds. If
# other hosts take part, the time to wait for them is added.
START_S = 60.0
# If a worker outlives Locust, it may take this long (s) to write its last note.
REPORT_S = 3.0


@dataclass(slots=True)
class Course:
    """The facts that this process observes while the load of a run is active.

    `window`: the measured window, or None if the run did not reach its measured time. `killed`:
    true if Locust had to be killed. `deaths`: sentences about workers that ended early.
    `casualties`: sentences about workers that a planned fault killed. `clock`: the samples of the
    clocks. Each sample is a pair of numbers (ns): a monotonic time, and the difference (wall clock
    − monotonic clock) at this time. `used_ns`: the samples of the CPU time while callers ran. Each
    sample is a pair of numbers (ns): the time of the sample, and the CPU time that this process had
    used by this time.
    """

    window: Window | None = None
    interrupted: bool = False
    killed: bool = False
    deaths: tuple[str, ...] = ()
    casualties: tuple[str, ...] = ()
    clock: list[tuple[int, int]] = field(default_factory=list)
    used_ns: list[tuple[int, int]] = field(default_factory=list)

    def note(self, now_ns: int, *, running: bool) -> None:
        """Store a sample of the clocks. If `running` is true, also store the CPU time of this
        process."""
        before_ns = time.monotonic_ns()
        wall_ns = time.time_ns()
        after_ns = time.monotonic_ns()
        # A sample that took long is left out. Otherwise a busy machine would look like a step of
        # the wall clock.
        if after_ns - before_ns < NS_PER_MS:
            self.clock.append((now_ns, wall_ns - after_ns))
        if running:
            self.used_ns.append((time.monotonic_ns(), time.process_time_ns()))

    @property
    def beside_ratio(self) -> float | None:
        """The share of a core that this process used while callers ran.

        The process uses this CPU time to follow and judge the run.
        """
        if len(self.used_ns) < 2:
            return None
        (since_ns, before_ns), *_, (now_ns, used_ns) = self.used_ns
        return (used_ns - before_ns) / (now_ns - since_ns)

    @property
    def orderly(self) -> bool:
        """True if every caller could release its lease."""
        return not (self.killed or self.deaths or self.casualties)


def follow(
    load: Load,
    follower: Follower,
    interrupts: Interrupts,
    grace_s: float,
    show: Show | None,
    *,
    faults: FaultTimeline,
) -> Course:
    """Wait until Locust has ended, and return the facts that were observed during the run.

    `show`: a function that shows the progress, or None. If the run must end early, this function
    undoes the `faults` and asks Locust to end. `grace_s`: the longest time (s) from this request to
    the end of Locust. Locust is killed after this time, or at a second Ctrl-C. Raises BenchError if
    Locust ends or hangs before its users run.
    """
    course = Course()
    asked_ns = 0
    load_failure = None
    while True:
        exit_code = load.wait(LOOK_S)
        now_ns = time.monotonic_ns()
        if show:
            show(follower.look(now_ns, faults.active()))
        else:
            follower.find_window()
        course.note(now_ns, running=follower.window_ns is not None and exit_code is None)
        if exit_code is not None:
            break
        if not asked_ns:
            lost = () if workers.is_ending(follower.workdir) else lost_workers(follower, faults)
            course.deaths = lost or _overdue(load, follower, now_ns, grace_s)
            if course.deaths and (load_failure := load.failure()):
                # The load's own report explains more than these sentences.
                course.deaths = (str(load_failure),)
            if interrupts.count or course.deaths:
                asked_ns = now_ns
                faults.stop()
                load.interrupt()
        elif interrupts.count > 1 or now_ns - asked_ns > grace_s * NS_PER_S:
            course.killed = True
            load.close()
    if not asked_ns and (failure := load.failure()):
        if follower.window_ns is None:
            raise failure
        course.deaths = (_in_one_line(failure, exit_code),)
    course.deaths = (
        course.deaths
        or unreported(follower, faults)
        or (() if asked_ns else _early(follower, faults))
    )
    course.casualties = tuple(
        f"a fault killed worker {index} (pid {pid}), so its last operation has no record"
        for index, pid in faults.killed_workers().items()
    )
    _note_window(course, follower, asked_ns or _ended_ns(follower), user=interrupts.count > 0)
    if course.window is None and not course.interrupted:
        raise load_failure or _unmeasured(course, follower, load)
    return course


def _unmeasured(course: Course, follower: Follower, load: Load) -> BenchError:
    kind = EnvironmentNotReadyError if follower.window_ns is None else InconclusiveError
    why = f" ({'; '.join(course.deaths)})" if course.deaths else ""
    return kind(
        f"the load ended before its measured time{why}; the end of its log:\n{load.log_tail()}"
    )


def _note_window(course: Course, follower: Follower, ended_ns: int, *, user: bool) -> None:
    """Store the measured window.

    Also store whether the run was interrupted. A run was interrupted if the user stopped it or if
    the window is too short. If the window is too short, this function stores a sentence about the
    early end of the load. The function stores no sentence if the user stopped the run or if a
    worker died.
    """
    planned = follower.window_ns
    window = follower.window_before(ended_ns)
    course.window = window
    short_ns = planned[1] - window.stop_ns if planned and window else 0
    course.interrupted = user or short_ns > 0
    if short_ns > 0 and not (user or course.deaths):
        course.deaths = (f"the load ended {short_ns / NS_PER_S:.1f} s before its planned end",)


def _overdue(load: Load, follower: Follower, now_ns: int, grace_s: float) -> tuple[str, ...]:
    """Return one sentence if Locust should have ended but still runs.

    Return an empty tuple in all other cases.

    Raises EnvironmentNotReadyError if the users do not start in time.
    """
    start_s = START_S + follower.wait_s
    if follower.window_ns is None and now_ns - follower.began_ns > start_s * NS_PER_S:
        raise EnvironmentNotReadyError(
            f"Locust did not start its users within {start_s:.0f} s; the end of its "
            f"log:\n{load.log_tail()}"
        )
    if follower.window_ns is None or now_ns < follower.window_ns[1] + grace_s * NS_PER_S:
        return ()
    return (
        f"Locust did not end within {grace_s:.0f} s after the measured window, so lockbench "
        "stopped Locust",
    )


def _in_one_line(failure: BenchError, exit_code: int) -> str:
    """Return the error in one line.

    If Locust ended with an exit code, the last line of the log is added as an explanation. If
    Locust was killed, no explanation is needed.
    """
    first, *rest = str(failure).splitlines()
    what = first.partition("; the end of its log:")[0]
    return f"{what}: {rest[-1].strip()}" if rest and exit_code > 0 else what


def lost_workers(follower: Follower, faults: FaultTimeline) -> tuple[str, ...]:
    """Return one sentence for each worker that ended early, unless a fault killed the worker.

    The list includes workers that reported their end and workers that did not report their end.
    """
    notes = _not_killed(follower, faults)
    return tuple(sentence for note in notes if (sentence := _loss(note, follower.window_ns)))


def _early(follower: Follower, faults: FaultTimeline) -> tuple[str, ...]:
    """Return one sentence for each worker that ended before the others.

    If all workers ended early, the function returns no sentences.
    """
    ended = lost_workers(follower, faults)
    return ended if len(ended) < len(workers.read_workers(follower.workdir)) else ()


def _not_killed(follower: Follower, faults: FaultTimeline) -> list[workers.WorkerNote]:
    killed = faults.killed_workers().values()
    return [note for note in workers.read_workers(follower.workdir) if note.pid not in killed]


def _loss(note: workers.WorkerNote, window_ns: tuple[int, int] | None) -> str:
    if note.phase == "lost":
        return f"{note.name} was lost before it sent its history, so its operations are not known"
    if note.phase == "running":
        return (
            "" if note.host or is_alive(note.pid) else f"{note.name} died in the middle of the run"
        )
    early_ns = window_ns[1] - note.stopped_ns if window_ns else 0
    return (
        f"{note.name} ended {early_ns / NS_PER_S:.1f} s before the end of the run"
        if early_ns > 0
        else ""
    )


def unreported(follower: Follower, faults: FaultTimeline) -> tuple[str, ...]:
    """Return one sentence for each worker that has not reported its end. Call this after Locust has
    ended.

    The record may lack the last operations of these workers.
    """
    deadline_s = time.monotonic() + REPORT_S
    while True:
        silent = [note for note in _not_killed(follower, faults) if note.phase != "stopped"]
        if time.monotonic() > deadline_s or not any(
            is_alive(note.pid) for note in silent if not note.host
        ):
            break
        # Orphaned workers are not our children, so no signal reports their end.
        time.sleep(0.01)
    return tuple(
        _loss(note, None)
        if note.phase == "lost"
        else f"{note.name} did not report its end, so its last operations may have no record"
        for note in silent
    )


def _ended_ns(follower: Follower) -> int:
    """Return the time (ns) at which a load ended by itself.

    The returned time is the latest end that any worker reported. If no worker reported its end, the
    function returns the present time.
    """
    notes = workers.read_workers(follower.workdir)
    ends = [note.stopped_ns for note in notes if note.phase == "stopped"]
    return max(ends, default=time.monotonic_ns())
