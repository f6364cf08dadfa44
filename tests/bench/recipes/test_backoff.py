"""When an exponential back-off asks again."""

from __future__ import annotations

from redis import Redis

from bench.recipes.protocol import RecipeSettings
from bench.recipes.set_nx import Backoff
from bench.topology.fleet import Fleet
from lockcore import Outcome, RetryPolicy
from lockcore.clock import NS_PER_MS


def test_it_waits_twice_as_long_each_time_up_to_five_seconds(
    fleet: Fleet, server: Redis, settings: RecipeSettings
) -> None:
    recipe = Backoff.connect(fleet.urls[:1], settings)
    late_ns = 10**12
    delays = [recipe.next_start_ns(Outcome.CONTENDED, attempts, 0, late_ns) for attempts in (1, 2, 3, 6, 7, 8, 10_000)]
    assert [(delay or 0) // NS_PER_MS for delay in delays] == [100, 200, 400, 3200, 5000, 5000, 5000]
    recipe.close()


def test_it_neither_passes_the_deadline_nor_retries_what_is_unreachable(
    fleet: Fleet, server: Redis, settings: RecipeSettings
) -> None:
    recipe = Backoff.connect(fleet.urls[:1], settings)
    assert recipe.next_start_ns(Outcome.CONTENDED, 1, 0, 100 * NS_PER_MS) == 100 * NS_PER_MS
    assert recipe.next_start_ns(Outcome.CONTENDED, 1, 0, 100 * NS_PER_MS - 1) is None
    assert recipe.next_start_ns(Outcome.UNREACHABLE, 1, 0, 10**12) is None
    recipe.close()


def test_the_other_recipes_follow_the_scenarios_policy(fleet: Fleet, server: Redis, settings: RecipeSettings) -> None:
    from dataclasses import replace

    from bench.recipes.set_nx import SetNxLuaRecipe

    recipe = SetNxLuaRecipe.connect(fleet.urls[:1], replace(settings, retry=RetryPolicy("fixed", 40.0, 3)))
    starts = [recipe.next_start_ns(Outcome.CONTENDED, attempts, 0, 10**12) for attempts in (1, 2, 3)]
    assert starts[2] is None
    assert all(30 * NS_PER_MS <= (start or 0) <= 50 * NS_PER_MS for start in starts[:2])
    recipe.close()
