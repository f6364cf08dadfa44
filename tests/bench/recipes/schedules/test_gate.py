"""A gate: who it stops, who it lets go, and that nobody hangs on it for ever."""

from __future__ import annotations

import threading

import pytest

from bench.recipes.schedules import gate as module
from bench.recipes.schedules.gate import Gate


def walk(gate: Gate, *points: str) -> tuple[threading.Thread, list[str]]:
    """Somebody who comes to these points one after the other; the list holds those already passed."""
    passed: list[str] = []

    def run() -> None:
        for point in points:
            gate(point)
            passed.append(point)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, passed


def test_an_open_point_stops_nobody() -> None:
    gate = Gate("after-get")
    gate("before-release")
    assert not gate.is_used


def test_a_closed_point_holds_its_caller_until_it_is_opened() -> None:
    gate = Gate("after-get")
    thread, passed = walk(gate, "before-release", "after-get")
    gate.until_standing("after-get")
    assert (passed, gate.is_used) == (["before-release"], True)
    gate.open()
    thread.join(30)
    assert passed == ["before-release", "after-get"]


def test_one_pass_is_one_point_further() -> None:
    gate = Gate("after-vote")
    thread, passed = walk(gate, "after-vote", "after-vote", "after-vote")
    gate.until_standing("after-vote")
    gate.let_one_pass()
    assert len(passed) == 1
    gate.let_one_pass()
    assert len(passed) == 2
    gate.open()
    thread.join(30)
    assert len(passed) == 3


def test_standing_and_being_done_are_told_apart() -> None:
    gate, done = Gate("after-get"), threading.Event()
    thread, _ = walk(gate, "after-get")
    assert gate.until_standing_or(done.is_set) is True
    gate.open()
    thread.join(30)
    other = Gate("after-get")
    done.set()
    assert other.until_standing_or(done.is_set) is False


def test_whoever_waits_in_vain_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.01)
    gate = Gate("after-get")
    with pytest.raises(TimeoutError, match="nobody opened after-get"):
        gate("after-get")
    assert not gate.is_used
    with pytest.raises(TimeoutError, match="nobody came to after-get"):
        gate.until_standing("after-get")
    with pytest.raises(TimeoutError, match="nobody came again"):
        gate.let_one_pass()
    with pytest.raises(TimeoutError, match="neither a pause point nor the end"):
        gate.until_standing_or(lambda: False)
