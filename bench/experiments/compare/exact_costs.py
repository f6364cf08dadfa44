"""What an acquire costs, counted: *the two sides of a gate → commands, bytes, round trips and connections, exactly*.

Rules: one caller, a free resource, a relay in between that counts; after some cycles to warm up, the median of some
more (round trips: the least, as a stall can only add). Servers of our own, in memory, as many as the scenario has.
Source: bench.topology.counting_relay.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from statistics import median
from typing import Any

from bench.errors import BenchError, EnvironmentNotReadyError
from bench.experiments.compare.exact import ExactCosts, judge_exact, skipped
from bench.experiments.compare.pairs import PairsOrder, Side
from bench.recipes.registry import find_recipe
from bench.topology.counting_relay import CountingRelay, Counts
from bench.topology.fleet import start_fleet
from bench.topology.server import find_server

WARM_CYCLES, CYCLES = 2, 7
LEAST_TTL_MS = 10_000
END_S = 10.0


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
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.experiments.compare.cycles_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=side.environ(),
            cwd=os.sep,  # what lies in the current folder would be imported before the side's own packages
            text=True,
        )
        try:
            return _counted(process, json.dumps(order), relay)
        finally:
            process.kill()
            process.communicate()


def _counted(process: subprocess.Popen[str], order: str, relay: CountingRelay) -> ExactCosts:
    _ask(process, order, "ready")
    at_start = relay.settled()
    seen: list[Counts] = []
    for _ in range(WARM_CYCLES + CYCLES):
        before = relay.settled()
        _ask(process, "cycle", "done")
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


def _ask(process: subprocess.Popen[str], line: str, wanted: str) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(line + "\n")
        process.stdin.flush()
        answer = process.stdout.readline().strip()
    except OSError:
        answer = ""
    if answer != wanted:
        said = answer.removeprefix("refused ") or "the process that takes the locks ended"
        raise EnvironmentNotReadyError(f"the costs of a cycle could not be counted: {said}")
