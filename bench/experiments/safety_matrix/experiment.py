"""The safety matrix: *recipes, claims → each row looked at, judged, written*.

    schedule   recipe × simulated schedules                lockbench explore
    claim      what is claimed of Redlock and persistence   a figure each

Rules: own servers on loopback, where a claim needs real time; recipes first. A signal ends it at once: the row it cuts
is dropped, the rows before it are kept, judged and written, and nothing else stays.
"""

import time
from collections import Counter
from collections.abc import Sequence

from bench.experiments.explore import search
from bench.experiments.safety_matrix.claims import choose_cases
from bench.experiments.safety_matrix.result import SafetyPlan, SafetyResult, SafetyRow
from bench.experiments.safety_matrix.row import SKIPPED, PlannedRow, RowSetup, judge_rows, look
from bench.measure.run_result import OwnFleet, ServerBinary
from bench.run.experiment import Done, Experiment, ExperimentOrder, Show
from bench.topology.child import Child
from bench.topology.server import find_server


def run_safety(order: ExperimentOrder[SafetyPlan], show: Show) -> Done[SafetyResult]:
    """Look at all rows of `order`, showing progress; the result is written by then, if it can be.

    Raises BenchError when nothing can be looked at here, KeyboardInterrupt when it was cut before the first row's end.
    """
    plan = order.plan
    planned = choose_cases(plan.recipes, plan.claims)
    with Experiment(order) as experiment:
        rows, server = _rows(planned, order, show, experiment)
        experiment.require(rows)
        result = SafetyResult(
            **experiment.header(seed=plan.seed, interrupted=len(rows) < len(planned)),
            fleet=OwnFleet(server=server),
            conditions=plan,
            rows=tuple(rows),
            counts=dict(Counter(row.verdict for row in rows)),
            warnings=tuple(  # what was not looked at here, and why: never silently
                f"{row.recipe}, {row.fault}: {row.verdict}: {row.reason}" for row in rows if row.verdict == SKIPPED
            ),
            verdict=judge_rows(rows, len(planned)),
        )
        return experiment.store(result)


def _rows(
    planned: Sequence[PlannedRow], order: ExperimentOrder[SafetyPlan], show: Show, experiment: Experiment
) -> tuple[list[SafetyRow], ServerBinary]:
    """Look at them, one after the other, until a signal: the rows, and which server it was."""
    rows, plan, server = list[SafetyRow](), order.plan, find_server(order.server)
    with Child("a search process", search.__name__) as searcher, experiment.cuttable():  # a cut row is none
        setup = RowSetup(plan.seed, plan.quick, order.server, searcher, lambda: experiment.is_over)
        for number, one in enumerate(planned, 1):
            show(f"{one.part}: row {number} of {len(planned)}, {one.recipe}, {one.fault}")
            began_s = time.monotonic()
            rows.append(one.row(look(one, setup), time.monotonic() - began_s))
            if experiment.is_over:
                break  # whoever was told has swallowed it
    return rows, server
