"""A loop that stays awake for a lone caller's reply: what it must not do to everything else."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from lockcore.shells.common import vigil
from tests.doubles.instance import Instances
from tests.integration.lockcore.shell import TTL_MS, Shell

pytestmark = pytest.mark.integration
LONG_S = 30
ENOUGH_S = 0.3
# each costs some microseconds
MANY_LOOKS = vigil.AWAKE_NS // 500


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch, shell: Shell) -> list[int]:
    """Two cores, and what was awaited in every turn of a loop that was awake."""
    if shell.name == "threads":
        pytest.skip("its I/O thread sleeps: staying awake gave it nothing (docs/lab/lockcore.md)")
    seen = list[int]()
    goes_on = vigil.Vigil.goes_on

    def counted(self: vigil.Vigil, awaited: int, now_ns: int) -> bool:
        seen.append(awaited)
        return goes_on(self, awaited, now_ns)

    monkeypatch.setattr(vigil.Vigil, "goes_on", counted)
    monkeypatch.setattr(vigil, "_cores", lambda: 2)
    return seen


def _for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vigil, "AWAKE_NS", LONG_S * 10**9)


def test_it_is_awake_for_a_single_instance(
    shell: Shell, turns: list[int], connect: Callable[..., Any], scripted: Callable[..., Instances]
) -> None:
    lock = connect(scripted(1).urls)
    turns.clear()

    def is_seen_awake() -> bool:
        lock.release(shell.won(lock))
        return bool(turns)

    shell.until(is_seen_awake, "a turn before the reply has come")


@pytest.mark.parametrize("number", [2, 3])
def test_it_sleeps_where_there_are_more(
    number: int,
    shell: Shell,
    turns: list[int],
    connect: Callable[..., Any],
    scripted: Callable[..., Instances],
) -> None:
    lock = connect(scripted(number).urls)
    for _ in range(20):
        lock.release(shell.won(lock))
    assert turns == []


def test_a_loop_that_is_awake_runs_everything_else_and_sleeps_when_nothing_is_awaited(
    monkeypatch: pytest.MonkeyPatch,
    shell: Shell,
    turns: list[int],
    connect: Callable[..., Any],
    scripted: Callable[..., Instances],
) -> None:
    _for_ever(monkeypatch)
    instances = scripted(1)
    lock = connect(instances.urls)
    instances.pause()
    waiting = shell.start(shell.raw(lock).try_acquire, "stock", TTL_MS)
    shell.until(lambda: len(turns) > MANY_LOOKS, "awake for the reply")
    begun_s = time.monotonic()
    # a timer of somebody else
    shell.sleep(0.02)
    assert time.monotonic() - begun_s < LONG_S / 2
    assert not waiting.is_done()
    instances.resume()
    lease = waiting.result()
    assert lease
    shell.until(lambda: not lease.tally.undecided, "every vote")
    shell.sleep(0.01)
    turns.clear()
    shell.sleep(0.05)
    assert turns == [], "held, and nothing is awaited"
    lock.release(lease)


def test_a_reply_that_does_not_come_costs_a_moment_of_cpu_and_no_more(
    shell: Shell, turns: list[int], connect: Callable[..., Any], scripted: Callable[..., Instances]
) -> None:
    instances = scripted(1)
    lock = connect(instances.urls)
    instances.pause()
    turns.clear()
    waiting = shell.start(shell.raw(lock).try_acquire, "stock", TTL_MS)
    shell.sleep(ENOUGH_S)
    assert 0 < len(turns) < MANY_LOOKS
    instances.resume()
    lock.release(waiting.result())
