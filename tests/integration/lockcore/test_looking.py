"""Alone at a single instance: a caller of gevent looks for its reply before it goes through the hub."""

from typing import Any

import gevent
import pytest

from lockcore import Outcome
from lockcore.shells import shortcut
from tests.integration.lockcore.shell import Connect, GeventShell, Scripted, Shell, only

pytestmark = [pytest.mark.integration, only(GeventShell)]
TTL_MS = 10_000
FOREVER_NS = 1 << 60


@pytest.fixture
def turns() -> Any:
    """A greenlet that counts the turns of the hub."""
    counted: list[None] = []

    def count() -> None:
        while True:
            counted.append(None)
            gevent.sleep(0)

    greenlet = gevent.spawn(count)
    gevent.sleep(0)
    yield counted
    greenlet.kill()


def test_a_reply_is_taken_without_a_turn_of_the_hub_but_never_twice_in_a_row(
    shell: Shell, connect: Connect, scripted: Scripted, turns: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shortcut, "LOOK_NS", FOREVER_NS)
    lock = connect(scripted(1).urls)
    for resource in "abc":
        before = len(turns)
        lease = lock.acquire(resource, TTL_MS)
        assert len(turns) == before
        assert lock.try_acquire(resource, TTL_MS).outcome is Outcome.CONTENDED
        assert len(turns) > before  # else who asks again and again lets nobody else run
        assert lock.try_release(lease) is Outcome.RELEASED
    shell.until(lambda: not lock._driver.engine.ready, "nobody left to wake")


def test_a_look_in_vain_lets_others_run_and_is_followed_by_none_for_a_while(
    shell: Shell, connect: Connect, scripted: Scripted, turns: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    instances = scripted(1)
    lock = connect(instances.urls)
    instances.pause()
    before = len(turns)
    job = shell.start(lock.try_acquire, "a", TTL_MS)
    shell.until(lambda: len(turns) > before + 10, "others run")
    instances.resume()
    assert job.result().outcome is Outcome.ACQUIRED
    monkeypatch.setattr(shortcut, "LOOK_NS", FOREVER_NS)
    before = len(turns)
    lock.release(lock.acquire("b", TTL_MS))
    assert len(turns) > before


def test_a_connection_that_breaks_under_a_look_is_unreachable(
    shell: Shell, connect: Connect, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    instances = scripted(1)
    lock = connect(instances.urls)
    monkeypatch.setattr(shortcut, "LOOK_NS", FOREVER_NS)
    instances[0].close()
    assert lock.try_acquire("a", TTL_MS).outcome is Outcome.UNREACHABLE


def test_several_instances_or_callers_go_through_the_hub(
    shell: Shell, connect: Connect, scripted: Scripted, turns: list[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shortcut, "LOOK_NS", FOREVER_NS)
    lock, before = connect(scripted(3).urls), len(turns)
    lock.acquire("a", TTL_MS)
    assert len(turns) > before
    alone = connect(scripted(1).urls)
    leases = shell.together(alone.try_acquire, [(resource, TTL_MS) for resource in "abcd"])
    assert [lease.outcome for lease in leases] == [Outcome.ACQUIRED] * 4
