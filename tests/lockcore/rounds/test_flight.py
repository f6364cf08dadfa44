"""A flight: replies to many rounds, counted together, come to what they come to one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest

from lockcore.facts.model import AttemptRecord
from lockcore.rounds.rounds import Round
from tests.doubles.keyspace import MISCONF, NIL, OK, ONE, ZERO
from tests.lockcore.scripted import ScriptedFleet, kind_of, name_of, rounds_kept, settings_of

INSTANCES = 5


@pytest.mark.parametrize(
    "answers", [(OK, OK, NIL), (OK, OK, OK, OK, NIL, MISCONF)], ids=["refused", "refused-or-failed"]
)
@pytest.mark.parametrize("seed", range(12))
def test_a_large_batch_is_counted_like_its_rounds_one_by_one(
    seed: int, answers: Sequence[bytes]
) -> None:
    """The same answers to the same attempts, batched or each flushed alone, in the same order and
    the same pieces."""
    outcomes = []
    for batched in (True, False):
        random = Random(seed)
        fleet = ScriptedFleet(INSTANCES)
        rounds = []
        for number in range(12):
            rounds.append(fleet.begin(f"r{number}"))
            if not batched:
                fleet.flush()
        fleet.flush()
        for _ in range(80):
            index = random.randrange(INSTANCES)
            replies = random.choices(answers, k=random.randint(1, 5))[
                : len(fleet.unanswered[index])
            ]
            if replies:
                fleet.reply(index, *replies)
        outcomes.append([(name_of(round_), round_.tally, round_.cleaned) for round_ in rounds])
    assert outcomes[0] == outcomes[1]


class Seen(list[AttemptRecord]):
    """An observer."""

    observe = list.append


def told_alike(seed: int, instances: int, *, batched: bool) -> list[object]:
    """Instances that mostly agree, about which keys are held too: what is known of every round
    after every piece."""
    random = Random(seed)
    seen = Seen()
    fleet = ScriptedFleet(instances, settings=settings_of(observer=seen, observe_every=5))

    def play(begin: Callable[[int], Round], yes: bytes, no: bytes) -> list[object]:
        says = [random.choice([[yes], [yes], [no], [yes, no, MISCONF]]) for _ in range(12)]
        left = [[random.choice(said) for said in says] for _ in range(instances)]
        rounds = list[Round]()
        for number in range(12):
            rounds.append(begin(number))
            if not batched:
                fleet.flush()
        fleet.flush()
        return answered_in_pieces(fleet, rounds, left, random)

    known = play(lambda number: fleet.begin(f"r{number}"), OK, NIL)
    leases = [fleet.won(f"w{number}") for number in range(12)]
    known += play(lambda number: fleet.give_back(leases[number]), ONE, ZERO)
    fleet.tick(60)
    fleet.engine.take_ready()
    assert fleet.is_empty()
    assert rounds_kept(fleet.engine) == []
    return [*known, sorted(map(repr, seen))]


def answered_in_pieces(
    fleet: ScriptedFleet, rounds: Sequence[Round], left: list[list[bytes]], random: Random
) -> list[object]:
    """Connections break and callers go away meanwhile; in the end all is answered, or given up."""
    known = list[object]()
    for _ in range(40):
        index = random.randrange(len(left))
        event = random.random()
        size = random.randint(1, 12)
        piece = left[index][:size]
        left[index][:] = left[index][size:]
        if event < 0.02:
            fleet.detach(index)
        elif event < 0.04:
            random.choice(rounds).abandon()
        if piece and fleet.engine.pipes[index].is_open:
            fleet.reply(index, *piece)
        known.append([(name_of(round_), round_.tally) for round_ in rounds])
    fleet.tick(60)
    known.append([(name_of(round_), round_.tally) for round_ in rounds])
    for index, pipe in enumerate(fleet.engine.pipes):
        known.append((dict(pipe.traffic.errors), sorted(map(kind_of, fleet.sent[index]))))
        if not pipe.is_open:
            fleet.attach(index)
    fleet.drain()
    return known


@pytest.mark.parametrize("instances", [1, 2, 3, 4, 5, 6])
def test_what_all_say_alike_is_counted_together_like_one_by_one(instances: int) -> None:
    for seed in range(60):
        assert told_alike(seed, instances, batched=True) == told_alike(
            seed, instances, batched=False
        ), seed


def test_a_batch_in_flight_shows_the_votes_it_has_so_far(fleet: ScriptedFleet) -> None:
    rounds = [fleet.begin(f"r{number}") for number in range(6)]
    fleet.flush()
    fleet.reply(0, *[OK] * 6)
    fleet.reply(1, *[OK] * 3)
    assert [round_.tally for round_ in rounds] == [(2, 0, 0, 0, 0, 1)] * 3 + [
        (1, 0, 0, 0, 0, 2)
    ] * 3
    assert [name_of(round_) for round_ in rounds] == ["acquired"] * 3 + [None] * 3
    assert [status.pending for status in fleet.engine.members.status()] == [0, 3, 6]


def test_a_settled_round_is_reported_once() -> None:
    fleet = ScriptedFleet(5)
    rounds = [fleet.begin(f"r{number}") for number in range(6)]
    fleet.flush()
    for index in range(5):
        fleet.reply(index, *[OK] * 6)
    ready = fleet.engine.take_ready()
    assert sorted(map(id, ready)) == sorted(map(id, rounds))
    assert fleet.engine.take_ready() == []


def test_a_caller_gone_in_the_middle_of_a_batch_is_cleaned_up_and_the_others_are_not(
    fleet: ScriptedFleet,
) -> None:
    rounds = [fleet.begin(f"r{number}") for number in range(6)]
    fleet.flush()
    fleet.reply(0, *[OK] * 4)
    rounds[2].abandon()
    fleet.drain()
    assert [fleet.about(1, round_) for round_ in rounds] == [
        ["set", "release"] if number == 2 else ["set"] for number in range(6)
    ]
    assert [round_.tally.granted for round_ in rounds] == [3] * 6
    fleet.engine.take_ready()
    fleet.tick(60)
    assert rounds_kept(fleet.engine) == []
