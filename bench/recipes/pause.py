"""Places in a recipe where a caller can be held up: *a point's name, on every pass → a sleep, a gate, or nothing*.

Rules
- A recipe calls `pause("after-get")` at each of its points. Unless somebody asked for one, that is a call of an empty
  function.
- A scenario's pause sleeps on its share of the passes, drawn from the seed and the process: a run repeats.
- A gate is told of every pass and returns when the caller may go on: how a test or a schedule makes a race certain.
- A point that the recipe does not have is refused, with the points it has.

Source: natural load almost never hits a gap of 20 µs (0 in 215,000 cycles when tried).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from random import Random

from bench.errors import UsageError
from bench.scenario.model import Pause

Reach = Callable[[str], None]


def require_points(recipe: str, points: Sequence[str], pauses: Sequence[Pause]) -> None:
    """Raise UsageError for a pause at none of the `points` of `recipe`."""
    for pause in pauses:
        if pause.point not in points:
            raise UsageError(
                f"the recipe {recipe} has no pause point {pause.point!r}; its points are {', '.join(points)}"
            )


def reach_of(pauses: Sequence[Pause], seed: int, process: int, gate: Reach | None = None) -> Reach:
    """What a recipe of the given process calls at its points; `pass_by` itself when nothing can happen there."""
    if not pauses:
        return gate or pass_by
    stretches: dict[str, list[tuple[float, float, Random]]] = {}
    for number, pause in enumerate(pauses):
        dice = Random(f"{seed} {process} {number}")
        stretches.setdefault(pause.point, []).append((pause.share, pause.ms / 1000, dice))

    def reach(point: str) -> None:
        if gate is not None:
            gate(point)
        for share, seconds, dice in stretches.get(point, ()):
            if dice.random() < share:
                time.sleep(seconds)

    return reach


def pass_by(_point: str) -> None:
    """Nobody is held up anywhere."""
