"""A stand-in goes on in the place of a greenlet that has parked: what it begins is what that would
have begun."""

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


def test_one_parked_caller_makes_a_whole_cycle(
    shortcut: Shortcut, instances: Instances, lock: Any
) -> None:
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
    assert (lease.resource, lease.tally.granted >= 2, release.outcome) == (
        "stock",
        True,
        Outcome.RELEASED,
    )
    assert steps.left == []
    assert lease.started_ns <= lease.granted_ns < lease.valid_until_ns
    # nothing is held by the first any more
    assert lock.try_acquire("stock", TTL_MS).outcome is Outcome.ACQUIRED


def test_it_may_neither_pass_a_line_nor_an_observer(
    shortcut: Shortcut, instances: Instances, lock: Any
) -> None:
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
    # and the stand-in, which has no steps, was not stepped
    assert instances.keys == []


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


class Acquiring:
    """An acquire of "stock" that a stand-in carries, while its caller is parked in a greenlet of
    its own."""

    def __init__(self, shortcut: Shortcut, wait_ms: int = 60_000) -> None:
        self.shortcut = shortcut
        self.wait_ms = wait_ms
        self.round: Any = None
        self.steps: Any = None
        self.result: Lease | Denied | None = None
        self.stepped = 0
        self.caller = gevent.spawn(self._run)
        # it has begun
        gevent.sleep(0)

    def _run(self) -> Lease | Denied | None:
        self.me = StandIn(gevent.getcurrent(), self._step)
        self.round = self.shortcut.begin_acquire(
            "stock", TTL_MS, self.wait_ms, self.shortcut.now(), self.me
        )
        try:
            if self.round is not None or not self._go_on():
                self.shortcut.park()
        except gevent.GreenletExit:
            self.steps.close()
        return self.result

    def _step(self) -> bool:
        self.stepped += 1
        return self._go_on()

    def _go_on(self) -> bool:
        first = self.steps is None
        if first:
            after = self.shortcut.steps_after
            line = self.shortcut.steps_in_line
            self.steps = (
                line("stock", self.wait_ms)
                if self.round is None
                else after(self.round, self.wait_ms)
            )
        self.result = self.shortcut.carry(self.steps, self.me, first=first)
        return self.result is not None


@pytest.mark.parametrize("in_line", [False, True])
def test_who_finds_it_held_goes_on_waiting_without_its_greenlet(
    shell: Shell, shortcut: Shortcut, lock: Any, in_line: bool
) -> None:
    mine = lock.acquire("stock", TTL_MS)
    first = [gevent.spawn(lock.try_acquire, "stock", TTL_MS, 60_000)] if in_line else []
    shell.until(lambda: bool(shortcut._engine.turns.lines) is in_line, "the first to stand in line")
    acquiring = Acquiring(shortcut)
    assert (acquiring.round is None) is in_line
    shell.until(
        lambda: acquiring.steps is not None, "its attempt to be refused, or its place in line"
    )
    lock.release(mine)
    for caller in first:
        lock.release(caller.get(timeout=30))
    lease = acquiring.caller.get(timeout=30)
    assert isinstance(lease, Lease)
    assert lease.attempts >= (1 if in_line else 2)
    lock.release(lease)
    assert lock.try_acquire("stock", TTL_MS).outcome is Outcome.ACQUIRED


def test_who_is_gone_where_it_waits_leaves_the_line_and_is_stepped_no_more(
    shell: Shell, shortcut: Shortcut, lock: Any
) -> None:
    mine = lock.acquire("stock", TTL_MS)
    acquiring = Acquiring(shortcut)
    lines = shortcut._engine.turns.lines
    shell.until(lambda: lines, "it to stand in line")
    acquiring.caller.kill()
    stepped = acquiring.stepped
    assert not lines
    lock.release(mine)
    # longer than the window of its retry
    shell.sleep(0.02)
    assert acquiring.stepped == stepped
    assert lock.try_acquire("stock", TTL_MS).outcome is Outcome.ACQUIRED


def test_where_the_quorum_is_lost_while_it_waits_it_is_denied(
    shell: Shell, shortcut: Shortcut, instances: Instances, lock: Any
) -> None:
    """Its next attempt is settled as it is sent: nobody would step it."""
    lock.acquire("stock", TTL_MS)
    acquiring = Acquiring(shortcut)
    shell.until(lambda: acquiring.steps is not None, "its first attempt to be refused")
    for instance in instances[1:]:
        instance.kill()
    denied = acquiring.caller.get(timeout=30)
    assert isinstance(denied, Denied)
    assert denied.outcome is Outcome.UNREACHABLE
