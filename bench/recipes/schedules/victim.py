"""A client that is a process of its own, to be killed: *an order → it stands at a pause point until its end*.

Rules: it acquires; where its gate is closed it says `standing` and waits for its death. What goes wrong is said,
too, as its parent waits for a word. It ends with its parent, so none outlives a schedule. Source: bench.topology.child.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.errors import EnvironmentNotReadyError
from bench.recipes.protocol import RecipeSettings
from bench.recipes.registry import find_recipe
from bench.recipes.schedules.stage import Client, Gate
from bench.topology.child import Child, orders, say

STANDING = "standing"


@dataclass(frozen=True, slots=True)
class VictimOrder:
    """What a victim is told: a lock, and where it is to stand."""

    recipe: str
    urls: Sequence[str]
    key_prefix: str
    folder: Path | None
    ttl_ms: int
    point: str


class Victim(Child):
    """A running victim, which stands at `point` when the constructor returns.

    Raises EnvironmentNotReadyError when it did not come to that point.
    """

    def __init__(self, recipe: str, urls: Sequence[str], settings: RecipeSettings, ttl_ms: int, point: str) -> None:
        super().__init__(f"a client of {recipe}", "bench.recipes.schedules.victim")
        try:
            self.tell(VictimOrder(recipe, urls, settings.key_prefix, settings.folder, ttl_ms, point))
            if (said := self.hear(str)) != STANDING:
                raise EnvironmentNotReadyError(f"{self.name} did not come to {point}: {said}")
        except BaseException:
            self.close()
            raise

    def kill(self) -> None:
        """SIGKILL: nothing more is sent."""
        self.process.kill()
        self.close()


def _stand(order: VictimOrder) -> None:
    def gate(reached: str) -> None:
        if reached == order.point:
            say(STANDING)
            threading.Event().wait()

    told = RecipeSettings(key_prefix=order.key_prefix, folder=order.folder, gate=gate)
    try:
        recipe = find_recipe(order.recipe).connect(order.urls, told)
        result = Client(recipe, Gate()).acquire(order.ttl_ms)
        say(f"it got past: {result!r}")
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent waits for a word
        say(" ".join(f"{type(error).__name__}: {error}".split()))


def main() -> None:
    """Obey the order, and end when stdin does."""
    for order in orders(VictimOrder):
        threading.Thread(target=_stand, args=(order,), daemon=True).start()
    os._exit(0)


if __name__ == "__main__":
    main()
