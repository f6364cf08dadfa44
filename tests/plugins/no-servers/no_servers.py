"""lockcore on servers that cost nothing, as a recipe: *what the load processes alone can do*.

The connections of the lock are answered in this process, in the hub's next turn, as servers that
always grant would. For the question whether several load processes scale, on machines with too few
cores for the servers, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from gevent import get_hub

from bench.recipes.protocol import RecipeSettings
from bench.recipes.redlock import RedlockRecipe
from lockcore.clock import monotonic_ns

GRANTED = b"+OK\r\n"
RELEASED = b":1\r\n"
# the 6 of *6, which begins SET key owner NX PX ttl
SET = 54


def replies(commands: bytes) -> bytes:
    """The replies to whole commands whose arguments hold no asterisk."""
    return b"".join([GRANTED if part[0] == SET else RELEASED for part in commands.split(b"*")[1:]])


class NoServers(RedlockRecipe):
    """RedlockRecipe, connected to real servers and never asking them again."""

    # found by whoever looks whether this is a recipe; each one made has its own
    acquire: Any = None
    release: Any = None
    close: Any = None

    @classmethod
    def connect(cls, targets: Sequence[str], settings: RecipeSettings) -> Self:
        """See `Recipe.connect`."""
        recipe = super().connect(targets, settings)
        driver: Any = recipe._lock._driver
        # a batch, the same for every instance, and its replies
        last: list[bytes] = [b"", b""]

        def answered(index: int) -> Any:
            waiting: list[bytes] = []

            def answer() -> None:
                data = b"".join(waiting)
                waiting[:] = []
                driver.engine.received(index, data, monotonic_ns())
                if driver.engine.ready:
                    driver.wake()

            def transmit(data: bytes) -> int:
                if data is not last[0]:
                    last[:] = [data, replies(data)]
                if not waiting:
                    get_hub().loop.run_callback(answer)
                waiting.append(last[1])
                return 0

            return transmit

        for index, pipe in enumerate(driver.engine.pipes):
            pipe.transmit = answered(index)
        return recipe
