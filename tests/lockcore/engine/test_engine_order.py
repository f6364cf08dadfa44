"""One order per connection: what is submitted first is sent first, and every reply finds its round,
whatever breaks."""

from random import Random

import pytest

from lockcore.engine.outbox import EARLY, LARGEST
from lockcore.facts.model import Lease
from tests.doubles.keyspace import OK
from tests.lockcore.scripted import (
    DELEX,
    DELIFEQ,
    EVALSHA,
    ScriptedFleet,
    settings_of,
    submit,
    token_of,
)


def test_a_batch_leaves_in_one_write_per_instance(fleet: ScriptedFleet) -> None:
    for number in range(10):
        fleet.begin(f"r{number}")
    fleet.flush()
    assert [len(writes) for writes in fleet.writes] == [1, 1, 1]
    assert fleet.writes[0] == fleet.writes[1] == fleet.writes[2]
    assert [status.commands for status in fleet.engine.members.status()] == [10, 10, 10]
    assert [status.bytes_sent for status in fleet.engine.members.status()] == [
        len(fleet.writes[0][0])
    ] * 3


def test_a_flush_is_wanted_once_per_batch(fleet: ScriptedFleet) -> None:
    for number in range(5):
        fleet.begin(f"r{number}")
    assert fleet.wanted == 1
    fleet.flush()
    fleet.begin()
    assert fleet.wanted == 2


@pytest.mark.parametrize(
    ("instances", "most"), [(1, EARLY), (2, EARLY), (3, LARGEST), (5, LARGEST)]
)
def test_the_first_commands_of_a_large_batch_leave_while_the_others_are_made(
    instances: int, most: int
) -> None:
    fleet = ScriptedFleet(instances)
    wanted_at = []
    for number in range(1, 2 * most + 2):
        before = fleet.wanted
        fleet.begin(f"r{number}")
        if fleet.wanted > before:
            wanted_at.append(number)
        if fleet.engine.outbox.queued == fleet.engine.outbox.early:
            fleet.flush()
    assert wanted_at == [1, most, most + 1, 2 * most, 2 * most + 1]
    assert len(fleet.writes[0]) == 2


def test_an_engine_is_idle_when_nothing_is_queued_and_nothing_awaited() -> None:
    fleet = ScriptedFleet(2)
    seen = [fleet.engine.is_idle]
    fleet.begin("a")
    fleet.begin("b")
    assert fleet.engine.outbox.queued == 2
    seen.append(fleet.engine.is_idle)
    fleet.flush()
    assert fleet.engine.outbox.queued == 0
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


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_mixed_every_connection_keeps_the_order_of_submission(seed: int) -> None:
    """SETs and releases to all, releases and extensions to some, flushes in between, instances that
    come and go."""
    random = Random(seed)
    instances = random.randrange(1, 7)
    dialects = [random.choice([DELIFEQ, DELEX, EVALSHA]) for _ in range(instances)]
    fleet = ScriptedFleet(instances, connect=False, settings=settings_of())
    for index, dialect in enumerate(dialects):
        fleet.attach(index, dialect=dialect)
    leases: list[Lease] = []
    expected: list[list[tuple[str, bytes]]] = [fleet.order(index) for index in range(instances)]
    for number in range(60):
        what = random.choice(["set", "set", "release", "extend", "flush", "won", "down", "up"])
        index = random.randrange(instances)
        is_open = [pipe.is_open for pipe in fleet.engine.pipes]
        if what == "won" and sum(is_open) > instances // 2:
            fleet.drain()
            leases.append(fleet.won(f"w{number}"))
            expected = [fleet.order(one) for one in range(instances)]
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
            expected = [fleet.order(one) for one in range(instances)]
        elif what == "up" and not is_open[index]:
            fleet.attach(index, dialect=dialects[index])
            fleet.drain()
            expected = [fleet.order(one) for one in range(instances)]
        elif what == "flush":
            fleet.flush()
    fleet.flush()
    assert [fleet.order(index) for index in range(instances)] == expected
    assert [status.commands for status in fleet.engine.members.status()] == [
        len(commands) for commands in fleet.sent
    ]


def submit_owned(
    fleet: ScriptedFleet, lease: Lease, what: str, expected: list[list[tuple[str, bytes]]]
) -> None:
    """Queue a release or an extension, and note where it must arrive."""
    engine = fleet.engine
    if what == "release":
        asked = [pipe.index for pipe in fleet.give_back(lease).won.voters if pipe.is_open]
    else:
        submit(engine, engine.extend_round(lease, engine.terms(lease.ttl_ms), fleet.now_ns))
        asked = [pipe.index for pipe in engine.pipes if pipe.is_open]
    for index in asked:
        expected[index].append((what, lease.owner_token))
