"""A caller whose acquire does not win at once: carried on without its greenlet, and nothing is left
of it, either."""

from itertools import repeat

import gevent
import pytest

from bench.workloads.lent import LentCaller
from lockcore import Outcome
from tests.bench.workloads.lending import ENDED, GIVEN_BACK, Scene, switches_to, until, whole
from tests.lockcore.source import needs_source


def test_refused_operations_leave_their_greenlet_parked_too(scene: Scene) -> None:
    """Four want one resource: in line, and again until it is theirs."""
    jobs = [scene.start(number=number, wait_ms=30_000)[1] for number in range(4)]
    scene.recorded(8)
    assert switches_to(jobs[0], lambda: scene.recorded(80)) == 0
    scene.user._state = "stopping"
    gevent.joinall(jobs, timeout=30, raise_error=True)
    whole(scene.left.records)
    assert {record["caller"] for record in scene.left.records[8:]} == {0, 1, 2, 3}
    assert max(record["attempts"] & 0xFFFFFFFF for record in scene.left.records) >= 2


def killed_where_it_is_carried(scene: Scene, is_out: bool) -> None:
    """In line, or while its next attempt `is_out`."""
    mine = scene.lock.acquire("r2", 10_000)
    engine = scene.lock._driver.engine  # type: ignore[attr-defined]
    caller, job = scene.start(wait_ms=30_000)
    until(lambda: caller._steps is not None, "its first attempt to be refused")
    # kept: the end of a generator that nobody has would close it
    steps = caller._steps
    if is_out:
        scene.instances.pause()
        until(lambda: any(pipe.pending for pipe in engine.pipes), "the next attempt")
    job.kill(timeout=30)
    assert job.dead
    assert not engine.turns.lines
    scene.instances.resume()
    scene.lock.release(mine)
    until(lambda: scene.instances.keys == [], "nothing to be held")
    assert (scene.left.records, scene.left.cuts, scene.left.begun[1]) == ([], 1, 0)
    assert steps is not None


@pytest.mark.parametrize("is_out", [False, True])
def test_whoever_is_killed_where_it_is_carried_leaves_nothing(scene: Scene, is_out: bool) -> None:
    killed_where_it_is_carried(scene, is_out)


@needs_source
@pytest.mark.parametrize("is_out", [False, True])
def test_steps_that_nobody_closes_would_be_seen(
    scene: Scene, is_out: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LentCaller, "_cut_short", lambda self: None)
    with pytest.raises(AssertionError):
        killed_where_it_is_carried(scene, is_out)


def test_who_finds_it_held_waits_as_an_ordinary_caller_does_then_goes_on(scene: Scene) -> None:
    mine = scene.lock.acquire("r2", 10_000)
    _, job = scene.start()
    gevent.sleep(0.02)
    assert scene.left.records == []
    scene.lock.release(mine)
    scene.recorded(10)
    scene.end(job)
    whole(scene.left.records)
    assert scene.left.records[0]["attempts"] & 0xFFFFFFFF >= 2
    assert scene.left.lost


def test_who_finds_it_held_for_too_long_is_denied_and_comes_again(scene: Scene) -> None:
    mine = scene.lock.acquire("r2", 10_000)
    _, job = scene.start(wait_ms=5)
    scene.recorded(3)
    assert {record["outcome"] for record in scene.left.records} == {ENDED[Outcome.CONTENDED]}
    scene.lock.release(mine)
    scene.recorded(len(scene.left.records) + 5)
    scene.end(job)
    assert scene.left.records[-1]["outcome"] == GIVEN_BACK


def test_many_callers_of_few_resources_are_all_served(scene: Scene) -> None:
    jobs = [scene.start(resources=repeat(number % 4), number=number)[1] for number in range(16)]
    scene.recorded(400)
    scene.user._state = "stopping"
    gevent.joinall(jobs, timeout=30, raise_error=True)
    assert {record["caller"] for record in scene.left.records} == set(range(16))
    until(lambda: scene.instances.keys == [], "nothing to be held")
    held: dict[int, int] = {}
    for record in sorted(scene.left.records, key=lambda one: one["granted_ns"]):
        if record["outcome"] & 0xFF == ENDED[Outcome.ACQUIRED]:
            # nobody holds what another does
            assert record["granted_ns"] >= held.get(record["resource"], 0)
            held[record["resource"]] = record["release_sent_ns"]
