"""A caller whose greenlet stays parked: its operations are those of an ordinary one, however they
end.

Against scripted instances, through lockcore's own methods on greenlets.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from typing import Any

import gevent
import pytest
from gevent import get_hub
from greenlet import getcurrent

from bench.workloads.lent import ASKED, AWAITING, GIVING, HELD, RESTING, LentCaller
from bench.workloads.operation import Caller
from lockcore import Outcome
from lockcore.clock import monotonic_ns
from tests.bench.workloads.lending import ENDED, GIVEN_BACK, MS, Scene, switches_to, until, whole
from tests.bench.workloads.test_operation import Sheet
from tests.doubles.instance import LOSE
from tests.lockcore.source import needs_source

FAR_NS = 3600 * 1000 * MS
STAGES = {"asked": ASKED, "held": HELD, "giving": GIVING, "resting": RESTING, "awaiting": AWAITING}


def ordinary(*_: object) -> type[Caller]:
    return Caller


USUAL: dict[str, dict[str, Any]] = {
    "at once": {},
    "held": {"holds_ns": repeat(MS)},
    "resting": {"thinks_ns": repeat(MS)},
    "both": {"holds_ns": repeat(MS // 4), "thinks_ns": repeat(MS // 4)},
    "scheduled": {},
}


@pytest.mark.parametrize("what", USUAL)
def test_usual_operations_leave_their_greenlet_parked(scene: Scene, what: str) -> None:
    if what == "scheduled":
        scene.schedule(2 * MS)
    caller, job = scene.start(**USUAL[what])
    scene.recorded(1)
    assert isinstance(caller, LentCaller)
    assert switches_to(job, lambda: scene.recorded(30)) == 0
    scene.end(job)
    whole(scene.left.records)
    # a quorum has answered, not yet all
    until(lambda: scene.instances.keys == [], "nothing to be held")
    assert (scene.left.cuts, scene.left.begun[1]) == (0, 0)
    assert (scene.naps.waiting, scene.rests.waiting, scene.arrivals.waiting) == (0, 0, 0)
    if what == "scheduled":
        assert scene.pacer is not None
        assert scene.pacer.started == len(scene.left.records)
    if "thinks_ns" in USUAL[what]:
        assert len(scene.rests.late_ns) >= len(scene.left.records) - 1


def test_an_ordinary_caller_is_switched_to_for_each(scene: Scene) -> None:
    """What the count above would show, were nothing gained."""
    _, job = scene.start(ordinary)
    scene.recorded(1)
    assert switches_to(job, lambda: scene.recorded(30)) >= 29
    scene.end(job)
    whole(scene.left.records)


def test_with_something_between_it_and_the_lock_a_caller_is_an_ordinary_one(scene: Scene) -> None:
    caller, job = scene.start(acquire=partial(scene.lock.try_acquire))
    assert type(caller) is Caller
    scene.recorded(3)
    scene.end(job)


class Told:
    """An observer who notes what it is told, and in whose greenlet."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def begun(self) -> int:
        return monotonic_ns()

    def ended(self, *_: object) -> None:
        self.seen.append(("ended", getcurrent()))

    def released(self, *_: object) -> None:
        self.seen.append(("released", getcurrent()))

    def observe(self, *_: object) -> None:
        pass

    extended = gone = observe


@pytest.mark.parametrize("setup", [{}, {"holds_ns": repeat(MS)}, {"thinks_ns": repeat(MS)}])
def test_an_observer_is_told_of_every_acquire_and_release_by_the_caller_itself(
    scene: Scene, setup: dict[str, Any]
) -> None:
    told = Told()
    scene.lock.observe(told)
    _, job = scene.start(**setup)
    scene.recorded(10)
    scene.end(job)
    whole(scene.left.records)
    assert told.seen == [("ended", job), ("released", job)] * len(scene.left.records)


def waiting_at(scene: Scene, stage: str) -> tuple[Any, Any]:
    """A caller that waits there, and its greenlet."""
    setup: dict[str, Any] = {
        "held": {"holds_ns": repeat(FAR_NS)},
        "resting": {"thinks_ns": repeat(FAR_NS)},
    }.get(stage, {})
    if stage == "asked":
        scene.instances.pause()
    elif stage == "giving":
        scene.instances.say("release", LOSE)
    elif stage == "awaiting":
        scene.schedule(FAR_NS)
    caller, job = scene.start(**setup)
    until(lambda: caller._stage == STAGES[stage], f"a caller {stage}")
    gevent.sleep(0.01)
    return caller, job


def killed_at(scene: Scene, stage: str) -> None:
    """Whoever is killed there leaves nothing behind, and its operation is in the record."""
    _, job = waiting_at(scene, stage)
    killing = gevent.spawn(job.kill)
    gevent.sleep(0.02)
    scene.instances.resume()
    killing.join(timeout=30)
    assert job.dead
    until(lambda: scene.instances.keys == [], "nothing to be held")
    codes = [record["outcome"] for record in scene.left.records]
    wanted: dict[str, list[int]] = {
        "held": [GIVEN_BACK],
        "giving": [ENDED[Outcome.ACQUIRED]],
        "resting": [GIVEN_BACK],
    }
    assert codes == wanted.get(stage, [])
    assert scene.left.cuts == (stage == "asked")
    assert scene.left.begun[1] == 0
    assert (scene.naps.waiting, scene.rests.waiting, scene.arrivals.waiting) == (0, 0, 0)
    if stage == "giving":
        assert (
            scene.left.records[0]["release_sent_ns"]
            > 0
            == scene.left.records[0]["release_replied_ns"]
        )


