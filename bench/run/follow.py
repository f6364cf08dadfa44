"""From launch to the last worker's end: *a running Locust → the measured window and how it ended*.

Rules
- Waits for what happens (an end, a note, a signal), never for luck; a worker that died or left, a Locust that never
  starts and Ctrl-C each end the run early, and what was measured until then keeps its window.
- A run whose window is shorter than ordered is interrupted, whoever cut it. One that was not is whole only when every
  worker has reported an end that lies behind the window.

Source: the folder protocol.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.errors import BenchError, EnvironmentNotReadyError, InconclusiveError
from bench.measure import workers
from bench.measure.facts import Window
from bench.run.faults import FaultTimeline
from bench.run.interrupt import Interrupts
from bench.run.progress import NS, Follower, Progress
from bench.workloads.launch import LocustProcess, is_alive

LOOK_S = 1.0  # an interval short enough to follow, long enough for a p99
START_S = 60.0  # from launch until all users run: connecting and spawning take a few seconds at most
REPORT_S = 3.0  # for a worker that outlives Locust to leave its last note
Show = Callable[[Progress], None]


@dataclass(slots=True)
class Course:
    """How a run went: `window` None when it never came to its measured time; `killed`: Locust did not end in order.

    `interrupted`: it was cut, by whomever. `deaths`: one sentence for each worker that ended early or whose end nobody
    knows; `casualties`: for each that a fault was ordered to kill.
    """

    window: Window | None = None
    interrupted: bool = False
    killed: bool = False
    deaths: tuple[str, ...] = ()
    casualties: tuple[str, ...] = ()
    clock: list[tuple[int, int]] = field(default_factory=list)

    @property
    def orderly(self) -> bool:
        """Whether every caller could give its lease back."""
        return not (self.killed or self.deaths or self.casualties)


def follow(
    load: LocustProcess, follower: Follower, interrupts: Interrupts, grace_s: float, show: Show,
    *, faults: FaultTimeline,
) -> Course:  # fmt: skip
    """Show the run until Locust has ended; return its course.

    `grace_s`: how long users may take to end once asked; then, or at a second Ctrl-C, Locust is killed. `faults` are
    undone before it is asked, as a stopped worker hears nothing.
    Raises BenchError when Locust ends or hangs before its users run.
    """
    course, asked_ns = Course(), 0
    while True:
        exit_code, now_ns = load.wait(LOOK_S), time.monotonic_ns()
        course.clock.append((now_ns, time.time_ns() - now_ns))
        show(follower.look(now_ns, faults.active()))
        if exit_code is not None:
            break
        if not asked_ns:
            course.deaths = _why_to_end(load, lost_workers(follower, faults) or _overdue(follower, now_ns, grace_s))
            _require_start(load, follower, now_ns)
            if interrupts.count or course.deaths:
                asked_ns = now_ns
                faults.stop()
                load.interrupt()
        elif interrupts.count > 1 or now_ns - asked_ns > grace_s * NS:
            course.killed = True
            load.close()
    if not asked_ns and (failure := load.failure()):
        if follower.window_ns is None:
            raise failure
        course.deaths = (_in_one_line(failure, exit_code),)
    course.deaths = course.deaths or _unreported(follower, faults)
    course.casualties = faults.casualties()
    course.window = _window(follower, asked_ns or _ended_ns(follower))
    _note_cut(course, follower, user=interrupts.count > 0)
    if course.window is None and not course.interrupted:
        kind = EnvironmentNotReadyError if follower.window_ns is None else InconclusiveError
        why = f" ({'; '.join(course.deaths)})" if course.deaths else ""
        raise kind(f"the load ended before its measured time{why}; the end of its log:\n{load.log_tail()}")
    return course


def _note_cut(course: Course, follower: Follower, *, user: bool) -> None:
    """Say that a run is shorter than ordered, and, where nobody else has, why."""
    planned, window = follower.window_ns, course.window
    short_ns = planned[1] - window.stop_ns if planned and window else 0
    course.interrupted = user or short_ns > 0
    if short_ns > 0 and not (user or course.deaths):
        course.deaths = (f"the load ended {short_ns / NS:.1f} s before its time",)


def _why_to_end(load: LocustProcess, seen: tuple[str, ...]) -> tuple[str, ...]:
    """What was seen from outside, or better what the load has said of it."""
    failure = load.failure() if seen else None
    return (str(failure),) if failure else seen


def _overdue(follower: Follower, now_ns: int, grace_s: float) -> tuple[str, ...]:
    """A word if Locust, which ends by itself when its time is over, still has not."""
    if follower.window_ns is None or now_ns < follower.window_ns[1] + grace_s * NS:
        return ()
    return (f"Locust did not end within {grace_s:.0f} s after its time, and was stopped",)


def _in_one_line(failure: BenchError, exit_code: int) -> str:
    """What went wrong, and the last line of the log where it explains an exit code (a kill explains itself)."""
    first, *rest = str(failure).splitlines()
    what = first.partition("; the end of its log:")[0]
    return f"{what}: {rest[-1].strip()}" if rest and exit_code > 0 else what


def lost_workers(follower: Follower, faults: FaultTimeline) -> tuple[str, ...]:
    """One sentence for each worker that is gone before its time, with or without a report, and that no fault killed."""
    killed = faults.killed_workers().values()
    notes = [note for note in workers.read_workers(follower.workdir) if note.pid not in killed]
    return tuple(sentence for note in notes if (sentence := _loss(note, follower.window_ns)))


def _loss(note: workers.WorkerNote, window_ns: tuple[int, int] | None) -> str:
    if note.phase == "running":
        return "" if is_alive(note.pid) else f"{note.name} died in the middle of the run"
    early_ns = window_ns[1] - note.stopped_ns if window_ns else 0
    return f"{note.name} ended {early_ns / NS:.1f} s before the end of the run" if early_ns > 0 else ""


def _unreported(follower: Follower, faults: FaultTimeline) -> tuple[str, ...]:
    """Once Locust has ended: one sentence for each worker that never said so, so that its last operations may lack."""
    killed = faults.killed_workers().values()
    deadline_s = time.monotonic() + REPORT_S
    while True:
        notes = workers.read_workers(follower.workdir)
        silent = [note for note in notes if note.phase == "running" and note.pid not in killed]
        if time.monotonic() > deadline_s or not any(is_alive(note.pid) for note in silent):
            break
        time.sleep(0.01)  # orphaned workers are not our children: nobody tells when they end
    return tuple(f"{note.name} did not report its end: what it did last may have no record" for note in silent)


def _ended_ns(follower: Follower) -> int:
    """When a load that ended by itself did so: at its last worker's end, if they told it."""
    notes = workers.read_workers(follower.workdir)
    ends = [note.stopped_ns for note in notes if note.phase == "stopped"]
    return max(ends, default=time.monotonic_ns())


def _require_start(load: LocustProcess, follower: Follower, now_ns: int) -> None:
    if follower.window_ns is None and now_ns - follower.began_ns > START_S * NS:
        raise EnvironmentNotReadyError(
            f"Locust did not start its users within {START_S:.0f} s; the end of its log:\n{load.log_tail()}"
        )


def _window(follower: Follower, ended_ns: int) -> Window | None:
    """The part of the planned window that had passed at `ended_ns`; None when it had not begun."""
    if follower.window_ns is None or ended_ns <= follower.window_ns[0]:
        return None
    return Window(follower.window_ns[0], min(follower.window_ns[1], ended_ns))
