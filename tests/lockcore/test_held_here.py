"""With `wait_for_own`: while somebody of the same Redlock has the key, or asks for it, nobody else
asks."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest

from lockcore.attempt import extend_steps
from lockcore.clock import FAR_FUTURE_NS
from lockcore.deadlines import FEWEST
from lockcore.errors import InstanceClosedError
from lockcore.model import Denied, Lease, Outcome
from lockcore.turns import HOLDERS_KEPT, Turn, Turns
from tests.doubles.keyspace import MISCONF, NIL, OK
from tests.lockcore.by_hand import Caller, acquiring
from tests.lockcore.scripted import TTL_MS, settings_of
from tests.lockcore.test_turns import Line


def held(callers: int = 1, wait_ms: float = 100_000) -> Line:
    """A lease, and callers who came since."""
    return Line(callers, wait_ms, settings=settings_of(wait_for_own=True))


def comes(line: Line, wait_ms: float = 100_000) -> Caller:
    """One more, whom nobody has answered yet."""
    caller: Caller = acquiring(line.fleet, wait_ms, Caller)
    line.callers.append(caller)
    line.fleet.flush()
    return caller


def test_while_somebody_here_has_it_nothing_is_asked_until_the_release() -> None:
    line = held(3)
    for _ in range(10):
        line.later(2.5)
    assert line.sets() == 1
    line.fleet.give_back(line.lease)
    line.run()
    assert [line.fleet.kinds(index) for index in range(3)] == [["set", "release", "set"]] * 3
    assert line.trying == [0]


def test_without_it_who_comes_asks_once() -> None:
    assert Line(1).sets() == 2


def test_a_line_that_asks_all_the_same_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Turns, "held_until_ns", lambda self, resource: 0)
    with pytest.raises(AssertionError):
        test_while_somebody_here_has_it_nothing_is_asked_until_the_release()


@pytest.mark.parametrize("reply", [NIL, MISCONF])
def test_who_came_behind_an_attempt_that_is_lost_tries_by_itself(reply: bytes) -> None:
    line = held(0)
    line.fleet.release(line.lease)
    asked = line.fleet.ask()
    behind = comes(line)
    line.answer(reply)
    assert asked.outcome not in {None, Outcome.ACQUIRED}
    assert line.trying == []
    line.later(2.5)
    assert line.trying == [0]
    line.answer(OK)
    assert isinstance(behind.result, Lease)


def test_who_came_behind_an_attempt_that_is_won_and_never_given_back_asks_at_the_leases_end() -> (
    None
):
    """The holder lets its lease end.

    Who came while its SET was on its way waits for that end, not for its own.
    """
    line = held(0)
    line.fleet.release(line.lease)
    asked = line.fleet.ask()
    behind = comes(line)
    line.answer(OK)
    assert asked.outcome is Outcome.ACQUIRED
    assert isinstance(behind.wanted, Turn)
    assert behind.wanted.due_ns == asked.valid_until_ns


def test_one_that_waits_for_its_own_deadline_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Turns.held_until_ns

    def forever(self: Turns, resource: str) -> int:
        holder = self.holders.get(resource)
        return (
            FAR_FUTURE_NS
            if holder is not None and holder.outcome is None
            else honest(self, resource)
        )

    monkeypatch.setattr(Turns, "held_until_ns", forever)
    with pytest.raises(AssertionError):
        test_who_came_behind_an_attempt_that_is_won_and_never_given_back_asks_at_the_leases_end()


def test_one_that_is_not_told_of_a_lost_attempt_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def untold(self: Turns, round_: Any) -> None:
        self.holders.pop(round_.resource, None)

    monkeypatch.setattr(Turns, "given_back", untold)
    with pytest.raises(AssertionError):
        test_who_came_behind_an_attempt_that_is_lost_tries_by_itself(NIL)


def test_who_asked_before_stands_before_those_who_came_meanwhile() -> None:
    line = held(0)
    line.fleet.release(line.lease)
    for ms in (0, 1, 1):
        line.fleet.after(ms)
        comes(line)
    line.answer(NIL)
    line.fleet.engine.turns.poke("stock")
    line.run()
    assert line.trying == [0]


def test_an_order_by_who_was_refused_first_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def last(self: Turns, turn: Turn) -> None:
        turn.has_come = turn.resource not in self.lines
        self.lines.setdefault(turn.resource, OrderedDict())[turn] = None

    monkeypatch.setattr(Turns, "join", last)
    with pytest.raises(AssertionError):
        test_who_asked_before_stands_before_those_who_came_meanwhile()


def extended(line: Line) -> Lease:
    steps = Caller(
        line.fleet, extend_steps(line.fleet.engine, line.lease, TTL_MS, line.fleet.now_ns)
    )
    line.fleet.flush()
    line.fleet.reply_all(OK)
    steps.go_on()
    assert isinstance(steps.result, Lease)
    return steps.result


@pytest.mark.parametrize("renew", [lambda line: line.lease, extended])
def test_what_nobody_gives_back_is_asked_for_at_its_end(renew: Callable[[Line], Lease]) -> None:
    line = held()
    line.fleet.tick(TTL_MS // 2)
    until_ns = renew(line).valid_until_ns
    line.later((until_ns - line.fleet.now_ns) / 1e6 - 1)
    assert line.trying == []
    line.later(1)
    line.later(2.5)
    assert line.trying == [0]


def test_at_its_deadline_it_asks_once() -> None:
    line = held(wait_ms=10)
    line.later(9)
    assert line.trying == []
    line.later(1)
    assert line.trying == [0]
    line.answer(NIL)
    denied = line.callers[0].result
    assert isinstance(denied, Denied)
    assert (denied.outcome, denied.attempts) == (Outcome.CONTENDED, 1)


def test_without_a_wait_it_asks_at_once() -> None:
    line = held()
    assert line.join(wait_ms=0).result.attempts == 1


def test_a_closed_redlock_keeps_nobody_waiting_for_its_own_lease() -> None:
    line = held()
    line.fleet.engine.retire()
    with pytest.raises(InstanceClosedError):
        line.callers[0].go_on()


def test_of_what_is_given_back_hardly_more_is_kept_than_is_held() -> None:
    line = held(0)
    for number in range(1_000):
        line.fleet.give_back(line.fleet.won(f"r{number}"))
        line.fleet.drain()
        assert len(line.fleet.engine.turns.holders) <= 2 * 2 + FEWEST
    assert line.fleet.engine.turns.is_taken("stock")


def test_holders_are_few_and_nothing_depends_on_them() -> None:
    line = held(0)
    for number in range(5 * HOLDERS_KEPT):
        kept = line.fleet.engine.set_round(f"r{number}", line.lease.round.terms, 0)
        kept.cleaned = False
        line.fleet.engine.turns.sent(kept)
        assert len(line.fleet.engine.turns.holders) <= 2 * HOLDERS_KEPT + FEWEST + 1
    # its lease is forgotten: what is asked is refused
    line.join()
    line.later(2.5)
    assert line.trying == [0]
    line.fleet.give_back(line.lease)
    line.answer(OK)
    line.later(2.5)
    line.answer(OK)
    assert isinstance(line.callers[0].result, Lease)