@pytest.mark.parametrize("stage", STAGES)
def test_whoever_is_killed_leaves_nothing_and_is_recorded_or_counted(
    scene: Scene, stage: str
) -> None:
    killed_at(scene, stage)


@needs_source
@pytest.mark.parametrize("stage", ["asked", "held", "giving"])
def test_a_kill_that_nobody_cleans_up_after_would_be_seen(
    scene: Scene, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LentCaller, "_cut_short", lambda self: None)
    monkeypatch.setattr("tests.bench.workloads.test_lent.until", once)
    with pytest.raises(AssertionError):
        killed_at(scene, stage)


def once(reached: Callable[[], Any], what: str) -> None:
    for _ in range(200):
        if reached():
            return
        gevent.sleep(0.001)
    raise AssertionError(what)


def test_a_stop_in_the_hold_lets_it_end_and_gives_back(scene: Scene) -> None:
    caller, job = scene.start(holds_ns=repeat(50 * MS))
    until(lambda: caller._stage == HELD, "a lease")
    scene.end(job)
    (record,) = scene.left.records
    whole([record])
    assert record["release_sent_ns"] - record["granted_ns"] >= 50 * MS
    assert scene.left.cuts == 0


@pytest.mark.parametrize("stage", ["resting", "awaiting"])
def test_a_stop_ends_a_rest_and_the_wait_for_an_arrival_at_once(scene: Scene, stage: str) -> None:
    _, job = waiting_at(scene, stage)
    scene.end(job)
    assert (scene.rests.waiting, scene.arrivals.waiting) == (0, 0)


@pytest.mark.parametrize("number", [0, 3])
def test_what_is_raised_while_an_operation_is_recorded_is_its_callers(
    scene: Scene, number: int
) -> None:
    seen: list[object] = []
    before = get_hub().handle_error
    get_hub().handle_error = lambda *error: seen.append(error)
    try:
        _, job = scene.start(recorder=Sheet(scene.left.records, room=number))
        with pytest.raises(OSError, match="the disk is full"):
            job.get(timeout=30)
    finally:
        get_hub().handle_error = before
    assert [error for error in seen if error[0] is not job] == []  # type: ignore[index]
    until(lambda: scene.instances.keys == [], "nothing to be held")
    assert len(scene.left.records) == number


def test_what_is_raised_under_a_lease_gives_it_back_and_is_its_callers(scene: Scene) -> None:
    def holds() -> Iterator[int]:
        yield MS
        raise RuntimeError("a bug")

    _, job = scene.start(holds_ns=holds())
    with pytest.raises(RuntimeError, match="a bug"):
        job.get(timeout=30)
    until(lambda: scene.instances.keys == [], "nothing to be held")
    assert [record["outcome"] for record in scene.left.records] == [GIVEN_BACK] * 2
    assert scene.left.begun[1] == 0


@needs_source
def test_holds_that_end_at_once_are_given_back_in_one_write(scene: Scene) -> None:
    pipe = scene.lock._driver.engine.pipes[0]
    jobs = [
        scene.start(holds_ns=repeat(1_500 * MS), resources=repeat(number))[1] for number in range(3)
    ]
    until(
        lambda: scene.naps.waiting == 3 and len(list(scene.instances[0].keys.values())) == 3,
        "three holds",
    )
    owners = list(scene.instances[0].keys.values())
    sent = list[bytes]()
    transmit = pipe.transmit

    def seen(data: bytes) -> int:
        sent.append(data)
        return transmit(data) if transmit else 0

    pipe.transmit = seen
    # the hub is busy, and all are due when it comes to them
    time.sleep(1.55)
    until(lambda: sent, "a write")
    assert [owner in sent[0] for owner in owners] == [True] * 3
    scene.user._state = "stopping"
    gevent.joinall(jobs, timeout=30, raise_error=True)


def test_an_instance_that_dies_meanwhile_costs_no_operation(scene: Scene) -> None:
    _, job = scene.start()
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
    until(lambda: scene.instances.keys == [], "nothing to be held")


def test_a_lost_majority_denies_and_what_comes_after_it_is_as_before(scene: Scene) -> None:
    _, job = scene.start(holds_ns=repeat(MS))
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
    until(lambda: scene.instances.keys == [], "nothing to be held")


def test_a_take_that_may_wait_is_asked_by_the_greenlet(scene: Scene) -> None:
    def take() -> int:
        gevent.sleep(0.001)
        return 0 if len(scene.left.records) == 3 else monotonic_ns()

    _, job = scene.start(take=take)
    job.get(timeout=30)
    assert len(scene.left.records) == 3
    whole(scene.left.records)


def test_a_lock_that_is_closed_meanwhile_ends_its_callers_with_an_error(scene: Scene) -> None:
    _, job = scene.start()
    scene.recorded(3)
    scene.lock.close()
    with pytest.raises(Exception, match="closed"):
        job.get(timeout=30)
    until(lambda: scene.instances.keys == [], "nothing to be held")
