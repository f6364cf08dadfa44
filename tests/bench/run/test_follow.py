"""Following a run: it ends early for a signal, a death or a Locust that never starts, and keeps
what was measured."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench.errors import BenchError, EnvironmentNotReadyError, InconclusiveError
from bench.measure.workers import note_ending
from bench.run import follow as module
from bench.run.faults import FaultTimeline
from bench.run.follow import Course, follow
from bench.run.follower import Follower, RunProgress
from bench.run.interrupt import Interrupts
from bench.safety.judge import clock_step_ns
from bench.scenario import load

NS = 1_000_000_000
SCENARIO = load(options={"warmup": "1s", "duration": "10s"})


class ScriptedLoad:
    """A Locust whose every `wait` is one step of a script: a callable to run, or its exit code."""

    def __init__(self, *steps: Callable[[], None] | int, failure: str = "") -> None:
        self._steps = list(steps)
        self._failure = failure
        self.asked = self.closed = False

    def interrupt(self) -> None:
        self.asked = True

    def wait(self, timeout_s: float) -> int | None:
        assert timeout_s > 0
        step = self._steps.pop(0)
        if isinstance(step, int):
            return step
        step()
        return None

    def close(self) -> None:
        self.closed = True

    def failure(self) -> BenchError | None:
        return EnvironmentNotReadyError(self._failure) if self._failure else None

    def log_tail(self) -> str:
        return "  the last words"


US = os.getpid()


def note(spawned_s: float, pid: int = US) -> Callable[[], None]:
    """A worker has its users, `spawned_s` ago."""

    def write() -> None:
        instance = {"index": 0, "address": "h:1", "state": "down", "errors": {"timeout": 3}}
        about = {"worker": 0, "pid": pid, "phase": "running", "cpu_s": 0.5, "instances": [instance]}
        spawned_ns = time.monotonic_ns() - int(spawned_s * NS)
        Path(f"worker-0-{pid}.json").write_text(
            json.dumps({**about, "spawned_ns": spawned_ns, "stopped_ns": 0})
        )

    return write


def stopped(pid: int = 0, stopped_s: float = 0.0) -> Callable[[], None]:
    """Every worker so far (or that of `pid`) has reported its end, `stopped_s` ago."""

    def write() -> None:
        for path in Path().glob("worker-*.json"):
            document = json.loads(path.read_text(encoding="utf-8"))
            if not pid or document["pid"] == pid:
                document |= {
                    "phase": "stopped",
                    "stopped_ns": time.monotonic_ns() - int(stopped_s * NS),
                }
                path.write_text(json.dumps(document), encoding="utf-8")

    return write


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's folder is where we are; no worker outlives its Locust for a moment only."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "REPORT_S", 0.0)


@pytest.fixture
def follower() -> Follower:
    return Follower(Path(), SCENARIO)


def no_faults() -> FaultTimeline:
    return FaultTimeline((), lambda: None)


def course_of(
    load: ScriptedLoad,
    follower: Follower,
    interrupts: Interrupts | None = None,
    grace_s: float = 60.0,
    show: Callable[[RunProgress], None] = lambda _: None,
    faults: FaultTimeline | None = None,
) -> Course:
    return follow(
        load, follower, interrupts or Interrupts(), grace_s, show, faults=faults or no_faults()
    )  # type: ignore[arg-type]


def wishing(count: int = 1) -> Interrupts:
    """So many wishes to end."""
    interrupts = Interrupts()
    interrupts.count = count
    return interrupts


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_run_that_ends_by_itself_keeps_its_whole_window(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine a sample of the clocks may take longer than 1 ms. Here it may take an hour.
    monkeypatch.setattr(module, "NS_PER_MS", 3_600 * NS)
    seen: list[RunProgress] = []
    load = ScriptedLoad(note(20.0), stopped(), 0)
    course = course_of(load, follower, show=seen.append)
    assert course.window is not None
    assert course.window.duration_s == 10.0
    assert (course.interrupted, course.deaths, load.closed) == (False, (), False)
    assert not load.asked
    assert [look.phase for look in seen] == ["draining", "draining", "draining"]
    assert seen[0].troubles[0] == ("down", 3)
    assert len(course.clock) == 3


def test_a_sample_of_the_clocks_that_took_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NS_PER_MS", 0)
    course = Course()
    course.note(1, running=True)
    assert (course.clock, len(course.used_ns)) == ([], 1)


def test_ctrl_c_stops_the_load_and_keeps_what_was_measured(follower: Follower) -> None:
    interrupts = Interrupts()
    load = ScriptedLoad(note(4.0), lambda: add_wish(interrupts), stopped(), 0)
    course = course_of(load, follower, interrupts)
    assert (course.interrupted, course.deaths, load.closed) == (True, (), False)
    assert load.asked
    assert course.window is not None
    assert 2.9 < course.window.duration_s < 5.0


def test_a_second_ctrl_c_kills_it(follower: Follower) -> None:
    interrupts = Interrupts()
    load = ScriptedLoad(note(4.0), lambda: add_wish(interrupts), lambda: add_wish(interrupts), -9)
    course = course_of(load, follower, interrupts)
    assert load.asked
    assert (load.closed, course.interrupted) == (True, True)
    assert course.deaths == (
        f"worker 0 (pid {US}) did not report its end, so its last operations may have no record",
    )


def add_wish(interrupts: Interrupts) -> None:
    interrupts.count += 1


def test_a_dead_worker_ends_the_run_and_is_named(follower: Follower) -> None:
    pid = ended_process()
    load = ScriptedLoad(note(5.0, pid), 0)
    course = course_of(load, follower)
    assert load.asked
    assert not load.closed
    assert course.deaths == (f"worker 0 (pid {pid}) died in the middle of the run",)
    assert course.window is not None
    assert 3.9 < course.window.duration_s < 6.0


def test_a_death_in_an_end_that_has_begun_is_named_and_ends_nothing_else(
    follower: Follower,
) -> None:
    """Asked to end once more, the load would lose what the others still hand over."""
    pid = ended_process()
    load = ScriptedLoad(note(20.0, pid), lambda: None, 0)
    note_ending(follower.workdir)
    course = course_of(load, follower)
    assert (load.asked, load.closed, course.interrupted) == (False, False, False)
    assert course.deaths == (
        f"worker 0 (pid {pid}) did not report its end, so its last operations may have no record",
    )
    assert course.window is not None
    assert course.window.duration_s == 10.0


def test_a_worker_that_leaves_just_before_the_end_is_named_though_nobody_looked(
    follower: Follower,
) -> None:
    follower.scenario = replace(SCENARIO, processes=2)
    first = os.getpid()
    second = os.getppid()
    both = [note(11.5, pid) for pid in (first, second)]
    note_ending(follower.workdir)
    ends = stopped(second, 1.0), stopped(first)

    def write_all() -> None:
        for write in (*both, *ends):
            write()

    load = ScriptedLoad(write_all, 0)
    course = course_of(load, follower)
    assert not load.asked
    assert [f"(pid {second}) ended " in death for death in course.deaths] == [True]


def test_a_locust_that_does_not_end_when_its_time_is_over_is_stopped(follower: Follower) -> None:
    load = ScriptedLoad(note(20.0), lambda: None, -9)
    course = course_of(load, follower, grace_s=2.0)
    assert load.asked
    assert course.deaths == (
        "Locust did not end within 2 s after the measured window, so lockbench stopped Locust",
    )
    assert course.window is not None
    assert course.window.duration_s == 10.0


def test_a_locust_that_fails_in_the_middle_is_said(follower: Follower) -> None:
    load = ScriptedLoad(
        note(5.0),
        1,
        failure="Locust ended with exit code 1; the end of its log:\n  OSError",
    )
    course = course_of(load, follower)
    assert course.deaths == ("Locust ended with exit code 1: OSError",)
    assert course.interrupted


def test_a_load_that_says_why_it_ends_before_it_measures_is_quoted(follower: Follower) -> None:
    """A worker that stops before it has begun says that it ran as of then."""
    load = ScriptedLoad(
        note(0.0), stopped(), 3, failure="two has lockbench 1, and lockbench 2 leads"
    )
    with pytest.raises(
        EnvironmentNotReadyError, match="^two has lockbench 1, and lockbench 2 leads$"
    ):
        course_of(load, follower)


def test_a_locust_that_ends_before_its_time_is_cut_and_not_by_the_user(follower: Follower) -> None:
    """SIGTERM of its master: everybody ends in order, with exit code 0, after 6 of 10 s."""
    begin = note(8.0)
    course = course_of(ScriptedLoad(begin, stopped(stopped_s=1.0), 0), follower)
    assert course.interrupted
    assert course.window is not None
    assert 5.9 < course.window.duration_s < 9.0
    assert "s before the end of the run" in course.deaths[0]
    again = Follower(Path(), SCENARIO)
    # nobody looked in between
    course = course_of(ScriptedLoad(0), again)
    assert course.interrupted
    assert course.deaths[0].startswith("the load ended ")
    assert course.window is not None
    assert 5.9 < course.window.duration_s < 9.0


def test_one_worker_that_leaves_in_order_ends_the_run_and_is_named(follower: Follower) -> None:
    follower.scenario = replace(SCENARIO, processes=2)
    first = os.getpid()
    second = os.getppid()
    both = [note(6.0, pid) for pid in (first, second)]

    def write_both() -> None:
        for write in both:
            write()

    load = ScriptedLoad(write_both, stopped(second), stopped(), 0)
    course = course_of(load, follower)
    assert load.asked
    assert course.interrupted
    assert [f"(pid {second}) ended " in death for death in course.deaths] == [True]


@pytest.mark.parametrize(
    "alive", [True, False], ids=["it stands still for good", "it was killed at the very end"]
)
def test_a_worker_that_never_reports_its_end_is_named_though_locust_ended_well(
    alive: bool, follower: Follower
) -> None:
    """Its last operations may lack: nothing is safe over such a history."""
    pid = os.getpid()
    load = ScriptedLoad(note(20.0, pid), note(20.0, pid), 0)
    if not alive:
        pid = ended_process()
        load = ScriptedLoad(note(20.0), lambda: leave(pid), 0)
    course = course_of(load, follower)
    assert len(course.deaths) == 1
    assert not course.orderly
    assert course.window is not None
    assert course.window.duration_s == 10.0


def leave(pid: int) -> None:
    """The only worker is `pid` now, and it is dead."""
    for path in Path().glob("worker-*.json"):
        path.unlink()
    note(20.0, pid)()


def test_a_load_that_ends_in_its_warm_up_is_no_measurement(follower: Follower) -> None:
    load = ScriptedLoad(note(0.2), stopped(), 0)
    with pytest.raises(
        InconclusiveError, match=r"ended before its measured time \(worker 0 .* before the end"
    ):
        course_of(load, follower)


def test_a_locust_that_never_starts_its_users_is_an_error(
    follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "START_S", -1.0)
    with pytest.raises(EnvironmentNotReadyError, match="did not start its users within"):
        course_of(ScriptedLoad(lambda: None), follower)


class Killing(FaultTimeline):
    """A timeline that has killed one process."""

    def __init__(self, pid: int) -> None:
        super().__init__((), lambda: None)
        self._pid = pid
        self.stops = 0

    def killed_workers(self) -> dict[int, int]:
        return {0: self._pid}

    def stop(self) -> None:
        self.stops += 1
        super().stop()


def test_a_worker_that_a_fault_killed_is_a_casualty_and_the_run_goes_on(follower: Follower) -> None:
    pid = ended_process()
    faults = Killing(pid)
    load = ScriptedLoad(note(20.0, pid), lambda: None, 0)
    course = course_of(load, follower, faults=faults)
    assert (course.deaths, course.interrupted, course.killed) == ((), False, False)
    assert course.casualties == (
        f"a fault killed worker 0 (pid {pid}), so its last operation has no record",
    )
    assert not course.orderly
    assert (faults.stops, load.asked) == (0, False)


def test_faults_are_undone_before_locust_is_asked_to_end(follower: Follower) -> None:
    """A stopped worker would not hear it."""
    faults = Killing(0)
    load = ScriptedLoad(note(2.0), 0)
    load_was_asked: list[bool] = []
    faults.stop = lambda: load_was_asked.append(load.asked)  # type: ignore[method-assign]
    course_of(load, follower, wishing(), faults=faults)
    assert load_was_asked == [False]
    assert load.asked


def test_a_look_that_is_held_up_between_two_clocks_shows_no_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    course = Course()
    wall_ns = time.time_ns

    def late_ns() -> int:
        told_ns = wall_ns()
        time.sleep(0.05)
        return told_ns

    course.note(time.monotonic_ns(), running=False)
    monkeypatch.setattr(time, "time_ns", late_ns)
    course.note(time.monotonic_ns(), running=False)
    monkeypatch.setattr(time, "time_ns", wall_ns)
    course.note(time.monotonic_ns(), running=False)
    assert clock_step_ns(course.clock) == 0
    assert len(course.clock) >= 1
