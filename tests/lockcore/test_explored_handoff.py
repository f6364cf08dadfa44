"""Turns passed between processes in simulated schedules: no schedule breaks the lock, and nobody
waits in vain."""

from collections import Counter
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import pytest
from msgspec import structs

from bench.experiments.explore import engine_client
from bench.experiments.explore.engine_client import EngineClient
from bench.experiments.explore.network import LATENCY_NS, SimulatedServer
from bench.experiments.explore.play import Play
from bench.experiments.explore.schedule import at_random
from bench.experiments.explore.search import numbered, setting_of
from bench.recipes.redlock import RedlockRecipe
from lockcore.clock import NS_PER_S
from lockcore.engine.engine import Engine
from lockcore.engine.handoff import Handoff
from lockcore.engine.members import Members
from lockcore.facts.membership import Hello
from lockcore.facts.model import ACQUIRED
from lockcore.rounds.rounds import SetRound
from tests.lockcore.scripted import rounds_kept
from tests.lockcore.source import needs_source

REDLOCK = structs.replace(setting_of("redlock", RedlockRecipe.about), callers=4, resources=1)
EXECUTE = SimulatedServer.execute


def deliver(server: SimulatedServer, channel: bytes, word: bytes) -> int:
    """To every connection whose inbox that is, behind the replies it has been sent."""
    heard = [
        link
        for link in server.links.values()
        if getattr(link, "inbox", b"") == channel and link.is_open
    ]
    push = b">3\r\n" + b"".join(
        b"$%d\r\n%b\r\n" % (len(part), part) for part in (b"message", channel, word)
    )
    for link in heard:
        link._returns_ns = due_ns = max(link._returns_ns, link.world.now_ns + LATENCY_NS)
        link.world.at(due_ns, partial(link._tell, link.heard, push))
    return len(heard)


def execute(server: SimulatedServer, command: list[bytes]) -> bytes:
    return (
        b":%d\r\n" % deliver(server, *command[1:])
        if command[0] == b"PUBLISH"
        else EXECUTE(server, command)
    )


@pytest.fixture(autouse=True)
def words_are_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every client pushes, and hears on every connection it makes."""
    settings = replace(engine_client.SETTINGS, retry=replace(engine_client.RETRY, policy="push"))
    connect = EngineClient._connect
    attach = Members.attach

    def hearing(self: EngineClient, index: int) -> None:
        connect(self, index)
        link = self._links[index]
        if link is not None and self.engine.handoff is not None:
            link.inbox = self.engine.handoff.mail.inbox  # type: ignore[attr-defined]

    def attached(self: Members, index: int, hello: Hello, *told: Any) -> None:
        attach(self, index, replace(hello, hears=True), *told)

    monkeypatch.setattr(engine_client, "SETTINGS", settings)
    monkeypatch.setattr(SimulatedServer, "execute", execute)
    monkeypatch.setattr(EngineClient, "_connect", hearing)
    monkeypatch.setattr(Members, "attach", attached)


def broken(number: int) -> tuple[str, str, int, Counter[bytes]]:
    """What a schedule came to, and the commands that were sent in it."""
    _, played = numbered(REDLOCK, number, 7)
    calls = Counter(event[5][0] for event in played.seen if event[1] == "call")
    return played.broken, played.raised, played.tested, calls


@needs_source
def test_no_schedule_breaks_it() -> None:
    tested = 0
    calls = Counter[bytes]()
    for number in range(400):
        wrong, raised, found, called = broken(number)
        assert (wrong, raised) == ("", ""), number
        tested = tested + found
        calls = calls + called
    assert tested > 150
    assert calls[b"PUBLISH"] > 1_000


@needs_source
def test_when_all_is_answered_nothing_is_kept() -> None:
    calm = 0
    setting = structs.replace(REDLOCK, callers=6, resources=2, rounds=2)
    for number in range(40):
        one = Play(setting, at_random(setting, Random(number), {}))
        assert one.run().broken == ""
        for _, client in one.lockers.values():
            if client.is_calm:
                calm += 1
                client.engine.tick(one.world.now_ns + NS_PER_S)
                client.engine.take_ready()
                assert not client.engine.turns.lines
                assert rounds_kept(client.engine) == []
    assert calm > 40


def _believed(self: Handoff, message: object, index: int) -> None:
    """A planted fault: a process whose turn it is holds the lock."""
    HEARD(self, message, index)
    if isinstance(message, bytes) and message.startswith(b"2:turn:"):
        for part in list(self.engine.asked_now):  # type: ignore[attr-defined]
            if part.outcome is None:
                part.outcome = ACQUIRED
                self.engine.ready.append(part)


HEARD = Handoff.heard
SUBMIT = Engine.submit


@needs_source
def test_a_lock_that_believes_words_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def submit(self: Any, round_: SetRound) -> None:
        SUBMIT(self, round_)
        self.asked_now = [*getattr(self, "asked_now", []), round_][-4:]

    monkeypatch.setattr(Engine, "submit", submit)
    monkeypatch.setattr(Handoff, "heard", _believed)
    assert any(broken(number)[0] for number in range(400))
