"""The stress rows of the safety matrix: *recipe × pauses and faults → a short load, every operation judged*.

Rules: eight callers in one or two processes want one resource; a lock that is safe must keep exclusion under whatever
pauses and faults it meets on real servers; what breaks the flawed is explored. A row whose faults this machine cannot
do is skipped with the reason.
"""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.errors import EnvironmentNotReadyError, UsageError
from bench.experiments.safety_matrix.result import Finding
from bench.experiments.safety_matrix.row import SKIPPED, PlannedRow, RowSetup, cannot, find
from bench.measure.run_result import RunResult
from bench.measure.verdict import TESTED_LEAST
from bench.recipes.registry import find_recipe
from bench.run.experiment import Done
from bench.run.interrupt import Interrupts
from bench.run.run import Order, run_scenario
from bench.scenario import Fault, Scenario, load

QUICK_MS, FULL_MS = 3000.0, 12_000.0
INTERRUPTED = 130
OVERSLEEP = "after-grant:150ms:0.08"


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What a load meets: stretched pause points, and faults as (kind, target, at ms, for ms).

    `processes` share the callers; `options` of the scenario besides.
    """

    name: str
    about: str
    pauses: tuple[str, ...] = ()
    faults: tuple[tuple[str, str, float, float | None], ...] = ()
    processes: int = 1
    options: Mapping[str, object] | None = None


PAUSES = Disturbance("pauses", "8 % of the holders stall for 150 ms, TTL 60 ms", (OVERSLEEP,))
STOPPED = Disturbance(
    "stopped-clients",
    "load processes stopped for 150 ms, in turn, TTL 60 ms",
    faults=tuple(("stop", f"worker:{number % 2}", 200.0 * number + 100, 150.0) for number in range(11)),
    processes=2,
)
FLUSHED = Disturbance(
    "flushed-scripts",
    "SCRIPT FLUSH five times, and the pauses",
    (OVERSLEEP,),
    tuple(("script-flush", "instance:0", 300.0 * number + 100, None) for number in range(5)),
)
UNSTABLE = Disturbance(
    "minority-faults",
    "one of three instances after another stopped, killed, cut off; and the pauses",
    (OVERSLEEP,),
    (
        ("stop", "instance:0", 100, 250),
        ("client-kill", "instance:1", 600, None),
        ("kill", "instance:2", 900, 150),
        ("stop", "instance:1", 1500, 200),
    ),
    processes=2,
    options={"rejoin": "trust-first", "max_ttl": "500ms"},
)
ROWS: tuple[tuple[Disturbance, tuple[str, ...]], ...] = (
    (PAUSES, ("set-nx-lua", "redlock")),
    (STOPPED, ("set-nx-lua", "redlock")),
    (FLUSHED, ("set-nx-lua",)),
    (UNSTABLE, ("redlock", "redlock-sequential", "redlock-random-order")),
)
_OVERSTAYED = ("pauses", "stopped-clients", "flushed-scripts")  # a disturbance that must be felt, or it proves nothing


def load_cases() -> Iterator[PlannedRow]:
    """The loads, by disturbance."""
    for disturbance, recipes in ROWS:
        for recipe in recipes:
            expected = "safe" if find_recipe(recipe).about.safe else "violated"
            yield PlannedRow(
                "load",
                recipe,
                disturbance.name,
                expected,
                disturbance.about,
                partial(look_at_load, disturbance, recipe),
            )


def scenario_of(disturbance: Disturbance, recipe: str, *, seed: int, duration_ms: float) -> Scenario:
    """The load of one row. The disturbance's faults are repeated until the end."""
    about = find_recipe(recipe).about
    scenario = load(
        None,
        {
            "recipe": recipe,
            "instances": str(3 if about.most is None else about.usual),
            "fsync": "none",
            "users": "8",
            "processes": str(disturbance.processes),
            "resources": "1",
            "ttl": "60ms",
            "hold": "fixed:10ms",
            "wait": "1s",
            "warmup": "100ms",
            "duration": f"{duration_ms:g}ms",
            "seed": str(seed),
            "pause": list(disturbance.pauses),
            **(disturbance.options or {}),
        },
    )
    faults = tuple(
        Fault(kind, at_ms + again * QUICK_MS, for_ms, (target,), "fixed", {})
        for again in range(int(duration_ms // QUICK_MS))
        for kind, target, at_ms, for_ms in disturbance.faults
    )
    return replace(scenario, faults=faults)


def look_at_load(disturbance: Disturbance, recipe: str, setup: RowSetup) -> Finding:
    """Load `recipe` under `disturbance`; what cannot be done here is skipped. Raises KeyboardInterrupt."""
    row = f"{disturbance.name} {recipe}"
    duration_ms = (QUICK_MS if setup.quick else FULL_MS) * 2 ** setup.tries[row]  # too little was tested: longer
    setup.tries[row] += 1
    return _load_once(disturbance, recipe, duration_ms, setup)


def _load_once(disturbance: Disturbance, recipe: str, duration_ms: float, setup: RowSetup) -> Finding:
    scenario = scenario_of(disturbance, recipe, seed=setup.seed, duration_ms=duration_ms)
    with tempfile.TemporaryDirectory(dir=setup.scratch) as folder:
        order = Order(scenario, setup.run_id, [], Path(folder), setup.server)
        try:
            with Interrupts() as interrupts:
                finished = run_scenario(order, interrupts, lambda _progress: None)
        except (EnvironmentNotReadyError, UsageError) as error:  # known beforehand; what else goes wrong says nothing
            return cannot(SKIPPED, str(error))
    if finished.exit_code == INTERRUPTED:
        raise KeyboardInterrupt
    return judge_load(finished, disturbance, safe=find_recipe(recipe).about.safe)


def judge_load(finished: Done[RunResult], disturbance: Disturbance, *, safe: bool) -> Finding:
    """What a load under `disturbance` says of a recipe that is `safe`, or known not to be."""
    result, safety = finished.result, finished.result.safety
    undone = [f"{fault.kind}: {fault.skipped}" for fault in result.faults if fault.skipped]
    figures = {
        "service_faults": safety.service_faults,
        "client_overstays": safety.client_overstays,
        "foreign_deletes": safety.foreign_deletes,
        "granted_after_their_end": safety.granted_invalid,
        "leases": result.totals.acquired,
        "tested": safety.tested_leases,
    }
    needs = {
        f"every fault took place{''.join(f' ({one})' for one in undone[:1])}": not undone,
        f"at least {TESTED_LEAST} leases were tested": safety.tested_leases >= TESTED_LEAST,
        "the history is whole": safety.verdict != "UNKNOWN",
    }
    if disturbance.name in _OVERSTAYED:
        needs["a holder worked past its lease"] = bool(safety.client_overstays or safety.service_faults)
    violated = safety.verdict == "VIOLATED"
    holds = safety.verdict == "SAFE" if safe else bool(safety.service_faults)
    return find(
        ("safe", "violated") if safe else ("violated", "safe"),
        figures,
        {} if holds and not safe else needs,  # a fault that is seen needs nothing more
        holds=holds,
        broken=safe and violated,
        reason=safety.reason,
        safety=safety,
    )
