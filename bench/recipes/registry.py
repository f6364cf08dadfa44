"""Every lock under test by name: *name → what it is known for, and its class when it is asked for*.

Rules: a recipe is imported only when it is used, so listing them needs no gevent and no redis-py. Add a recipe here
and as one file beside this one. Source: the README of this folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module

from bench.errors import UsageError
from bench.recipes.protocol import Recipe, RecipeSettings


@dataclass(frozen=True, slots=True)
class RecipeEntry:
    """A recipe that can be asked for: `flaw` is the one fault it is known for; `instances` None = any number."""

    name: str
    how: str
    flaw: str
    instances: int | None
    module: str
    class_name: str

    def connect(self, targets: Sequence[str], settings: RecipeSettings) -> Recipe:
        """Connect the recipe; see `Recipe.connect`. Raises UsageError for a number of targets it cannot lock on."""
        if self.instances is not None and len(targets) != self.instances:
            raise UsageError(
                f"the recipe {self.name} locks on {self.instances} instance, and {len(targets)} were given; "
                f"use --instances {self.instances}, or one --target"
            )
        connected: Recipe = getattr(import_module(self.module), self.class_name).connect(targets, settings)
        return connected


RECIPES: dict[str, RecipeEntry] = {
    entry.name: entry
    for entry in (
        RecipeEntry(
            "redlock",
            "lockcore's Redlock: all N instances at once, pipelined and multiplexed",
            "none known within its assumptions: bounded clock drift, delayed restart",
            None,
            "bench.recipes.redlock",
            "RedlockRecipe",
        ),
        RecipeEntry(
            "set-nx-lua",
            "one instance through redis-py: SET NX PX with a unique value, compare-and-delete in Lua",
            "none in the lock itself; that one instance is a single point of failure",
            1,
            "bench.recipes.set_nx_lua",
            "SetNxLuaRecipe",
        ),
    )
}


def find_recipe(name: str) -> RecipeEntry:
    """The entry of `name`. Raises UsageError with the names there are."""
    try:
        return RECIPES[name]
    except KeyError:
        raise UsageError(f"there is no recipe {name!r}; the recipes are {', '.join(RECIPES)}") from None
