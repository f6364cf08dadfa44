"""One connection's order: however its bytes are cut, every reply reaches the round that awaits
it."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from lockcore.errors import ProtocolError
from lockcore.facts.model import Outcome
from lockcore.rounds.replies import MOST_UNASKED
from lockcore.rounds.rounds import Round
from tests.doubles.keyspace import MISCONF, NIL, OK, ONE, WRONGTYPE, ZERO
from tests.lockcore.scripted import (
    DELEX,
    DELIFEQ,
    EVALSHA,
    ScriptedFleet,
    name_of,
    rounds_kept,
    settings_of,
)

Feed = Callable[[ScriptedFleet, int, bytes], None]
INSTANCES = 5


def at_once(fleet: ScriptedFleet, index: int, data: bytes) -> None:
    fleet.engine.received(index, data, fleet.now_ns)


def byte_by_byte(fleet: ScriptedFleet, index: int, data: bytes) -> None:
    for position in range(len(data)):
        fleet.engine.received(index, data[position : position + 1], fleet.now_ns)


def in_pieces(fleet: ScriptedFleet, index: int, data: bytes) -> None:
    random = Random(len(data) + index)
    while data:
        cut = random.randrange(1, len(data) + 1)
        fleet.engine.received(index, data[:cut], fleet.now_ns)
        data = data[cut:]


def story(
    feed: Feed, seed: int, rounds: int, merge: bool
) -> list[tuple[str | None, tuple[int, ...]]]:
    """The same attempts, releases and answers, fed in one way or another: their names and votes."""
    random = Random(seed)
    dialect = random.choice([DELIFEQ, DELEX, EVALSHA])
    fleet = ScriptedFleet(INSTANCES, dialect=dialect, settings=settings_of(merge_releases=merge))
    chance = random.choice([0.0, 0.02, 0.3])
    asked: list[Round] = [fleet.begin(f"r{number}") for number in range(rounds)]
    answer_all(fleet, feed, random, chance)
    leases = [fleet.won(f"w{number}") for number in range(rounds)]
    asked += map(fleet.give_back, leases)
    answer_all(fleet, feed, random, chance)
    fleet.engine.take_ready()
    fleet.tick(60)
    assert fleet.is_empty()
    assert rounds_kept(fleet.engine) == []
    return [(name_of(round_), tuple(round_.tally)) for round_ in asked]


def answer_all(fleet: ScriptedFleet, feed: Feed, random: Random, chance: float) -> None:
    """Every instance answers everything, mostly yes, in whatever pieces."""
    fleet.flush()
    while any(fleet.unanswered):
        for index, commands in enumerate(fleet.unanswered):
            data = b""
            for command in commands:
                data += answer(command, random, chance)
            commands.clear()
            if data:
                feed(fleet, index, data)
        fleet.flush()


def answer(command: list[bytes], random: Random, chance: float) -> bytes:
    said = random.random()
    if command[0] == b"SET":
        if said >= chance:
            return OK
        return NIL if said >= chance / 4 else MISCONF
    if command[0] == b"EVALSHA" and int(command[2]) > 1:
        lines = [ONE if random.random() >= chance else ZERO for _ in range(int(command[2]))]
        return b"*%d\r\n" % len(lines) + b"".join(lines)
    if said >= chance:
        return ONE
    return ZERO if said >= chance / 4 else WRONGTYPE


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("rounds", [1, 3, 4, 20])
@pytest.mark.parametrize("seed", range(6))
def test_fed_byte_by_byte_or_in_pieces_the_votes_are_those_fed_at_once(
    seed: int, rounds: int, merge: bool
) -> None:
    """Small batches are parsed, large ones compared with what is expected: both count alike."""
    expected = story(at_once, seed, rounds, merge)
    assert story(byte_by_byte, seed, rounds, merge) == expected
    assert story(in_pieces, seed, rounds, merge) == expected


@pytest.mark.parametrize(
    "push", [b">0\r\n", b">1\r\n_\r\n", b">3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$1\r\ny\r\n"]
)
def test_a_flood_of_pushes_that_must_be_parsed_ends_its_connection_and_no_vote_of_others(
    push: bytes,
) -> None:
    fleet = ScriptedFleet(3)
    round_ = fleet.ask()
    some = push * MOST_UNASKED
    # so many in each piece of data are read: a client that was held up may find some
    for _ in range(2):
        at_once(fleet, 0, some)
    with pytest.raises(
        ProtocolError, match=r"host:7000 sent more than 256 unrequested pushes at once"
    ):
        at_once(fleet, 0, some + push)
    fleet.detach(0, "protocol error")
    fleet.reply_all(OK, of=[1, 2])
    assert round_.outcome is Outcome.ACQUIRED
