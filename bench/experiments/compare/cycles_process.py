"""Single lock cycles on demand, in a process of their own: *an order and wishes on stdin → a line for each*.

    {"recipe": …, "targets": […], "ttl_ms": …}     the first line, answered by `ready`
    cycle                                           one acquire of a free resource and its release, answered by `done`

Rules: nobody else wants the resource and nothing is retried, so every cycle is alike. Ends with its stdin.
"""

from __future__ import annotations

import json
import sys

from bench.errors import BenchError
from bench.recipes.protocol import RecipeSettings
from bench.recipes.registry import find_recipe
from lockcore import Lease

RESOURCE = "cycles"
PATIENCE_MS = 2000.0  # of one instance: replies are held back while they are counted


def main() -> None:
    """Serve one order."""
    order = json.loads(sys.stdin.readline())
    settings = RecipeSettings(
        key_prefix="lockbench:cycles:", max_ttl_ms=order["ttl_ms"], instance_timeout_ms=PATIENCE_MS
    )
    try:
        recipe = find_recipe(order["recipe"]).connect(order["targets"], settings)
    except BenchError as error:
        _say(f"refused {error}")
        return
    try:
        _say("ready")
        for _ in sys.stdin:
            lease = recipe.acquire(RESOURCE, order["ttl_ms"], 0)
            if not isinstance(lease, Lease):
                _say(f"refused the lock was not granted: {lease}")
                return
            recipe.release(lease)
            _say("done")
    finally:
        recipe.close()


def _say(text: str) -> None:
    sys.stdout.write(text.replace("\n", " ") + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
