"""lockcore's lock as a recipe: untouched on its hot path, wrapped only for a pause."""

from __future__ import annotations

import pytest
from redis import Redis

from bench.recipes.protocol import RecipeSettings
from bench.recipes.redlock import RedlockRecipe
from bench.topology.fleet import Fleet
from lockcore import Redlock

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
