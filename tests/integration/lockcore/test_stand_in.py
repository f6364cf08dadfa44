"""A stand-in goes on in the place of a greenlet that has parked: what it begins is what that would have begun."""

from collections.abc import Callable
from typing import Any

import gevent
import pytest

from lockcore import Denied, Lease, Outcome
from lockcore.awaited import StandIn
from lockcore.shells.shortcut import Shortcut
from tests.doubles.instance import Instances
from tests.integration.lockcore.shell import GeventShell, Shell, only

pytestmark = [pytest.mark.integration, only(GeventShell)]
TTL_MS = 10_000


@pytest.fixture
def shortcut(lock: Any) -> Shortcut:
    found = lock.try_acquire.__self__
    assert isinstance(found, Shortcut)
    return found


class Steps:
    """What a stand-in was stepped for: one thing after the other, then its caller is needed."""

    def __init__(self, *each: Callable[[], bool]) -> None:
        self.left = list(each)
        self.me = StandIn(gevent.getcurrent(), self.step)

    def step(self) -> bool:
        return self.left.pop(0)()


def test_one_parked_caller_makes_a_whole_cycle(shortcut: Shortcut, instances: Instances, lock: Any) -> None:
    got: list[Any] = []

    def granted() -> bool:
        lease = shortcut.lease_of(got[0])
        assert lease is not None
        got.append(lease)
        got.append(shortcut.begin_release(lease, lease.granted_ns, steps.me))
        return False

    steps = Steps(granted, lambda: True)
    got.append(shortcut.begin_acquire("stock", TTL_MS, 0, shortcut.now(), steps.me))
    shortcut.park()
    _, lease, release = got
    assert (lease.resource, lease.tally.granted >= 2, release.outcome) == ("stock", True, Outcome.RELEASED)
    assert steps.left == []
    assert lease.started_ns <= lease.granted_ns < lease.valid_until_ns
    assert lock.try_acquire("stock", TTL_MS).outcome is Outcome.ACQUIRED  # nothing is held by the first any more


def test_it_may_neither_pass_a_line_nor_an_observer(shortcut: Shortcut, instances: Instances, lock: Any) -> None:
    mine = lock.acquire("stock", TTL_MS)
    first = gevent.spawn(lock.try_acquire, "stock", TTL_MS, 5000)
    gevent.sleep(0.05)
    assert shortcut.begin_acquire("stock", TTL_MS, 5000, shortcut.now(), Steps().me) is None
    lock.release(mine)
    lock.release(first.get(timeout=30))
    lock.observe(Silent())
    assert shortcut.begin_acquire("stock", TTL_MS, 5000, shortcut.now(), Steps().me) is None


class Silent:
    """An observer who says nothing."""

    def begun(self) -> int:
        return 0

    def ended(self, *_: object) -> None:
        pass

    observe = released = extended = gone = ended


def test_what_is_given_up_before_it_is_settled_leaves_nothing(
    shell: Shell, shortcut: Shortcut, instances: Instances
) -> None:
    instances.pause()
    round_ = shortcut.begin_acquire("stock", TTL_MS, 0, shortcut.now(), Steps().me)
    assert round_ is not None
    round_.abandon()
    instances.resume()
    shell.until(lambda: instances.were_told(["set", "release"]), "a release behind each SET")
    gevent.sleep(0.01)
    assert instances.keys == []  # and the stand-in, which has no steps, was not stepped


def test_too_few_voters_settle_it_at_once_and_step_nobody(
    shell: Shell, shortcut: Shortcut, instances: Instances
) -> None:
    for instance in instances[1:]:
        instance.kill()
    shell.until(lambda: len(shortcut._engine.voters) == 1, "both to be missed")
    round_ = shortcut.begin_acquire("stock", TTL_MS, 0, shortcut.now(), Steps().me)
    assert round_ is not None
    assert round_.outcome is Outcome.UNREACHABLE
    assert shortcut.lease_of(round_) is None
    ended = shortcut.carry(shortcut.steps_after(round_, 0), Steps().me, first=True)
    assert isinstance(ended, Denied)
    assert (ended.outcome, ended.attempts) == (Outcome.UNREACHABLE, 1)


@pytest.mark.parametrize("in_line", [False, True])
def test_who_finds_it_held_goes_on_waiting_without_its_greenlet(shortcut: Shortcut, lock: Any, in_line: bool) -> None:
    mine, others = lock.acquire("stock", TTL_MS), []
    if in_line:
        others = [gevent.spawn(lock.try_acquire, "stock", TTL_MS, 5000)]
        gevent.sleep(0.05)
    ended: list[Lease | Denied] = []
    begun: list[Any] = []

    def steps_on() -> bool:
        first = not begun
        if first:
            begun.append(shortcut.steps_after(round_, 5000) if round_ else shortcut.steps_in_line("stock", 5000))
        if (result := shortcut.carry(begun[0], me, first=first)) is not None:
            ended.append(result)
        return result is not None

    me = StandIn(gevent.getcurrent(), steps_on)
    round_ = shortcut.begin_acquire("stock", TTL_MS, 5000, shortcut.now(), me)
    assert (round_ is None) is in_line
    if in_line:
        assert not steps_on()
        others.append(gevent.spawn_later(0.02, lambda: lock.release(others[0].get())))
    gevent.spawn_later(0.01, lock.release, mine)
    shortcut.park()
    (lease,) = ended
    assert isinstance(lease, Lease)
    assert lease.attempts >= (1 if in_line else 2)
    lock.release(lease)
    gevent.joinall(others, timeout=30)
    assert lock.try_acquire("stock", TTL_MS).outcome is Outcome.ACQUIRED


def test_who_is_gone_where_it_waits_leaves_the_line_and_nothing_is_held(shortcut: Shortcut, lock: Any) -> None:
    mine = lock.acquire("stock", TTL_MS)
    steps = Steps(lambda: True)
    round_ = shortcut.begin_acquire("stock", TTL_MS, 5000, shortcut.now(), steps.me)
    assert round_ is not None
    shortcut.park()
    waiting = shortcut.steps_after(round_, 5000)
    assert shortcut.carry(waiting, Steps().me, first=True) is None
    assert shortcut._engine.turns.lines
    waiting.close()
    assert not shortcut._engine.turns.lines
    lock.release(mine)
    gevent.sleep(0.02)  # and the stand-in, which has no steps, was not stepped
    assert lock.try_acquire("stock", TTL_MS).outcome is Outcome.ACQUIRED


def test_where_the_quorum_is_lost_while_it_waits_it_is_denied(
    shell: Shell, shortcut: Shortcut, instances: Instances, lock: Any
) -> None:
    """Its next attempt is settled as it is sent: nobody would step it."""
    lock.acquire("stock", TTL_MS)
    steps = Steps(lambda: True)
    round_ = shortcut.begin_acquire("stock", TTL_MS, 60_000, shortcut.now(), steps.me)
    assert round_ is not None
    shortcut.park()
    waiting = shortcut.steps_after(round_, 60_000)
    assert shortcut.carry(waiting, steps.me, first=True) is None
    for instance in instances[1:]:
        instance.kill()
    shell.until(lambda: len(shortcut._engine.voters) == 1, "both to be missed")
    denied = None
    while denied is None:
        steps.left.append(lambda: True)
        shortcut.park()
        denied = shortcut.carry(waiting, steps.me, first=False)
    assert denied.outcome is Outcome.UNREACHABLE
