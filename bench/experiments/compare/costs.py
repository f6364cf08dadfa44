"""What an acquire costs, counted: *the two sides of a gate → commands, bytes, round trips and connections, exactly*.

Rules
- One caller, a free resource, a relay in between that counts; after some cycles to warm up, the median of some more
  (round trips: the least, as a stall can only add). Servers of our own, in memory, as many as the scenario has.
- These are counts, not measurements: one command more is one command more, so there is no tolerance. More fails; fewer
  passes and is said, so that the baseline can be renewed.
- The cycles are taken by a process of the side's own packages, which is this file started by name (`serve`). It reads
  an order and wishes on stdin, a line each, and answers each; it ends with its stdin.

    {"recipe": …, "targets": […], "ttl_ms": …}     the first line, answered by `ready`
    cycle                                           one acquire of a free resource and its release, answered by `done`
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Literal

from bench.errors import BenchError, EnvironmentNotReadyError
from bench.experiments.compare.result import Exact, ExactRow
from bench.recipes.protocol import RecipeSettings
from bench.recipes.registry import find_recipe
from bench.topology.child import Child
from bench.topology.counting_relay import CountingRelay, Counts
from bench.topology.fleet import start_fleet
from bench.topology.server import find_server
from lockcore import Lease

if TYPE_CHECKING:  # the process that takes the cycles needs no more of the bench than it must
    from bench.experiments.compare.pairs import PairsOrder, Side

WARM_CYCLES, CYCLES = 2, 7
LEAST_TTL_MS = 10_000
RESOURCE = "cycles"
_VERDICTS: dict[int, Literal["same", "more", "fewer"]] = {0: "same", 1: "more", -1: "fewer"}
PATIENCE_MS = 2000.0  # of one instance: replies are held back while they are counted


@dataclass(frozen=True, slots=True)
class ExactCosts:
    """What one acquire of a free resource and its release cost, N instances together, and one client's connections.

    Averages over a fixed number of cycles; where every cycle is alike they are whole numbers.
    """

    commands: float
    bytes_sent: float
    bytes_received: float
    round_trips: float
    connections: float
    connections_at_start: float


def judge_exact(baseline: ExactCosts, candidate: ExactCosts) -> Exact:
    """Return what is the same, more or fewer."""
    rows = tuple(
        ExactRow(name=name, first=first, second=second, verdict=_VERDICTS[(second > first) - (second < first)])
        for (name, first), second in zip(asdict(baseline).items(), asdict(candidate).values(), strict=True)
    )
    failures = tuple(
        f"{row.name.replace('_', ' ')} per acquire: {row.first:g} → {row.second:g}"
        for row in rows
        if row.verdict == "more"
    )
    return Exact(rows=rows, failures=failures)


def count_exactly(order: PairsOrder) -> Exact:
    """Return the costs of the first two sides beside each other; says why where nothing could be counted."""
    try:
        baseline, candidate = (costs_of(side, order.server) for side in order.sides[:2])
    except BenchError as error:
        return Exact(skipped=str(error))
    return judge_exact(baseline, candidate)


def costs_of(side: Side, server: str | None) -> ExactCosts:
    """Return what a cycle of this side costs. Raises BenchError when it cannot be counted."""
    scenario = side.scenario
    if find_recipe(scenario.recipe).about.replicated:
        raise EnvironmentNotReadyError(f"{scenario.recipe} needs a master and replicas: nothing was counted")
    with (
        start_fleet(scenario.instances, "none", server=find_server(server)) as fleet,
        CountingRelay([instance.port for instance in fleet.instances]) as relay,
    ):
        order = {
            "recipe": scenario.recipe,
            "targets": [f"redis://127.0.0.1:{port}" for port in relay.ports],
            "ttl_ms": max(scenario.ttl_ms, LEAST_TTL_MS),
        }
        folder = Path(os.sep)  # what lies in the current folder would be imported before the side's own packages
        with Child("the process that takes the locks", __name__, environ=side.environ(), folder=folder) as child:
            return _counted(child, json.dumps(order), relay)


def _counted(child: Child, order: str, relay: CountingRelay) -> ExactCosts:
    _ask(child, order, "ready")
    at_start = relay.settled()
    seen: list[Counts] = []
    for _ in range(WARM_CYCLES + CYCLES):
        before = relay.settled()
        _ask(child, "cycle", "done")
        seen.append(relay.settled().since(before))
    cycles = seen[WARM_CYCLES:]
    return ExactCosts(
        commands=median(cycle.commands for cycle in cycles),
        bytes_sent=median(cycle.bytes_sent for cycle in cycles),
        bytes_received=median(cycle.bytes_received for cycle in cycles),
        round_trips=min(cycle.round_trips for cycle in cycles),
        connections=median(cycle.connections for cycle in cycles),
        connections_at_start=at_start.connections,
    )


def _ask(child: Child, line: str, wanted: str) -> None:
    """Plain words, no messages: the process may be that of another revision."""
    try:
        child.write(line + "\n")
        said = child.read_line()
    except EnvironmentNotReadyError as error:
        said = str(error)
    if said != wanted:
        raise EnvironmentNotReadyError(f"the costs of a cycle could not be counted: {said.removeprefix('refused ')}")


def serve() -> None:
    """Take cycles as stdin wishes: nobody else wants the resource and nothing is retried, so every cycle is alike."""
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
    serve()
