"""The lag cap: an instance that does not keep up is sent no SETs and no extensions, releases
always."""

from __future__ import annotations

import pytest

from lockcore.rounds.rounds import Round
from lockcore.settings import LagCap
from tests.doubles.keyspace import NIL, OK, ONE
from tests.lockcore.scripted import ScriptedFleet, name_of, settings_of

# the instance that does not answer
SLOW = 2
AGE_MS = 50


def capped(**cap: float) -> ScriptedFleet:
    values = {"operations": 1_000, "bytes": 1 << 20, "age_ms": AGE_MS} | cap
    lag_cap = LagCap(int(values["operations"]), int(values["bytes"]), values["age_ms"])
    return ScriptedFleet(3, settings=settings_of(lag_cap=lag_cap))


def states(fleet: ScriptedFleet) -> list[str]:
    return [status.state for status in fleet.engine.members.status()]


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
    assert fleet.engine.members.status()[SLOW].reason == (
        "the oldest of 1 unanswered commands has waited over 50 ms"
    )


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
    # contended: cleaned up where it was sent only
    fleet.reply_all(NIL, of=[0, 1])
    fleet.flush()
    assert fleet.about(SLOW, lost) == []
    fleet.reply(SLOW, OK)
    assert states(fleet) == ["voting"] * 3
    assert fleet.engine.members.status()[SLOW].reason == ""
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
        # a split vote: cleaned up now
        fleet.tick(AGE_MS)
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
    ("cap", "reason"),
    [
        ({"operations": 10}, "11 commands wait for a reply, more than the limit of 10"),
        ({"bytes": 1_000}, "1,001 bytes wait to be sent, more than the limit of 1,000"),
    ],
)
def test_who_is_over_the_cap_is_left_out_by_the_very_flush_that_finds_it(
    cap: dict[str, float], reason: str
) -> None:
    fleet = capped(**cap)
    fleet.backlog[SLOW] = 1_000
    ask_much(fleet, 10)
    assert states(fleet) == ["voting"] * 3
    fleet.backlog[SLOW] = 1_001
    ask_much(fleet, 1)
    assert fleet.engine.members.status()[SLOW].reason == reason
    assert [pipe.index for pipe in fleet.ask("next").voters] == [0, 1]
