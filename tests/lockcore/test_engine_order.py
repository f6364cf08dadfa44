"""One order per connection: what is submitted first is sent first, and every reply finds its round, whatever breaks."""

from __future__ import annotations

from random import Random

import pytest

from lockcore.commands import COMPARE_AND_DELETE, COMPARE_AND_DELETE_MANY, COMPARE_AND_EXTEND
from lockcore.errors import ProtocolError
from lockcore.model import Lease
from lockcore.rounds import ReleaseRound, Round, SetRound
from tests.lockcore.scripted import (
    DELEX,
    DELIFEQ,
    EVALSHA,
    NIL,
    NOSCRIPT,
    OK,
    ONE,
    ZERO,
    ScriptedFleet,
    claims_of,
    kind_of,
    name_of,
    rounds_kept,
    settings_of,
    token_of,
)


def order_at(fleet: ScriptedFleet, index: int) -> list[tuple[str, bytes]]:
    """(kind, owner token) of every command an instance got, in order."""
    return [(kind_of(command), token) for command in fleet.sent[index] for _, token in claims_of(command)]


def test_a_batch_leaves_in_one_write_per_instance() -> None:
    fleet = ScriptedFleet(3)
    for number in range(10):
        fleet.begin(f"r{number}")
    fleet.flush()
    assert [len(writes) for writes in fleet.writes] == [1, 1, 1]
    assert fleet.writes[0] == fleet.writes[1] == fleet.writes[2]
    assert [status.commands for status in fleet.engine.status()] == [10, 10, 10]
    assert [status.bytes_sent for status in fleet.engine.status()] == [len(fleet.writes[0][0])] * 3


def test_a_flush_is_wanted_once_per_batch() -> None:
    fleet = ScriptedFleet(3)
    for number in range(5):
        fleet.begin(f"r{number}")
    assert fleet.wanted == 1
    fleet.flush()
    fleet.begin()
    assert fleet.wanted == 2


def test_an_engine_is_idle_when_nothing_is_queued_and_nothing_awaited() -> None:
    fleet = ScriptedFleet(2)
    seen = [fleet.engine.is_idle]
    fleet.begin("a")
    fleet.begin("b")
    assert fleet.engine.queued == 2
    seen.append(fleet.engine.is_idle)
    fleet.flush()
    assert fleet.engine.queued == 0
    seen.append(fleet.engine.is_idle)
    fleet.reply(0, OK, OK)
    seen.append(fleet.engine.is_idle)
    fleet.reply(1, OK, OK)
    assert [*seen, fleet.engine.is_idle] == [True, False, False, False, True]


def test_a_flush_without_anything_to_send_writes_nothing() -> None:
    fleet = ScriptedFleet(2)
    fleet.flush()
    fleet.flush()
    assert fleet.writes == [[], []]


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_mixed_every_connection_keeps_the_order_of_submission(seed: int) -> None:
    """SETs and releases to all, releases and extensions to some, flushes in between, instances that come and go."""
    random = Random(seed)
    instances = random.randrange(1, 7)
    dialects = [random.choice([DELIFEQ, DELEX, EVALSHA]) for _ in range(instances)]
    fleet = ScriptedFleet(instances, connect=False, settings=settings_of())
    for index, dialect in enumerate(dialects):
        fleet.attach(index, dialect=dialect)
    leases: list[Lease] = []
    expected: list[list[tuple[str, bytes]]] = [order_at(fleet, index) for index in range(instances)]
    for number in range(60):
        what = random.choice(["set", "set", "release", "extend", "flush", "won", "down", "up"])
        index = random.randrange(instances)
        is_open = [pipe.is_open for pipe in fleet.engine.pipes]
        if what == "won" and sum(is_open) > instances // 2:
            fleet.drain()
            leases.append(fleet.won(f"w{number}"))
            expected = [order_at(fleet, one) for one in range(instances)]
        elif what == "set" and sum(is_open) > instances // 2:
            round_ = fleet.begin(f"s{number}")
            for pipe in round_.voters:
                expected[pipe.index].append(("set", token_of(round_)))
        elif what in ("release", "extend") and leases:
            lease = random.choice(leases)
            submit_owned(fleet, lease, what, expected)
        elif what == "down" and is_open[index]:
            fleet.drain()
            fleet.detach(index)
            fleet.drain()
            expected = [order_at(fleet, one) for one in range(instances)]
        elif what == "up" and not is_open[index]:
            fleet.attach(index, dialect=dialects[index])
            fleet.drain()
            expected = [order_at(fleet, one) for one in range(instances)]
        elif what == "flush":
            fleet.flush()
    fleet.flush()
    assert [order_at(fleet, index) for index in range(instances)] == expected
    assert [status.commands for status in fleet.engine.status()] == [len(commands) for commands in fleet.sent]


