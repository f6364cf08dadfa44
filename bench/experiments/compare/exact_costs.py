"""What an acquire costs, counted: *the two sides of a gate → commands, bytes, round trips and connections, exactly*.

Rules: one caller, a free resource, a relay in between that counts; after some cycles to warm up, the median of some
more (round trips: the least, as a stall can only add). Servers of our own, in memory, as many as the scenario has.
Source: bench.topology.counting_relay.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import median
from typing import Any

from bench.errors import BenchError, EnvironmentNotReadyError
from bench.experiments.compare.exact import ExactCosts, judge_exact, skipped
from bench.experiments.compare.pairs import PairsOrder, Side
from bench.recipes.registry import find_recipe
from bench.topology.child import Child
from bench.topology.counting_relay import CountingRelay, Counts
from bench.topology.fleet import start_fleet
from bench.topology.server import find_server

WARM_CYCLES, CYCLES = 2, 7
LEAST_TTL_MS = 10_000


def count_exactly(order: PairsOrder) -> dict[str, Any]:
    """Return the section `exact` for the first two sides; says why where nothing could be counted."""
    try:
        baseline, candidate = (costs_of(side, order.server) for side in order.sides[:2])
    except BenchError as error:
        return skipped(str(error))
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
        module = "bench.experiments.compare.cycles_process"
        with Child("the process that takes the locks", module, environ=side.environ(), folder=folder) as child:
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
