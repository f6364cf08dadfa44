"""Every lock under test by name: *name → what it is known for, and its class when it is asked for*.

Rules: a recipe is imported only when it is asked for. What is known of it stands in its class (`about`). Add a recipe
here and as one file beside this one. Source: the table in the README of this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from bench.errors import UsageError
from bench.recipes.about import About
from bench.recipes.pause import require_points
from bench.recipes.protected import Protected
from bench.recipes.protocol import Recipe, RecipeClass, RecipeSettings
from bench.scenario.model import Pause


@dataclass(frozen=True, slots=True)
class RecipeEntry:
    """A recipe that can be asked for; `module` stands in this folder."""

    name: str
    module: str
    class_name: str

    @property
    def recipe(self) -> type[RecipeClass]:
        """Its class."""
        found: type[RecipeClass] = getattr(import_module(f"{__package__}.{self.module}"), self.class_name)
        return found

    @property
    def about(self) -> About:
        """What is known of it."""
        return self.recipe.about

    def require(self, instances: int, pauses: Sequence[Pause]) -> None:
        """Raise UsageError for a number of instances it cannot lock on, or a pause at a point it does not have."""
        about = self.about
        if not about.least <= instances <= (about.most or instances):
            noun, given = (
                "instance" if about.most == 1 else "instances",
                "1 was" if instances == 1 else f"{instances} were",
            )
            raise UsageError(
                f"the recipe {self.name} locks on {about.instances} {noun}, and {given} given; "
                f"use --instances {about.usual}, or one --target for each"
            )
        require_points(self.name, about.all_points, pauses)

    def connect(self, targets: Sequence[str], settings: RecipeSettings) -> Recipe:
        """Connect the recipe; see `Recipe.connect`. Raises UsageError as `require`."""
        self.require(len(targets), settings.pause)
        recipe = self.recipe.connect(targets, settings)
        return Protected(recipe, targets[0], settings) if settings.fencing else recipe


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


def find_recipe(name: str) -> RecipeEntry:
    """The entry of `name`. Raises UsageError with the names there are."""
    if name in WITHDRAWN:
        raise UsageError(f"the recipe {name} was {WITHDRAWN[name]}; the recipes are {', '.join(RECIPES)}")
    try:
        return RECIPES[name]
    except KeyError:
        raise UsageError(f"there is no recipe {name!r}; the recipes are {', '.join(RECIPES)}") from None
