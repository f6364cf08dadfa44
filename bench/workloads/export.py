"""Telemetry of a worker that nobody follows: *a plain `locust` worker's folder → an exporter in a process beside it*.

Rules: only where OTEL_* variables ask for it; the exporter hears of the worker's end, ordered or not, by the pipe
between them; what it has to say stands in Locust's log. Under `lockbench run` that command's own process exports.
Source: bench.workloads.export_process.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.errors import BenchError
from bench.telemetry.run import Run
from bench.telemetry.settings import is_wanted
from bench.topology.child import Child
from bench.workloads.plan import Plan

END_S = 10.0
FINISH = "finish"
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExportOrder:
    """What the exporter is told: whose `folder` it reads, as worker number `worker` of its host, and what that runs."""

    folder: Path
    worker: int
    targets: tuple[str, ...]
    run: Run


class ExportBeside:
    """The process. Made by `export_beside`; `finish` when the worker's files are complete."""

    def __init__(self, order: ExportOrder) -> None:
        self._child = Child("the exporter", "bench.workloads.export_process")
        self._tell(order)

    def finish(self) -> None:
        """The worker has ended: wait until the rest is exported, and log what there is to say."""
        self._tell(FINISH)
        self._child.finish(END_S)
        for line in self._child.last_words():
            logger.warning(line)
        self._child.close()

    def _tell(self, message: object) -> None:
        with suppress(BenchError):  # it has ended, and says why when it is asked
            self._child.tell(message)


def export_beside(plan: Plan, index: int, folder: Path) -> ExportBeside | None:
    """Export what the worker `index` writes into `folder`; None when nobody asks for it."""
    if not is_wanted(os.environ):
        return None
    scenario = plan.scenario
    run = Run(
        id=plan.run_id,
        recipe=scenario.recipe,
        fsync="unknown",  # the exporter asks
        addresses=[],
        users=scenario.users,
        processes=1,
        rate_per_s=scenario.rate_per_s,
        instance_timeout_ms=scenario.instance_timeout_ms,
    )
    return ExportBeside(ExportOrder(folder, index, tuple(plan.targets), run))
