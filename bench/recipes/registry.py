"""The registry of all locks under test, including the locks of plug-ins.

For each name, the registry has the class of a recipe and facts about the recipe. The registry
imports a recipe only when someone asks for its class or its facts. Another package offers its
recipes in the entry point group `lockbench.recipes`. The name of the entry point is the name of the
recipe. The value of the entry point is `module:Class`, and the class must implement
`protocol.RecipeClass`. A package cannot replace lockbench's own recipes. Source: the entry points
specification of packaging.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from bench.errors import UsageError
from bench.recipes.fencing import Protected
from bench.recipes.protocol import About, Recipe, RecipeClass, RecipeSettings
from bench.scenario import Pause
from bench.scenario.quantity import require_known

GROUP = "lockbench.recipes"
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_PARTS: tuple[str, ...] = (
    "connect",
    "acquire",
    "release",
    "instances",
    "take_reply_times_ns",
    "close",
)


@dataclass(frozen=True, slots=True)
class RecipeEntry:
    """A recipe that a scenario can name.

    `place` is the location of the recipe's class, written as `module:Class`. `package` is the name
    and version of the package that offers the recipe, or "" for lockbench's own recipes.
    """

    name: str
    place: str
    package: str = ""

    @property
    def recipe(self) -> type[RecipeClass]:
        """The class of the recipe.

        Raises UsageError if the class of another package cannot be loaded, or is not a recipe.
        """
        point = EntryPoint(self.name, self.place, GROUP)
        try:
            recipe_class: type[RecipeClass] = point.load()
        except Exception as error:
            if not self.package:
                raise
            fault = f"{type(error).__name__}: {error}"
            raise UsageError(
                f"the recipe {self.name} of {self.package} cannot be loaded ({fault}); repair it"
            ) from None
        about = getattr(recipe_class, "about", None)
        parts = _PARTS
        if isinstance(about, About) and about.shares:
            parts = (*_PARTS, "acquire_shared")
        missing = [part for part in parts if not hasattr(recipe_class, part)]
        if self.package and (missing or not isinstance(about, About)):
            lacks = ", ".join(missing or ["about"])
            raise UsageError(
                f"the recipe {self.name} of {self.package} lacks {lacks}; derive it from "
                "bench.recipes.plain.PlainRecipe or see bench.recipes.protocol"
            )
        return recipe_class

    @property
    def about(self) -> About:
        """The description of the recipe."""
        return self.recipe.about

    @property
    def usual_processes(self) -> int:
        """The number of load processes that lockbench starts by default.

        A recipe of another package gets two processes, because lockbench's authors have not
        reviewed it. If the load had only one process, a lock that works only inside one process
        would look safe.
        """
        return 2 if self.package else 1

    def require(
        self, instances: int, pauses: Sequence[Pause], capacity: int, *, shared: bool
    ) -> None:
        """Raise UsageError if the recipe cannot work with these arguments.

        The recipe must be able to use `instances` instances. The recipe must have the pause points
        that `pauses` name. If `capacity` is above 1, the recipe must allow several holders. If
        `shared` is true, the recipe must have readers. If `shared` is false, the recipe must not
        have readers.
        """
        about = self.about
        if shared and not about.shares:
            raise UsageError(
                f"the recipe {self.name} has no readers, but --shared needs readers; use --recipe "
                "reader-writer"
            )
        if about.shares and not shared:
            raise UsageError(f"the recipe {self.name} is for readers and writers; add --shared")
        if capacity > 1 and not about.counts:
            raise UsageError(
                f"the recipe {self.name} lets one caller hold a resource, but --capacity is "
                f"{capacity}; use --recipe semaphore"
            )
        if not about.least <= instances <= (about.most or instances):
            noun = "instance" if about.most == 1 else "instances"
            number = "1 was" if instances == 1 else f"{instances} were"
            raise UsageError(
                f"the recipe {self.name} locks on {about.instances} {noun}, but {number} "
                f"given; use --instances {about.usual}, or name each instance with --target"
            )
        for pause in pauses:
            if pause.point not in about.all_points:
                points = ", ".join(about.all_points)
                raise UsageError(
                    f"the recipe {self.name} has no pause point {pause.point!r}; its "
                    f"points are {points}"
                )

    def connect(self, targets: Sequence[str], settings: RecipeSettings) -> Recipe:
        """Connect the recipe, as `RecipeClass.connect` describes.

        This method does not check whether the load has readers. So it can connect a recipe for
        readers and writers even if the load has no readers. Raises UsageError for every other
        reason for which `require` raises UsageError.
        """
        self.require(len(targets), settings.pause, settings.capacity, shared=self.about.shares)
        recipe = self.recipe.connect(targets, settings)
        return Protected(recipe, targets[0], settings) if settings.fencing else recipe


RECIPES: dict[str, RecipeEntry] = {
    name: RecipeEntry(name, f"{__package__}.{place}")
    for name, place in {
        "redlock": "redlock:RedlockRecipe",
        "redlock-sequential": "redlock:RedlockSequential",
        "redlock-random-order": "redlock:RedlockRandomOrder",
        "set-nx-lua": "one_instance:SetNxLuaRecipe",
        "semaphore": "one_instance:Semaphore",
        "semaphore-off-by-one": "one_instance:SemaphoreOffByOne",
        "reader-writer": "reader_writer:ReaderWriter",
        "reader-writer-late": "reader_writer:ReaderWriterLate",
        "set-nx-blpop": "woken:SetNxBlpop",
        "set-nx-pubsub": "woken:SetNxPubsub",
        "get-set": "one_instance:GetSet",
        "setnx": "one_instance:Setnx",
        "setnx-expire": "one_instance:SetnxExpire",
        "timestamp-getset": "one_instance:TimestampGetset",
        "timestamp-set": "one_instance:TimestampSet",
        "company-2013": "one_instance:Company2013",
        "multi-write": "several_instances:MultiWrite",
        "multi-write-unique-index": "several_instances:MultiWriteUniqueIndex",
        "set-nx-fixed": "one_instance:SetNxFixed",
        "set-nx-get-del": "one_instance:SetNxGetDel",
        "majority-release": "redlock:MajorityRelease",
        "watchdog": "one_instance:Watchdog",
        "watchdog-naive": "one_instance:WatchdogNaive",
        "backoff": "one_instance:Backoff",
        "replica-failover": "several_instances:ReplicaFailover",
        "replica-delayed-promotion": "several_instances:ReplicaDelayedPromotion",
    }.items()
}
WITHDRAWN = {"read-write": "withdrawn by its author as wrong, so lockbench does not implement it"}


def all_recipes() -> Mapping[str, RecipeEntry]:
    """Return all recipes by name: first lockbench's own recipes, then the recipes of installed
    packages. The function imports no recipe."""
    foreign_recipes = {}
    for point in entry_points(group=GROUP):
        name, version = (
            (point.dist.name, point.dist.version) if point.dist else ("an unknown package", "")
        )
        if _NAME.fullmatch(point.name) and point.attr and point.name not in RECIPES:
            foreign_recipes[point.name] = RecipeEntry(
                point.name, point.value, f"{name} {version}".strip()
            )
    return {**RECIPES, **dict(sorted(foreign_recipes.items()))}


def find_recipe(name: str) -> RecipeEntry:
    """Return the entry of the recipe `name`. If there is no such recipe, raise UsageError. The
    error message suggests the nearest name, or it lists all names."""
    if name in WITHDRAWN:
        raise UsageError(
            f"the recipe {name} was {WITHDRAWN[name]}; the recipes are {', '.join(all_recipes())}"
        )
    if name in RECIPES:
        return RECIPES[name]
    require_known("recipe", [name], all_recipes())
    return all_recipes()[name]
