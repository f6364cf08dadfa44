"""A client that is a process of its own, to be killed: *an order → it stands at a pause point until its end*.

Rules: it acquires; where its gate is closed it says `standing` and waits for its death. What goes wrong ends it, so its
parent, which waits for a word, hears why. It ends with its parent, so none outlives a schedule.
Source: bench.topology.child.
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
STANDS_S = 60.0  # a process is started and a lock is taken


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
            if (said := self.hear(str, STANDS_S)) != STANDING:
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
    result = Client(find_recipe(order.recipe).connect(order.urls, told), Gate()).acquire(order.ttl_ms)
    say(f"it got past: {result!r}")


def main() -> None:
    """Obey the order, and end when stdin does."""
    told = orders(VictimOrder)
    order = next(told)
    threading.Thread(target=lambda: (list(told), os._exit(0)), daemon=True).start()
    _stand(order)  # in the main thread: an error there ends the process, whose last words its parent reads


if __name__ == "__main__":
    main()
