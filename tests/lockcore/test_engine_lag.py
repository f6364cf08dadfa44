"""The lag cap: an instance that does not keep up is sent no SETs and no extensions, releases always."""

from __future__ import annotations

import pytest

from lockcore.commands import Dialect
from lockcore.engine import Engine
from lockcore.membership import Hello
from lockcore.rounds import Round
from lockcore.settings import LagCap, Settings
from tests.lockcore.scripted import NIL, OK, ONE, ScriptedFleet, name_of, settings_of

SLOW = 2  # the instance that does not answer
AGE_MS = 50


def capped(**cap: float) -> ScriptedFleet:
    values = {"operations": 1_000, "bytes": 1 << 20, "age_ms": AGE_MS} | cap
    lag_cap = LagCap(int(values["operations"]), int(values["bytes"]), values["age_ms"])
    return ScriptedFleet(3, settings=settings_of(lag_cap=lag_cap))


def states(fleet: ScriptedFleet) -> list[str]:
    return [status.state for status in fleet.engine.status()]


def ask_much(fleet: ScriptedFleet, operations: int) -> None:
    """So many attempts that all but one instance answer."""
    rounds = [fleet.begin(f"r{number}") for number in range(operations)]
    fleet.flush()
    fleet.reply_all(*[OK] * len(rounds), of=[0, 1])


def test_an_instance_whose_oldest_command_is_too_old_lags_and_one_at_the_cap_does_not() -> None:
    fleet = capped()
    ask_much(fleet, 1)
    fleet.tick(AGE_MS)
    assert states(fleet) == ["voting"] * 3
    fleet.tick(0.000001)
    assert states(fleet) == ["voting", "voting", "lagging"]
    assert fleet.engine.status()[SLOW].reason == "1 commands not answered for 50 ms"


def test_an_instance_with_too_many_commands_lags_and_one_at_the_cap_does_not() -> None:
    fleet = capped(operations=10)
    ask_much(fleet, 10)
    fleet.tick(1)
    assert states(fleet) == ["voting"] * 3
    ask_much(fleet, 1)
    fleet.tick(1)
    assert states(fleet) == ["voting", "voting", "lagging"]


def test_an_instance_whose_socket_takes_no_more_bytes_lags() -> None:
    fleet = capped(bytes=1_000)
    fleet.backlog[SLOW] = 1_000
    ask_much(fleet, 1)
    fleet.tick(1)
    assert states(fleet) == ["voting"] * 3
    fleet.backlog[SLOW] = 1_001
    ask_much(fleet, 1)
    fleet.tick(1)
    assert states(fleet) == ["voting", "voting", "lagging"]


def lagging() -> ScriptedFleet:
    fleet = capped()
    ask_much(fleet, 1)
    fleet.tick(AGE_MS + 1)
    assert states(fleet) == ["voting", "voting", "lagging"]
    return fleet


def test_past_the_cap_no_set_is_sent_and_the_vote_is_absent() -> None:
    fleet = lagging()
    round_ = fleet.ask("new")
    assert [fleet.about(index, round_) for index in range(3)] == [["set"], ["set"], []]
    fleet.reply_all(OK, of=[0, 1])
    assert name_of(round_) == "acquired"
    assert round_.tally == (2, 0, 0, 0, 1, 0)


def test_past_the_cap_no_extension_is_sent_and_a_release_is() -> None:
    fleet = capped()
    lease = fleet.won("held")
    ask_much(fleet, 1)
    fleet.tick(AGE_MS + 1)
    extension = fleet.extend(lease)
    assert fleet.about(SLOW, extension.won) == ["set"]
    release = fleet.release(lease)
    assert fleet.about(SLOW, release.won) == ["set", "release"]
    assert extension.tally == (0, 0, 0, 0, 1, 2)


def test_it_votes_again_as_soon_as_it_has_answered_everything() -> None:
    fleet = lagging()
    lost = fleet.ask("new")
    fleet.reply_all(NIL, of=[0, 1])  # contended: cleaned up where it was sent only
    fleet.flush()
    assert fleet.about(SLOW, lost) == []
    fleet.reply(SLOW, OK)
    assert states(fleet) == ["voting"] * 3
    assert fleet.engine.status()[SLOW].reason == ""
    assert len(fleet.ask("next").voters) == 3


def test_a_late_answer_to_only_some_of_it_changes_nothing() -> None:
    fleet = capped()
    ask_much(fleet, 2)
    fleet.tick(AGE_MS + 1)
    fleet.reply(SLOW, OK)
    assert states(fleet) == ["voting", "voting", "lagging"]


def test_with_a_quorum_lagging_an_acquire_costs_nothing() -> None:
    fleet = capped()
    rounds: list[Round] = [fleet.ask("a")]
    fleet.tick(AGE_MS + 1)
    assert states(fleet) == ["lagging"] * 3
    before = [len(commands) for commands in fleet.sent]
    rounds.append(fleet.ask("b"))
    assert name_of(rounds[1]) == "unreachable"
    assert [len(commands) for commands in fleet.sent] == before


def test_a_lagging_instance_that_breaks_is_down_and_votes_when_it_is_back() -> None:
    fleet = lagging()
    fleet.detach(SLOW)
    assert states(fleet)[SLOW] == "down"
    fleet.attach(SLOW)
    fleet.drain()
    assert states(fleet)[SLOW] == "voting"


@pytest.mark.parametrize("why", ["timed out", "owed"])
def test_a_release_counts_its_own_age_not_that_of_its_set(why: str) -> None:
    """Whoever has just been sent a release of something old has not lagged."""
    fleet = capped()
    if why == "timed out":
        fleet.ask()
        fleet.reply(0, OK)
        fleet.reply(1, NIL)
        fleet.tick(AGE_MS)  # a split vote: cleaned up now
    else:
        lease = fleet.won()
        fleet.detach(0)
        fleet.release(lease)
        fleet.reply(1, ONE)
        fleet.reply(SLOW, ONE)
        fleet.tick(2 * AGE_MS)
        fleet.attach(0)
        fleet.flush()
    assert fleet.kinds(0)[-1] == "release"
    fleet.tick(1)
    assert states(fleet)[0] == "voting"
    fleet.tick(AGE_MS)
    assert states(fleet)[0] == "lagging"


@pytest.mark.parametrize(
    ("cap", "kept", "reason"),
    [
        (LagCap(operations=10, age_ms=5000), 0, "20 commands not answered, more than 10"),
        (LagCap(bytes=1000, age_ms=5000), 4096, "4,096 bytes not taken, more than 1,000"),
    ],
)
def test_who_is_over_the_cap_is_left_out_by_the_very_flush_that_finds_it(cap: LagCap, kept: int, reason: str) -> None:
    engine = Engine(["a:1"], Settings(rejoin="trust", lag_cap=cap), lambda: None)
    engine.attach(0, Hello("run", 100, "redis 7", 1), Dialect("evalsha", native_extend=False), lambda _: kept, 1)
    terms = engine.terms(10_000)
    for number in range(20):
        engine.submit(engine.set_round(f"r{number}", terms, 2))
    engine.flush(3)
    (status,) = engine.status()
    assert (status.state, status.reason) == ("lagging", reason)
    assert engine.set_round("next", terms, 4).voters == ()
