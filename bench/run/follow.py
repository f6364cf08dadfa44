"""From launch to the last worker's end: *a running Locust → looks at it, the measured window and
how it ended*.

Rules
- Looking only reads what the workers write anyway, so watching costs the load nothing.
- A worker that died or left, a Locust that never starts and Ctrl-C each end the run early, and what
  was measured until then keeps its window. Once the load says that its end has begun, a death is
  only named: it ends by itself.
- A run whose window is shorter than ordered is interrupted, whoever cut it. One that was not is
  whole only when every worker has reported an end that lies behind the window.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bench.errors import BenchError, EnvironmentNotReadyError, InconclusiveError
from bench.hosts.share import read_led
from bench.measure import workers
from bench.measure.clocks import Integers
from bench.measure.facts import Window
from bench.measure.histogram import Histogram
from bench.measure.outcomes import acquired
from bench.measure.record import OUTCOMES, HistoryTail, sound
from bench.run.faults import FaultTimeline
from bench.run.interrupt import Interrupts
from bench.safety.judge import LiveJudge, LiveVerdict
from bench.scenario import Scenario
from bench.workloads.launch import Load, is_alive
from lockcore.clock import NS_PER_MS, NS_PER_S


@dataclass(frozen=True, slots=True)
class Progress:
    """One look at a run. Percentiles are None while fewer than ten samples lie beyond them."""

    # starting | warm-up | measuring | draining
    phase: str
    elapsed_s: float
    remaining_s: float
    acquires_per_s: float
    p50_s: float | None
    p99_s: float | None
    # since the start
    outcomes: Mapping[str, int]
    # instances that do not simply vote: state, and errors so far
    troubles: Mapping[int, tuple[str, int]]
    # the busiest worker's share of a core since its users ran
    cpu_ratio: float | None
    # how late the workers' schedulers ran since they began
    lag_p99_s: float | None
    late_starts: int
    safety: LiveVerdict = field(default_factory=LiveVerdict)
    # kind and target of those that are there now
    faults: Sequence[str] = ()


class Follower:
    """Looks at a run's folder again and again. `live.verdict`: what the oracle knows by the last
    look, for any thread."""

    def __init__(
        self, workdir: Path, scenario: Scenario, wait_s: float = 0.0, *, began_ns: int | None = None
    ) -> None:
        """Start at the beginning of the history.

        `wait_s`: how long workers may take to come; `began_ns`: None: now.
        """
        self.workdir = workdir
        self.scenario = scenario
        self.wait_s = wait_s
        self.began_ns = self._looked_ns = time.monotonic_ns() if began_ns is None else began_ns
        self.spawned_ns: int | None = None
        self.live = LiveJudge(scenario.ttl_ms)
        self._tail = HistoryTail(workdir)
        self._counts: Integers = np.zeros(len(OUTCOMES), np.int64)

    @property
    def window_ns(self) -> tuple[int, int] | None:
        """The measured window on the monotonic clock, once every worker has spawned its users."""
        if self.spawned_ns is None:
            return None
        start = self.spawned_ns + round(self.scenario.warmup_ms * NS_PER_MS)
        return start, start + round(self.scenario.duration_ms * NS_PER_MS)

    def until(self, stop_ns: int) -> Window | None:
        """The measured window of a run that somebody else has ended; None when it had not begun."""
        self.find_window()
        lasted_ns = stop_ns - (self.spawned_ns or stop_ns)
        self.scenario = replace(self.scenario, duration_ms=lasted_ns / NS_PER_MS)
        return _window(self, stop_ns)

    def find_window(self) -> tuple[int, int] | None:
        """The measured window as of now, without waiting for the next look; any thread may ask."""
        if (
            self.spawned_ns is None
            and len(notes := workers.read_workers(self.workdir)) >= self.scenario.processes
        ):
            self.spawned_ns = max(note.spawned_ns for note in notes)
        return self.window_ns

    def look(self, now_ns: int, faults: Sequence[str] = ()) -> Progress:
        """Return what happened since the last look, at the monotonic time `now_ns`.

        `faults`: those there are now.
        """
        self.find_window()
        notes = workers.read_workers(self.workdir)
        new = self._tail.new_records()
        records = new[sound(new)]
        interval_s = max((now_ns - self._looked_ns) / NS_PER_S, 1e-9)
        self._looked_ns = now_ns
        codes = records["outcome"] & 0xFF
        granted = acquired(records)
        self._counts += np.bincount(codes, minlength=len(OUTCOMES))[: len(OUTCOMES)]
        leases = int(granted.sum())
        latencies = Histogram.of(
            np.maximum(records["ended_ns"][granted] - records["intended_ns"][granted], 0)
        )
        # Records of workers on other hosts come when those workers have ended.
        far = any(note.host for note in notes)
        phase, elapsed_s, remaining_s = self._clock(now_ns)
        return Progress(
            phase=phase,
            elapsed_s=elapsed_s,
            remaining_s=remaining_s,
            acquires_per_s=_told_per_s(notes) if far else leases / interval_s,
            p50_s=_seconds(latencies.percentile(50)),
            p99_s=_seconds(latencies.percentile(99)),
            outcomes={
                name: int(count)
                for name, count in zip(OUTCOMES, self._counts, strict=True)
                if count
            },
            troubles=_troubles(notes),
            cpu_ratio=_busiest(notes),
            lag_p99_s=_seconds(workers.merged(note.lag_histogram for note in notes).percentile(99)),
            late_starts=sum(note.late_starts for note in notes),
            safety=self.live.add(records),
            faults=faults,
        )

    def _clock(self, now_ns: int) -> tuple[str, float, float]:
        if self.window_ns is None:
            return "starting", 0.0, (self.scenario.warmup_ms + self.scenario.duration_ms) / 1000
        start, end = self.window_ns
        if now_ns < start:
            return "warm-up", 0.0, (end - now_ns) / NS_PER_S
        if now_ns < end:
            return "measuring", (now_ns - start) / NS_PER_S, (end - now_ns) / NS_PER_S
        return "draining", (end - start) / NS_PER_S, 0.0


def _told_per_s(notes: Sequence[workers.WorkerNote]) -> float:
    """Leases per second since their users ran, as the workers of other hosts tell it."""
    rates = []
    for note in notes:
        attempts, failed = note.locust.get("acquire", (0, 0))
        rates.append((attempts - failed) * NS_PER_S / max(note.told_ns - note.spawned_ns, NS_PER_S))
    return sum(rates)


def _busiest(notes: Sequence[workers.WorkerNote]) -> float | None:
    # In its first second the CPU time of a worker is no share of anything.
    measured = [note for note in notes if note.told_ns - note.spawned_ns >= NS_PER_S]
    return max(
        (note.cpu_s * NS_PER_S / (note.told_ns - note.spawned_ns) for note in measured),
        default=None,
    )


def _troubles(notes: Sequence[workers.WorkerNote]) -> dict[int, tuple[str, int]]:
    """The worst state and the sum of errors of every instance over all workers, if either is worth
    a word."""
    troubles: dict[int, tuple[str, int]] = {}
    for status in (status for note in notes for status in note.instances):
        state, errors = troubles.get(status.index, ("voting", 0))
        worst = status.state if state == "voting" else state
        troubles[status.index] = worst, errors + sum(status.errors.values())
    return {
        index: trouble for index, trouble in sorted(troubles.items()) if trouble != ("voting", 0)
    }


def _seconds(ns: float | None) -> float | None:
    return None if ns is None else ns / NS_PER_S


# an interval short enough to follow, long enough for a p99
LOOK_S = 1.0
# from launch (or once all hosts are there) until all users run: that takes a few seconds at most
START_S = 60.0
# for a worker that outlives Locust to leave its last note
REPORT_S = 3.0
Show = Callable[[Progress], None]


@dataclass(slots=True)
class Course:
    """How a run went: `window` None when it never came to its measured time; `killed`: Locust did
    not end in order; `deaths`: sentences on workers that ended early; `casualties`: on those that a
    fault was ordered to kill. `used_ns`: the time of each look while callers ran, and the CPU that
    this process had used by then."""

    window: Window | None = None
    interrupted: bool = False
    killed: bool = False
    deaths: tuple[str, ...] = ()
    casualties: tuple[str, ...] = ()
    clock: list[tuple[int, int]] = field(default_factory=list)
    used_ns: list[tuple[int, int]] = field(default_factory=list)

    def note(self, now_ns: int, *, running: bool) -> None:
        """Keep what the clocks say at a look, if nothing held it up, and while callers run what
        this process used."""
        before_ns = time.monotonic_ns()
        wall_ns = time.time_ns()
        after_ns = time.monotonic_ns()
        # A sample that took long is left out: a busy machine would look like a clock that steps.
        if after_ns - before_ns < NS_PER_MS:
            self.clock.append((now_ns, wall_ns - after_ns))
        if running:
            self.used_ns.append((time.monotonic_ns(), time.process_time_ns()))

    @property
    def beside_ratio(self) -> float | None:
        """What this process took of a core while callers ran: it follows and judges."""
        if len(self.used_ns) < 2:
            return None
        (since_ns, before_ns), *_, (now_ns, used_ns) = self.used_ns
        return (used_ns - before_ns) / (now_ns - since_ns)

    @property
    def orderly(self) -> bool:
        """Whether every caller could give its lease back."""
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
    """Show the run, if anybody looks, until Locust has ended; return its course. `grace_s`: how
    long users may take to end once asked, after `faults` are undone; then, or at a second Ctrl-C,
    Locust is killed.

    Raises BenchError when Locust ends or hangs before its users run.
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
                # what the load has said of it is better than what was seen
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
        f"worker {index} (pid {pid}) was killed by a fault: its last operation has no record"
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
    """Say what was measured, whether that is shorter than ordered, and, where nobody else has,
    why."""
    planned = follower.window_ns
    window = _window(follower, ended_ns)
    course.window = window
    short_ns = planned[1] - window.stop_ns if planned and window else 0
    course.interrupted = user or short_ns > 0
    if short_ns > 0 and not (user or course.deaths):
        course.deaths = (f"the load ended {short_ns / NS_PER_S:.1f} s before its time",)


