"""Recipes of other packages: *installed entry points → entries like our own*.

Rules: a package offers one under the entry point group `lockbench.recipes`; its name is the recipe's, its value
`module:Class`, a class as `protocol.RecipeClass` asks for. Nothing of it is imported before it is asked for; one that
cannot be imported is refused with one sentence that names its package. Our own names cannot be taken.
Source: the entry points specification of packaging.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from bench.errors import UsageError
from bench.recipes.about import About
from bench.recipes.entry import RecipeEntry
from bench.recipes.protocol import RecipeClass

GROUP = "lockbench.recipes"
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_PARTS = ("connect", "acquire", "release", "instances", "take_reply_times_ns", "close")


@dataclass(frozen=True, slots=True)
class PluginEntry(RecipeEntry):
    """A recipe of another package; `package` is its name and version."""

    package: str = ""

    @property
    def recipe(self) -> type[RecipeClass]:
        """Its class. Raises UsageError when it cannot be loaded, or is no recipe."""
        point = EntryPoint(self.name, f"{self.module}:{self.class_name}", GROUP)
        try:
            found = point.load()
        except Exception as error:  # noqa: BLE001 - other people's code: whatever it is, the user gets a sentence
            said = f"{type(error).__name__}: {error}"
            raise UsageError(f"the recipe {self.name} of {self.package} cannot be loaded ({said}); repair it") from None
        missing = [part for part in _PARTS if not hasattr(found, part)]
        if missing or not isinstance(getattr(found, "about", None), About):
            lacks = ", ".join(missing or ["about"])
            raise UsageError(
                f"the recipe {self.name} of {self.package} lacks {lacks}; derive it from "
                "bench.recipes.plain.PlainRecipe or see bench.recipes.protocol"
            )
        recipe: type[RecipeClass] = found
        return recipe


def plugin_recipes() -> dict[str, PluginEntry]:
    """Every recipe that an installed package offers, by name, without importing any."""
    found = {}
    for point in entry_points(group=GROUP):
        name, version = (point.dist.name, point.dist.version) if point.dist else ("an unknown package", "")
        if _NAME.fullmatch(point.name) and point.attr:
            found[point.name] = PluginEntry(point.name, point.module, point.attr, f"{name} {version}".strip())
    return dict(sorted(found.items()))
