"""Connections that break in the middle of anything, and replies that cannot be: no reply ever finds
another round."""

import pytest

from lockcore.errors import ProtocolError
from lockcore.rounds.rounds import Round, SetRound
from tests.doubles.keyspace import NIL, NOSCRIPT, OK, ONE
from tests.lockcore.scripted import (
    EVALSHA,
    ScriptedFleet,
    name_of,
    rounds_kept,
    settings_of,
    token_of,
)


def test_a_script_sent_again_that_is_never_answered_still_times_out() -> None:
    """Its batch has long been answered by its last command, and forgotten."""
    fleet = ScriptedFleet(3, dialect=EVALSHA)
    leases = [fleet.won("a"), fleet.won("b")]
    rounds = fleet.release_together(leases)
    fleet.reply_all(NOSCRIPT, ONE)
    fleet.ask("next")
    assert [name_of(round_) for round_ in rounds] == [None, "released"]
    fleet.tick(60)
    assert name_of(rounds[0]) == "unreachable"


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("broken", [{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 1, 2}])
def test_a_send_that_breaks_leaves_every_other_connection_in_order(
    broken: set[int], at_once: bool
) -> None:
    """The break is noticed inside the flush, whose own clean-ups are queued while it still
    sends."""
    fleet = ScriptedFleet(3, at_once=at_once)
    lease = fleet.won("held")
    under_way = [fleet.ask(f"under way {number}") for number in range(5)]
    fleet.breaks = set(broken)
    rounds: list[Round] = [fleet.begin(f"r{number}") for number in range(5)]
    rounds.append(fleet.release(lease))
    fleet.flush()
    assert {index for index in range(3) if not fleet.engine.pipes[index].is_open} == broken
    check_all_is_well(fleet, [*under_way, *rounds])


@pytest.mark.parametrize("what", ["release", "extend"])
def test_connections_that_break_one_after_the_other_under_one_command(what: str) -> None:
    """Sending to the first breaks it; its clean-ups break the next, before the command was queued
    there."""
    fleet = ScriptedFleet(5, at_once=True)
    lease = fleet.won("held")
    fleet.detach(4)
    under_way = [fleet.ask(f"under way {number}") for number in range(3)]
    fleet.breaks = {0, 1, 2, 3}
    last: Round = fleet.release(lease) if what == "release" else fleet.extend(lease)
    assert [pipe.is_open for pipe in fleet.engine.pipes] == [False] * 5
    assert name_of(last) == "unreachable"
    if what == "extend":
        fleet.release(lease)
    check_all_is_well(fleet, [*under_way, last])


@pytest.mark.parametrize("owed", [1, 2, 5])
def test_a_connection_that_breaks_while_owed_releases_are_sent_keeps_owing_them(owed: int) -> None:
    fleet = ScriptedFleet(3, at_once=True)
    leases = [fleet.won(f"r{number}") for number in range(owed)]
    fleet.detach(0)
    for lease in leases:
        fleet.release(lease)
    fleet.reply_all(*[ONE] * owed, of=[1, 2])
    fleet.breaks = {0}
    fleet.attach(0)
    assert not fleet.engine.pipes[0].is_open
    assert fleet.engine.members.status()[0].owed_releases == owed
    check_all_is_well(fleet, [])
    assert [kind for kind, _ in fleet.order(0)] == ["set"] * owed + ["release"] * owed + ["set"]


def test_a_connection_that_breaks_while_its_replies_are_read_forgets_the_rest() -> None:
    """An unknown script is answered at once, which breaks the connection between two of its
    replies."""
    fleet = ScriptedFleet(3, dialect=EVALSHA)
    rounds: list[Round] = [fleet.release(lease) for lease in [fleet.won(name) for name in "abc"]]
    fleet.at_once = True
    fleet.breaks = {0}
    fleet.reply(0, NOSCRIPT, ONE, ONE)
    assert fleet.engine.members.status()[0].pending == 0
    assert fleet.engine.members.status()[0].owed_releases == 3
    check_all_is_well(fleet, rounds)


def check_all_is_well(fleet: ScriptedFleet, rounds: list[Round]) -> None:
    """Every vote was counted where it belongs; all are settled, everybody reconnects, nothing is
    kept, and the next lock is granted by every instance."""
    fleet.breaks = set()
    fleet.drain(refused=0.3)
    for round_ in rounds:
        if isinstance(round_, SetRound):
            given = [fleet.given[token_of(round_), reply] for reply in (OK, NIL)]
            assert [round_.tally.granted, round_.tally.refused] == given
    fleet.tick(60)
    assert None not in [name_of(round_) for round_ in rounds]
    for index, pipe in enumerate(fleet.engine.pipes):
        if not pipe.is_open:
            fleet.attach(index)
    fleet.drain()
    fleet.tick(60)
    fleet.engine.take_ready()
    assert fleet.is_empty()
    assert rounds_kept(fleet.engine) == []
    kept = {
        token_of(one) for one in rounds if isinstance(one, SetRound) and name_of(one) == "acquired"
    }
    for index in range(len(fleet.sent)):
        left = {token for kind, token in fleet.order(index) if kind == "set"}
        left -= {token for kind, token in fleet.order(index) if kind == "release"}
        assert left <= kept, f"instance {index} was never told to release"
    assert fleet.won("afterwards").tally.granted == len(fleet.sent)


@pytest.mark.parametrize("company", [0, 5])
@pytest.mark.parametrize("what", ["set", "release"])
def test_what_was_queued_for_a_broken_connection_does_not_leave_on_the_next_one(
    what: str, company: int
) -> None:
    """It is silent or owed by then: sent as well, its answer would be taken for that of another
    command."""
    fleet = ScriptedFleet(3, settings=settings_of())
    lease = fleet.won("held")
    fleet.detach(2)
    if what == "set":
        for number in range(company + 1):
            fleet.begin(f"r{number}")
    release = fleet.give_back(lease)
    fleet.detach(0)
    fleet.attach(0)
    fleet.flush()
    assert fleet.kinds(0).count("set") == 1
    assert fleet.about(0, release.won) == ["set", "release"]
    assert fleet.engine.members.status()[0].pending == len(fleet.unanswered[0])


# -- replies that cannot be ------------------------------------------------------------------------


@pytest.mark.parametrize("company", [0, 5])
@pytest.mark.parametrize("data", [OK, NIL, ONE + ONE, b"-ERR\r\n", b"*0\r\n"])
def test_a_reply_nobody_asked_for_is_an_error(data: bytes, company: int) -> None:
    fleet = ScriptedFleet(2)
    for number in range(company):
        fleet.begin(f"r{number}")
    fleet.flush()
    with pytest.raises(ProtocolError, match="host:7001 sent a reply without a request"):
        fleet.engine.received(1, OK * company + data, fleet.now_ns)
    assert fleet.engine.members.status()[1].pending == 0
