"""Every lock under test by name: *name → what it is known for, and its class when it is asked for*.

Rules: a recipe is imported only when it is asked for. What is known of it stands in its class (`about`). Add a recipe
here and as one file beside this one, or offer it from a package of your own (`plugins.py`); our names come first.
Source: the table in the README of this folder.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.errors import UsageError
from bench.recipes.entry import RecipeEntry
from bench.recipes.plugins import plugin_recipes
from bench.scenario.quantity import nearest

RECIPES: dict[str, RecipeEntry] = {
    entry.name: entry
    for entry in (
        RecipeEntry("redlock", "redlock", "RedlockRecipe"),
        RecipeEntry("redlock-sequential", "redlock_sequential", "RedlockSequential"),
        RecipeEntry("redlock-random-order", "redlock_sequential", "RedlockRandomOrder"),
        RecipeEntry("set-nx-lua", "set_nx_lua", "SetNxLuaRecipe"),
        RecipeEntry("get-set", "get_set", "GetSet"),
        RecipeEntry("setnx", "setnx", "Setnx"),
        RecipeEntry("setnx-expire", "setnx_expire", "SetnxExpire"),
        RecipeEntry("timestamp-getset", "timestamp_getset", "TimestampGetset"),
        RecipeEntry("timestamp-set", "timestamp_set", "TimestampSet"),
        RecipeEntry("company-2013", "company_2013", "Company2013"),
        RecipeEntry("multi-write", "multi_write", "MultiWrite"),
        RecipeEntry("multi-write-unique-index", "multi_write_unique_index", "MultiWriteUniqueIndex"),
        RecipeEntry("set-nx-fixed", "set_nx_fixed", "SetNxFixed"),
        RecipeEntry("set-nx-get-del", "set_nx_get_del", "SetNxGetDel"),
        RecipeEntry("majority-release", "majority_release", "MajorityRelease"),
        RecipeEntry("watchdog", "watchdog", "Watchdog"),
        RecipeEntry("watchdog-naive", "watchdog", "WatchdogNaive"),
        RecipeEntry("backoff", "backoff", "Backoff"),
        RecipeEntry("replica-failover", "replica_failover", "ReplicaFailover"),
        RecipeEntry("replica-delayed-promotion", "replica_failover", "ReplicaDelayedPromotion"),
    )
}
WITHDRAWN = {"read-write": "withdrawn by its author as wrong; not reproduced"}


def all_recipes() -> Mapping[str, RecipeEntry]:
    """Our own recipes, then those of other packages."""
    return {**RECIPES, **{name: entry for name, entry in plugin_recipes().items() if name not in RECIPES}}


def find_recipe(name: str) -> RecipeEntry:
    """The entry of `name`. Raises UsageError with the nearest name, else with all."""
    if name in WITHDRAWN:
        raise UsageError(f"the recipe {name} was {WITHDRAWN[name]}; the recipes are {', '.join(all_recipes())}")
    if name in RECIPES:
        return RECIPES[name]
    try:
        return all_recipes()[name]
    except KeyError:
        hint = nearest(name, all_recipes()) or f"; the recipes are {', '.join(all_recipes())}"
        raise UsageError(f"there is no recipe {name!r}{hint}") from None
