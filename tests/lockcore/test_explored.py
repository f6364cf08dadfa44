"""lockcore in simulated schedules: none breaks it, and each planted fault is found and made
small."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from bench.experiments.explore import search
from bench.experiments.explore.play import Play
from bench.experiments.explore.schedule import at_random
from bench.experiments.explore.search import BLOCK, Hunt, hunt, numbered, setting_of
from bench.recipes.redlock import RedlockRecipe
from lockcore.clock import NS_PER_S
from lockcore.engine import attempt, members
from lockcore.engine.engine import Engine
from lockcore.engine.turns import Turns
from lockcore.facts.model import Lease
from lockcore.rounds import awaited, claims
from lockcore.rounds.commands import Dialect
from lockcore.rounds.flight import Flight
from lockcore.rounds.rounds import SetRound
from tests.lockcore.scripted import rounds_kept

REDLOCK = setting_of("redlock", RedlockRecipe.about)
REPLY = SetRound.reply
# schedules: 8 s
MOST = 4_000
Plant = Callable[[pytest.MonkeyPatch], None]


def test_no_schedule_breaks_lockcore_and_many_ask_for_a_lock_that_is_held() -> None:
    tested = 0
    what = Counter[str]()
    for number in range(500):
        _, played = numbered(REDLOCK, number, 7)
        assert (played.broken, played.raised) == ("", ""), number
        tested += played.tested
        what.update(event[1] for event in played.seen)
    assert tested > 150
    assert (
        min(
            what[name]
            for name in ("pause", "late", "lose", "cut", "kill", "restart", "stop", "flush", "full")
        )
        > 10
    )
    assert min(what[name] for name in ("granted", "extended", "gives back")) > 100


def test_a_schedule_is_the_same_whatever_its_process_has_played_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    # the one holds for a whole TTL
    for first in (4, 6):
        monkeypatch.setattr(search, "_USUAL", {})
        numbered(REDLOCK, first, 7)
        found.append([numbered(REDLOCK, number, 7)[0] for number in range(8, 40, 2)])
    assert found[0] == found[1]


@pytest.mark.parametrize("instances", [1, 2, 4, 5])
def test_nor_with_other_numbers_of_instances(instances: int) -> None:
    setting = replace(REDLOCK, instances=instances)
    assert {numbered(setting, number, 7)[1].broken for number in range(100)} == {""}


def test_when_all_is_answered_the_engines_remember_nothing() -> None:
    """Callers killed, connections broken, instances stopped: many callers at once."""
    setting = replace(REDLOCK, callers=6, resources=4, rounds=2)
    calm = 0
    for number in range(60):
        one = Play(setting, at_random(setting, Random(number), {}))
        assert one.run().broken == ""
        for _, client in one.lockers.values():
            if client.is_calm:
                calm += 1
                client.engine.tick(one.world.now_ns + NS_PER_S)
                client.engine.take_ready()
                assert not client.engine.turns.lines
                assert rounds_kept(client.engine) == []
    assert calm > 60


def test_a_turn_that_is_not_passed_on_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    keeping = lambda self, turn, **_told: self.lines[turn.resource].pop(turn, None)  # noqa: E731
    monkeypatch.setattr(Turns, "leave", keeping)
    with pytest.raises(AssertionError):
        test_when_all_is_answered_the_engines_remember_nothing()


def _blind(round_: SetRound, now_ns: int, attempts: int = 1, split_votes: int = 0) -> Lease:
    token = round_.claim.split(b"\r\n")[-2]
    until_ns = round_.started_ns + round_.terms.usable_ns
    ttl_ms = round_.terms.ttl_ms
    started_ns = round_.started_ns
    return Lease(
        round_.resource, token, ttl_ms, started_ns, now_ns, until_ns, round_, attempts, split_votes
    )


def _twice(self: SetRound, reply: object, pipe: Any) -> None:
    REPLY(self, reply, pipe)
    if reply == b"OK" and self.undecided:
        REPLY(self, reply, pipe)


PLANTED: dict[str, tuple[object, str, object, str]] = {
    "a quorum off by one": (awaited, "quorum_of", lambda instances: instances // 2, "a lease was"),
    "votes counted twice": (SetRound, "reply", _twice, "a lease was"),
    "a refusal of a batch given to the next round": (
        Flight,
        "next_of",
        lambda self, index: self.rounds[min(self.done[index] + 1, len(self.rounds) - 1)],
        "two leases were valid",
    ),
    "a refusal of a batch that its flight counts": (
        Flight,
        "set_apart",
        lambda self, index, start: None,
        "a lease was",
    ),
    "an ignored drift": (claims, "drift_ns", lambda ttl_ms, factor: 0, "two leases were valid"),
    "an ignored validity": (attempt, "lease_of", _blind, "a lease was"),
    "a skipped clean-up": (Engine, "clean_up", lambda self, round_: None, "a key was"),
    "a killed caller that is not cleaned up": (SetRound, "abandon", lambda self: None, "a key was"),
    "an owed release that is forgotten": (
        Engine,
        "owe",
        lambda self, pipe, round_: None,
        "a key was",
    ),
    "a skipped abstention": (members, "abstention_ns", lambda *_: 0, "two leases were valid"),
    "a release without owner check": (
        Dialect,
        "encode_release",
        property(lambda self: (b"*3\r\n$3\r\nDEL\r\n").__add__),
        "two leases were valid",
    ),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_found_and_shown_in_few_steps(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, name, planted, rule = PLANTED[fault]
    monkeypatch.setattr(place, name, planted)
    total = Hunt()
    for first in range(0, MOST, BLOCK):
        total.add(hunt(numbered(REDLOCK, number, 1) for number in range(first, first + BLOCK)))
        if total.is_enough:
            break
    assert total.broken, "not found"
    assert total.broken.rule.startswith(rule)
    assert len(total.broken.steps) - 1 <= 12, total.broken.steps