def submit_owned(fleet: ScriptedFleet, lease: Lease, what: str, expected: list[list[tuple[str, bytes]]]) -> None:
    """Queue a release or an extension, and note where it must arrive."""
    engine = fleet.engine
    if what == "release":
        release = engine.release_round(lease, fleet.now_ns)
        engine.submit_release(release)
        asked = [pipe.index for pipe in release.won.voters if pipe.is_open]
    else:
        extension = engine.extend_round(lease, engine.terms(lease.ttl_ms), fleet.now_ns)
        engine.submit_extend(extension)
        asked = [pipe.index for pipe in engine.pipes if pipe.is_open]
    for index in asked:
        expected[index].append((what, lease.owner_token))


# -- merged releases ------------------------------------------------------------------------------------------------


def merging(instances: int = 3) -> ScriptedFleet:
    return ScriptedFleet(instances, dialect=EVALSHA, settings=settings_of(merge_releases=True))


def merged(fleet: ScriptedFleet, releases: int) -> list[ReleaseRound]:
    """So many releases in one turn, sent."""
    leases = [fleet.won(f"r{number}") for number in range(releases)]
    rounds = [fleet.engine.release_round(lease, fleet.now_ns) for lease in leases]
    for round_ in rounds:
        fleet.engine.submit_release(round_)
    fleet.flush()
    return rounds


def test_releases_of_one_turn_are_merged_into_one_script() -> None:
    fleet = merging()
    rounds = merged(fleet, 5)
    (command,) = fleet.unanswered[0]
    assert command[:3] == [b"EVALSHA", COMPARE_AND_DELETE_MANY.sha, b"5"]
    assert claims_of(command) == [(round_.won.resource.encode(), token_of(round_)) for round_ in rounds]
    for index in range(3):
        fleet.reply(index, b"*5\r\n:1\r\n:0\r\n:1\r\n:0\r\n:1\r\n")
    assert [name_of(round_) for round_ in rounds] == ["released", "gone"] * 2 + ["released"]
    assert [status.commands for status in fleet.engine.status()] == [6, 6, 6]