def _overdue(load: Load, follower: Follower, now_ns: int, grace_s: float) -> tuple[str, ...]:
    """A word if Locust, which ends by itself when its time is over, still has not. Raises
    EnvironmentNotReadyError when its users do not come."""
    start_s = START_S + follower.wait_s
    if follower.window_ns is None and now_ns - follower.began_ns > start_s * NS_PER_S:
        raise EnvironmentNotReadyError(
            f"Locust did not start its users within {start_s:.0f} s; the end of its "
            f"log:\n{load.log_tail()}"
        )
    if follower.window_ns is None or now_ns < follower.window_ns[1] + grace_s * NS_PER_S:
        return ()
    return (f"Locust did not end within {grace_s:.0f} s after its time, and was stopped",)


def _in_one_line(failure: BenchError, exit_code: int) -> str:
    """What went wrong, and the last line of the log where it explains an exit code (a kill explains
    itself)."""
    first, *rest = str(failure).splitlines()
    what = first.partition("; the end of its log:")[0]
    return f"{what}: {rest[-1].strip()}" if rest and exit_code > 0 else what


def lost_workers(follower: Follower, faults: FaultTimeline) -> tuple[str, ...]:
    """One sentence for each worker that is gone before its time, with or without a report, and that
    no fault killed."""
    notes = _not_killed(follower, faults)
    return tuple(sentence for note in notes if (sentence := _loss(note, follower.window_ns)))


