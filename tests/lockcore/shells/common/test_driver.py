"""When a loop driver sends and wakes: whose time to try again has come goes along with what is
awaited anyway."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from lockcore.clock import FAR_FUTURE_NS, NS_PER_MS, monotonic_ns
from lockcore.engine.turns import Turn
from lockcore.facts.membership import Hello
from lockcore.facts.model import Outcome
from lockcore.rounds.awaited import hand_out
from lockcore.rounds.commands import Dialect
from lockcore.rounds.rounds import SetRound
from lockcore.shells.common.driver import FEW, SLACK_NS, LoopDriver
from lockcore.shells.common.target import InstanceTarget
from tests.lockcore.scripted import settings_of

DIALECT = Dialect("delifeq", native_extend=True)
GRANTED = b"+OK\r\n"


class Wire:
    """A socket that has what the test says."""

    def __init__(self) -> None:
        self.said: list[bytes] = []

    def receive(self) -> Sequence[bytes]:
        said = self.said
        self.said = []
        return said

    def close(self, *, hard: bool = False) -> None:
        """It holds nothing."""


class Driver(LoopDriver):
    """A driver whose loop is the test: what it is to call, and when, is kept."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.delays_ns: list[int] = []
        self.sent = 0
        super().__init__(
            [InstanceTarget(f"host:{index}", {}, "") for index in range(3)], settings_of()
        )
        for index in range(3):
            self.wires[index] = Wire()  # type: ignore[assignment]
            self.engine.members.attach(
                index, Hello(f"run-{index}", 1_000_000, "scripted 1", 0), DIALECT, self._transmit, 0
            )

    def _transmit(self, _data: bytes) -> int:
        self.sent += 1
        return 0

    def _hand_out(self) -> None:
        hand_out(self.engine, lambda waiter: waiter())

    def _soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def _tick_later(self, delay_ns: int) -> None:
        self.delays_ns.append(delay_ns)

    def _unwatch(self, _index: int) -> None:
        """Nobody watches it."""

    _connect_later = _unwatch

    def turn(self) -> int:
        """Run what the loop is to call, and what that asks for; returns how many calls that was."""
        calls = 0
        while self.soon:
            self.soon.pop(0)()
            calls += 1
        return calls

    def asked_for(self, names: int) -> list[SetRound]:
        """So many attempts on their way."""
        rounds = [
            self.engine.set_round(f"r{n}", self.engine.terms(10_000), monotonic_ns())
            for n in range(names)
        ]
        for round_ in rounds:
            self.submit(round_)
        self.turn()
        return rounds

    def parked(self, resource: str, due_ns: int) -> Turn:
        """A caller who tries again at `due_ns`."""
        turn = Turn(self.engine.turns, resource, 0)
        self.engine.turns.join(turn)
        self.submit(turn.park(due_ns))
        return turn

    def hears(self, index: int, said: bytes) -> None:
        """An instance answers."""
        wire: Any = self.wires[index]
        wire.said.append(said)
        self.readable(index)


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_whose_time_has_come_is_woken_with_the_next_reply_and_sent_along(driver: Driver) -> None:
    won = driver.asked_for(FEW + 1)
    due = driver.parked("held", monotonic_ns())
    later = driver.parked("elsewhere", FAR_FUTURE_NS - 1)
    again = driver.engine.set_round("held", driver.engine.terms(10_000), monotonic_ns())
    due.waiter = lambda: driver.submit(again)
    woken: list[SetRound] = []
    for round_ in won:
        round_.waiter = lambda: woken.append(
            driver.engine.set_round("r", driver.engine.terms(10_000), monotonic_ns())
        )
    sent = driver.sent
    driver.hears(0, GRANTED * len(won))
    assert (due.outcome, later.outcome) == (Outcome.CONTENDED, None)
    driver.turn()
    assert driver.sent == sent + 3, "one write each"
    driver.hears(1, GRANTED * len(won))
    assert len(woken) == len(won)


def test_while_little_is_awaited_its_tick_comes_in_time_else_a_little_later(driver: Driver) -> None:
    far_ns = 3 * NS_PER_MS
    driver.parked("alone", monotonic_ns() + far_ns)
    assert driver.delays_ns[-1] <= far_ns
    busy = Driver()
    busy.asked_for(FEW + 1)
    busy.parked("among many", monotonic_ns() + far_ns)
    assert far_ns < busy.delays_ns[-1] <= far_ns + SLACK_NS
    busy.arm(monotonic_ns())
    assert far_ns < busy.delays_ns[-1] <= far_ns + SLACK_NS, "also where the timer is set anew"


def test_who_is_ready_while_others_are_woken_needs_no_call_of_its_own(driver: Driver) -> None:
    first, second = driver.asked_for(2)
    turn = driver.parked("held", FAR_FUTURE_NS - 1)
    seen = list[str]()
    first.waiter = lambda: (turn.settle(), seen.append("first"))
    second.waiter = lambda: seen.append("second")
    turn.waiter = lambda: seen.append("turn")
    for index in (0, 1):
        driver.hears(index, GRANTED * 2)
    assert seen == ["first", "second", "turn"]
    assert not driver.soon


def test_what_was_asked_for_leaves_though_the_last_one_breaks_off_the_waking(
    driver: Driver,
) -> None:
    def quits() -> None:
        raise SystemExit

    first, last = driver.asked_for(2)
    again = driver.engine.set_round("again", driver.engine.terms(10_000), monotonic_ns())
    first.waiter = lambda: driver.submit(again)
    last.waiter = quits
    sent = driver.sent
    driver.hears(0, GRANTED * 2)
    with pytest.raises(SystemExit):
        driver.hears(1, GRANTED * 2)
    driver.turn()
    assert driver.sent == sent + 3, "at once, not with the next tick"


def test_an_interrupted_tick_comes_again_and_wakes_whom_it_has_settled(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(3):
        driver.broken(index, OSError("gone"))
    driver.turn()
    woken = list[str]()
    for resource in ("first", "last"):
        driver.parked(resource, monotonic_ns()).waiter = lambda resource=resource: woken.append(
            resource
        )

    def interrupted(turn: Turn, settle: Callable[[Turn], None] = Turn.settle) -> None:
        settle(turn)
        monkeypatch.undo()
        # as if interrupted before it asked for that
        driver.soon.clear()
        raise KeyboardInterrupt

    turns = driver.engine.turns
    monkeypatch.setattr(turns, "expire", lambda now_ns: turns.parked.run(now_ns, interrupted))
    ticks = len(driver.delays_ns)
    with pytest.raises(KeyboardInterrupt):
        driver.tick()
    assert len(driver.delays_ns) > ticks
    driver.turn()
    assert woken == ["first"]
    driver.tick()
    driver.turn()
    assert woken == ["first", "last"]
