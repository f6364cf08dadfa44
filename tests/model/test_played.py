"""Every assumption of the model is one of lockcore: without it `explore` plays the course that the
model predicts.

The removal is planted into lockcore where its code keeps the assumption, else into what the
simulator may do.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
from msgspec import structs

from bench.experiments.explore import engine_client
from bench.experiments.explore.schedule import TTL_MS
from bench.experiments.explore.search import hunt, numbered, setting_of
from bench.recipes.redlock import RedlockRecipe
from lockcore import Denied, Lease, Outcome
from lockcore.engine import attempt, members
from lockcore.engine.engine import Engine
from lockcore.rounds import awaited, claims
from lockcore.rounds.commands import Dialect
from tests.model.checker import REMOVED

REDLOCK = setting_of("redlock", RedlockRecipe.about)
# schedules: 8 s
MOST = 4_000
# of the client with a longer TTL
LONG = 3
Plant = Callable[[pytest.MonkeyPatch], None]


def _set(place: object, name: str, planted: object) -> Plant:
    return lambda monkeypatch: monkeypatch.setattr(place, name, planted)


def _extension_from_its_reply(
    engine: Engine, lease: Lease, ttl_ms: int, now_ns: int
) -> Iterator[Any]:
    terms = engine.terms(ttl_ms)
    round_ = engine.extend_round(lease, terms, now_ns)
    now_ns = yield from attempt._settled(round_)
    if round_.outcome is not Outcome.RELEASED:
        return attempt._denied(lease, round_, round_.outcome or Outcome.UNREACHABLE, now_ns)
    return replace_end(lease, now_ns, now_ns + terms.usable_ns)


def replace_end(lease: Lease, now_ns: int, until_ns: int) -> Lease:
    """The lease, granted now, until then."""
    return Lease(
        lease.resource,
        lease.owner_token,
        lease.ttl_ms,
        lease.started_ns,
        now_ns,
        until_ns,
        lease.round,
        lease.attempts,
        lease.split_votes,
    )


def _one_longer_ttl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Client 1 of 2 locks for longer than what the other takes for the longest of all."""
    longer = replace(engine_client.SETTINGS, max_ttl_ms=LONG * TTL_MS)
    settings = cycle((longer, engine_client.SETTINGS))
    made = Engine
    acquire = engine_client.EngineClient.acquire
    monkeypatch.setattr(
        engine_client, "Engine", lambda names, _, flush: made(names, next(settings), flush)
    )

    def longer_by(client: Any, resource: str, ttl_ms: int, wait_ms: int) -> Lease | Denied:
        return acquire(client, resource, ttl_ms * (1 if client._process.number else LONG), wait_ms)

    monkeypatch.setattr(engine_client.EngineClient, "acquire", longer_by)


PLANTED: dict[str, Plant] = {
    "a quorum is a majority": _set(awaited, "quorum_of", lambda instances: instances // 2),
    "validity leaves room for drift": _set(claims, "drift_ns", lambda ttl_ms, factor: 0),
    "a restarted instance abstains": _set(members, "abstention_ns", lambda *_: 0),
    "no client has a longer TTL than instances abstain": _one_longer_ttl,
    "a release asks for the owner": _set(
        Dialect, "encode_release", property(lambda self: (b"*3\r\n$3\r\nDEL\r\n").__add__)
    ),
    "who gives up cleans up behind late SETs": _set(Engine, "clean_up", lambda self, round_: None),
    "an extension counts from its sending": _set(
        engine_client, "extend_steps", _extension_from_its_reply
    ),
    "nobody forgets without a restart": lambda _monkeypatch: None,
}
PAUSES = {"step": ("pause",), "start": ("late",)}
RESTARTS = structs.replace(REDLOCK, may={**PAUSES, "serve": ("restart",)})
SETTINGS = {
    "a restarted instance abstains": RESTARTS,
    "no client has a longer TTL than instances abstain": structs.replace(
        RESTARTS, hold_ms=2 * TTL_MS
    ),
    "an extension counts from its sending": structs.replace(REDLOCK, may=PAUSES),
    "nobody forgets without a restart": structs.replace(
        REDLOCK, may={**PAUSES, "serve": ("forget",)}
    ),
}


def test_every_assumption_of_the_model_is_played() -> None:
    assert set(PLANTED) == set(REMOVED)


@pytest.mark.parametrize("name", PLANTED)
def test_without_it_a_course_breaks_the_lock(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[name](monkeypatch)
    setting = SETTINGS.get(name, REDLOCK)
    found = hunt(numbered(setting, number, 1) for number in range(MOST))
    assert found.broken is not None
    rule = found.broken.rule
    wanted = {
        "who gives up cleans up behind late SETs": "a key was left",
        "a quorum is a majority": "a lease was",
        "an extension counts from its sending": "a lease was extended after its end",
    }
    assert rule.startswith(wanted.get(name, "two leases were valid")), rule
    print(f"{name}: {rule}, {len(found.broken.steps)} steps, {found.played} schedules")
