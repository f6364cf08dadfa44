"""Callers in greenlets of their own: what they record and leave behind, however they end.

Against scripted instances, through lockcore's own methods on greenlets.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import repeat
from types import SimpleNamespace
from typing import Any

import gevent
import pytest
from gevent import get_hub

from bench.measure.record import OUTCOME_CODES
from bench.workloads.alarm import Alarm, Pacer, PreciseAlarm, Rests
from lockcore import Outcome, Redlock
from lockcore.clock import monotonic_ns
from tests.bench.workloads.test_operation import Scene as Offered
from tests.bench.workloads.test_operation import Sheet
from tests.doubles.instance import LOSE, Instances

MS = 1_000_000
FAR_NS = 3600 * 1000 * MS
GIVEN_BACK = OUTCOME_CODES["acquired"] | OUTCOME_CODES["released"] << 8
ENDED = {outcome: OUTCOME_CODES[outcome.value] for outcome in Outcome}


def until(reached: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline, f"not within 30 s: {what}"
        gevent.sleep(0.001)


@dataclass
class Scene:
    """A lock on three scripted instances, what callers wait by, and everything they leave
    behind."""

    instances: Instances
    lock: Redlock
    naps: Alarm = field(default_factory=Alarm)
    rests: Rests = field(default_factory=Rests)
    arrivals: PreciseAlarm = field(default_factory=PreciseAlarm)
    user: Any = field(default_factory=lambda: SimpleNamespace(_state="running"))
    left: Offered = field(
        default_factory=lambda: Offered(lambda: pytest.fail("the lock's own methods are called"))
    )
    pacer: Pacer | None = None

    def start(self, **setup: Any) -> Any:
        """The greenlet of a new caller."""
        setup = {
            "acquire": self.lock.try_acquire,
            "release": self.lock.try_release,
            "nap_until": self.naps.wait_until,
            "rest_until": self.rests.rest,
            "still_open": 3 << 40,
            "take": self.pacer.take if self.pacer else None,
            **setup,
        }
        return gevent.spawn(self.left.caller(**setup).run, self.user, "running")

    def schedule(self, gap_ns: int) -> None:
        starts = (number * gap_ns for number in range(1, 1_000_000))
        self.pacer = Pacer(self.arrivals.wait_until, starts, monotonic_ns())

    def recorded(self, number: int) -> None:
        until(lambda: len(self.left.records) >= number, f"{number} operations")

    def nothing_held(self) -> None:
        # a quorum has answered, not yet all
        until(lambda: self.instances.keys == [], "nothing to be held")

    def end(self, *jobs: Any) -> None:
        self.user._state = "stopping"
        for job in jobs:
            self.rests.cancel(job)
            self.arrivals.cancel(job)
        gevent.joinall(jobs, timeout=30, raise_error=True)
        assert all(job.dead for job in jobs)

    @property
    def waiting(self) -> tuple[int, int, int]:
        return self.naps.waiting, self.rests.waiting, self.arrivals.waiting


@pytest.fixture
def scene() -> Iterator[Scene]:
    """A lock on three scripted instances, closed in the end."""
    with ExitStack() as stack:
        instances = stack.enter_context(Instances.of(3))
        settings = {"instance_timeout_ms": 2000, "rejoin": "trust"}
        lock = stack.enter_context(Redlock.connect(instances.urls, shell="gevent", **settings))
        made = Scene(instances, lock)
        yield made
        instances.resume()
        instances.be_honest()
        for alarm in (made.naps, made.rests, made.arrivals):
            alarm.close()


def whole(records: list[dict[str, int]]) -> None:
    """Each was granted and given back, and its times are in order."""
    for record in records:
        assert record["outcome"] == GIVEN_BACK
        assert (
            record["intended_ns"]
            <= record["start_ns"]
            <= record["attempt_ns"]
            <= record["granted_ns"]
        )
        assert record["granted_ns"] <= record["release_sent_ns"] <= record["release_replied_ns"]
        assert record["release_sent_ns"] < record["valid_until_ns"]
    assert len({record["owner"] for record in records}) == len(records)


USUAL: dict[str, dict[str, Any]] = {
    "at once": {},
    "held": {"holds_ns": repeat(MS)},
    "resting": {"thinks_ns": repeat(MS)},
    "both": {"holds_ns": repeat(MS // 4), "thinks_ns": repeat(MS // 4)},
    "scheduled": {},
}


@pytest.mark.parametrize("what", USUAL)
def test_usual_operations_are_recorded_whole_and_leave_nothing(scene: Scene, what: str) -> None:
    if what == "scheduled":
        scene.schedule(2 * MS)
    job = scene.start(**USUAL[what])
    scene.recorded(30)
    scene.end(job)
    whole(scene.left.records)
    scene.nothing_held()
    assert (scene.left.cuts, scene.left.begun[1]) == (0, 0)
    assert scene.waiting == (0, 0, 0)
    if "thinks_ns" in USUAL[what]:
        assert len(scene.rests.late_ns) >= len(scene.left.records) - 1


def waiting_at(scene: Scene, stage: str) -> Any:
    """The greenlet of a caller that waits there."""
    pipes = scene.lock._driver.engine.pipes
    setups: dict[str, dict[str, Any]] = {
        "held": {"holds_ns": repeat(FAR_NS)},
        "resting": {"thinks_ns": repeat(FAR_NS)},
    }
    reached: dict[str, Callable[[], Any]] = {
        "asked": lambda: any(pipe.pending for pipe in pipes),
        "held": lambda: scene.naps.waiting,
        "giving": lambda: scene.instances.were_told(["set", "release"]),
        "resting": lambda: scene.rests.waiting,
        "awaiting": lambda: scene.arrivals.waiting,
    }
    if stage == "asked":
        scene.instances.pause()
    elif stage == "giving":
        scene.instances.say("release", LOSE)
    elif stage == "awaiting":
        scene.schedule(FAR_NS)
    job = scene.start(**setups.get(stage, {}))
    until(reached[stage], f"a caller {stage}")
    return job


RECORDED: dict[str, list[int]] = {
    "asked": [],
    "held": [GIVEN_BACK],
    "giving": [ENDED[Outcome.ACQUIRED]],
    "resting": [GIVEN_BACK],
    "awaiting": [],
}


@pytest.mark.parametrize("stage", RECORDED)
def test_a_killed_caller_leaves_nothing_and_is_recorded_or_counted(
    scene: Scene, stage: str
) -> None:
    job = waiting_at(scene, stage)
    job.kill(block=False)
    # it gives back what it holds, for which the instances have to answer
    gevent.sleep(0)
    scene.instances.resume()
    job.join(timeout=30)
    assert job.dead
    scene.nothing_held()
    assert [record["outcome"] for record in scene.left.records] == RECORDED[stage]
    assert scene.left.cuts == (stage == "asked")
    assert scene.left.begun[1] == 0
    assert scene.waiting == (0, 0, 0)
    if stage == "giving":
        (record,) = scene.left.records
        assert record["release_sent_ns"] > 0 == record["release_replied_ns"]


@pytest.mark.parametrize("is_out", [False, True])
def test_a_caller_killed_in_line_or_in_its_next_attempt_leaves_nothing(
    scene: Scene, is_out: bool
) -> None:
    mine = scene.lock.acquire("r2", 10_000)
    engine = scene.lock._driver.engine
    job = scene.start(wait_ms=30_000)
    until(lambda: engine.turns.lines, "its first attempt to be refused")
    if is_out:
        scene.instances.pause()
        until(lambda: any(pipe.pending for pipe in engine.pipes), "the next attempt")
    job.kill(timeout=30)
    assert job.dead
    assert not engine.turns.lines
    scene.instances.resume()
    scene.lock.release(mine)
    scene.nothing_held()
    assert (scene.left.records, scene.left.cuts, scene.left.begun[1]) == ([], 1, 0)


def test_a_stop_in_the_hold_lets_it_end_and_gives_back(scene: Scene) -> None:
    job = scene.start(holds_ns=repeat(50 * MS))
    until(lambda: scene.naps.waiting, "a lease")
    scene.end(job)
    (record,) = scene.left.records
    whole([record])
    assert record["release_sent_ns"] - record["granted_ns"] >= 50 * MS
    assert scene.left.cuts == 0


@pytest.mark.parametrize("stage", ["resting", "awaiting"])
def test_a_stop_ends_a_rest_and_the_wait_for_an_arrival_at_once(scene: Scene, stage: str) -> None:
    scene.end(waiting_at(scene, stage))
    assert scene.waiting == (0, 0, 0)


@pytest.mark.parametrize("number", [0, 3])
def test_what_is_raised_while_an_operation_is_recorded_is_its_callers(
    scene: Scene, number: int
) -> None:
    seen: list[object] = []
    before = get_hub().handle_error
    get_hub().handle_error = lambda *error: seen.append(error)
    try:
        job = scene.start(recorder=Sheet(scene.left.records, room=number))
        with pytest.raises(OSError, match="the disk is full"):
            job.get(timeout=30)
    finally:
        get_hub().handle_error = before
    assert [error for error in seen if error[0] is not job] == []  # type: ignore[index]
    scene.nothing_held()
    assert len(scene.left.records) == number


def test_what_is_raised_under_a_lease_gives_it_back_and_is_its_callers(scene: Scene) -> None:
    def holds() -> Iterator[int]:
        yield MS
        raise RuntimeError("a bug")

    job = scene.start(holds_ns=holds())
    with pytest.raises(RuntimeError, match="a bug"):
        job.get(timeout=30)
    scene.nothing_held()
    assert [record["outcome"] for record in scene.left.records] == [GIVEN_BACK] * 2
    assert scene.left.begun[1] == 0


def test_an_instance_that_dies_meanwhile_costs_no_operation(scene: Scene) -> None:
    job = scene.start()
    scene.recorded(5)
    scene.instances[0].kill()
    scene.recorded(len(scene.left.records) + 20)
    scene.instances[0].start()
    until(
        lambda: all(status.state == "voting" for status in scene.lock.instances), "it to vote again"
    )
    scene.recorded(len(scene.left.records) + 5)
    scene.end(job)
    whole(scene.left.records)
    scene.nothing_held()


def test_a_lost_majority_denies_and_what_comes_after_it_is_as_before(scene: Scene) -> None:
    job = scene.start(holds_ns=repeat(MS))
    scene.recorded(5)
    for instance in scene.instances[1:]:
        instance.kill()
    until(
        lambda: scene.left.records[-1]["outcome"] == ENDED[Outcome.UNREACHABLE],
        "an acquire to find no quorum",
    )
    for instance in scene.instances[1:]:
        instance.start()
    until(
        lambda: all(status.state == "voting" for status in scene.lock.instances),
        "all to vote again",
    )
    before = len(scene.left.records)
    until(lambda: scene.left.records[-1]["outcome"] == GIVEN_BACK, "a lease")
    scene.recorded(before + 20)
    scene.end(job)
    assert scene.left.cuts == 0
    # a turn of the hub for each that failed
    assert scene.left.kept
    scene.nothing_held()


def test_a_lock_that_is_closed_meanwhile_ends_its_callers_with_an_error(scene: Scene) -> None:
    job = scene.start()
    scene.recorded(3)
    scene.lock.close()
    with pytest.raises(Exception, match="closed"):
        job.get(timeout=30)
    scene.nothing_held()


def test_a_caller_that_finds_it_held_for_too_long_is_denied_and_comes_again(scene: Scene) -> None:
    mine = scene.lock.acquire("r2", 10_000)
    job = scene.start(wait_ms=5)
    scene.recorded(3)
    assert {record["outcome"] for record in scene.left.records} == {ENDED[Outcome.CONTENDED]}
    scene.lock.release(mine)
    scene.recorded(len(scene.left.records) + 5)
    scene.end(job)
    assert scene.left.records[-1]["outcome"] == GIVEN_BACK


def test_many_callers_of_few_resources_are_all_served(scene: Scene) -> None:
    jobs = [scene.start(resources=repeat(number % 4), number=number) for number in range(16)]
    scene.recorded(400)
    scene.end(*jobs)
    assert {record["caller"] for record in scene.left.records} == set(range(16))
    scene.nothing_held()
    held: dict[int, int] = {}
    for record in sorted(scene.left.records, key=lambda one: one["granted_ns"]):
        if record["outcome"] & 0xFF == ENDED[Outcome.ACQUIRED]:
            # nobody holds what another does
            assert record["granted_ns"] >= held.get(record["resource"], 0)
            held[record["resource"]] = record["release_sent_ns"]
