"""Callers of one Redlock on one resource: who tries when, what is sent for whom, and that nobody is
left behind."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

import pytest

from lockcore.clock import NS_PER_MS
from lockcore.engine.attempt import Acquisition
from lockcore.engine.turns import Turn, Turns
from lockcore.facts.model import Denied, Lease, Outcome
from lockcore.rounds.rounds import SetRound
from lockcore.settings import RetryPolicy
from tests.doubles.keyspace import MISCONF, NIL, OK, ONE
from tests.lockcore.by_hand import Caller, Killed, acquiring
from tests.lockcore.interrupt import Interrupt
from tests.lockcore.scripted import EVALSHA, TTL_MS, ScriptedFleet, settings_of
from tests.lockcore.source import needs_source


class Line:
    """A lease that is held, and callers who wait for it, all of one Redlock."""

    def __init__(self, callers: int = 3, wait_ms: float = 100, **fleet: Any) -> None:
        self.fleet = ScriptedFleet(3, **fleet)
        self.lease = self.fleet.won()
        self.callers: list[Caller] = []
        for _ in range(callers):
            self.join(wait_ms)

    def join(self, wait_ms: float = 100) -> Caller:
        caller: Caller = acquiring(self.fleet, wait_ms, Caller)
        self.callers.append(caller)
        self.answer(NIL)
        return caller

    def answer(self, reply: bytes = OK) -> None:
        """Every instance answers everything, SETs with `reply`; who is settled runs on."""
        self.fleet.flush()
        for index, commands in enumerate(self.fleet.unanswered):
            self.fleet.reply(
                index, *[reply if command[0] == b"SET" else ONE for command in commands]
            )
        self.run()

    def run(self) -> None:
        for _ in range(3):
            for caller in self.callers:
                caller.go_on()
        self.fleet.flush()

    def later(self, ms: float) -> None:
        self.fleet.tick(ms)
        self.run()

    @property
    def trying(self) -> list[int]:
        """Whose SET is on its way."""
        return [
            number
            for number, caller in enumerate(self.callers)
            if isinstance(caller.wanted, SetRound)
        ]

    def sets(self) -> int:
        return sum(kind == "set" for kind in self.fleet.kinds(0))


def test_who_comes_behind_others_sends_nothing_until_it_is_his_turn() -> None:
    line = Line(1)
    before = line.sets()
    line.join()
    line.join()
    assert line.sets() == before
    line.later(2.5)
    assert line.trying == [0]


def test_a_line_is_served_first_come_first_served_each_time_at_the_release() -> None:
    line = Line(4)
    served = []
    lease = line.lease
    for _ in range(4):
        line.fleet.release(lease)
        line.run()
        served += line.trying
        line.answer(OK)
        lease = line.callers[served[-1]].result
        assert isinstance(lease, Lease)
    assert served == [0, 1, 2, 3]
    assert not line.fleet.engine.turns.lines


@pytest.mark.parametrize("dialect", [None, EVALSHA])
@pytest.mark.parametrize("merged", [False, True])
def test_the_set_of_the_head_goes_right_behind_the_release_on_every_connection(
    dialect: Any, merged: bool
) -> None:
    line = Line(
        2, settings=settings_of(merge_releases=merged), **({"dialect": dialect} if dialect else {})
    )
    sent = len(line.fleet.sent[0])
    line.fleet.give_back(line.lease)
    line.run()
    assert [line.fleet.kinds(index)[sent:] for index in range(3)] == [["release", "set"]] * 3


def test_a_poked_head_that_is_refused_tries_again_after_its_jitter() -> None:
    line = Line(1)
    line.fleet.release(line.lease)
    line.run()
    # somebody else was quicker
    line.answer(NIL)
    assert line.trying == []
    line.later(2.5)
    assert line.trying == [0]


def test_a_release_while_the_head_is_on_its_way_is_not_missed() -> None:
    line = Line(1)
    line.later(2.5)
    line.fleet.release(line.lease)
    # its SET came before the release
    line.answer(NIL)
    assert line.trying == [0]


def test_a_lost_attempt_of_somebody_else_pokes_nobody() -> None:
    line = Line(1)
    line.fleet.ask().clean_up()
    line.run()
    assert line.trying == []


@pytest.mark.parametrize("when", ["parked", "trying"])
def test_a_head_that_is_killed_passes_the_turn_on(when: str) -> None:
    line = Line(2)
    if when == "trying":
        line.later(2.5)
    line.callers[0].kill()
    line.run()
    line.later(2.5)
    assert line.trying == [1]


def test_an_interrupt_while_the_turn_is_passed_on_gives_the_lease_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = Line(1)
    line.fleet.release(line.lease)
    line.run()
    attempt = line.callers[0].wanted
    leave = Turns.leave

    def interrupted(self: Turns, turn: Turn, **options: Any) -> None:
        leave(self, turn, **options)
        raise Killed

    monkeypatch.setattr(Turns, "leave", interrupted)
    line.answer(OK)
    assert line.callers[0].result is None
    assert [line.fleet.about(index, attempt) for index in range(3)] == [["set", "release"]] * 3


@contextmanager
def interrupted(at: int) -> Iterator[Interrupt]:
    """KeyboardInterrupt at the `at`-th moment of who waits in line."""
    interrupt = Interrupt(at, "attempt.py", "turns.py")
    # the end of no other line is interrupted
    gc.disable()
    sys.settrace(interrupt.trace)
    try:
        with suppress(KeyboardInterrupt):
            yield interrupt
    finally:
        sys.settrace(None)
        gc.enable()


def serve(line: Line) -> list[Lease]:
    """Everybody's lease in turn, given back at once."""
    leases: list[Lease] = []
    for _ in range(20):
        line.later(2.5)
        line.answer(OK)
        given = [caller.result for caller in line.callers if isinstance(caller.result, Lease)]
        for lease in given[len(leases) :]:
            line.fleet.release(lease)
        leases = given
    return leases