@pytest.mark.parametrize("releases", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("cut", [0, 1, 2, 5, 9, 13])
def test_a_merged_reply_may_come_in_any_pieces(releases: int, cut: int) -> None:
    fleet = merging()
    rounds = merged(fleet, releases)
    data = ONE if releases == 1 else b"*%d\r\n" % releases + ONE * releases
    for index in range(3):
        fleet.engine.received(index, data[:cut], fleet.now_ns)
        fleet.engine.received(index, data[cut:], fleet.now_ns)
    assert {name_of(round_) for round_ in rounds} == {"released"}
    assert [round_.tally.granted for round_ in rounds] == [3] * releases
    assert [status.pending for status in fleet.engine.status()] == [0, 0, 0]


def test_a_single_release_is_not_merged() -> None:
    fleet = merging()
    fleet.release(fleet.won())
    (command,) = fleet.unanswered[0]
    assert command[:3] == [b"EVALSHA", COMPARE_AND_DELETE.sha, b"1"]


def test_a_set_on_a_key_flushes_its_pending_release_first() -> None:
    fleet = merging()
    leases = [fleet.won(f"r{number}") for number in range(3)]
    for lease in leases:
        fleet.engine.submit_release(fleet.engine.release_round(lease, fleet.now_ns))
    free, taken = fleet.begin("r9"), fleet.begin("r1")
    fleet.flush()
    tokens = [token for _, token in order_at(fleet, 0)][3:]
    assert tokens.index(leases[1].owner_token) < tokens.index(token_of(taken))
    assert set(tokens) == {lease.owner_token for lease in leases} | {token_of(free), token_of(taken)}


def test_releases_are_merged_only_where_all_voters_take_scripts_and_only_if_asked() -> None:
    mixed = ScriptedFleet(3, connect=False, settings=settings_of(merge_releases=True))
    for index, dialect in enumerate([EVALSHA, EVALSHA, DELIFEQ]):
        mixed.attach(index, dialect=dialect)
    switched_off = ScriptedFleet(3, dialect=EVALSHA)
    for fleet in (mixed, switched_off):
        for lease in [fleet.won("a"), fleet.won("b")]:
            fleet.engine.submit_release(fleet.engine.release_round(lease, fleet.now_ns))
        fleet.flush()
        assert [kind_of(command) for command in fleet.unanswered[0]] == ["release", "release"]


# -- scripts that are not known -------------------------------------------------------------------------------------


def test_an_unknown_script_is_sent_again_with_its_source() -> None:
    fleet = ScriptedFleet(3, dialect=EVALSHA)
    lease = fleet.won()
    round_ = fleet.release(lease)
    fleet.reply_all(NOSCRIPT)
    assert name_of(round_) is None
    fleet.flush()
    (command,) = fleet.unanswered[0]
    assert command == [b"EVAL", COMPARE_AND_DELETE.source, b"1", b"stock", lease.owner_token]
    fleet.reply_all(ONE)
    assert name_of(round_) == "released"
    assert round_.tally == (3, 0, 0, 0, 0, 0)


def test_an_extension_with_an_unknown_script_too() -> None:
    fleet = ScriptedFleet(3, dialect=EVALSHA)
    lease = fleet.won()
    round_ = fleet.extend(lease, 9_000)
    fleet.reply(0, NOSCRIPT)
    fleet.flush()
    assert fleet.unanswered[0] == [[b"EVAL", COMPARE_AND_EXTEND.source, b"1", b"stock", lease.owner_token, b"9000"]]
    fleet.reply_all(ONE)
    assert name_of(round_) == "released"


def test_a_merged_release_whose_script_is_unknown_teaches_it_and_releases_one_by_one() -> None:
    fleet = merging()
    rounds = merged(fleet, 4)
    fleet.reply(0, NOSCRIPT)
    fleet.flush()
    assert fleet.unanswered[0][0] == [b"SCRIPT", b"LOAD", COMPARE_AND_DELETE_MANY.source]
    assert [command[:2] for command in fleet.unanswered[0][1:]] == [[b"EVAL", COMPARE_AND_DELETE.source]] * 4
    fleet.reply(0, b"+sha\r\n", ONE, ONE, ZERO, ONE)
    for index in (1, 2):
        fleet.reply(index, b"*4\r\n:1\r\n:1\r\n:0\r\n:1\r\n")
    assert [name_of(round_) for round_ in rounds] == ["released", "released", "gone", "released"]
    assert fleet.is_empty()


def test_a_release_that_times_out_is_still_sent_again_when_its_script_was_unknown() -> None:
    fleet = ScriptedFleet(3, dialect=EVALSHA)
    round_ = fleet.release(fleet.won())
    fleet.reply_all(ONE, of=[0, 1])
    fleet.tick(60)
    fleet.reply(2, NOSCRIPT)
    fleet.flush()
    assert fleet.unanswered[2][0][0] == b"EVAL"
    fleet.reply(2, ONE)
    assert round_.tally == (2, 0, 0, 1, 0, 0)


# -- connections that break in the middle ---------------------------------------------------------------------------


def test_a_script_sent_again_that_is_never_answered_still_times_out() -> None:
    """Its batch has long been answered by its last command, and forgotten."""
    fleet = ScriptedFleet(3, dialect=EVALSHA)
    leases = [fleet.won("a"), fleet.won("b")]
    rounds = [fleet.engine.release_round(lease, fleet.now_ns) for lease in leases]
    for round_ in rounds:
        fleet.engine.submit_release(round_)
    fleet.flush()
    fleet.reply_all(NOSCRIPT, ONE)
    fleet.ask("next")
    assert [name_of(round_) for round_ in rounds] == [None, "released"]
    fleet.tick(60)
    assert name_of(rounds[0]) == "unreachable"


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("broken", [{0}, {1}, {2}, {0, 1}, {1, 2}, {0, 1, 2}])
def test_a_send_that_breaks_leaves_every_other_connection_in_order(broken: set[int], at_once: bool) -> None:
    """The break is noticed inside the flush, whose own clean-ups are queued while it still sends."""
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
    """Sending to the first breaks it; its clean-ups break the next, before the command was queued there."""
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
    assert fleet.engine.status()[0].owed_releases == owed
    check_all_is_well(fleet, [])
    assert [kind for kind, _ in order_at(fleet, 0)] == ["set"] * owed + ["release"] * owed + ["set"]


def test_a_connection_that_breaks_while_its_replies_are_read_forgets_the_rest() -> None:
    """An unknown script is answered at once, which breaks the connection between two of its replies."""
    fleet = ScriptedFleet(3, dialect=EVALSHA)
    rounds: list[Round] = [fleet.release(lease) for lease in [fleet.won(name) for name in "abc"]]
    fleet.at_once, fleet.breaks = True, {0}
    fleet.reply(0, NOSCRIPT, ONE, ONE)
    assert fleet.engine.status()[0].pending == 0
    assert fleet.engine.status()[0].owed_releases == 3
    check_all_is_well(fleet, rounds)


def check_all_is_well(fleet: ScriptedFleet, rounds: list[Round]) -> None:
    """Every vote was counted where it belongs; all are settled, everybody reconnects, nothing is kept, and the next
    lock is granted by every instance."""
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
    kept = {token_of(one) for one in rounds if isinstance(one, SetRound) and name_of(one) == "acquired"}
    for index in range(len(fleet.sent)):
        left = {token for kind, token in order_at(fleet, index) if kind == "set"}
        left -= {token for kind, token in order_at(fleet, index) if kind == "release"}
        assert left <= kept, f"instance {index} was never told to release"
    assert fleet.won("afterwards").tally.granted == len(fleet.sent)


@pytest.mark.parametrize("company", [0, 5])
@pytest.mark.parametrize("what", ["set", "release"])
def test_what_was_queued_for_a_broken_connection_does_not_leave_on_the_next_one(what: str, company: int) -> None:
    """It is silent or owed by then: sent as well, its answer would be taken for that of another command."""
    fleet = ScriptedFleet(3, settings=settings_of())
    lease = fleet.won("held")
    fleet.detach(2)
    if what == "set":
        for number in range(company + 1):
            fleet.begin(f"r{number}")
    release = fleet.engine.release_round(lease, fleet.now_ns)
    fleet.engine.submit_release(release)
    fleet.detach(0)
    fleet.attach(0)
    fleet.flush()
    assert fleet.kinds(0).count("set") == 1
    assert fleet.about(0, release.won) == ["set", "release"]
    assert fleet.engine.status()[0].pending == len(fleet.unanswered[0])


# -- replies that cannot be -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("company", [0, 5])
@pytest.mark.parametrize("data", [OK, NIL, ONE + ONE, b"-ERR\r\n", b"*0\r\n"])
def test_a_reply_nobody_asked_for_is_an_error(data: bytes, company: int) -> None:
    fleet = ScriptedFleet(2)
    for number in range(company):
        fleet.begin(f"r{number}")
    fleet.flush()
    with pytest.raises(ProtocolError, match="host:7001 sent a reply nobody asked for"):
        fleet.engine.received(1, OK * company + data, fleet.now_ns)
    assert fleet.engine.status()[1].pending == 0


@pytest.mark.parametrize("company", [1, 5])
def test_bytes_that_are_no_replies_are_an_error(company: int) -> None:
    fleet = ScriptedFleet(2)
    for number in range(company):
        fleet.begin(f"r{number}")
    fleet.flush()
    with pytest.raises(ProtocolError, match="host:7000 does not speak RESP2"):
        fleet.engine.received(0, b"HTTP/1.1 400 Bad Request\r\n", fleet.now_ns)