def _early(follower: Follower, faults: FaultTimeline) -> tuple[str, ...]:
    """A sentence for each worker that ended before the others did; none when all of them ended
    early."""
    ended = lost_workers(follower, faults)
    return ended if len(ended) < len(workers.read_workers(follower.workdir)) else ()


def _not_killed(follower: Follower, faults: FaultTimeline) -> list[workers.WorkerNote]:
    killed = faults.killed_workers().values()
    return [note for note in workers.read_workers(follower.workdir) if note.pid not in killed]


def _loss(note: workers.WorkerNote, window_ns: tuple[int, int] | None) -> str:
    if note.phase == "lost":
        return f"{note.name} was lost before its history was here, so nobody knows what it did"
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
    """Once Locust has ended: one sentence for each worker that never said so, so that its last
    operations may lack."""
    deadline_s = time.monotonic() + REPORT_S
    while True:
        silent = [note for note in _not_killed(follower, faults) if note.phase != "stopped"]
        if time.monotonic() > deadline_s or not any(
            is_alive(note.pid) for note in silent if not note.host
        ):
            break
        # orphaned workers are not our children: nobody tells when they end
        time.sleep(0.01)
    return tuple(
        _loss(note, None)
        if note.phase == "lost"
        else f"{note.name} did not report its end: what it did last may have no record"
        for note in silent
    )


def _ended_ns(follower: Follower) -> int:
    """When a load that ended by itself did so: at its last worker's end, if they told it."""
    notes = workers.read_workers(follower.workdir)
    ends = [note.stopped_ns for note in notes if note.phase == "stopped"]
    return max(ends, default=time.monotonic_ns())


def _window(follower: Follower, ended_ns: int) -> Window | None:
    """The part of the planned window that had passed at `ended_ns`, as workers of other hosts were
    told; None when it had not begun."""
    if (led := read_led(follower.workdir)) is not None:
        return Window(*led.window_ns)
    if follower.window_ns is None or ended_ns <= follower.window_ns[0]:
        return None
    return Window(follower.window_ns[0], min(follower.window_ns[1], ended_ns))
