"""A recipe that can be asked for: *its name, where its class stands → a connected lock, or why not*.

Rules: its class is imported only when something of it is asked for; what it cannot do with the instances or pauses that
were given is refused before anything is connected. Source: bench.recipes.protocol.
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
