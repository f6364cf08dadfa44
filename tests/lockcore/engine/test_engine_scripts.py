"""Releases and extensions by script: merged in one call, and sent again with their source where
they are unknown."""

from lockcore.rounds.commands import COMPARE_AND_DELETE, COMPARE_AND_DELETE_MANY, COMPARE_AND_EXTEND
from lockcore.rounds.rounds import ReleaseRound
from tests.doubles.keyspace import NOSCRIPT, ONE, ZERO
from tests.lockcore.scripted import (
    DELIFEQ,
    EVALSHA,
    ScriptedFleet,
    claims_of,
    kind_of,
    name_of,
    settings_of,
    token_of,
)


def merging(instances: int = 3) -> ScriptedFleet:
    return ScriptedFleet(instances, dialect=EVALSHA, settings=settings_of(merge_releases=True))


def merged(fleet: ScriptedFleet, releases: int) -> list[ReleaseRound]:
    """So many releases in one turn, sent."""
    return fleet.release_together([fleet.won(f"r{number}") for number in range(releases)])


def test_releases_of_one_turn_are_merged_into_one_script() -> None:
    fleet = merging()
    rounds = merged(fleet, 5)
    (command,) = fleet.unanswered[0]
    assert command[:3] == [b"EVALSHA", COMPARE_AND_DELETE_MANY.sha, b"5"]
    assert claims_of(command) == [
        (round_.won.resource.encode(), token_of(round_)) for round_ in rounds
    ]
    for index in range(3):
        fleet.reply(index, b"*5\r\n:1\r\n:0\r\n:1\r\n:0\r\n:1\r\n")
    assert [name_of(round_) for round_ in rounds] == ["released", "gone"] * 2 + ["released"]
    assert [status.commands for status in fleet.engine.members.status()] == [6, 6, 6]


def test_a_single_release_is_not_merged() -> None:
    fleet = merging()
    fleet.release(fleet.won())
    (command,) = fleet.unanswered[0]
    assert command[:3] == [b"EVALSHA", COMPARE_AND_DELETE.sha, b"1"]


def test_a_set_on_a_key_flushes_its_pending_release_first() -> None:
    fleet = merging()
    leases = [fleet.won(f"r{number}") for number in range(3)]
    for lease in leases:
        fleet.give_back(lease)
    free = fleet.begin("r9")
    taken = fleet.begin("r1")
    fleet.flush()
    tokens = [token for _, token in fleet.order(0)][3:]
    assert tokens.index(leases[1].owner_token) < tokens.index(token_of(taken))
    assert set(tokens) == {lease.owner_token for lease in leases} | {
        token_of(free),
        token_of(taken),
    }


def test_releases_are_merged_only_where_all_voters_take_scripts_and_only_if_asked() -> None:
    mixed = ScriptedFleet(3, connect=False, settings=settings_of(merge_releases=True))
    for index, dialect in enumerate([EVALSHA, EVALSHA, DELIFEQ]):
        mixed.attach(index, dialect=dialect)
    switched_off = ScriptedFleet(3, dialect=EVALSHA)
    for fleet in (mixed, switched_off):
        fleet.release_together([fleet.won("a"), fleet.won("b")])
        assert [kind_of(command) for command in fleet.unanswered[0]] == ["release", "release"]


# -- scripts that are not known --------------------------------------------------------------------


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
    assert fleet.unanswered[0] == [
        [b"EVAL", COMPARE_AND_EXTEND.source, b"1", b"stock", lease.owner_token, b"9000"]
    ]
    fleet.reply_all(ONE)
    assert name_of(round_) == "released"


def test_a_merged_release_whose_script_is_unknown_teaches_it_and_releases_one_by_one() -> None:
    fleet = merging()
    rounds = merged(fleet, 4)
    fleet.reply(0, NOSCRIPT)
    fleet.flush()
    assert fleet.unanswered[0][0] == [b"SCRIPT", b"LOAD", COMPARE_AND_DELETE_MANY.source]
    assert [command[:2] for command in fleet.unanswered[0][1:]] == [
        [b"EVAL", COMPARE_AND_DELETE.source]
    ] * 4
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