def interrupt_one_of(line: Line, victim: Caller, reply: bytes, moment: int) -> str:
    """Where `victim` was interrupted on the way to, through and out of its attempt; empty when it
    was not."""
    line.fleet.tick(2.5)
    with interrupted(moment) as interrupt:
        victim.go_on()
        line.fleet.flush()
        for index, commands in enumerate(line.fleet.unanswered):
            line.fleet.reply(
                index, *[reply if command[0] == b"SET" else ONE for command in commands]
            )
        victim.go_on()
    if interrupt.where:
        victim.steps.close()
        victim.wanted = None
    return interrupt.where


# a moment is a line of it
@needs_source
@pytest.mark.parametrize("reply", [OK, NIL, MISCONF])
@pytest.mark.parametrize("number", [0, 1])
def test_an_interrupt_at_any_moment_of_who_waits_holds_nobody_up(number: int, reply: bytes) -> None:
    """It is the head, or behind it and at its deadline."""
    for moment in count(1):
        line = Line(0)
        for wait_ms in (300, 2.5 if number else 300, 300):
            line.join(wait_ms)
        line.fleet.release(line.lease)
        where = interrupt_one_of(line, line.callers[number], reply, moment)
        if not where:
            break
        assert len(serve(line)) >= (2 if reply is not MISCONF else 0), where
        assert not line.fleet.engine.turns.lines, where
        assert not any(line.fleet.unanswered), where
    assert moment > 15


def test_a_turn_that_an_interrupt_does_not_pass_on_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leave = Acquisition._leave
    left = set()

    def once(self: Acquisition) -> None:
        if self not in left:
            left.add(self)
            leave(self)

    monkeypatch.setattr(Acquisition, "_leave", once)
    with pytest.raises(AssertionError, match="leave"):
        test_an_interrupt_at_any_moment_of_who_waits_holds_nobody_up(0, OK)


def test_an_attempt_that_is_too_late_does_not_poke_its_own_caller() -> None:
    line = Line(1, wait_ms=100_000)
    line.later(2.5)
    line.fleet.after(TTL_MS)
    line.answer(OK)
    assert line.trying == []


def test_who_is_killed_in_the_middle_of_a_line_is_passed_over() -> None:
    line = Line(3)
    line.callers[1].kill()
    line.fleet.release(line.lease)
    line.run()
    line.answer(OK)
    line.later(2.5)
    assert line.trying == [2]


def test_a_head_that_is_denied_passes_the_turn_on() -> None:
    line = Line(2, settings=settings_of(retry=RetryPolicy(attempts=2)))
    line.later(2.5)
    line.answer(NIL)
    assert isinstance(line.callers[0].result, Denied)
    line.later(2.5)
    assert line.trying == [1]


def test_at_his_deadline_who_never_had_a_turn_makes_one_attempt() -> None:
    line = Line(1)
    waiting = line.join(wait_ms=10)
    line.later(9)
    assert line.trying == [0]
    line.later(1)
    assert line.trying == [0, 1]
    line.answer(NIL)
    denied = waiting.result
    assert (denied.outcome, denied.attempts, denied.tally) == (
        Outcome.CONTENDED,
        1,
        (0, 3, 0, 0, 0, 0),
    )
    assert denied.ended_ns - denied.started_ns == 10 * NS_PER_MS
    assert len(line.fleet.engine.turns.lines["stock"]) == 1


def test_without_a_wait_nobody_stands_in_line() -> None:
    line = Line(2)
    assert line.join(wait_ms=0).result.attempts == 1
    assert len(line.fleet.engine.turns.lines["stock"]) == 2


def test_without_a_reachable_quorum_nobody_waits_for_the_others() -> None:
    line = Line(4)
    line.later(2.5)
    line.answer(MISCONF)
    line.later(2.5)
    assert line.trying == [1, 2, 3]


def test_the_lease_of_a_first_attempt_leaves_no_line() -> None:
    line = Line(0)
    line.fleet.release(line.lease)
    caller = acquiring(line.fleet, 100, Caller)
    line.callers.append(caller)
    line.answer(OK)
    assert isinstance(caller.result, Lease)
    assert not line.fleet.engine.turns.lines


def test_a_turn_that_is_not_passed_on_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def keeping(self: Turns, turn: Turn, **_told: bool) -> None:
        self.lines[turn.resource].pop(turn, None)

    monkeypatch.setattr(Turns, "leave", keeping)
    with pytest.raises(AssertionError):
        test_a_line_is_served_first_come_first_served_each_time_at_the_release()


def test_a_release_that_pokes_nobody_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Turns, "poke", lambda self, resource: None)
    with pytest.raises(AssertionError):
        test_the_set_of_the_head_goes_right_behind_the_release_on_every_connection(None, False)
