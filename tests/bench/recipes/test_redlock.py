"""lockcore's lock as a recipe: untouched on its hot path, wrapped only for a pause."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from redis import Redis

from bench.recipes.protocol import RecipeSettings
from bench.recipes.redlock import OBSERVE_EVERY, RedlockRecipe
from bench.topology.fleet import Fleet
from lockcore import Lease, Outcome, Redlock

pytestmark = pytest.mark.integration


def test_its_hot_path_is_lockcores_own(
    fleet: Fleet, server: Redis, settings: RecipeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Redlock] = []
    connect = Redlock.connect.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        Redlock, "connect", lambda *urls, **told: made.append(connect(Redlock, *urls, **told)) or made[0]
    )
    recipe = RedlockRecipe.connect(fleet.urls[:1], settings)
    assert recipe.acquire == made[0].try_acquire
    assert recipe.release == made[0].try_release
    recipe.close()


def test_a_gate_is_passed_after_the_grant_and_before_the_release(
    fleet: Fleet, server: Redis, settings: RecipeSettings
) -> None:
    passed: list[tuple[str, int]] = []
    recipe = RedlockRecipe.connect(
        fleet.urls[:1], replace(settings, gate=lambda point: passed.append((point, server.dbsize())))
    )
    lease = recipe.acquire("r1", 5000, 0)
    assert isinstance(lease, Lease)
    assert recipe.release(lease) is Outcome.RELEASED
    assert passed == [("after-grant", 1), ("before-release", 1)]
    recipe.close()


def test_one_attempt_in_64_gives_its_reply_time(fleet: Fleet, server: Redis, settings: RecipeSettings) -> None:
    recipe = RedlockRecipe.connect(fleet.urls[:1], settings)
    times_ns: list[int] = []
    for _ in range(2 * OBSERVE_EVERY):
        recipe.release(recipe.acquire("r1", 5000, 0))  # type: ignore[arg-type]
    deadline = time.monotonic() + 30  # a round is observed when it closes, which may be after its grant
    while len(times_ns) < 2 and time.monotonic() < deadline:
        times_ns += recipe.take_reply_times_ns()[0]
    assert len(times_ns) == 2
    assert all(0 < time_ns < 1_000_000_000 for time_ns in times_ns)
    assert recipe.take_reply_times_ns() == ([],)
    recipe.close()
